//! Cursors: a place between pairs, or on one, that goes both ways.

use std::ops::Bound::{self, Excluded, Included};
use std::ops::RangeInclusive;
use std::ptr;

use pleach::{Iter, Key, Session};
use pleach_core::range::with_prefix;

use crate::error::{Failed, Fallible, PleachError, guard};
use crate::handle::{self, Handle, Out, ask, given};
use crate::session::PleachSession;

/// A cursor over the pairs of a range. It outlives its session, whose state it reads.
pub type PleachCursor = Handle<Cursor>;

/// A pair of a cursor, which has its memory: it is there until the cursor moves or is freed. `key` is NULL at the end.
#[repr(C)]
pub struct PleachPair {
    /// The 32 bytes of the key.
    pub key: *const u8,
    /// The bytes of the value.
    pub value: *const u8,
    /// How many they are.
    pub value_len: usize,
}

/// Pairs of a cursor, which has their memory: they are there until the cursor moves or is freed.
#[repr(C)]
pub struct PleachPairs {
    /// How many they are: 0 at the end.
    pub count: usize,
    /// Their keys, 32 bytes each.
    pub keys: *const u8,
    /// The bytes of their values, one value after the other.
    pub values: *const u8,
    /// How many bytes each value has.
    pub lengths: *const usize,
}

/// No further pair is taken when values have so many bytes: the memory of a cursor is this and one value.
const BLOCK_BYTES: usize = 64 << 10;

/// Copies of pairs: those that the cursor has given last.
#[derive(Default)]
struct Block {
    keys: Vec<Key>,
    values: Vec<u8>,
    lengths: Vec<usize>,
}

impl Block {
    fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        // A long value is not kept for good.
        self.values.shrink_to(2 * BLOCK_BYTES);
        self.lengths.clear();
    }

    /// Adds a pair; false when there shall be no more than `most`, or there is no room for more.
    fn add(&mut self, key: &Key, value: &[u8], most: usize) -> bool {
        self.keys.push(*key);
        self.values.extend_from_slice(value);
        self.lengths.push(value.len());
        self.keys.len() < most && self.values.len() < BLOCK_BYTES
    }
}

/// An iterator that is created again only where the direction changes.
pub struct Cursor {
    iter: Iter,
    first: Key,
    last: Key,
    /// The bound of the pairs before this place, and that of the pairs behind it.
    before: Bound<Key>,
    behind: Bound<Key>,
    /// The direction of the iterator at this place; none where it has to be created.
    forward: Option<bool>,
    block: Block,
}

impl Cursor {
    fn new(iter: Iter, keys: RangeInclusive<Key>) -> Self {
        let (first, last) = keys.into_inner();
        let (before, behind) = (Excluded(first), Included(first));
        Self { iter, first, last, before, behind, forward: None, block: Block::default() }
    }

    /// Before a key, or behind the last one.
    fn seek(&mut self, key: Option<Key>) {
        (self.before, self.behind) = match key.filter(|key| *key <= self.last) {
            None => (Included(self.last), Excluded(self.last)),
            Some(key) => {
                let key = key.max(self.first);
                (Excluded(key), Included(key))
            }
        };
        self.forward = None;
    }

    /// Goes over up to `most` pairs, at least one of which is asked for, and copies them.
    fn step(&mut self, forward: bool, most: usize) -> Fallible<&Block> {
        if self.forward != Some(forward) {
            self.iter.seek(if forward {
                (self.behind, Included(self.last))
            } else {
                (Included(self.first), self.before)
            });
        }
        // After an error the place is behind the pairs before it, and the next step asks again.
        self.forward = None;
        self.block.clear();
        let read = if forward {
            self.iter.for_each_pair(|key, value| self.block.add(key, value, most))
        } else {
            let last = self.iter.by_ref().rev().find_map(|pair| match pair {
                Ok((key, value)) if self.block.add(&key, &value, most) => None,
                pair => Some(pair.map(drop)),
            });
            last.unwrap_or(Ok(()))
        };
        let Some(key) = self.block.keys.last() else {
            read?;
            self.seek(Some(self.first));
            if forward {
                (self.before, self.behind) = (Included(self.last), Excluded(self.last));
            }
            return Ok(&self.block);
        };
        (self.before, self.behind) = (Excluded(*key), Excluded(*key));
        self.forward = read.is_ok().then_some(forward);
        Ok(&self.block)
    }
}

