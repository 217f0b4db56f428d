//! A tree of pages is made, filled, changed, flushed, closed and opened again, without sessions, commits or a log. It has
//! the pairs of a map and the root of the naive trie, and a damaged page costs its own keys alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pleach_beatree::cache::{Buffers, Cache};
use pleach_beatree::files::{LEAF_FILE, OVERFLOW_FILE};
use pleach_beatree::grace::Grace;
use pleach_beatree::load::{BuiltLeaf, regions};
use pleach_beatree::page_no::page_offset;
use pleach_beatree::page_plan::{
    CellRef, PageCells, PageStamp, fold_pages, plan_pages, write_page,
};
use pleach_beatree::pages::{
    InFlight, PageCounters, PageReader, PageSpace, PageWaiters, Quarantine, ReadMode, ReaderPool,
    SpaceParts, Store, Submission, overflow,
};
use pleach_beatree::region::{AwayRegion, NewNodes, RegionCommit, RegionSource, Relocation};
use pleach_beatree::space::{FileGeometry, LeafSpace, OverflowSpace};
use pleach_beatree::split_regions::split_regions;
use pleach_beatree::tree::KeyPlace;
use pleach_beatree::tree::ahead::{AheadLimits, Direction, KeyRange, ReadAhead};
use pleach_beatree::{
    ChildRef, ChildTable, Error, PageNo, PageRef, Region, RegionIndex, RegionState, Result, Stored,
    Tree, Value,
};
use pleach_core::fold::Folder;
use pleach_core::naive::NaiveTrie;
use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::page::leaf::{Cell, LeafView};
use pleach_core::page::{
    BranchBuilder, BranchEntry, BranchHeader, BranchView, FileKind, Identity, header, stream,
};
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::sim::{Quota, SimDisk, SimOptions, SimRuntime, code};
use pleach_io::{Disk, Executor, File, OpenMode, OsDevice, OsOptions, PageBuf, Threads};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const DATABASE: u64 = 7;
const HASHER: Hasher = Hasher::BLAKE3;
const GEOMETRY: FileGeometry = FileGeometry { segment_pages: 64, size_percent: 150 };
/// Branch pages of the regions, and behind them one that names these.
const IMAGE: &str = "image";

type Model = BTreeMap<Key, Vec<u8>>;
/// A key with what its page has of it, and whether that is an overflow cell.
type OwnCell = (Key, Vec<u8>, bool);

struct Nobody;

impl PageWaiters for Nobody {
    fn page_released(&self) {}
}

#[derive(Debug)]
struct BranchFile {
    device: Disk,
    file: File,
    quarantine: Arc<Quarantine>,
}

impl BranchFile {
    fn read(&self, page: u64, tag: u32) -> Result<Vec<(Prefix, BranchEntry)>> {
        let mut buf = PageBuf::zeroed(1);
        self.device.read_at(&self.file, &mut buf, page_offset(page))?;
        let bad = |error| Error::Page { file: IMAGE, page, error };
        let view = BranchView::parse(buf.page(0), &identity(page)).map_err(bad)?;
        assert_eq!(header::tag(buf.page(0)), tag);
        Ok(view.iter().collect())
    }
}

impl RegionSource for BranchFile {
    fn load(&self, prefix: &Prefix, at: &AwayRegion, _ahead: bool) -> Option<Region> {
        let read = self.read(at.page, at.tag).inspect_err(|error| {
            self.quarantine.lose(IMAGE, at.page, 0, *prefix, error.clone());
        });
        let entries = read.ok()?;
        self.quarantine.note_region(at.page);
        let child = |(prefix, entry): &(Prefix, BranchEntry)| ChildRef {
            prefix: *prefix,
            page: entry.page_no.map(|page| PageNo::try_from(page).expect("a page number")),
            tag: entry.tag,
        };
        let children: Vec<_> = entries.iter().map(child).collect();
        let nodes = entries.iter().map(|(_, entry)| entry.node).collect();
        Some(Region::new(HASHER, 0, ChildTable::new(*prefix, &children), nodes, 0))
    }
}

fn identity(page: u64) -> Identity {
    Identity { kind: FileKind::Image, page_no: page, db_id: DATABASE }
}

