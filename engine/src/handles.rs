//! How many sessions, blocks and overlays of an open database live, and how many loads and backups run.
//!
//! Each of them keeps the folder locked, since it may read from it at any time. Whoever closes the database, or wants
//! to open it again, has to know of them.
//!
//! Invariant: a handle is counted until it has released the database, so that a count of zero means an unlocked folder.
//! Handles keep their [`CountedHandle`] as the last field for that.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers of live handles of a database. An overlay counts while the caller, or a handle above it, holds it; its
/// clones count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenHandles {
    /// Sessions.
    pub sessions: usize,
    /// Blocks that are neither committed nor overlays.
    pub blocks: usize,
    /// Overlays, committed or not.
    pub overlays: usize,
    /// Iterators.
    pub iterators: usize,
    /// Bulk loads that run. A load that runs when the database is closed ends with
    /// [`Error::Closed`](crate::Error::Closed).
    pub loads: usize,
    /// Backups that run. A close lets them go on.
    pub backups: usize,
}

impl OpenHandles {
    /// True when there is no handle.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for OpenHandles {
    /// Text such as "2 sessions and 1 overlay".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.sessions, "session"),
            (self.blocks, "block"),
            (self.overlays, "overlay"),
            (self.iterators, "iterator"),
            (self.loads, "load"),
            (self.backups, "backup"),
        ];
        let mut left = kinds.iter().filter(|(count, _)| *count > 0).count();
        if left == 0 {
            return f.write_str("nothing");
        }
        for (count, kind) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            let plural = if count == 1 { "" } else { "s" };
            left -= 1;
            let separator = ["", " and ", ", "][left.min(2)];
            write!(f, "{count} {kind}{plural}{separator}")?;
        }
        Ok(())
    }
}

/// What holds a commit, or the whole database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A session on the newest commit of its time, or over an overlay.
    Session,
    /// A session on a past commit.
    Snapshot,
    /// A block that is neither committed nor an overlay.
    Block,
    /// An overlay, or a chain of them.
    Overlay,
    /// An operation in progress, such as a commit.
    Operation,
    /// A bulk load, which needs the database to itself.
    Load,
    /// A backup.
    Backup,
}

/// A kind of handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandleKind {
    Session,
    Block,
    Overlay,
    Iterator,
    Load,
    Backup,
}

/// The counts of handles of one database, by kind.
#[derive(Default)]
pub(crate) struct Handles([AtomicUsize; 6]);

impl Handles {
    /// The numbers of handles that live now.
    pub(crate) fn open_handles(&self) -> OpenHandles {
        let [sessions, blocks, overlays, iterators, loads, backups] = [
            HandleKind::Session,
            HandleKind::Block,
            HandleKind::Overlay,
            HandleKind::Iterator,
            HandleKind::Load,
            HandleKind::Backup,
        ]
        .map(|kind| self.count_of(kind).load(Ordering::Acquire));
        OpenHandles { sessions, blocks, overlays, iterators, loads, backups }
    }

    fn count_of(&self, kind: HandleKind) -> &AtomicUsize {
        &self.0[kind as usize]
    }
}

/// A handle that is counted while it lives.
pub(crate) struct CountedHandle {
    handles: Arc<Handles>,
    kind: HandleKind,
}

impl CountedHandle {
    pub(crate) fn new(handles: &Arc<Handles>, kind: HandleKind) -> Self {
        handles.count_of(kind).fetch_add(1, Ordering::Relaxed);
        Self { handles: Arc::clone(handles), kind }
    }

    /// Counts the handle as another kind from now on.
    pub(crate) fn into_kind(mut self, kind: HandleKind) -> Self {
        // For a moment the handle counts twice rather than not at all.
        self.handles.count_of(kind).fetch_add(1, Ordering::Relaxed);
        let before = std::mem::replace(&mut self.kind, kind);
        self.handles.count_of(before).fetch_sub(1, Ordering::Release);
        self
    }
}

impl Drop for CountedHandle {
    fn drop(&mut self) {
        // Release: what the handle held was released before.
        self.handles.count_of(self.kind).fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_handles_and_speak() {
        let handles = Arc::new(Handles::default());
        assert!(handles.open_handles().is_empty());
        assert_eq!(handles.open_handles().to_string(), "nothing");
        let one = CountedHandle::new(&handles, HandleKind::Session);
        let two = CountedHandle::new(&handles, HandleKind::Session);
        assert_eq!(handles.open_handles().to_string(), "2 sessions");
        let block = two.into_kind(HandleKind::Block);
        assert_eq!(handles.open_handles().to_string(), "1 session and 1 block");
        let overlay = CountedHandle::new(&handles, HandleKind::Overlay);
        assert_eq!(handles.open_handles().to_string(), "1 session, 1 block and 1 overlay");
        drop((one, block));
        assert_eq!(handles.open_handles(), OpenHandles { overlays: 1, ..OpenHandles::default() });
        drop(overlay);
        assert!(handles.open_handles().is_empty());
    }
}
