//! Which commits are held, by what, and since when.
//!
//! A pin belongs to a [`View`](crate::state::view::View): it keeps the undo of later commits in memory, and the
//! overflow runs that only older states name, as long as the limits of the history allow. Beyond them the pin of an
//! application holds nothing; that of the engine's own work, a rollback or a backup, holds until it ends. Guarded by
//! the lock of [`super::undo`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::handles::Holder;

/// A held commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// What holds the commit.
    pub holder: Holder,
    /// The label that the session was opened with.
    pub label: Option<Arc<str>>,
    /// Number of the commit.
    pub commit: u64,
    /// How long it has been held.
    pub age: Duration,
    /// True while the commit can still be read. Otherwise later commits have replaced more than undo may take: each
    /// read returns [`SnapshotTooOld`](crate::Error::SnapshotTooOld), and the pin keeps neither memory nor disk.
    pub readable: bool,
    /// Bytes of undo that this pin needs and the history alone would not keep.
    pub bytes: u64,
}

/// The id of a pin: the commit, and a number of its own.
pub(in crate::state) type PinId = (u64, u64);

/// The holder of a pin, and when it began.
#[derive(Clone, Debug)]
pub(super) struct PinInfo {
    pub(super) holder: Holder,
    pub(super) label: Option<Arc<str>>,
    /// Time of the runtime.
    pub(super) since: Duration,
}

/// All pins.
#[derive(Default)]
pub(super) struct Pins {
    next: u64,
    held: BTreeMap<PinId, PinInfo>,
}

impl Pins {
    pub(super) fn add(&mut self, commit: u64, since: Duration) -> PinId {
        self.next += 1;
        let id = (commit, self.next);
        self.held.insert(id, PinInfo { holder: Holder::Operation, label: None, since });
        id
    }

    pub(super) fn remove(&mut self, id: PinId) {
        let held = self.held.remove(&id);
        assert!(held.is_some(), "pinned before");
    }

    /// Changes the holder of a pin; its label stays unless there is a new one.
    pub(super) fn set_holder(&mut self, id: PinId, holder: Holder, label: Option<Arc<str>>) {
        if let Some(held) = self.held.get_mut(&id) {
            held.holder = holder;
            held.label = label.or_else(|| held.label.take());
        }
    }

    /// The oldest held commit, with what holds it. `reads` is true for readable commits.
    pub(super) fn oldest(&self, reads: impl Fn(u64) -> bool) -> Option<(u64, Holder)> {
        // A rollback and a backup go on with what they have read of a state that cannot be read any more.
        let holds = |(commit, held): &(u64, &PinInfo)| {
            reads(*commit) || matches!(held.holder, Holder::Operation | Holder::Backup)
        };
        self.iter().find(holds).map(|(commit, held)| (commit, held.holder))
    }

    /// All pins, the oldest commits first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &PinInfo)> {
        self.held.iter().map(|((commit, _), held)| (*commit, held))
    }
}
