//! The words of the model: keys, positions, pages, records, the memory of a process, and what the oracle remembers.
//!
//! Three keys in two regions. Region 0 is cut either *coarse* (one page for keys 0 and 1) or *fine* (one page each); region 1
//! has one page for key 2. The node of a position is the list of values under it, so that a wrong node cannot pass for a
//! right one; the root is all three values. The value 0 is an absent key.
//!
//! Region 1 is the whole trie of a namespace of its own, which can be dropped, given up and added again. Whether it
//! exists is the fourth of the values: it is changed, undone and rolled back like one. While it does not exist, the
//! value of key 2 is what the dropped trie has, and nobody may see it.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::medium::{Media, Unit};
use crate::table::{Fate, Table};

pub(crate) const KEYS: usize = 3;
pub(crate) const PLACES: usize = 5;
pub(crate) const REGIONS: usize = 2;

/// Among the values: does the namespace of region 1 exist?
pub(crate) const THERE: usize = 3;
pub(crate) const SLOTS: usize = 4;

pub(crate) type Values = [u8; SLOTS];
pub(crate) type Changes = [Option<u8>; SLOTS];
pub(crate) type Node = [u8; 2];

/// A trie position that can have a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Position {
    /// Region 0 uncut: keys 0 and 1.
    Coarse,
    /// Region 0 cut finer: key 0.
    Left,
    /// Region 0 cut finer: key 1.
    Right,
    /// Region 1: key 2.
    Other,
}

impl Position {
    pub(crate) fn keys(self) -> std::ops::Range<usize> {
        match self {
            Self::Coarse => 0..2,
            Self::Left => 0..1,
            Self::Right => 1..2,
            Self::Other => 2..3,
        }
    }

    /// The node of this position when the state is `values`.
    pub(crate) fn node(self, values: Values) -> Node {
        let mut node = [u8::MAX; 2];
        for (slot, key) in node.iter_mut().zip(self.keys()) {
            *slot = values[key];
        }
        node
    }

    pub(crate) fn value_in(self, node: Node, key: usize) -> u8 {
        node[key - self.keys().start]
    }
}

pub(crate) fn region_of(key: usize) -> usize {
    usize::from(key == 2)
}

pub(crate) fn keys_of(region: usize) -> std::ops::Range<usize> {
    if region == 0 { 0..2 } else { 2..3 }
}

/// The layout of region 0, and that of region 1 (which never changes).
pub(crate) fn positions(region: usize, fine: bool) -> &'static [Position] {
    match (region, fine) {
        (0, false) => &[Position::Coarse],
        (0, true) => &[Position::Left, Position::Right],
        _ => &[Position::Other],
    }
}

/// A leaf page as written. Equality stands for the checksum, and so for the tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Page {
    /// Incarnation and counter.
    pub(crate) flush: (u8, u8),
    pub(crate) position: Position,
    pub(crate) through: u8,
    pub(crate) values: Node,
}

/// What a branch page holds for one child.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) position: Position,
    /// Page number and tag.
    pub(crate) page: Option<(u8, Rc<Page>)>,
    pub(crate) node: Node,
}

/// A level-1 branch page with the changes that pend on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub(crate) entries: Vec<Entry>,
    /// Newest committed value not in a page, with its commit number.
    pub(crate) pending: [Option<(u8, u8)>; KEYS],
    /// Log position behind the last record applied.
    pub(crate) applied: u8,
    /// Last commit applied.
    pub(crate) changed: u8,
}

impl Region {
    /// Region 1 of a trie without pages, behind this log position.
    pub(crate) fn empty(behind: u8, number: u8) -> Self {
        let position = Position::Other;
        Self {
            entries: vec![Entry { position, page: None, node: position.node([0; SLOTS]) }],
            pending: [None; KEYS],
            applied: behind,
            changed: number,
        }
    }

    pub(crate) fn entry(&self, key: usize) -> &Entry {
        let found = self.entries.iter().find(|entry| entry.position.keys().contains(&key));
        found.expect("the entries of a region tile it")
    }

    /// Drops the pending changes that the pages of this region contain.
    pub(crate) fn retire(&mut self) {
        for at in 0..KEYS {
            let Some((value, number)) = self.pending[at] else { continue };
            let contained = match &self.entry(at).page {
                // No page, no value: what pends is in it if it is a deletion.
                None => value == 0,
                Some((_, page)) => number <= page.through,
            };
            if contained {
                self.pending[at] = None;
            }
        }
    }

