//! What a batch does with each key, and the terminals of its multiproof.

use alloc::vec::Vec;
use core::ops::Range;

use super::numbers::index32;
use crate::fold::hash_batch::Values;
use crate::fold::{HashId, NO_HASH, Occupancy};
use crate::node::{Key, ValueHash};
use crate::prefix::Prefix;
use crate::proof::op::op_encode_placed;
use crate::proof::terminal::terminal_encode;
use crate::proof::{Access, Op, Terminal};

/// The terminal of an access; accesses that end in one terminal have it at the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// That of an earlier access.
    Shared,
    /// A terminator.
    Empty,
    /// The leaf of the access's own key.
    Own,
    /// The leaf of another key, by its number among these.
    Other(u32),
    /// All that another merkleizer has emitted for a subtrie, by its number.
    Fragment(u32),
}

/// An access.
#[derive(Clone, Copy, Debug)]
struct Record {
    key: Key,
    /// The value before; [`NO_HASH`] when absent.
    old: HashId,
    /// The value put; [`NO_HASH`] when none was.
    put: HashId,
    reads: bool,
    writes: bool,
    end: End,
    depth: u16,
}

/// The accesses of a batch in order.
#[derive(Debug, Default)]
pub(super) struct Records {
    all: Vec<Record>,
    /// Leaves that are terminals of others' keys: key and value.
    others: Vec<(Key, HashId)>,
}

impl Records {
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.others.clear();
    }

    /// Number of accesses.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn push(
        &mut self,
        key: &Key,
        (reads, writes): (bool, bool),
        (old, put): (HashId, HashId),
    ) -> u32 {
        let end = if old == NO_HASH { End::Empty } else { End::Own };
        self.all.push(Record { key: *key, old, put, reads, writes, end, depth: 0 });
        index32(self.all.len() - 1)
    }

    /// A subtrie that is not empty, whose terminals are elsewhere.
    pub(super) fn push_fragment(&mut self, number: u32) {
        let end = End::Fragment(number);
        let (key, old, put) = ([0; 32], NO_HASH, NO_HASH);
        self.all.push(Record { key, old, put, reads: false, writes: false, end, depth: 0 });
    }

    /// A pair that may be the terminal of other keys' accesses; gives its number.
    pub(super) fn other(&mut self, key: &Key, value: HashId) -> u32 {
        self.others.push((*key, value));
        index32(self.others.len() - 1)
    }

    /// A pair of these.
    pub(super) fn other_pair(&self, other: u32, values: &Values) -> (Key, ValueHash) {
        let (key, value) = self.others[other as usize];
        (key, *values.hash(value))
    }

    /// The terminal of access `at` is at this depth.
    #[inline]
    pub(super) fn place(&mut self, at: u32, depth: u16) {
        self.all[at as usize].depth = depth;
    }

    /// Access `at` ends in the leaf of another key.
    pub(super) fn ends_in(&mut self, at: u32, other: u32) {
        self.all[at as usize].end = End::Other(other);
    }

    /// Access `at` ends in the terminal of access `first`, before it.
    pub(super) fn share(&mut self, first: u32, at: u32) {
        let Record { key, old, end, .. } = self.all[at as usize];
        // The leaf may be that of the later one.
        match end {
            End::Own => self.all[first as usize].end = End::Other(self.other(&key, old)),
            End::Other(_) => self.all[first as usize].end = end,
            End::Empty | End::Shared | End::Fragment(_) => {}
        }
        self.all[at as usize].end = End::Shared;
    }

    /// What access `at`, whose terminal is not placed, says of the state before.
    pub(super) fn occupancy(&self, at: u32, values: &Values) -> Occupancy {
        let Record { key, old, end, .. } = &self.all[at as usize];
        let (key, value) = match end {
            End::Own => (key, *old),
            End::Other(other) => {
                let (key, value) = &self.others[*other as usize];
                (key, *value)
            }
            _ => return Occupancy::Empty,
        };
        Occupancy::Leaf { key: *key, value_hash: *values.hash(value) }
    }

    /// Appends the terminals of a range of accesses, and gives their number; `fragment` is called for each fragment.
    pub(super) fn terminals(
        &self,
        range: Range<usize>,
        values: &Values,
        out: &mut Vec<u8>,
        mut fragment: impl FnMut(u32, &mut Vec<u8>),
    ) -> u32 {
        let mut count = 0;
        for record in &self.all[range] {
            let Record { key, old, end, depth, .. } = record;
            let leaf = |key: &Key, value: HashId| Terminal::Leaf {
                depth: *depth,
                key: *key,
                value_hash: *values.hash(value),
            };
            let terminal = match end {
                End::Shared => continue,
                End::Fragment(number) => {
                    fragment(*number, out);
                    continue;
                }
                End::Empty => Terminal::Terminator { prefix: Prefix::new(key, *depth) },
                End::Own => leaf(key, *old),
                End::Other(other) => {
                    let (key, value) = &self.others[*other as usize];
                    leaf(key, *value)
                }
            };
            terminal_encode(out, &terminal);
            count += 1;
        }
        count
    }

    /// Appends the operations of a range of accesses.
    pub(super) fn ops(&self, range: Range<usize>, values: &Values, out: &mut Vec<u8>) {
        for record in &self.all[range] {
            let put = (record.put != NO_HASH).then(|| *values.hash(record.put));
            let access = match (record.reads, record.writes) {
                (_, false) => Access::Read,
                (false, true) => Access::Write(put),
                (true, true) => Access::ReadWrite(put),
            };
            let op = Op { key: record.key, access };
            let first = record.end != End::Shared;
            op_encode_placed(out, &op, record.old != NO_HASH, first);
        }
    }

    /// For each access: is it the first under its terminal?
    pub(super) fn is_first(&self, at: usize) -> bool {
        self.all[at].end != End::Shared
    }
}