/// What a close leaves, as a superblock would name it.
struct Closed {
    /// Page and tag of the branch page above the regions.
    top: (u64, u32),
    leaves: Vec<PageNo>,
    overflow_map: Vec<u8>,
    last: u64,
}

struct TreeRig {
    tree: Tree,
    space: PageSpace,
    /// Number of the last commit or flush, and its place in a log.
    last: u64,
}

impl TreeRig {
    fn make(device: Disk, runtime: Executor) -> Self {
        for name in [LEAF_FILE, OVERFLOW_FILE, IMAGE] {
            device.open(name, OpenMode::CreateNew).expect("a new file");
        }
        let whole = ChildRef { prefix: Prefix::ROOT, page: None, tag: 0 };
        let leaf = BuiltLeaf { child: whole, node: pleach_core::TERMINATOR };
        let (regions, _) = regions(HASHER, 0, false, &[leaf], 0);
        let maps = (LeafSpace::new(GEOMETRY), OverflowSpace::new(GEOMETRY));
        Self::assemble(device, runtime, regions, maps, Arc::default(), 0)
    }

    fn open(device: Disk, runtime: Executor, closed: &Closed) -> Result<Self> {
        let quarantine = Arc::<Quarantine>::default();
        let file = device.open(IMAGE, OpenMode::Read)?;
        let image = BranchFile { device: device.clone(), file, quarantine: quarantine.clone() };
        let image = Arc::new(image);
        let rows = image.read(closed.top.0, closed.top.1)?;
        let row = |(prefix, entry): (Prefix, BranchEntry)| {
            let at = AwayRegion {
                source: image.clone(),
                page: entry.page_no.expect("each region has a page"),
                tag: entry.tag,
                node: Some(entry.node),
                buffered: [0, 0],
            };
            Arc::new(Region::away(HASHER, 0, prefix, closed.last, at))
        };
        let regions = rows.into_iter().map(row).collect();
        let bytes = device.len(&device.open(LEAF_FILE, OpenMode::Read)?)?;
        let segments = u32::try_from(bytes / page_offset(GEOMETRY.pages_of(1))).expect("small");
        let leaf_map = LeafSpace::from_used(GEOMETRY, segments, closed.leaves.iter().copied())?;
        let maps = (leaf_map, OverflowSpace::parse(GEOMETRY, &closed.overflow_map)?);
        Ok(Self::assemble(device, runtime, regions, maps, quarantine, closed.last))
    }

    fn assemble(
        device: Disk,
        runtime: Executor,
        regions: Vec<Arc<Region>>,
        (leaf_map, overflow_map): (LeafSpace, OverflowSpace),
        quarantine: Arc<Quarantine>,
        last: u64,
    ) -> Self {
        let open = |name| device.open(name, OpenMode::Write).expect("made before");
        let (leaf, overflow) = (open(LEAF_FILE), open(OVERFLOW_FILE));
        let store = Store {
            device: device.clone(),
            database: DATABASE,
            leaf_file: leaf.clone(),
            cache: Cache::new(1 << 19),
            buffers: Buffers::new(1 << 16),
            grace: Grace::new(),
            in_flight: InFlight::new(runtime),
            quarantine,
            waiters: Arc::new(Nobody),
            counters: PageCounters::default(),
        };
        let space = PageSpace::new(SpaceParts {
            device,
            leaf,
            overflow,
            geometry: GEOMETRY,
            log_segment: 1 << 16,
            leaf_map,
            overflow_map,
            history: BTreeMap::new(),
            image_leaf_end: 0,
            retired_extents: VecDeque::new(),
        });
        let tree = Tree::new(&Arc::new(store), RegionIndex::new(regions), |_| false);
        Self { tree, space, last }
    }

    /// Fills the empty tree, without buffered changes.
    fn load(&mut self, pairs: &Model) {
        self.last += 1;
        let cells: Vec<OwnCell> = pairs.iter().map(|(key, value)| self.cell(key, value)).collect();
        let leaves: Vec<BuiltLeaf> = self
            .write_pages(&Prefix::ROOT, &cells)
            .into_iter()
            .map(|(child, node)| BuiltLeaf { child, node })
            .collect();
        let (regions, _) = regions(HASHER, 0, false, &leaves, self.last);
        let _structure = self.tree.hold_structure();
        let empty = self.tree.publish(RegionIndex::new(regions));
        empty.regions()[0].write().retire();
    }

