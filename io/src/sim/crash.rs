//! What a power failure leaves: at each crash point the durable bytes plus, of everything
//! pending, what an outcome keeps.
//!
//! Pending are, in the order in which they reached the disk: folder changes since the last
//! folder sync; and for each file writes (in flight, or complete and not covered by a sync),
//! lengths and reservations. Each has a fate of its own; a write's data has one for each
//! 512-byte sector, and its new length one apart from its data.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::SimOptions;
use super::content::{Content, Page, SECTOR, SECTORS};
use super::disk::SimDisk;
use super::outcome::{Outcomes, Subsets};
use super::rng::Rng;
use super::state::{Body, FileId, FileState, FolderOp, Names, State};

/// Files and their bytes, all at rest. Clones share pages.
#[derive(Clone, Default)]
pub struct Image {
    files: BTreeMap<Arc<str>, Rest>,
}

#[derive(Clone)]
struct Rest {
    content: Content,
    older: Arc<BTreeMap<u64, Arc<Page>>>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files.iter().map(|(name, rest)| (name, &rest.content));
        f.debug_map().entries(files).finish()
    }
}

impl Image {
    /// The image that holds `files`.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, Content)>) -> Self {
        let rest = |content| Rest { content, older: Arc::default() };
        let files = files.into_iter().map(|(name, content)| (name.into(), rest(content)));
        Self { files: files.collect() }
    }

    /// Names of the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(|name| &**name)
    }

    /// A file's bytes.
    pub fn file(&self, name: &str) -> Option<&Content> {
        self.files.get(name).map(|rest| &rest.content)
    }

    pub(super) fn visible(state: &State) -> Self {
        let rest = |id: FileId| {
            let file = &state.files[id.0];
            Rest { content: file.visible.clone(), older: Arc::clone(&file.older) }
        };
        Self { files: state.names.iter().map(|(name, id)| (Arc::clone(name), rest(*id))).collect() }
    }

    pub(super) fn state(&self) -> State {
        let mut state = State::default();
        for (index, (name, rest)) in self.files.iter().enumerate() {
            let file = FileState::at_rest(rest.content.clone(), Arc::clone(&rest.older));
            state.files.push(file);
            state.names.insert(Arc::clone(name), FileId(index));
        }
        state.durable_names = state.names.clone();
        state
    }
}

/// Something pending at a crash.
#[derive(Clone)]
pub(super) enum Item {
    Folder(FolderOp),
    Change {
        id: FileId,
        body: Body,
        /// Can the file's length come out differently with this write than without?
        lengthens: bool,
    },
}

/// What a fate needs to know of a pending write.
pub(super) struct WriteView<'a> {
    pub(super) pages: usize,
    masks: Option<&'a [u8]>,
    pub(super) lengthens: bool,
}

impl WriteView<'_> {
    /// Sectors of its page number `index` that reached the device, one bit each.
    pub(super) fn landed(&self, index: usize) -> u8 {
        self.masks.map_or(u8::MAX, |masks| masks[index])
    }
}

impl Item {
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

/// What becomes of a pending thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Drop,
    Keep,
    /// A write in pieces: one byte a page, one bit a sector.
    Pieces {
        keep: Vec<u8>,
        garbage: Vec<u8>,
        length: bool,
    },
}

/// A place where the run is cut.
#[derive(Clone)]
pub struct CrashPoint {
    pub(super) boundary: usize,
    marks: Arc<[u64]>,
    marked: usize,
    names: Names,
    /// The durable bytes of each file.
    files: Vec<Rest>,
    pub(super) items: Vec<Item>,
}

impl fmt::Debug for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash point {} with {} things pending", self.boundary, self.items.len())
    }
}

impl CrashPoint {
    pub(super) fn new(state: &State, boundary: usize, marks: Arc<[u64]>, marked: usize) -> Self {
        let folder = state.folder.iter();
        // Within a file, completed changes come in their order and those in flight after them.
        let mut items: Vec<((bool, u64), Item)> =
            folder.map(|(seq, op)| ((false, *seq), Item::Folder(op.clone()))).collect();
        let mut files = Vec::with_capacity(state.files.len());
        for (index, file) in state.files.iter().enumerate() {
            let changes = file.done.iter().map(|change| ((false, change.seq), &change.body));
            let flying = file.flying.iter().map(|flying| ((true, flying.seq), &flying.body));
            let resized = file.done.iter().any(|it| matches!(it.body, Body::Resize { .. }));
            items.extend(changes.chain(flying).map(|(when, body)| {
                let lengthens = resized || body.end() > file.durable.len();
                (when, Item::Change { id: FileId(index), body: body.clone(), lengthens })
            }));
            let older = Arc::clone(&file.older);
            files.push(Rest { content: file.durable.clone(), older });
        }
        items.sort_by_key(|(when, _)| *when);
        let items = items.into_iter().map(|(_, item)| item).collect();
        Self { boundary, marks, marked, names: state.durable_names.clone(), files, items }
    }

