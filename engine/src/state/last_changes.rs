//! When keys have changed last, and where their versions are, by a hash of them.
//!
//! A read of an older state mostly asks for a key that nobody has changed since: that is said here in one wait for
//! memory, without a lock. A hash names a *line* of eight cells. A cell has what is enough of a key's hash to tell it from
//! most others (its *tag*), the newest commit that changed it, and the number of its entry, a guess for the reader to
//! compare. A key that finds no cell of its own, and none free, takes that of the oldest change. So a key without a cell
//! has not changed since the oldest change that its line has: *not since* is certain, *perhaps* leads to the versions.
//!
//! Cells are written while commits are put in, by many workers, each its keys. Those that meet in a line swap cells
//! one by one. A reader that is about to say *not since* looks at the line twice: what it has seen was there
//! at one moment if it is there again, since a cell never takes up a key for the same commit twice.
//!
//! A table is replaced only while nothing is put in, and says so. Readers keep the ones that they have found ([`LastSeen`]),
//! a few at most, so that they take no atomic operation but loads. A reader that still looks at the old one misses
//! nothing: what was put in before it asked is in a table that it finds, since whoever puts in says so (recent commits,
//! [`super::undo`]) after the table was replaced; what is put in later is among the recent commits that it asked before,
//! or was pushed after that, and so after it looked at the present.
//!
//! Used by [`super::versions`] alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Cells of a line.
const WIDTH: usize = 8;
/// A line is made for this many keys, so that few have more than its cells.
const KEYS_A_LINE: usize = 4;
/// Fewest lines, and most, as powers of two: 256 MiB of them, for the keys of some GiB of undo.
const FEWEST: u32 = 2;
const MOST: u32 = 22;
/// A table with this many times the lines that it should have, as a power of two, is replaced by a smaller one.
const TOO_MANY: u32 = 3;
/// The low bits of a cell, for an entry. Numbers that have more are no guess.
const ENTRY_BITS: u32 = 24;
const ENTRY_MASK: u64 = (1 << ENTRY_BITS) - 1;

/// A line of memory.
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; WIDTH]);

/// The table. Its cells count commits from its own beginning.
pub(super) struct LastChanges {
    /// A cell has the count of a commit after `origin` in its upper 32 bits (0 for a free one, the largest number for a
    /// commit beyond all that it counts), then eight bits of a hash, then an entry.
    lines: Box<[Line]>,
    /// Leading bits of a hash that name a line.
    bits: u32,
    /// The commit that it counts from.
    pub(super) origin: u64,
    /// Has another one taken its place?
    replaced: AtomicBool,
}

/// The number that a cell has for a commit.
fn count_of(cell: u64) -> u64 {
    cell >> 32
}

/// The tag of a hash where it lies in a cell: its last eight bits, which never name a line.
fn tag(hash: u32) -> u64 {
    u64::from(hash & 0xff) << ENTRY_BITS
}

const TAG_MASK: u64 = 0xff << ENTRY_BITS;

impl LastChanges {
    /// A table for `keys` keys that no commit through `origin` has changed.
    pub(super) fn new(keys: usize, origin: u64) -> Self {
        Self::with(bits_for(keys), origin)
    }

    /// The table of a map without keys, in which nothing is put.
    pub(super) fn none() -> Self {
        Self::with(0, 0)
    }

    fn with(bits: u32, origin: u64) -> Self {
        let lines = (0..1_usize << bits).map(|_| Line::default()).collect();
        Self { lines, bits, origin, replaced: AtomicBool::new(false) }
    }

    /// Has it enough lines for `keys` keys?
    pub(super) fn suits(&self, keys: usize) -> bool {
        self.bits >= bits_for(keys)
    }

    /// Is it to be made anew for `keys` keys when all through commit `floor` is gone: has it far too many lines, or has it
    /// counted far?
    pub(super) fn needs_rebuild(&self, keys: usize, floor: u64) -> bool {
        self.bits > bits_for(keys) + TOO_MANY || floor.saturating_sub(self.origin) > 1 << 31
    }

    /// Another one takes its place. Nothing is put into this one any more.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Bytes that it takes, but for the smallest of all.
    pub(super) fn bytes(&self) -> usize {
        if self.bits == 0 { 0 } else { self.lines.len() * size_of::<Line>() }
    }

    fn line(&self, hash: u32) -> &Line {
        &self.lines[hash.checked_shr(u32::BITS - self.bits).unwrap_or(0) as usize]
    }

    /// Prefetches the line of a hash.
    pub(super) fn cpu_prefetch(&self, hash: u32) {
        pleach_core::cpu_prefetch(std::slice::from_ref(self.line(hash)));
    }

    fn count(&self, commit: u64) -> u64 {
        commit.saturating_sub(self.origin).min(u32::MAX.into())
    }