    fn cell(&self, key: &Key, value: &[u8]) -> OwnCell {
        match Stored::from_value(HASHER, Value::from(value)) {
            Stored::Long(large) => {
                let mut tentative = self.space.tentative();
                let pages = large.bytes.len().div_ceil(stream::PAYLOAD);
                let extents = self.space.allocate_overflow(pages, &mut tentative).expect("room");
                let file = &self.space.overflow;
                let cell = overflow::write(&self.tree.store, file, &extents, &large, 0, self.last);
                tentative.mark_named();
                (*key, cell.expect("written").to_vec(), true)
            }
            _ => (*key, value.to_vec(), false),
        }
    }

    /// Writes pages with these cells below a prefix; gives them with their nodes.
    fn write_pages(&self, at: &Prefix, cells: &[OwnCell]) -> Vec<(ChildRef, Node)> {
        let cells: Vec<CellRef<'_>> = cells
            .iter()
            .map(|(key, bytes, overflow)| CellRef { key: *key, bytes, overflow: *overflow })
            .collect();
        let plans = plan_pages(at, &cells);
        let page =
            |plan: &pleach_beatree::page_plan::PagePlan| (plan.prefix, &cells[plan.cells.clone()]);
        let pages: Vec<_> = plans.iter().map(page).collect();
        let folded: Vec<_> = pages
            .iter()
            .map(|(prefix, cells)| PageCells { prefix: *prefix, cells, known: None })
            .collect();
        let nodes = fold_pages(&mut Folder::new(HASHER), &folded);
        let filled = pages.iter().filter(|(_, cells)| !cells.is_empty()).count();
        let mut numbers = self.space.allocate_leaves(filled).expect("room").into_iter();
        let written = pages.iter().zip(nodes).map(|((prefix, cells), nodes)| {
            let page = if cells.is_empty() { None } else { numbers.next() };
            let tag = page.map_or(0, |number| {
                let identity = self.tree.store.leaf_identity(number);
                let stamp =
                    PageStamp { identity, flush: self.last, namespace: 0, last_commit: self.last };
                let mut buf = PageBuf::zeroed(1);
                let tag = write_page(buf.page_mut(0), &stamp, prefix, cells, &nodes.stored);
                let Store { device, leaf_file, .. } = &*self.tree.store;
                device.write_at(leaf_file, &buf, 1, number.offset()).expect("written");
                tag
            });
            (ChildRef { prefix: *prefix, page, tag }, nodes.own)
        });
        written.collect()
    }

    /// The cells of a child: of its page, with the changes buffered for it.
    fn cells(&self, state: &RegionState, child: usize) -> BTreeMap<Key, (Vec<u8>, bool)> {
        let page =
            state.page_ref(child).map(|at| self.tree.store.page(at).expect("it can be read"));
        let mut cells = BTreeMap::new();
        for (key, cell) in page.iter().flat_map(|page| page.view().iter()) {
            let (bytes, overflow) = match cell {
                Cell::Inline(bytes) => (bytes, false),
                Cell::Overflow(cell) => (cell.bytes(), true),
            };
            cells.insert(key, (bytes.to_vec(), overflow));
        }
        for change in state.buffered_below(&state.children().prefix(child)) {
            match &change.stored {
                Stored::Absent => drop(cells.remove(&change.key)),
                Stored::Inline(value) => drop(cells.insert(change.key, (value.to_vec(), false))),
                Stored::Overflow(cell) => drop(cells.insert(change.key, (cell.to_vec(), true))),
                Stored::Long(_) => unreachable!("long values are written first"),
            }
        }
        cells
    }