    /// Takes over one commit. `false` if a node belongs to a position that no child of this region has.
    pub(crate) fn apply_commit(&mut self, region: usize, commit: &Commit, behind: u8) -> bool {
        for key in keys_of(region) {
            if let Some(value) = commit.changes[key] {
                self.pending[key] = Some((value, commit.number));
            }
        }
        self.applied = behind;
        self.changed = commit.number;
        let mut known = true;
        for (position, node) in &commit.nodes {
            if region_of(position.keys().start) == region {
                match self.entries.iter_mut().find(|entry| entry.position == *position) {
                    Some(entry) => entry.node = *node,
                    None => known = false,
                }
            }
        }
        known
    }

    /// Takes over new pages. `false` if they replace positions that are not there.
    pub(crate) fn apply_location(&mut self, location: &Location) -> bool {
        let known = location
            .replaced
            .iter()
            .all(|old| self.entries.iter().any(|entry| entry.position == *old));
        self.entries.retain(|entry| !location.replaced.contains(&entry.position));
        self.entries.extend(location.entries.iter().cloned());
        self.entries.sort_by_key(|entry| entry.position);
        known
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Commit {
    pub(crate) number: u8,
    pub(crate) changes: Changes,
    pub(crate) fate: Option<Fate>,
    /// Prior values: the undo.
    pub(crate) replaced: Changes,
    /// The oldest commit that can be read when this one is the newest.
    pub(crate) kept_from: u8,
    pub(crate) nodes: Vec<(Position, Node)>,
    pub(crate) root: Values,
}

impl Commit {
    pub(crate) fn touches(&self, region: usize) -> bool {
        keys_of(region).any(|key| self.changes[key].is_some())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    pub(crate) region: usize,
    pub(crate) replaced: Vec<Position>,
    pub(crate) entries: Vec<Entry>,
    /// Numbers of the pages that are replaced.
    pub(crate) freed: Vec<u8>,
}

impl Location {
    /// Numbers of the new pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u8> {
        self.entries.iter().filter_map(|entry| entry.page.as_ref().map(|(page_no, _)| *page_no))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Commit(Commit),
    Location(Location),
    /// A location record that gives up the dropped trie of region 1.
    GiveUp,
}

/// A log record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) position: u8,
    pub(crate) incarnation: u8,
    pub(crate) durable_through: u8,
    /// Checksum of the record before.
    pub(crate) previous: u32,
    pub(crate) body: Body,
}

impl Record {
    pub(crate) fn checksum(&self) -> u32 {
        u32::try_from(fingerprint(self) >> 32).expect("32 bits remain")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) generation: u8,
    pub(crate) table: Table,
    pub(crate) regions: [Region; REGIONS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Superblock {
    pub(crate) generation: u8,
    /// Which image file.
    pub(crate) image: usize,
    pub(crate) replay_start: u8,
    /// Where the records of the history begin, at or below the replay start.
    pub(crate) history_from: u8,
    pub(crate) durable_through: u8,
    /// Checksum and incarnation of the record before the replay start.
    pub(crate) previous: u32,
    pub(crate) incarnation: u8,
    /// Commit number and root at the replay start.
    pub(crate) number: u8,
    pub(crate) root: Values,
}

/// What a session's `finish` leaves for the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Finished {
    /// The layout of region 0 that its nodes are made for.
    pub(crate) fine: bool,
    /// The past commit that it goes back to, when it is a rollback.
    pub(crate) back_to: Option<u8>,
    /// The state that it is made on, and its number.
    pub(crate) on: Values,
    pub(crate) parent: u8,
    /// The first half of it is ticketed (only in mutants that halve).
    pub(crate) rest: bool,
}

/// What a commit replaced, in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Undone {
    pub(crate) number: u8,
    pub(crate) replaced: Changes,
    /// Where its record begins.
    pub(crate) start: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FlushStep {
    Folded,
    LogDurable,
    Written,
    Synced,
    /// Only in the mutant that publishes before it appends.
    PublishedEarly,
    Ticketed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flush {
    pub(crate) step: FlushStep,
    pub(crate) region: usize,
    pub(crate) replaced: Vec<Position>,
    pub(crate) pages: Vec<(u8, Rc<Page>)>,
    /// Positions that got no page (only in the mutant that lets deletions uncover).
    pub(crate) bare: Vec<Position>,
    pub(crate) freed: Vec<u8>,
    /// Log position behind the newest commit in the pages.
    pub(crate) contains: u8,
    /// State that the pages were folded from.
    pub(crate) folded: Values,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CheckpointStep {
    Cut,
    FirstRegion,
    BothRegions,
    ImageWritten,
    ImageSynced,
    LogSynced,
    SuperblockWritten,
    SuperblockSynced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Checkpoint {
    pub(crate) step: CheckpointStep,
    pub(crate) superblock: Superblock,
    pub(crate) slot: usize,
    /// As of the cut.
    pub(crate) table: Table,
    pub(crate) regions: Vec<Region>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReaderStep {
    Pinned,
    SawPending,
    SawIndex,
    SawPresent,
}

/// One lookup of one key as of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) step: ReaderStep,
    pub(crate) snapshot: u8,
    pub(crate) key: usize,
    pub(crate) entry: Option<Entry>,
    pub(crate) value: Option<u8>,
    pub(crate) undo: Option<u8>,
    /// The namespace existed when its table was read.
    pub(crate) there: u8,
    /// An index was published since the pin.
    pub(crate) outdated: bool,
}

impl Engine {
    /// What a key had as of a commit, if a later one changed it.
    pub(crate) fn undone(&self, snapshot: u8, key: usize) -> Option<u8> {
        let later = self.undo.iter().filter(|undone| undone.number > snapshot);
        later
            .filter_map(|undone| undone.replaced[key].map(|value| (undone.number, value)))
            .min()
            .map(|(_, value)| value)
    }

    /// The window moves on to `number`: what lies before it is gone, whoever reads it.
    pub(crate) fn trim(&mut self, history: Option<u8>, number: u8) {
        let Some(history) = history else { return };
        self.forget(number.saturating_sub(history));
    }

    /// Commits before `number` cannot be read any more.
    pub(crate) fn forget(&mut self, number: u8) {
        self.kept_from = self.kept_from.max(number);
        let from = self.kept_from;
        self.undo.retain(|undone| undone.number > from);
    }
}

/// A page that waits for flush `free`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leaving {
    pub(crate) page_no: u8,
    /// Log position behind the location record.
    pub(crate) behind: u8,
}

/// The memory of a running engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    pub(crate) incarnation: u8,
    pub(crate) flush_counter: u8,
    pub(crate) table: Table,
    pub(crate) regions: [Region; REGIONS],
    /// Published commit number and log position.
    pub(crate) number: u8,
    pub(crate) published: u8,
    /// Steps of the head of the queue that are already published.
    pub(crate) publishing: usize,
    pub(crate) undo: Vec<Undone>,
    /// The oldest commit that can be read: older undo is gone, whoever reads.
    pub(crate) kept_from: u8,
    /// The same, as the record of the newest published commit has it.
    pub(crate) recorded: u8,
    pub(crate) finished: Option<Finished>,
    /// The newest ticketed commit, and the layout behind the newest ticket.
    pub(crate) ticketed: u8,
    pub(crate) values: Values,
    pub(crate) fine: bool,
    /// Ticketed and not wholly published, in order.
    pub(crate) queue: Vec<Rc<Record>>,
    /// Ticketed and not written, in order.
    pub(crate) unwritten: Vec<Rc<Record>>,
    /// Next log position, and the checksum of the record before it.
    pub(crate) tail: u8,
    pub(crate) previous: u32,
    pub(crate) written: u8,
    pub(crate) durable: u8,
    /// Checksum, number, root, incarnation behind the newest published record: for the checkpoint's cut.
    pub(crate) published_checksum: u32,
    pub(crate) published_incarnation: u8,
    pub(crate) flush: Option<Flush>,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) free: [bool; PLACES],
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Slot and image file of the newest complete generation, and the highest number of one.
    pub(crate) slot: usize,
    pub(crate) image: usize,
    pub(crate) generation: u8,
    pub(crate) reader: Option<Reader>,
    pub(crate) poisoned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RecoveryStep {
    Scanned,
    /// Only in the mutants that write in place.
    SuperblockWritten,
    SuperblockConfirmed,
    /// Only in the mutants that write in place.
    IncarnationWritten,
    IncarnationRaised,
    TailSecured,
}

/// What a recovery has found, and how far it has got with securing it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recovery {
    pub(crate) step: RecoveryStep,
    pub(crate) engine: Engine,
    /// Everything below is known durable: some record or superblock says so.
    pub(crate) proven: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    Down,
    Recovering(Box<Recovery>),
    Up(Box<Engine>),
    /// Recovery refused: damage. The end of a run.
    Refused,
}

/// Injected rot, and what recovery owes for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rot {
    /// A log record that something later says was durable: must be reported.
    Sealed,
    /// A log record that nothing later mentions: looks like a tear, may be cut.
    Unsealed,
    /// An unsealed one, and recovery has cut the log there.
    Cut,
    /// The newest superblock or image while the older generation was complete: must cost nothing.
    Generation,
}

/// What the oracle remembers. The engine cannot see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    /// By commit number: the state, and the log position behind its record.
    pub(crate) history: Vec<(Values, u8)>,
    /// The newest commit that must survive.
    pub(crate) floor: u8,
    /// A commit that is half of one: nobody may find it.
    pub(crate) half: Option<u8>,
    /// Undo before this commit was dropped for want of memory, perhaps in a process that is gone.
    pub(crate) squeezed: u8,
    pub(crate) rot: Option<Rot>,
}

/// How often each thing may still happen. Part of the state, so that every run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) flushes: u8,
    pub(crate) checkpoints: u8,
    pub(crate) reads: u8,
    pub(crate) rollbacks: u8,
    pub(crate) squeezes: u8,
    pub(crate) kills: u8,
    pub(crate) power_failures: u8,
    pub(crate) failed_syncs: u8,
    pub(crate) rots: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) media: Media,
    pub(crate) process: Process,
    pub(crate) ghost: Ghost,
    pub(crate) budget: Budget,
}

