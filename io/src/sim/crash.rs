//! What a power failure leaves: at each crash point the durable bytes and, of all pending changes, those that an
//! outcome keeps.
//!
//! Pending are, in the order in which they reached the disk: changes of the folder since its last sync; and for each
//! file, writes (in flight, or complete and not covered by a sync), lengths and reservations. Each has a fate of its
//! own; a write's data has one for each 512-byte sector, and its new length has one too.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{Content, SECTOR, SECTORS};
use super::image::{FileImage, Image};
use super::rng::Rng;
use super::state::{Body, DiskState, FileId, FolderOp, Names};

/// A change pending at a crash.
#[derive(Clone)]
pub(super) enum CrashItem {
    Folder(FolderOp),
    Change {
        id: FileId,
        body: Body,
        /// True when the file's length can come out differently with this write than without.
        lengthens: bool,
    },
}

/// The parts of a pending write that decide its fate.
pub(super) struct WriteView<'a> {
    pub(super) pages: usize,
    masks: Option<&'a [u8]>,
    pub(super) lengthens: bool,
}

impl WriteView<'_> {
    /// Sectors of its page number `index` that reached the device, one bit each.
    pub(super) fn reached(&self, index: usize) -> u8 {
        self.masks.map_or(u8::MAX, |masks| masks[index])
    }
}

impl CrashItem {
    pub(super) fn write(&self) -> Option<WriteView<'_>> {
        match self {
            Self::Change { body: Body::Write { pages, masks, .. }, lengthens, .. } => {
                let (pages, lengthens) = (pages.len(), *lengthens);
                Some(WriteView { pages, masks: masks.as_deref(), lengthens })
            }
            _ => None,
        }
    }
}

/// The fate of a pending change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemFate {
    Drop,
    Keep,
    /// A write in pieces: one byte a page, one bit a sector.
    Pieces {
        keep: Vec<u8>,
        garbage: Vec<u8>,
        length: bool,
    },
}

/// A moment at which the power fails.
#[derive(Clone)]
pub struct CrashPoint {
    pub(super) boundary: usize,
    marks: Arc<[u64]>,
    marked: usize,
    names: Names,
    /// The durable bytes of each file.
    files: Vec<FileImage>,
    pub(super) items: Vec<CrashItem>,
}

impl fmt::Debug for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash point {} with {} things pending", self.boundary, self.items.len())
    }
}

impl CrashPoint {
    pub(super) fn new(
        state: &DiskState,
        boundary: usize,
        marks: Arc<[u64]>,
        marked: usize,
    ) -> Self {
        let folder = state.folder.iter();
        // Within a file, completed changes come in their order and those in flight after them.
        let mut items: Vec<((bool, u64), CrashItem)> =
            folder.map(|(seq, op)| ((false, *seq), CrashItem::Folder(op.clone()))).collect();
        let mut files = Vec::with_capacity(state.files.len());
        for (index, file) in state.files.iter().enumerate() {
            let changes = file.done.iter().map(|change| ((false, change.seq), &change.body));
            let in_flight = file.in_flight.iter().map(|write| ((true, write.seq), &write.body));
            let resized = file.done.iter().any(|it| matches!(it.body, Body::Resize { .. }));
            items.extend(changes.chain(in_flight).map(|(when, body)| {
                let lengthens = resized || body.end() > file.durable.len();
                (when, CrashItem::Change { id: FileId(index), body: body.clone(), lengthens })
            }));
            let older = Arc::clone(&file.older);
            files.push(FileImage { content: file.durable.clone(), older });
        }
        items.sort_by_key(|(when, _)| *when);
        let items = items.into_iter().map(|(_, item)| item).collect();
        Self { boundary, marks, marked, names: state.durable_names.clone(), files, items }
    }

    /// Number of events before the crash: what [`Trace::crash_point`](super::Trace::crash_point) takes.
    pub fn boundary(&self) -> usize {
        self.boundary
    }

    /// The application's marks before the crash, in order.
    pub fn marks(&self) -> &[u64] {
        &self.marks[..self.marked]
    }

    /// Number of pending changes: writes, lengths, folder changes.
    pub fn pending(&self) -> usize {
        self.items.len()
    }

    /// The image after each pending change has met its fate.
    pub(super) fn image(&self, fates: &[ItemFate], rng: &mut Rng) -> Image {
        debug_assert_eq!(fates.len(), self.items.len(), "a fate for each");
        let mut names = self.names.clone();
        let mut touched: BTreeMap<usize, Content> = BTreeMap::new();
        for (item, fate) in self.items.iter().zip(fates) {
            match (item, fate) {
                (_, ItemFate::Drop) => {}
                (CrashItem::Folder(op), _) => op.apply(&mut names),
                (CrashItem::Change { id, body, .. }, fate) => {
                    let content =
                        touched.entry(id.0).or_insert_with(|| self.files[id.0].content.clone());
                    settle(content, body, fate, rng);
                }
            }
        }
        for content in touched.values_mut() {
            content.trim();
        }
        let files = names.into_iter().map(|(name, id)| {
            let FileImage { content, older } = &self.files[id.0];
            let content = touched.get(&id.0).unwrap_or(content).clone();
            (name, FileImage { content, older: Arc::clone(older) })
        });
        Image::from_rest(files)
    }
}

/// Applies what `fate` leaves of a change.
fn settle(content: &mut Content, body: &Body, fate: &ItemFate, rng: &mut Rng) {
    let (Body::Write { first, pages, masks }, ItemFate::Pieces { keep, garbage, length }) =
        (body, fate)
    else {
        body.apply(content);
        return;
    };
    for (index, data) in pages.iter().enumerate() {
        let page = first + index as u64;
        let reached = masks.as_ref().map_or(u8::MAX, |masks| masks[index]);
        content.set_sectors(page, data, keep[index] & reached);
        if garbage[index] & reached != 0 {
            let mut noise = **data;
            for sector in (0..SECTORS).filter(|sector| garbage[index] >> sector & 1 == 1) {
                rng.fill(&mut noise[sector * SECTOR..(sector + 1) * SECTOR]);
            }
            content.set_sectors(page, &Arc::new(noise), garbage[index] & reached);
        }
    }
    if *length {
        content.extend(body.end());
    }
}