    /// Buffers changes in their regions, with the nodes of the children after them.
    fn put(&mut self, changes: &BTreeMap<Key, Option<Vec<u8>>>) {
        self.last += 1;
        for (key, value) in changes {
            let stored = match value {
                None => Stored::Absent,
                Some(value) => match self.cell(key, value) {
                    (_, cell, true) => Stored::Overflow(cell.into()),
                    (_, bytes, false) => Stored::Inline(Value::from(bytes)),
                },
            };
            let regions = self.tree.load_full();
            let mut state = regions.region(key).write();
            let child = state.children().find(key);
            let mut cells = self.cells(&state, child);
            match &stored {
                Stored::Absent => drop(cells.remove(key)),
                Stored::Overflow(cell) => drop(cells.insert(*key, (cell.to_vec(), true))),
                Stored::Inline(value) => drop(cells.insert(*key, (value.to_vec(), false))),
                Stored::Long(_) => unreachable!("long values are written first"),
            }
            let cells: Vec<CellRef<'_>> = cells
                .iter()
                .map(|(key, (bytes, overflow))| CellRef { key: *key, bytes, overflow: *overflow })
                .collect();
            let prefix = state.children().prefix(child);
            let page = PageCells { prefix, cells: &cells, known: None };
            let node = fold_pages(&mut Folder::new(HASHER), &[page])[0].own;
            self.last += 1;
            let mut applied = RegionCommit {
                commit: self.last,
                version: self.last,
                log_position: self.last,
                changes: &mut std::iter::once((*key, stored)),
                nodes: NewNodes::Children(&[(u32::try_from(child).expect("few"), node)]),
            };
            state.apply(&mut applied, &mut Vec::new(), |_, _| {});
            state.recompute_own_node(HASHER);
            let node = (*state.children().region(), *state.own_node());
            self.tree.update_root(HASHER, self.last, &[node]);
        }
    }

    /// Writes all buffered changes to new pages, and splits regions that have too many.
    fn flush(&mut self) {
        for region in self.tree.load_full().regions() {
            let state = region.read();
            let changed: Vec<Prefix> = (0..state.children().len())
                .map(|child| state.children().prefix(child))
                .filter(|prefix| !state.buffered_below(prefix).is_empty())
                .collect();
            drop(state);
            for range in changed {
                self.last += 1;
                let mut state = region.write();
                let child = state.children().find(range.first_key());
                let old = state.children().page(child);
                let cells = self.cells(&state, child).into_iter();
                let cells: Vec<OwnCell> =
                    cells.map(|(key, (bytes, overflow))| (key, bytes, overflow)).collect();
                let pages = self.write_pages(&range, &cells);
                let moved = Relocation { range, pages: &pages, last_commit: state.last_commit() };
                state.relocate(&[moved], self.last);
                state.recompute_own_node(HASHER);
                drop(state);
                let old: Vec<PageNo> = old.into_iter().collect();
                for page in &old {
                    self.tree.store.cache.remove(*page);
                }
                self.space.retire(&old, &[], self.last).expect("it was in use");
                assert!(self.tree.store.grace.start_period().poll(), "nobody reads");
                self.space.release_leaves(self.last);
            }
        }
        let regions = self.tree.load_full();
        let large = |region: &&Arc<Region>| region.read().children().len() > MAX_ENTRIES;
        let split: Vec<Arc<Region>> = regions.regions().iter().filter(large).cloned().collect();
        if !split.is_empty() {
            let _structure = self.tree.hold_structure();
            self.tree.publish(split_regions(HASHER, &regions, &split));
            // Who still holds a region from before is told: its counts are those of the new ones.
            assert!(split.iter().all(|region| !self.tree.make_due_in(region, 1)));
        }
    }