    /// Number of events before the crash: what [`Trace::crash_point`](super::Trace::crash_point)
    /// takes.
    pub fn boundary(&self) -> usize {
        self.boundary
    }

    /// The application's marks before the crash, in order.
    pub fn marks(&self) -> &[u64] {
        &self.marks[..self.marked]
    }

    /// Number of pending things: writes, lengths, folder changes.
    pub fn pending(&self) -> usize {
        self.items.len()
    }

    /// About `count` outcomes: everything dropped, everything kept, one lost, one alone, a
    /// prefix, and the rest drawn for each pending thing. Only one when nothing is pending.
    pub fn outcomes(&self, seed: u64, count: usize) -> Outcomes<'_> {
        Outcomes::new(self, seed, count)
    }

    /// The outcome of one mode.
    pub fn outcome(&self, mode: CrashMode) -> Outcome {
        Outcomes::one(self, mode)
    }

    /// Every subset of the pending things, when there are at most 12 of this grain.
    pub fn subsets(&self, grain: Grain) -> Option<Subsets<'_>> {
        Subsets::new(self, grain)
    }

    /// The image in which each pending thing has met its fate.
    pub(super) fn image(&self, fates: &[Fate], rng: &mut Rng) -> Image {
        debug_assert_eq!(fates.len(), self.items.len(), "a fate for each");
        let mut names = self.names.clone();
        let mut touched: BTreeMap<usize, Content> = BTreeMap::new();
        for (item, fate) in self.items.iter().zip(fates) {
            match (item, fate) {
                (_, Fate::Drop) => {}
                (Item::Folder(op), _) => op.apply(&mut names),
                (Item::Change { id, body, .. }, fate) => {
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
            let Rest { content, older } = &self.files[id.0];
            let content = touched.get(&id.0).unwrap_or(content).clone();
            (name, Rest { content, older: Arc::clone(older) })
        });
        Image { files: files.collect() }
    }
}

/// Applies what `fate` leaves of a change.
fn settle(content: &mut Content, body: &Body, fate: &Fate, rng: &mut Rng) {
    let (Body::Write { first, pages, masks }, Fate::Pieces { keep, garbage, length }) =
        (body, fate)
    else {
        body.apply(content);
        return;
    };
    for (index, data) in pages.iter().enumerate() {
        let page = first + index as u64;
        let landed = masks.as_ref().map_or(u8::MAX, |masks| masks[index]);
        content.set_sectors(page, data, keep[index] & landed);
        if garbage[index] & landed != 0 {
            let mut noise = **data;
            for sector in (0..SECTORS).filter(|sector| garbage[index] >> sector & 1 == 1) {
                rng.fill(&mut noise[sector * SECTOR..(sector + 1) * SECTOR]);
            }
            content.set_sectors(page, &Arc::new(noise), garbage[index] & landed);
        }
    }
    if *length {
        content.extend(body.end());
    }
}

/// Which things an outcome keeps. Indexes count the pending things of the crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// None.
    Dropped,
    /// All.
    Kept,
    /// All but one.
    AllBut(usize),
    /// One alone.
    Only(usize),
    /// The first so many.
    Prefix(usize),
    /// Each by the seed: dropped, kept, or a write in pieces: torn at a sector, random sectors,
    /// garbage sectors (a quarter kept, a quarter dropped, half garbage), length without data or
    /// data without length.
    Random(u64),
    /// Those whose bit is set; [`Grain`] says what a bit is.
    Subset(Grain, u16),
}

/// What an enumeration of subsets keeps or drops as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Each 512-byte sector of each write.
    Sector,
    /// Each page of each write.
    Page,
    /// Each write.
    Item,
}

/// One possible result of a crash.
#[derive(Clone, Debug)]
pub struct Outcome {
    mode: CrashMode,
    boundary: usize,
    image: Image,
}

impl Outcome {
    pub(super) fn new(mode: CrashMode, boundary: usize, image: Image) -> Self {
        Self { mode, boundary, image }
    }

    /// How it came about; [`CrashPoint::outcome`] with this gives the same image again.
    pub fn mode(&self) -> CrashMode {
        self.mode
    }

    /// What is on the disk.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// A disk without faults to recover on; it records, so its own crash points can be walked.
    pub fn disk(&self) -> SimDisk {
        self.disk_with(SimOptions::default())
    }

    /// A disk to recover on. Its seed comes from the outcome.
    pub fn disk_with(&self, options: SimOptions) -> SimDisk {
        let seed = match self.mode {
            CrashMode::Random(seed) => seed,
            _ => self.boundary as u64,
        };
        SimDisk::from_image_with(&self.image, seed, options)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash point {}, {:?}", self.boundary, self.mode)
    }
}
