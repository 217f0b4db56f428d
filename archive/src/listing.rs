//! The contents of an archive, and the commits that can be restored from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{ArchiveError, Gap, Result};
use crate::names::{Piece, parse_owner};

/// The contents of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Fulls and changes with the bytes of their objects, fulls first, each kind in the order of commits.
    pieces: BTreeMap<Piece, u64>,
    /// Number of the archive's database.
    database: Option<u64>,
    /// Names of other objects.
    others: Vec<String>,
    /// The commits that can be restored, each with the piece that is used to reach it.
    restorable: BTreeMap<u64, Piece>,
}

impl Listing {
    /// A listing of objects by name, with their bytes. Two databases are refused.
    pub(crate) fn new(objects: impl Iterator<Item = (String, u64)>) -> Result<Self> {
        let mut listing = Self::default();
        for (name, bytes) in objects {
            if let Some(piece) = Piece::parse(&name) {
                listing.pieces.insert(piece, bytes);
            } else if let Some(database) = parse_owner(&name) {
                if let Some(one) = listing.database.replace(database) {
                    return Err(ArchiveError::TwoDatabases { one, other: database });
                }
            } else {
                listing.others.push(name);
            }
        }
        listing.others.sort_unstable();
        listing.restorable = listing.reach(listing.fulls());
        Ok(listing)
    }

    /// The commits of the fulls, ascending.
    pub fn fulls(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.pieces.keys().filter_map(|piece| match piece {
            Piece::Full { commit } => Some(*commit),
            Piece::Changes { .. } => None,
        })
    }