    /// If a commit after `base` may have changed a key with this hash: where its entry may be.
    #[inline]
    pub(super) fn after(&self, hash: u32, base: u64) -> Option<u32> {
        let (line, tag) = (self.line(hash), tag(hash));
        // What is beyond counting is always later.
        let base = self.count(base).min(u64::from(u32::MAX) - 1);
        let mut cells = line.0.each_ref().map(|cell| cell.load(Ordering::Acquire));
        loop {
            let mut oldest = u64::MAX;
            for cell in cells {
                let count = count_of(cell);
                if count > base && cell & TAG_MASK == tag {
                    return Some(entry_of(cell));
                }
                oldest = oldest.min(count);
            }
            if oldest > base {
                return Some(u32::MAX);
            }
            // Whenever they differ a key of a commit has come in, which none does twice.
            let again = line.0.each_ref().map(|cell| cell.load(Ordering::Acquire));
            if again == cells {
                return None;
            }
            cells = again;
        }
    }

    /// Where the entry of a key with this hash may be, whoever changed it.
    pub(super) fn guess(&self, hash: u32) -> u32 {
        let tagged = |cell: &u64| *cell & TAG_MASK == tag(hash) && count_of(*cell) > 0;
        let mut cells = self.line(hash).0.iter().map(|cell| cell.load(Ordering::Relaxed));
        cells.find(tagged).map_or(u32::MAX, entry_of)
    }

