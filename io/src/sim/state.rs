//! The file system as a pure state machine: [`DiskState::apply`] is the one place that says what an
//! event does to the bytes that reads see, to the durable bytes and to what is pending.
//!
//! A live disk applies each event as it happens and records it; a trace applies the same events again to reach any
//! crash point. All chance is decided before an event is made, so both arrive at the same state.
//!
//! Invariants, for each file without failed syncs and damage: `visible` = `durable` + `done` in
//! order + the shown ones of `in_flight`; a successful sync moves a prefix of `done` to `durable`:
//! exactly what had completed before the sync was submitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{Content, PageBytes, PageSlot, offset_of, pages_of};
use super::faults::Aftermath;
use super::rng::Rng;

/// Index of a file in [`DiskState::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId(pub(super) usize);

/// Number of a write or sync, unique in a disk's life.
pub(super) type OpId = u64;
/// The folder: names to files.
pub(super) type Names = BTreeMap<Arc<str>, FileId>;
/// Sectors of each page of a write, one bit a sector.
pub(super) type Masks = Arc<[u8]>;

/// A change of one file.
#[derive(Clone)]
pub(super) enum Body {
    Write { first: u64, pages: Arc<[Arc<PageBytes>]>, masks: Option<Masks> },
    Extend { len: u64 },
    Resize { len: u64 },
    Reserve { first: u64, count: u64, len: u64 },
}

impl Body {
    /// Length that the file has at least, once this has happened.
    pub(super) fn end(&self) -> u64 {
        match self {
            Self::Write { first, pages, masks } => {
                let all = pages.len();
                let reached = masks.as_ref().map_or(all, |masks| {
                    masks.iter().rposition(|&mask| mask != 0).map_or(0, |last| last + 1)
                });
                if reached == 0 { 0 } else { offset_of(first + reached as u64) }
            }
            Self::Extend { len } | Self::Resize { len } | Self::Reserve { len, .. } => *len,
        }
    }

    pub(super) fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { first, pages, masks } => {
                for (index, page) in pages.iter().enumerate() {
                    let mask = masks.as_ref().map_or(u8::MAX, |masks| masks[index]);
                    content.set_sectors(first + index as u64, page, mask);
                }
                content.extend(self.end());
            }
            Self::Extend { len } => content.extend(*len),
            Self::Resize { len } => content.resize(*len),
            Self::Reserve { first, count, len } => {
                content.reserve(*first, *count);
                content.extend(*len);
            }
        }
    }
}

/// A change that has completed and that no sync has covered.
#[derive(Clone)]
pub(super) struct CompletedChange {
    /// When it completed.
    pub(super) seq: u64,
    pub(super) body: Body,
}

/// A write that was submitted and has not completed.
#[derive(Clone)]
pub(super) struct InFlight {
    pub(super) op: OpId,
    pub(super) seq: u64,
    pub(super) body: Body,
    shown: bool,
}

/// One file.
#[derive(Clone, Default)]
pub(super) struct FileState {
    pub(super) durable: Content,
    pub(super) visible: Content,
    pub(super) done: Vec<CompletedChange>,
    pub(super) in_flight: Vec<InFlight>,
    /// Syncs in flight: number, and when it was submitted.
    syncs: Vec<(OpId, u64)>,
    /// What each page held before its last write, for stale pages.
    pub(super) older: Arc<BTreeMap<u64, Arc<PageBytes>>>,
}

/// A change of the folder that no folder sync has covered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FolderOp {
    Link {
        name: Arc<str>,
        id: FileId,
    },
    Unlink {
        name: Arc<str>,
        id: FileId,
    },
    Rename {
        from: Arc<str>,
        to: Arc<str>,
        id: FileId,
    },
    /// The two names are exchanged; the ids are those before.
    Exchange {
        a: Arc<str>,
        b: Arc<str>,
        id_a: FileId,
        id_b: FileId,
    },
}

impl FolderOp {
    pub(super) fn apply(&self, names: &mut Names) {
        let unlink = |names: &mut Names, name: &Arc<str>, id: FileId| {
            if names.get(name) == Some(&id) {
                names.remove(name);
            }
        };
        match self {
            Self::Link { name, id } => {
                names.insert(Arc::clone(name), *id);
            }
            Self::Unlink { name, id } => unlink(names, name, *id),
            Self::Rename { from, to, id } => {
                unlink(names, from, *id);
                names.insert(Arc::clone(to), *id);
            }
            Self::Exchange { a, b, id_a, id_b } => {
                names.insert(Arc::clone(a), *id_b);
                names.insert(Arc::clone(b), *id_a);
            }
        }
    }
}

/// How a sync ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SyncEnd {
    Durable,
    /// The seed decides each page's fate in a mix.
    Failed(Aftermath, u64),
}

