//! What must be true of a batch that has run: its witness proves its reads and writes, and its sum
//! is conserved.

use pleach_core::node::value_hash;
use pleach_core::{Blake3, Key, ValueHash};

use crate::account;
use crate::backend::{Done, Witness};
use crate::workload::transfer::Change;

/// What the witness of a batch must prove, no more and no less.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    pub(super) keys: &'a [Key],
    pub(super) seen: Vec<Option<u64>>,
    pub(super) changes: Vec<Change>,
}

/// Keys with hashes of their values, in order.
type Hashes = Vec<(Key, Option<ValueHash>)>;

impl Claims<'_> {
    /// Does the witness prove just that? If not, what is wrong. All processors work on it: the clock
    /// stands still, and so does the engine.
    pub(super) fn hold(
        &self,
        done: &Done,
        witness: &dyn Witness,
    ) -> core::result::Result<(), String> {
        let (proven, (reads, writes)) = rayon::join(
            || witness.verify(&done.prev_root),
            || rayon::join(|| self.reads(), || self.writes()),
        );
        let proven = proven?;
        if proven.new_root != done.root {
            return Err("leads to another root".to_owned());
        }
        let (same_reads, same_writes) =
            rayon::join(|| reads == sorted(proven.reads), || writes == sorted(proven.writes));
        if !same_reads {
            return Err("proves other reads than were made".to_owned());
        }
        if !same_writes {
            return Err("proves other writes than were made".to_owned());
        }
        Ok(())
    }

    fn reads(&self) -> Hashes {
        let seen = self.keys.iter().zip(&self.seen);
        sorted(seen.map(|(key, seen)| (*key, seen.map(hash))).collect())
    }

    fn writes(&self) -> Hashes {
        let changes = self.keys.iter().zip(&self.changes);
        let writes = changes.filter_map(|(key, change)| match change {
            Change::Read => None,
            Change::Write(new) => Some((*key, Some(hash(*new)))),
            Change::Delete => Some((*key, None)),
        });
        sorted(writes.collect())
    }
}

fn hash(balance: u64) -> ValueHash {
    value_hash::<Blake3>(&account::encode(balance))
}

fn sorted(mut hashes: Hashes) -> Hashes {
    hashes.sort_unstable();
    hashes
}

/// The sum of the balances read, and the sum of the same accounts after the changes.
pub(super) fn sums_of(seen: &[Option<u64>], changes: &[Change]) -> (u128, u128) {
    let mut sums = (0, 0);
    for (seen, change) in seen.iter().zip(changes) {
        let before = seen.unwrap_or(0);
        let after = match change {
            Change::Read => before,
            Change::Write(new) => *new,
            Change::Delete => 0,
        };
        sums.0 += u128::from(before);
        sums.1 += u128::from(after);
    }
    sums
}