    /// Commit `number`, after `origin`, has changed a key with this hash, whose entry is this. Of a key's commits a later
    /// one comes later.
    pub(super) fn set(&self, hash: u32, number: u64, entry: u32) {
        debug_assert!(number > self.origin && self.bits > 0, "the table begins before its changes");
        let low = tag(hash) | u64::from(entry).min(ENTRY_MASK);
        let new = self.count(number) << 32 | low;
        let line = self.line(hash);
        // Fails when another worker has put another key of this commit there: each of them once.
        loop {
            let cells = line.0.each_ref().map(|cell| cell.load(Ordering::Acquire));
            let is_own = |at: &usize| cells[*at] & (TAG_MASK | ENTRY_MASK) == low && cells[*at] > 0;
            let own = (0..WIDTH).find(is_own);
            let oldest = || (0..WIDTH).min_by_key(|at| count_of(cells[*at])).unwrap_or(0);
            let at = own.unwrap_or_else(oldest);
            // While a table is filled, an older change may come last.
            if cells[at] >= new
                || line.0[at]
                    .compare_exchange(cells[at], new, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
    }

    /// An entry has another number from now on. Nothing is put in meanwhile.
    pub(super) fn renumber(&self, hash: u32, entry: u32, number: u32) {
        let low = |entry: u32| tag(hash) | u64::from(entry).min(ENTRY_MASK);
        for cell in &self.line(hash).0 {
            let was = cell.load(Ordering::Relaxed);
            if was & (TAG_MASK | ENTRY_MASK) == low(entry) && was > low(entry) {
                cell.store(was & !(TAG_MASK | ENTRY_MASK) | low(number), Ordering::Release);
                return;
            }
        }
    }
}

/// The entry that a cell has, none of any shard where it has no room for the number.
fn entry_of(cell: u64) -> u32 {
    let [a, b, c, ..] = cell.to_le_bytes();
    u32::from_le_bytes([a, b, c, 0])
}

/// Leading bits that name the lines for `keys` keys.
fn bits_for(keys: usize) -> u32 {
    let lines = keys.div_ceil(KEYS_A_LINE).max(1);
    let bits = (lines - 1).checked_ilog2().map_or(0, |bits| bits + 1);
    bits.clamp(FEWEST, MOST)
}

/// Tables that a reader keeps: those that it finds as the map grows under it.
const SEEN: usize = 4;

/// The tables of one map that a reader has found.
#[derive(Default)]
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct LastSeen([OnceLock<Arc<LastChanges>>; SEEN]);

impl LastSeen {
    /// Asks the present table, which `newest` gives.
    #[inline]
    pub(super) fn ask<T>(
        &self,
        newest: impl Fn() -> Arc<LastChanges>,
        ask: impl FnOnce(&LastChanges) -> T,
    ) -> T {
        for seen in &self.0 {
            let table = seen.get_or_init(&newest);
            if !table.replaced.load(Ordering::Acquire) {
                return ask(table);
            }
        }
        // It has seen so many go that it does not keep another.
        ask(&newest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash of small numbers that looks drawn.
    fn hash(key: u32) -> u32 {
        let mut mixed = u64::from(key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from(mixed >> 32).expect("32 bits")
    }

    #[test]
    fn what_has_changed_is_never_said_not_to_have() {
        let seen = LastSeen::default();
        let mut table = Arc::new(LastChanges::new(10, 99));
        let mut last = vec![0; 4000];
        let (mut asked, mut guessed) = (0, 0);
        for number in 100..500 {
            if number % 50 == 0 {
                // Half as many keys as there are in the end, so that lines are full.
                let keys = usize::try_from(number * 5).expect("small");
                let larger = Arc::new(LastChanges::new(keys, table.origin));
                for (key, last) in (0..).zip(&last).filter(|one| *one.1 > 0) {
                    larger.set(hash(key), *last, key);
                }
                table.replace();
                table = larger;
            }
            let present = || Arc::clone(&table);
            let found = seen.ask(present, std::ptr::from_ref);
            assert_eq!(found, Arc::as_ptr(&table), "it finds the last one");
            for key in (0..4000).filter(|key| (u64::from(*key) * 7 + number).is_multiple_of(97)) {
                table.set(hash(key), number, key);
                last[key as usize] = number;
            }
            for base in [99, 100 + (number - 100) / 2, number - 1, number] {
                for key in 0..4000 {
                    let said = seen.ask(present, |table| table.after(hash(key), base));
                    if last[key as usize] > base {
                        let guess = said.expect("the key has changed");
                        (asked, guessed) = (asked + 1, guessed + u64::from(guess == key));
                    } else if number < 200 || base >= number - 1 {
                        assert_eq!(said.filter(|guess| *guess == key), None, "of key {key}");
                    }
                }
            }
        }
        assert!(guessed * 10 > asked * 7, "{guessed} of {asked} times a cell leads to the entry");
        assert_eq!(table.bytes(), 64 << table.bits);
    }

    #[test]
    fn few_keys_that_have_not_changed_are_asked_for() {
        let table = LastChanges::new(10_000, 0);
        (0..10_000).for_each(|key| table.set(hash(key), 1 + u64::from(key) / 100, key));
        let said =
            |base| (10_000..20_000).filter(|key| table.after(hash(*key), base).is_some()).count();
        // One in 256 has the tag of one of the others, and few lines are full of later changes.
        assert_eq!(said(100), 0);
        assert!((1..100).contains(&said(90)), "{} in 10,000 since commit 90", said(90));
        assert!((100..600).contains(&said(0)), "{} in 10,000 since the beginning", said(0));
        let right =
            |key: &u32| table.after(hash(*key), 0) == Some(*key) && table.guess(hash(*key)) == *key;
        let right = (0..10_000).filter(right).count();
        assert!(right > 9_500, "{right} of 10,000 have their entries");
        (0..10_000).for_each(|key| table.renumber(hash(key), key, 20_000 + key));
        let right = (0..10_000).filter(|key| table.guess(hash(*key)) == 20_000 + key).count();
        assert!(right > 9_500, "{right} of 10,000 have their entries once more");
    }

    /// Lines that are full of one commit's keys, and workers that meet in them.
    #[test]
    fn workers_that_meet_in_a_line_lose_nothing() {
        let table = LastChanges::new(1, 0);
        for number in 1..200_u32 {
            std::thread::scope(|scope| {
                for worker in 0..4 {
                    let table = &table;
                    scope.spawn(move || {
                        let keys =
                            (worker..64).step_by(4).filter(|key| !(key + number).is_multiple_of(3));
                        keys.for_each(|key| table.set(hash(key), number.into(), key));
                    });
                }
                for key in (0..64).filter(|key| !(key + number - 1).is_multiple_of(3)) {
                    // Put in by the commit before, which is seen meanwhile, too.
                    assert!(number == 1 || table.after(hash(key), u64::from(number) - 2).is_some());
                }
            });
            for key in (0..64).filter(|key| !(key + number).is_multiple_of(3)) {
                assert!(
                    table.after(hash(key), u64::from(number) - 1).is_some(),
                    "{key} of {number}"
                );
            }
        }
    }

    #[test]
    fn sizes_have_bounds() {
        assert_eq!([0, 16, 17, 4 << 18].map(bits_for), [FEWEST, FEWEST, FEWEST + 1, 18]);
        assert_eq!([4 << 22, 1 << 40, usize::MAX].map(bits_for), [MOST; 3]);
        let table = LastChanges::new(512, 50);
        assert!(table.suits(512) && !table.suits(513));
        assert!(
            !table.needs_rebuild(64, 60)
                && table.needs_rebuild(32, 60)
                && table.needs_rebuild(512, 1 << 33)
        );
        let none = LastChanges::none();
        assert_eq!((none.bytes(), none.after(u32::MAX, 0), none.suits(0)), (0, None, false));
    }

    #[test]
    fn commits_and_entries_beyond_what_a_cell_counts() {
        let table = LastChanges::new(1, 10);
        let far = 10 + u64::from(u32::MAX);
        table.set(7, far - 1, 3);
        assert_eq!((table.after(7, far - 2), table.after(7, far - 1)), (Some(3), None));
        table.set(7, far, 3);
        assert_eq!((table.after(7, far), table.after(7, u64::MAX)), (Some(3), Some(3)));
        // Before the table begins all that it has is later.
        assert_eq!((table.after(7, 3), table.after(8, 3)), (Some(3), None));
        table.set(9, 11, u32::MAX);
        assert!(table.after(9, 10).is_some_and(|entry| u64::from(entry) == ENTRY_MASK));
    }
}