/// What damage does to the stored bytes.
#[derive(Clone, Debug, Hash)]
pub(super) enum Spoil {
    Page(u64, Arc<PageBytes>),
    Unreadable(u64),
    Cut(u64),
}

/// One thing that happened on the disk.
#[derive(Clone, Debug, Hash)]
pub(super) enum DiskEvent {
    Folder(FolderOp),
    FolderSync(SyncEnd),
    Resize {
        id: FileId,
        len: u64,
    },
    Reserve {
        id: FileId,
        first: u64,
        count: u64,
        len: u64,
    },
    /// A write reaches the device.
    Start {
        op: OpId,
        id: FileId,
        first: u64,
        pages: Arc<[Arc<PageBytes>]>,
    },
    /// Reads see it from here on, though it has not completed.
    Show {
        op: OpId,
        id: FileId,
    },
    /// It completes; with masks when only a part has reached the medium.
    Finish {
        op: OpId,
        id: FileId,
        masks: Option<Masks>,
    },
    SyncStart {
        op: OpId,
        id: FileId,
    },
    SyncEnd {
        op: OpId,
        id: FileId,
        end: SyncEnd,
    },
    /// A read, or a call that failed or asked: nothing on the disk changes.
    Looked {
        what: &'static str,
        id: Option<FileId>,
        offset: u64,
        code: i32,
    },
    Damage {
        id: FileId,
        spoil: Spoil,
    },
    Mark(u64),
}

impl DiskEvent {
    /// True when a crash after this event has other outcomes, or other marks before it, than a crash before it.
    pub(super) fn is_boundary(&self) -> bool {
        match self {
            // A completion alone moves nothing to or from the medium.
            Self::Finish { masks, .. } => masks.is_some(),
            Self::Show { .. } | Self::SyncStart { .. } | Self::Looked { .. } => false,
            _ => true,
        }
    }
}

/// The whole simulated folder.
#[derive(Clone, Default)]
pub(super) struct DiskState {
    pub(super) files: Vec<FileState>,
    pub(super) durable_names: Names,
    pub(super) names: Names,
    pub(super) folder: Vec<(u64, FolderOp)>,
    seq: u64,
}

impl DiskState {
    /// Applies one event.
    pub(super) fn apply(&mut self, event: &DiskEvent) {
        self.seq += 1;
        let seq = self.seq;
        match event {
            DiskEvent::Folder(op) => self.change_folder(seq, op),
            DiskEvent::FolderSync(end) => self.end_folder_sync(*end),
            DiskEvent::Resize { id, len } => {
                self.files[id.0].complete(seq, Body::Resize { len: *len });
            }
            DiskEvent::Reserve { id, first, count, len } => {
                let body = Body::Reserve { first: *first, count: *count, len: *len };
                self.files[id.0].complete(seq, body);
            }
            DiskEvent::Start { op, id, first, pages } => {
                let body = Body::Write { first: *first, pages: Arc::clone(pages), masks: None };
                self.files[id.0].in_flight.push(InFlight { op: *op, seq, body, shown: false });
            }
            DiskEvent::Show { op, id } => self.files[id.0].show(*op),
            DiskEvent::Finish { op, id, masks } => {
                self.files[id.0].finish(seq, *op, masks.as_ref());
            }
            DiskEvent::SyncStart { op, id } => self.files[id.0].syncs.push((*op, seq)),
            DiskEvent::SyncEnd { op, id, end } => self.files[id.0].end_sync(*op, *end),
            DiskEvent::Damage { id, spoil } => self.files[id.0].spoil(spoil),
            DiskEvent::Looked { .. } | DiskEvent::Mark(_) => {}
        }
    }

    fn change_folder(&mut self, seq: u64, op: &FolderOp) {
        if let FolderOp::Link { id, .. } = op {
            assert_eq!(id.0, self.files.len(), "files are numbered in the order of creation");
            self.files.push(FileState::default());
        }
        op.apply(&mut self.names);
        self.folder.push((seq, op.clone()));
    }

    /// A failed folder sync is never made good by a later one: what it covered stays visible and
    /// is lost at the next crash, or, in a mix, each change is lost or durable.
    fn end_folder_sync(&mut self, end: SyncEnd) {
        let mut chance = match end {
            SyncEnd::Failed(Aftermath::Mixed, seed) => Some(Rng::new(seed)),
            SyncEnd::Failed(..) | SyncEnd::Durable => None,
        };
        for (_, op) in self.folder.drain(..) {
            let kept = chance.as_mut().map_or(end == SyncEnd::Durable, |rng| rng.chance(1, 2));
            if kept {
                op.apply(&mut self.durable_names);
            }
        }
    }
}

impl FileState {
    /// A file whose bytes are durable.
    pub(super) fn at_rest(content: Content, older: Arc<BTreeMap<u64, Arc<PageBytes>>>) -> Self {
        Self { durable: content.clone(), visible: content, older, ..Self::default() }
    }