    /// Flushes, and writes a branch page for each region.
    fn close(mut self) -> Closed {
        self.flush();
        let Store { device, leaf_file, .. } = &*self.tree.store;
        let image = device.open(IMAGE, OpenMode::Write).expect("made before");
        let write = |page, prefix, level, entries: &[BranchEntry]| -> u32 {
            let (identity, flush) = (identity(page), self.last);
            let header =
                BranchHeader { identity, flush, namespace: 0, prefix, level, log_pos: self.last };
            let mut buf = PageBuf::zeroed(1);
            let mut builder = BranchBuilder::new(buf.page_mut(0), &header);
            for entry in entries {
                builder.push(entry);
            }
            let tag = builder.seal();
            device.write_at(&image, &buf, 1, page_offset(page)).expect("written");
            tag
        };
        let regions = self.tree.load_full();
        assert!(regions.regions().len() <= MAX_ENTRIES, "one page names all regions");
        // All are in memory before the image is written over.
        let states: Vec<_> = regions.regions().iter().map(|region| region.read()).collect();
        let (mut rows, mut leaves) = (Vec::new(), Vec::new());
        for (page, state) in (0..).zip(&states) {
            assert!(state.buffered().is_empty());
            let children = state.children();
            leaves.extend((0..children.len()).filter_map(|child| children.page(child)));
            let entry = |child: usize| BranchEntry {
                depth: children.prefix(child).len(),
                page_no: children.page(child).map(u64::from),
                tag: children.tag(child),
                node: *state.node(child),
            };
            let entries: Vec<_> = (0..children.len()).map(entry).collect();
            let tag = write(page, *children.region(), 1, &entries);
            let (depth, node) = (children.region().len(), *state.own_node());
            rows.push(BranchEntry { depth, page_no: Some(page), tag, node });
        }
        let top = rows.len() as u64;
        let tag = write(top, Prefix::ROOT, 2, &rows);
        let map = self.space.overflow_map_image(self.last, false).expect("a map");
        for file in [leaf_file, &self.space.overflow, &image] {
            device.sync(file).expect("synced");
        }
        device.sync_folder().expect("synced");
        Closed { top: (top, tag), leaves, overflow_map: map.bytes, last: self.last }
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let _guard = self.tree.store.grace.enter();
        let stored = match self.tree.place_of(key) {
            KeyPlace::Memory(stored) => stored,
            KeyPlace::Page(at) => match self.tree.store.cached_state(at, key) {
                Some(stored) => stored,
                None => self.tree.store.page(at)?.stored(key),
            },
        };
        Ok(match stored {
            Stored::Absent => None,
            Stored::Inline(value) => Some(value.to_vec()),
            Stored::Long(value) => Some(value.bytes.to_vec()),
            Stored::Overflow(raw) => {
                let pieces =
                    overflow::read_pieces(&self.tree.store.device, &self.space.overflow, &raw);
                Some(overflow::assemble_value(HASHER, DATABASE, &raw, pieces)?.to_vec())
            }
        })
    }

    fn root(&self) -> Node {
        let regions = self.tree.load_full();
        let nodes = self.tree.root_nodes(HASHER, &regions);
        *nodes.tiling_over(&regions).expect("made of these").0.own_node()
    }

    /// The leaf pages of all keys.
    fn pages(&self) -> Vec<PageRef> {
        let of = |state: &RegionState| -> Vec<PageRef> {
            (0..state.children().len()).filter_map(|child| state.page_ref(child)).collect()
        };
        self.tree.load_full().regions().iter().flat_map(|region| of(&region.read())).collect()
    }

    /// Reads all pages that are not cached through a ring; gives their number.
    fn read_all(&self) -> usize {
        let mut reader = PageReader::new(&self.tree.store, 8, ReadMode::Keys).expect("a ring");
        let mut read = 0;
        let mut take = |reader: &mut PageReader<()>| {
            let ((), done) =
                reader.wait(&self.tree.store, 1).expect("the ring").expect("in flight");
            done.expect("a good page");
            read += 1;
        };
        for at in self.pages() {
            while !reader.has_room() {
                take(&mut reader);
            }
            match reader.enqueue(&self.tree.store, at, ()) {
                Submission::InFlight | Submission::Loaded(..) => {}
                Submission::ReadElsewhere(()) => panic!("nobody else reads"),
            }
        }
        while reader.in_flight() > 0 {
            take(&mut reader);
        }
        read
    }

