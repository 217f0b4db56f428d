//! Cursors: a place between pairs, or on one, that goes both ways.

use std::ops::Bound::{self, Excluded, Included};
use std::ptr;

use pleach::{Iter, Key, Session, Value};
use pleach_core::range::with_prefix;

use crate::error::{Failed, Fallible, guard};
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
    pair: Option<(Key, Value)>,
}

impl Cursor {
    fn new(iter: Iter, (first, last): (Key, Key)) -> Self {
        let (before, behind) = (Excluded(first), Included(first));
        Self { iter, first, last, before, behind, forward: None, pair: None }
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
        (self.forward, self.pair) = (None, None);
    }

    fn step(&mut self, forward: bool) -> Fallible<PleachPair> {
        if self.forward != Some(forward) {
            self.iter.seek(if forward {
                (self.behind, Included(self.last))
            } else {
                (Included(self.first), self.before)
            });
        }
        // After an error the place is as it was, and the next step asks again.
        self.forward = None;
        let next = if forward { self.iter.next() } else { self.iter.next_back() };
        self.pair = next.transpose()?;
        let Some((key, value)) = &self.pair else {
            self.seek(Some(self.first));
            if forward {
                (self.before, self.behind) = (Included(self.last), Excluded(self.last));
            }
            return Ok(PleachPair { key: ptr::null(), value: ptr::null(), value_len: 0 });
        };
        (self.before, self.behind, self.forward) = (Excluded(*key), Excluded(*key), Some(forward));
        Ok(PleachPair { key: key.as_ptr(), value: value.as_ptr(), value_len: value.len() })
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
    ask((session, "session"), (cursor, "cursor"), |session| new(session, namespace, (first, last)))
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
    ask((session, "session"), (cursor, "cursor"), |session| {
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let prefix = unsafe { handle::prefix(prefix, prefix_len) }?;
        new(session, namespace, with_prefix(prefix).into_inner())
    })
}

fn new(session: &Session, namespace: u8, ends: (Key, Key)) -> Fallible<Box<PleachCursor>> {
    let iter = session.namespace(namespace)?.iter(ends.0..=ends.1);
    Ok(Box::new(Handle::new(Cursor::new(iter, ends))))
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

fn step(cursor: Option<&PleachCursor>, forward: bool, pair: Out<PleachPair>) -> Failed {
    guard(|| {
        let pair = given(pair, "pair")?;
        pair.write(given(cursor, "cursor")?.change(|cursor| cursor.step(forward))?);
        Ok(())
    })
}