    /// The changes: from which commit to which, ascending.
    pub fn changes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pieces.keys().filter_map(|piece| match piece {
            Piece::Full { .. } => None,
            Piece::Changes { from, to } => Some((*from, *to)),
        })
    }

    /// Fulls and changes with the bytes of their objects, fulls first.
    pub fn pieces(&self) -> impl Iterator<Item = (Piece, u64)> + '_ {
        self.pieces.iter().map(|(piece, bytes)| (*piece, *bytes))
    }

    /// The commits that can be restored, ascending.
    pub fn restorable(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.restorable.keys().copied()
    }

    /// The newest commit that can be restored.
    pub fn newest(&self) -> Option<u64> {
        self.restorable().next_back()
    }

    /// The number of the archive's database ([`Db::id`](pleach::Db::id)).
    pub fn database(&self) -> Option<u64> {
        self.database
    }

    /// The gaps of the archive: changes behind a gap cannot be restored.
    pub fn gaps(&self) -> Vec<Gap> {
        let reached: BTreeSet<u64> = self.changes().map(|(_, to)| to).collect();
        let is_gap = |from: &u64| !self.restorable.contains_key(from) && !reached.contains(from);
        let mut before: Vec<u64> = self.changes().map(|(from, _)| from).filter(is_gap).collect();
        before.dedup();
        let gap = |before| Gap { after: self.before(before), before };
        before.into_iter().map(gap).collect()
    }

    /// Changes behind a gap, which lead to no commit that can be restored.
    pub fn useless(&self) -> Vec<Piece> {
        let is_useless = |piece: &&Piece| match piece {
            Piece::Full { .. } => false,
            Piece::Changes { from, .. } => !self.restorable.contains_key(from),
        };
        self.pieces.keys().filter(is_useless).copied().collect()
    }

    /// Names of objects that do not belong to an archive.
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// Refuses an archive of another database than this one.
    pub(crate) fn refuse_other(&self, database: u64) -> Result<()> {
        match self.database.filter(|archived| *archived != database) {
            Some(archived) => Err(ArchiveError::OtherDatabase { archived, database }),
            None => Ok(()),
        }
    }

    /// The newest commit that any piece names.
    pub(crate) fn last(&self) -> Option<u64> {
        self.pieces.keys().map(|piece| piece.to()).max()
    }

    /// Bytes of a piece's object; none when it does not exist.
    pub(crate) fn bytes(&self, piece: Piece) -> Option<u64> {
        self.pieces.get(&piece).copied()
    }

    /// The newest commit before another one that can be restored.
    pub(crate) fn before(&self, commit: u64) -> Option<u64> {
        self.restorable.range(..commit).next_back().map(|(commit, _)| *commit)
    }

    /// The pieces that lead to a commit: the newest full from which there is a way, and the changes from there.
    pub(crate) fn pieces_to(&self, commit: u64) -> Option<Vec<Piece>> {
        self.fulls().rev().filter(|full| *full <= commit).find_map(|full| {
            let changes = self.between(full, commit)?;
            Some([vec![Piece::Full { commit: full }], changes].concat())
        })
    }

    /// The changes that lead from a commit to a later one, or to the same.
    pub(crate) fn between(&self, from: u64, to: u64) -> Option<Vec<Piece>> {
        let reached = self.reach(std::iter::once(from));
        let (mut at, mut way) = (to, Vec::new());
        while at > from {
            let piece = *reached.get(&at)?;
            let Piece::Changes { from, .. } = piece else { return None };
            way.push(piece);
            at = from;
        }
        way.reverse();
        (at == from).then_some(way)
    }

    /// The newest commit that changes lead to from a commit; the same when there are none.
    pub(crate) fn newest_from(&self, from: u64) -> u64 {
        self.reach(std::iter::once(from)).keys().next_back().copied().unwrap_or(from)
    }

    /// The listing without a piece.
    pub(crate) fn without(&self, piece: Piece) -> Self {
        let mut rest = Self { pieces: self.pieces.clone(), ..Self::default() };
        rest.pieces.remove(&piece);
        rest.restorable = rest.reach(rest.fulls());
        rest
    }

    /// Why a commit cannot be restored.
    pub(crate) fn not_archived(&self, commit: u64) -> ArchiveError {
        let after = self.restorable.range(commit..).next().map(|(commit, _)| *commit);
        // A commit behind a gap is in the gap up to the next commit that can be restored.
        let is_archived = self.pieces.keys().any(|piece| piece.to() == commit);
        let missing = self.gaps().into_iter().rfind(|gap| is_archived && gap.before < commit);
        ArchiveError::NotArchived { commit, missing, before: self.before(commit), after }
    }

    /// All commits that can be reached from some, each with the piece that leads to it. Changes lead to later commits,
    /// and are in the order of the commits before them: so one pass is enough.
    fn reach(&self, from: impl Iterator<Item = u64>) -> BTreeMap<u64, Piece> {
        let mut reached: BTreeMap<u64, Piece> =
            from.map(|commit| (commit, Piece::Full { commit })).collect();
        for (from, to) in self.changes() {
            if reached.contains_key(&from) {
                reached.entry(to).or_insert(Piece::Changes { from, to });
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(fulls: &[u64], changes: &[(u64, u64)]) -> Listing {
        let fulls = fulls.iter().map(|commit| Piece::Full { commit: *commit });
        let changes = changes.iter().map(|(from, to)| Piece::Changes { from: *from, to: *to });
        Listing::new(fulls.chain(changes).map(|piece| (piece.name(), 1))).expect("of one database")
    }

    fn changes(list: &[(u64, u64)]) -> Vec<Piece> {
        list.iter().map(|(from, to)| Piece::Changes { from: *from, to: *to }).collect()
    }

    #[test]
    fn names_of_pieces_are_read_back_and_others_are_not_taken_for_them() {
        for piece in [Piece::Full { commit: 0x1234 }, Piece::Changes { from: 0, to: u64::MAX }] {
            assert_eq!(Piece::parse(&piece.name()), Some(piece));
        }
        let names = [
            "full-12.plx",
            "full-00000000000000FF.plx",
            "full-00000000000000ff.plx#1",
            "changes-0000000000000005-0000000000000005.plx",
            "changes-0000000000000005.plx",
            "database-00",
        ];
        let listing = Listing::new(names.iter().map(|name| ((*name).to_owned(), 0)));
        let listing = listing.expect("of no database");
        assert_eq!((listing.pieces().count(), listing.others().len()), (0, names.len()));
        assert_eq!((listing.newest(), listing.database()), (None, None));
    }

    #[test]
    fn a_commit_is_restored_from_the_newest_full_that_leads_to_it() {
        let listing = listing(&[1, 9], &[(1, 5), (5, 12), (9, 10), (10, 12), (12, 20)]);
        assert!(listing.restorable().eq([1, 5, 9, 10, 12, 20]));
        let full = vec![Piece::Full { commit: 9 }];
        let way = [full, changes(&[(9, 10), (10, 12), (12, 20)])].concat();
        assert_eq!(listing.pieces_to(20), Some(way));
        let without = listing.without(Piece::Full { commit: 9 });
        let full = vec![Piece::Full { commit: 1 }];
        assert_eq!(
            without.pieces_to(20),
            Some([full, changes(&[(1, 5), (5, 12), (12, 20)])].concat())
        );
        assert_eq!((listing.pieces_to(11), listing.between(5, 9)), (None, None));
        assert_eq!((listing.between(20, 20), listing.newest_from(5)), (Some(Vec::new()), 20));
        assert!(listing.gaps().is_empty() && listing.useless().is_empty());
    }

    #[test]
    fn a_gap_is_told_with_what_is_on_both_of_its_sides() {
        let listing = listing(&[3, 30], &[(3, 7), (9, 12), (12, 15), (30, 31)]);
        assert_eq!(listing.gaps(), [Gap { after: Some(7), before: 9 }]);
        assert_eq!(listing.useless(), changes(&[(9, 12), (12, 15)]));
        let text = listing.not_archived(15).to_string();
        let expected = "commit 15 cannot be restored: changes from commit 7 to 9 are missing; restore commit 7 or 30";
        assert_eq!(text, expected);
        let text = listing.not_archived(5).to_string();
        let expected = "commit 5 cannot be restored: it was not archived; restore commit 3 or 7";
        assert_eq!(text, expected);
        let nothing = self::listing(&[], &[(1, 2)]);
        assert_eq!(nothing.gaps(), [Gap { after: None, before: 1 }]);
        let text = nothing.not_archived(2).to_string();
        assert!(text.contains("a full of commit 1 or before is missing"), "{text}");
    }
}