    /// The keys of all pages, read ahead in runs and past the cache.
    fn walk(&self) -> Vec<Key> {
        let mut ahead = ReadAhead::new(&ReaderPool::default(), Direction::Forwards);
        let mut rest = KeyRange { first: [0; 32], last: [255; 32] };
        let mut keys = Vec::new();
        loop {
            ahead.advance(&self.tree, AheadLimits { depth: 4, pages: 64 }, &rest).expect("a ring");
            let (prefix, at) = self.tree.with_region(&rest.first, |_, state| {
                let child = state.children().find(&rest.first);
                (state.children().prefix(child), state.page_ref(child))
            });
            if let Some(at) = at {
                let ahead = ahead.take_page(&self.tree, &prefix, at).expect("it can be read");
                if let Some(page) = ahead {
                    let identity = self.tree.store.leaf_identity(at.page);
                    let view = LeafView::parse(page.page(), &identity).expect("it was checked");
                    keys.extend(view.iter().map(|(key, _)| key));
                } else {
                    let page = self.tree.store.read_uncached(at).expect("it can be read");
                    keys.extend(page.view().iter().map(|(key, _)| key));
                }
            }
            match prefix.next() {
                Some(next) => rest.first = *next.first_key(),
                None => return keys,
            }
        }
    }

    fn check(&self, model: &Model, absent: &Key) {
        assert_eq!(self.root(), root_of(model));
        for (key, value) in model {
            assert_eq!(self.get(key).expect("it can be read").as_ref(), Some(value));
        }
        assert_eq!(self.get(absent).expect("it can be read"), None);
    }
}

fn root_of(model: &Model) -> Node {
    let mut trie = NaiveTrie::new();
    for (key, value) in model {
        trie.set(*key, Some(HASHER.hash(value).into()));
    }
    trie.root(HASHER)
}

fn random_key(random: &mut ChaCha8Rng) -> Key {
    let mut key = [0; 32];
    random.fill_bytes(&mut key);
    key
}

/// Mostly short values, some that take pages of their own.
fn random_value(random: &mut ChaCha8Rng) -> Vec<u8> {
    let len = if random.next_u32().is_multiple_of(100) { 20_000 } else { 300 };
    let mut value = vec![0; (random.next_u32() % len) as usize];
    random.fill_bytes(&mut value);
    value
}

fn random_model(random: &mut ChaCha8Rng, count: usize) -> Model {
    (0..count).map(|_| (random_key(random), random_value(random))).collect()
}

fn agrees_with_a_map(device: &Disk, runtime: &Executor, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let absent = random_key(&mut random);
    let mut model = random_model(&mut random, 4000);
    let mut rig = TreeRig::make(device.clone(), runtime.clone());
    rig.check(&Model::new(), &absent);
    rig.load(&model);
    rig.check(&model, &absent);
    for _ in 0..4 {
        let mut changes = BTreeMap::new();
        let old: Vec<Key> = model.keys().copied().collect();
        for _ in 0..600 {
            let at = random.next_u32() as usize % old.len();
            let change = match random.next_u32() % 4 {
                0 => (old[at], None),
                1 => (old[at], Some(random_value(&mut random))),
                _ => (random_key(&mut random), Some(random_value(&mut random))),
            };
            changes.insert(change.0, change.1);
        }
        rig.put(&changes);
        for (key, value) in changes {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
        rig.check(&model, &absent);
        rig.flush();
        rig.check(&model, &absent);
        let closed = rig.close();
        rig = TreeRig::open(device.clone(), runtime.clone(), &closed).expect("it opens");
        assert_eq!(rig.root(), root_of(&model), "before any region is read");
        let away = |region: &&Arc<Region>| region.row().is_away();
        let regions = rig.tree.load_full();
        assert!(regions.regions().len() > 2 && regions.regions().iter().all(|one| away(&one)));
        assert!(rig.walk().iter().eq(model.keys()));
        let scanned = &rig.tree.store.counters.scanned;
        assert!(scanned.load(Ordering::Relaxed) > 100, "pages were read ahead");
        assert!(rig.read_all() > 100, "nothing is cached");
        rig.check(&model, &absent);
    }
}

#[test]
fn a_tree_has_the_pairs_of_a_map_whatever_is_done_to_it() {
    for seed in 0..3 {
        let disk = SimDisk::new(seed, SimOptions { record: false, ..SimOptions::default() });
        agrees_with_a_map(&disk.into(), &SimRuntime::new(seed).into(), seed);
    }
}

#[test]
fn a_tree_in_a_folder_has_the_pairs_of_a_map() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = OsDevice::open(folder.path(), OsOptions::default()).expect("it opens");
    agrees_with_a_map(&device.into(), &Threads::new(1).expect("threads").into(), 1);
}