    fn complete(&mut self, seq: u64, body: Body) {
        self.make_visible(&body);
        self.done.push(CompletedChange { seq, body });
    }

    fn make_visible(&mut self, body: &Body) {
        if let Body::Write { first, pages, .. } = body {
            for (index, new) in pages.iter().enumerate() {
                let page = first + index as u64;
                if let Some(old) = self.visible.slot(page).filter(|old| !Arc::ptr_eq(old, new)) {
                    Arc::make_mut(&mut self.older).insert(page, Arc::clone(old));
                }
            }
        }
        body.apply(&mut self.visible);
    }

    fn show(&mut self, op: OpId) {
        let found = self.in_flight.iter_mut().find(|write| write.op == op);
        if let Some(write) = found {
            write.shown = true;
            let body = write.body.clone();
            self.make_visible(&body);
        }
    }

    fn finish(&mut self, seq: u64, op: OpId, reached: Option<&Masks>) {
        let Some(at) = self.in_flight.iter().position(|write| write.op == op) else { return };
        let mut body = self.in_flight.remove(at).body;
        if let Body::Write { masks, .. } = &mut body {
            *masks = reached.cloned();
        }
        if body.end() != 0 {
            self.complete(seq, body);
        }
    }

    fn end_sync(&mut self, op: OpId, end: SyncEnd) {
        let Some(at) = self.syncs.iter().position(|(sync, _)| *sync == op) else { return };
        let (_, submitted) = self.syncs.remove(at);
        let covered = self.done.partition_point(|change| change.seq < submitted);
        match end {
            SyncEnd::Durable => {
                for change in self.done.drain(..covered) {
                    change.body.apply(&mut self.durable);
                }
            }
            SyncEnd::Failed(aftermath, seed) => self.lose(covered, aftermath, seed),
        }
    }

    /// What a failed sync does to the first `covered` changes. Their data is decided for good: no
    /// later sync makes it durable. Their lengths stay pending, except in a mix: there some pages may have
    /// been stored, so the lengths up to them are stored too.
    fn lose(&mut self, covered: usize, aftermath: Aftermath, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut back = Vec::new();
        let mut kept = Vec::new();
        for CompletedChange { seq, body } in self.done.drain(..covered).collect::<Vec<_>>() {
            let length = match &body {
                Body::Write { .. } => Body::Extend { len: body.end() },
                other => other.clone(),
            };
            if aftermath == Aftermath::Mixed {
                length.apply(&mut self.durable);
            } else {
                kept.push(CompletedChange { seq, body: length });
            }
            let Body::Write { first, pages, masks } = &body else { continue };
            for (index, data) in pages.iter().enumerate() {
                let page = first + index as u64;
                let mask = masks.as_ref().map_or(u8::MAX, |masks| masks[index]);
                match aftermath {
                    Aftermath::NewVisible => {}
                    Aftermath::OldBack => back.push(page),
                    Aftermath::Mixed => match rng.below(3) {
                        0 => {}
                        1 => back.push(page),
                        _ => self.durable.set_sectors(page, data, mask),
                    },
                }
            }
        }
        kept.append(&mut self.done);
        self.done = kept;
        let cached = self.refold();
        for page in back {
            self.visible.set_slot(page, cached.slot(page).cloned());
        }
    }

    /// What reads would see if nothing had ever been lost: the durable bytes and all that is pending on top.
    fn refold(&self) -> Content {
        let mut content = self.durable.clone();
        let shown = self.in_flight.iter().filter(|write| write.shown).map(|write| &write.body);
        for body in self.done.iter().map(|change| &change.body).chain(shown) {
            body.apply(&mut content);
        }
        content
    }

    fn spoil(&mut self, spoil: &Spoil) {
        for content in [&mut self.durable, &mut self.visible] {
            match spoil {
                Spoil::Page(page, bytes) => content.set_slot(*page, Some(Arc::clone(bytes))),
                Spoil::Unreadable(page) => content.spoil(*page),
                Spoil::Cut(len) => content.resize(*len),
            }
        }
    }

    /// True when a write of `count` pages at `first` touches one that is in flight.
    pub(super) fn overlaps(&self, first: u64, count: u64) -> bool {
        self.in_flight.iter().any(|write| match &write.body {
            Body::Write { first: other, pages, .. } => {
                first < other + pages.len() as u64 && *other < first + count
            }
            _ => false,
        })
    }

    /// The previous bytes of page `page`, when they are known and differ.
    pub(super) fn stale(&self, page: u64) -> PageSlot {
        let old = self.older.get(&page)?;
        (page < pages_of(self.visible.len()) && **old != *self.visible.page(page))
            .then(|| Arc::clone(old))
    }
}