/// State of a new database: key n has value 1, no log, two equal generations. Region 0 has its page at number `first`.
pub(crate) fn initial(budget: Budget, first: u8) -> State {
    const VALUES: Values = [1; SLOTS];
    let pages: Vec<Rc<Page>> = [Position::Coarse, Position::Other]
        .into_iter()
        .map(|position| {
            Rc::new(Page { flush: (0, 0), position, through: 0, values: position.node(VALUES) })
        })
        .collect();
    let places = [first, 1];
    let region = |at: usize| Region {
        entries: vec![Entry {
            position: pages[at].position,
            page: Some((places[at], Rc::clone(&pages[at]))),
            node: pages[at].values,
        }],
        pending: [None; KEYS],
        applied: 0,
        changed: 0,
    };
    let image = |generation| {
        Some(Rc::new(Image { generation, table: Table::FIRST, regions: [region(0), region(1)] }))
    };
    let superblock = |generation: u8| {
        Some(Rc::new(Superblock {
            generation,
            image: usize::from(generation) % 2,
            replay_start: 0,
            history_from: 0,
            durable_through: 0,
            previous: 0,
            incarnation: 0,
            number: 0,
            root: VALUES,
        }))
    };
    let mut leaf = [const { Unit::EMPTY }; PLACES];
    for (place, page) in places.iter().zip(&pages) {
        leaf[usize::from(*place)] = Unit::new(Some(Rc::clone(page)));
    }
    let media = Media {
        log: Vec::new(),
        leaf,
        leaf_len: PLACES,
        image: [Unit::new(image(0)), Unit::new(image(1))],
        superblock: [Unit::new(superblock(0)), Unit::new(superblock(1))],
        incarnation: [Unit::new(Some(0)), Unit::new(Some(0))],
    };
    let ghost = Ghost { history: vec![(VALUES, 0)], floor: 0, half: None, squeezed: 0, rot: None };
    State { media, process: Process::Down, ghost, budget }
}

/// A 64-bit fingerprint of anything hashable: stands for record checksums and for states already seen.
pub(crate) fn fingerprint<T: Hash>(value: &T) -> u64 {
    let mut hasher = Mixer(0x9e37_79b9_7f4a_7c15);
    value.hash(&mut hasher);
    hasher.finish()
}

struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        let product =
            u128::from(self.0 ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93_a0c8_63a7_9e3b_4d1d);
        self.0 = self.0.rotate_left(23) ^ u64::try_from(product >> 64).expect("64 bits remain");
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0x1234_5678_9abc_def1);
        last.0
    }
}
