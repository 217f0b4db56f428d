//! What must be true of a batch that has run: its witness proves its reads and writes, and its sum
//! is conserved.

use pleach_core::node::value_hash;
use pleach_core::{Blake3, Key};

use crate::account;
use crate::backend::{Done, Proven};
use crate::workload::transfer::Change;

/// What the witness of a batch must prove, no more and no less.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    pub(super) keys: &'a [Key],
    pub(super) seen: Vec<Option<u64>>,
    pub(super) changes: Vec<Change>,
}

impl Claims<'_> {
    /// Does the witness prove just that? If not, what is wrong.
    pub(super) fn hold(&self, done: &Done, proven: &Proven) -> core::result::Result<(), String> {
        if proven.new_root != done.root {
            return Err("leads to another root".to_owned());
        }
        let hash = |balance: u64| value_hash::<Blake3>(&account::encode(balance));
        let reads = self.keys.iter().zip(&self.seen).map(|(key, seen)| (*key, seen.map(hash)));
        let writes = self.keys.iter().zip(&self.changes).filter_map(|(key, change)| match change {
            Change::Read => None,
            Change::Write(new) => Some((*key, Some(hash(*new)))),
            Change::Delete => Some((*key, None)),
        });
        if !same(reads.collect(), proven.reads.clone()) {
            return Err("proves other reads than were made".to_owned());
        }
        if !same(writes.collect(), proven.writes.clone()) {
            return Err("proves other writes than were made".to_owned());
        }
        Ok(())
    }
}

fn same<T: Ord>(mut these: Vec<T>, mut those: Vec<T>) -> bool {
    these.sort_unstable();
    those.sort_unstable();
    these == those
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