/// A cursor over the keys from `first` to `last`, both of which belong to the range; NULL is the first or the last key
/// there is. It stands before the first pair. Errors: 410, there is no such namespace.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_range(
    session: Option<&PleachSession>,
    namespace: u8,
    first: Option<&Key>,
    last: Option<&Key>,
    cursor: Out<Box<PleachCursor>>,
) -> Failed {
    let (first, last) = (first.copied().unwrap_or([0; 32]), last.copied().unwrap_or([0xff; 32]));
    ask(given(session, "session"), given(cursor, "cursor"), |session| {
        new(session, namespace, first..=last)
    })
}

/// A cursor over the keys that begin with these bytes, at most 32. It stands before the first pair. Errors: 410, there
/// is no such namespace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_cursor_prefix(
    session: Option<&PleachSession>,
    namespace: u8,
    prefix: *const u8,
    prefix_len: usize,
    cursor: Out<Box<PleachCursor>>,
) -> Failed {
    ask(given(session, "session"), given(cursor, "cursor"), |session| {
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let prefix = unsafe { handle::prefix(prefix, prefix_len) }?;
        new(session, namespace, with_prefix(prefix))
    })
}

fn new(session: &Session, namespace: u8, keys: RangeInclusive<Key>) -> Fallible<Box<PleachCursor>> {
    let iter = session.namespace(namespace)?.iter(keys.clone());
    Ok(Box::new(Handle::new(Cursor::new(iter, keys))))
}

/// Frees a cursor.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_free(cursor: Option<Box<PleachCursor>>) {
    Handle::free(cursor);
}

/// Goes before a key: the next pair is the first one from this key on, the previous one the last before it. A key
/// outside of the range goes to its nearer end; NULL goes behind the last pair. Nothing is read yet.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_seek(cursor: Option<&PleachCursor>, key: Option<&Key>) -> Failed {
    guard(|| {
        given(cursor, "cursor")?.change(|cursor| {
            cursor.seek(key.copied());
            Ok(())
        })
    })
}

/// Goes to the next pair and gives it; behind the last one the cursor is at the end, and a `pleach_cursor_previous`
/// gives the last one again. Errors are those of a read, and leave the cursor where it is.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_next(
    cursor: Option<&PleachCursor>,
    pair: Out<PleachPair>,
) -> Failed {
    step(cursor, true, pair)
}

/// Goes to the pair before and gives it; before the first one the cursor is at the beginning, and a
/// `pleach_cursor_next` gives the first one again. Errors are those of a read, and leave the cursor where it is.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_previous(
    cursor: Option<&PleachCursor>,
    pair: Out<PleachPair>,
) -> Failed {
    step(cursor, false, pair)
}

/// Goes over the next pairs, as so many calls of `pleach_cursor_next`, and gives them together: up to `most`, which is
/// not 0, and fewer where their values have 64 KiB; none at the end. The cursor is then on the last of them. Pairs
/// before an error are given first, and the error by the next call.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_next_many(
    cursor: Option<&PleachCursor>,
    most: usize,
    pairs: Out<PleachPairs>,
) -> Failed {
    step_many(cursor, true, most, pairs)
}

/// Goes over the pairs before, as so many calls of `pleach_cursor_previous`, and gives them together, the last one first:
/// otherwise as `pleach_cursor_next_many`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_cursor_previous_many(
    cursor: Option<&PleachCursor>,
    most: usize,
    pairs: Out<PleachPairs>,
) -> Failed {
    step_many(cursor, false, most, pairs)
}

fn step(cursor: Option<&PleachCursor>, forward: bool, pair: Out<PleachPair>) -> Failed {
    guard(|| {
        let pair = given(pair, "pair")?;
        pair.write(given(cursor, "cursor")?.change(|cursor| {
            let Block { keys, values, lengths } = cursor.step(forward, 1)?;
            let none = PleachPair { key: ptr::null(), value: ptr::null(), value_len: 0 };
            Ok(keys.first().map_or(none, |key| PleachPair {
                key: key.as_ptr(),
                value: values.as_ptr(),
                value_len: lengths[0],
            }))
        })?);
        Ok(())
    })
}

fn step_many(
    cursor: Option<&PleachCursor>,
    forward: bool,
    most: usize,
    pairs: Out<PleachPairs>,
) -> Failed {
    guard(|| {
        let pairs = given(pairs, "pairs")?;
        let cursor = given(cursor, "cursor")?;
        if most == 0 {
            return Err(PleachError::argument("`most` is 0"));
        }
        pairs.write(cursor.change(|cursor| {
            let Block { keys, values, lengths } = cursor.step(forward, most)?;
            Ok(PleachPairs {
                count: keys.len(),
                keys: keys.as_ptr().cast(),
                values: values.as_ptr(),
                lengths: lengths.as_ptr(),
            })
        })?);
        Ok(())
    })
}