/// Flips a bit of a page.
fn flip(device: &Disk, file: &str, page: u64) {
    let file = device.open(file, OpenMode::Write).expect("a file");
    let mut buf = PageBuf::zeroed(1);
    device.read_at(&file, &mut buf, page_offset(page)).expect("read");
    buf.page_mut(0)[1000] ^= 1;
    device.write_at(&file, &buf, 1, page_offset(page)).expect("written");
}

#[test]
fn a_damaged_page_costs_its_own_keys_alone() {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let model = random_model(&mut random, 4000);
    let device: Disk = SimDisk::new(9, SimOptions::default()).into();
    let runtime: Executor = SimRuntime::new(9).into();
    let mut rig = TreeRig::make(device.clone(), runtime.clone());
    rig.load(&model);
    let closed = rig.close();
    let open = || TreeRig::open(device.clone(), runtime.clone(), &closed).expect("it opens");
    let all_pages = open().pages();

    // A leaf page: the keys below its prefix have its error, until it is as it was.
    let bad = all_pages[all_pages.len() / 2];
    flip(&device, LEAF_FILE, bad.page.into());
    let rig = open();
    let read = |expected: &dyn Fn(&Key) -> bool, file: &str, page: u64| -> usize {
        let mut lost = 0;
        for (key, value) in &model {
            match rig.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value)),
                Err(Error::Page { file: at, page: number, .. }) => {
                    assert!(expected(key) && (at, number) == (file, page));
                    lost += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        lost
    };
    let is_below = |key: &Key| rig.tree.page_of(key) == Some(bad);
    let below = model.keys().filter(|key| is_below(key)).count();
    assert_eq!(read(&is_below, LEAF_FILE, bad.page.into()), below);
    assert!(below > 3);
    flip(&device, LEAF_FILE, bad.page.into());
    assert_eq!(read(&is_below, LEAF_FILE, bad.page.into()), 0);
}

#[test]
fn a_damaged_branch_page_costs_the_keys_of_its_region_until_it_can_be_read() {
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let model = random_model(&mut random, 4000);
    let device: Disk = SimDisk::new(10, SimOptions::default()).into();
    let runtime: Executor = SimRuntime::new(10).into();
    let mut rig = TreeRig::make(device.clone(), runtime.clone());
    rig.load(&model);
    let closed = rig.close();
    flip(&device, IMAGE, 1);
    let rig = TreeRig::open(device.clone(), runtime, &closed).expect("it opens");
    let prefix = *rig.tree.load_full().regions()[1].prefix();
    for (key, value) in &model {
        match rig.get(key) {
            Ok(found) => assert!(found.as_ref() == Some(value) && !prefix.covers(key)),
            Err(Error::Page { file: IMAGE, page: 1, .. }) => assert!(prefix.covers(key)),
            Err(error) => panic!("{error}"),
        }
    }
    let [listed] = &rig.tree.store.quarantine.list()[..] else { panic!("one region") };
    assert_eq!((listed.file, listed.page, listed.prefix), (IMAGE, 1, prefix));
    flip(&device, IMAGE, 1);
    rig.check(&model, &[7; 32]);
    assert!(rig.tree.store.quarantine.list().is_empty());
}

#[test]
fn growth_without_room_changes_nothing() {
    let disk = SimDisk::new(11, SimOptions::default());
    let rig = TreeRig::make(disk.clone().into(), SimRuntime::new(11).into());
    let before = rig.space.file_lengths().expect("lengths");
    disk.set_quota(Some(Quota { bytes: 1 << 20, code: code::ENOSPC }));
    let refused = rig.space.allocate_leaves(100_000).expect_err("no room");
    assert!(matches!(refused, Error::Full(_) | Error::Reserve { .. }), "{refused}");
    assert_eq!(rig.space.file_lengths().expect("lengths"), before);
    disk.set_quota(None);
    assert_eq!(rig.space.allocate_leaves(100).expect("room").len(), 100);
}
