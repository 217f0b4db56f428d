//! The caches behind one interface. All hold the same pages: `Arc<CachedPage>`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foyer_memory::{
    Cache as Foyer, CacheBuilder, EvictionConfig, LfuConfig, LruConfig, S3FifoConfig,
};
use pleach_beatree::PageNo;
use pleach_beatree::cache::{Cache, CachedPage, LookupStep, NO_BATCH};
use pleach_core::page::leaf::{LeafBuilder, LeafHeader, RawCell};
use pleach_core::page::{FileKind, Identity, PAGE_SIZE, Page};
use pleach_core::prefix::Prefix;
use quick_cache::sync::Cache as Quick;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, UnitWeighter};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Bytes of a page with its fingerprints and the allocator's header.
pub(crate) const PAGE_BYTES: usize = Cache::PAGE_COST;

/// A cache of pages, as a workload uses it.
pub(crate) trait Pages {
    /// A batch begins.
    fn begin(&mut self, batch: u64);
    /// The batch asks for a page for the first time.
    fn ask(&mut self, page_no: u32, tag: u32) -> bool;
    /// The batch uses it once more.
    fn use_again(&mut self, page_no: u32, tag: u32) -> bool;
    /// The last batch has made it ripe for the flush, which will come during this one.
    fn hold(&mut self, page_no: u32, tag: u32);
    /// A flush looks for a page.
    fn find(&mut self, page_no: u32, tag: u32) -> bool;
    /// The batch has read a page.
    fn insert(&mut self, page_no: u32, tag: u32);
    /// A flush has rewritten a page.
    fn replace(&mut self, old: (u32, u32), new: (u32, u32));
    /// Pages here.
    fn pages(&self) -> usize;
    /// Finds a page and gives it, as a hit costs it.
    fn get(&self, page_no: u32) -> bool;
    /// Finds pages of a group that are here; gives their number.
    fn get_group(&self, numbers: &[u32]) -> usize {
        numbers.iter().filter(|page_no| self.get(**page_no)).count()
    }
    /// Looks for a page that is not here and inserts it, a copy of this one.
    fn miss(&self, page_no: u32, page: &Page);
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Own,
    Quick,
    /// With one use a batch, and with the running batch's pages pinned.
    QuickPinned,
    FoyerS3Fifo,
    FoyerLfu,
    FoyerLru,
}

impl Contender {
    pub(crate) const ALL: [Self; 6] = [
        Self::Own,
        Self::Quick,
        Self::QuickPinned,
        Self::FoyerS3Fifo,
        Self::FoyerLfu,
        Self::FoyerLru,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Quick => "quick_cache",
            Self::QuickPinned => "quick_cache,pinned",
            Self::FoyerS3Fifo => "foyer,s3-fifo",
            Self::FoyerLfu => "foyer,w-tinylfu",
            Self::FoyerLru => "foyer,lru",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// A cache of this many pages; ours gets the bytes that these take in it.
    /// With `one`, all pages of the others are the same one, so that only what lies beside is new.
    pub(crate) fn build(self, pages: usize, one: bool) -> Box<dyn Pages> {
        let page = page(1);
        let maker = Maker {
            cache: Cache::new(0),
            one: one.then(|| Cache::new(0).insert(PageNo::new(0), 0, &page, NO_BATCH)),
            page,
        };
        let eviction = match self {
            Self::Own => {
                let cache = Cache::new(pages * (PAGE_BYTES + OWN_BESIDE));
                return Box::new(Own { cache, batch: NO_BATCH, page });
            }
            Self::Quick | Self::QuickPinned => {
                return Box::new(QuickPages::new(pages, self == Self::QuickPinned, maker));
            }
            Self::FoyerS3Fifo => EvictionConfig::S3Fifo(S3FifoConfig::default()),
            Self::FoyerLfu => EvictionConfig::Lfu(LfuConfig::default()),
            Self::FoyerLru => EvictionConfig::Lru(LruConfig::default()),
        };
        let cache = CacheBuilder::new(pages).with_shards(64).with_eviction_config(eviction).build();
        Box::new(FoyerPages { cache, maker })
    }
}

/// What our tables take beside a page, about: the size of ours is given in bytes.
pub(crate) const OWN_BESIDE: usize = 75;

/// A page of 66 balances under a prefix of 18 bits.
pub(crate) fn page(seed: u64) -> Page {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut keys: Vec<[u8; 32]> = vec![[0x42; 32]; 66];
    for key in &mut keys {
        random.fill_bytes(&mut key[3..]);
    }
    keys.sort_unstable();
    let mut page = [0; PAGE_SIZE];
    let header = LeafHeader {
        identity: Identity { kind: FileKind::Leaf, page_no: 0, db_id: 1 },
        flush: 1,
        namespace: 0,
        prefix: Prefix::new(&keys[0], 18),
        applied_through: 1,
        levels: 0,
        count: 66,
    };
    let mut builder = LeafBuilder::new(&mut page, &header);
    for key in &keys {
        builder.push(key, RawCell { bytes: &[1; 8], overflow: false });
    }
    builder.seal();
    page
}

/// Pages in allocations of their own, with their fingerprints: a cache without room makes them and
/// keeps none. The others need the same, so that lookups in their pages cost the same.
struct Maker {
    cache: Cache,
    page: Page,
    one: Option<Arc<CachedPage>>,
}

impl Maker {
    fn fill(&self, page: &Page) -> Arc<CachedPage> {
        self.cache.insert(PageNo::new(0), 0, page, NO_BATCH)
    }

    /// A page that was read.
    fn read(&self) -> Arc<CachedPage> {
        self.one.clone().unwrap_or_else(|| self.fill(&self.page))
    }
}

fn key(page_no: u32, tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(page_no)
}

struct Own {
    cache: Cache,
    batch: u64,
    page: Page,
}

impl Pages for Own {
    fn begin(&mut self, batch: u64) {
        self.batch = batch;
        self.cache.set_batch(batch);
    }

    fn ask(&mut self, page_no: u32, tag: u32) -> bool {
        self.cache.get_in(PageNo::new(page_no), tag, self.batch).is_some()
    }

    fn use_again(&mut self, page_no: u32, tag: u32) -> bool {
        self.ask(page_no, tag)
    }

    fn hold(&mut self, page_no: u32, tag: u32) {
        self.cache.hold(PageNo::new(page_no), tag, self.batch);
    }

    fn find(&mut self, page_no: u32, tag: u32) -> bool {
        self.cache.get(PageNo::new(page_no), tag).is_some()
    }

    fn insert(&mut self, page_no: u32, tag: u32) {
        self.cache.insert(PageNo::new(page_no), tag, &self.page, self.batch);
    }

    fn replace(&mut self, old: (u32, u32), new: (u32, u32)) {
        self.cache.insert(PageNo::new(new.0), new.1, &self.page, NO_BATCH);
        self.cache.remove(PageNo::new(old.0));
    }

    fn pages(&self) -> usize {
        self.cache.pages()
    }

    fn get(&self, page_no: u32) -> bool {
        self.cache.get(PageNo::new(page_no), 0).is_some()
    }

    fn get_group(&self, numbers: &[u32]) -> usize {
        // As the engine does it (decision 0016); the others have no way to.
        for step in [LookupStep::Table, LookupStep::Entry] {
            numbers.iter().for_each(|page_no| self.cache.cpu_prefetch(PageNo::new(*page_no), step));
        }
        numbers.iter().filter(|page_no| self.get(**page_no)).count()
    }

    fn miss(&self, page_no: u32, page: &Page) {
        if self.cache.get(PageNo::new(page_no), 0).is_none() {
            self.cache.insert(PageNo::new(page_no), 0, page, NO_BATCH);
        }
    }
}

/// A page of `quick_cache`, with the batch that asked for it last, if pages are pinned.
#[derive(Clone)]
struct Held {
    batch: Option<Arc<AtomicU64>>,
    _page: Arc<CachedPage>,
}

/// Pins what the running batch has asked for.
#[derive(Clone, Default)]
struct PinBatch(Arc<AtomicU64>);

impl Lifecycle<u64, Held> for PinBatch {
    type RequestState = Option<Held>;

    fn is_pinned(&self, _: &u64, held: &Held) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now != NO_BATCH
            && held.batch.as_ref().is_some_and(|batch| batch.load(Ordering::Relaxed) == now)
    }

    fn begin_request(&self) -> Self::RequestState {
        None
    }

    fn on_evict(&self, state: &mut Self::RequestState, _: u64, held: Held) {
        *state = Some(held);
    }
}

struct QuickPages {
    cache: Quick<u64, Held, UnitWeighter, DefaultHashBuilder, PinBatch>,
    /// The running batch, when its pages are pinned.
    batch: Arc<AtomicU64>,
    pins: bool,
    maker: Maker,
}

impl QuickPages {
    fn new(pages: usize, pins: bool, maker: Maker) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity(pages)
            .weight_capacity(pages as u64)
            .shards(64)
            .build()
            .expect("all is given");
        let life = PinBatch::default();
        let batch = Arc::clone(&life.0);
        let cache = Quick::with_options(options, UnitWeighter, DefaultHashBuilder::default(), life);
        Self { cache, batch, pins, maker }
    }

    fn held(&self, batch: u64, page: Arc<CachedPage>) -> Held {
        let batch = self.pins.then(|| Arc::new(AtomicU64::new(batch)));
        Held { batch, _page: page }
    }
}

impl Pages for QuickPages {
    fn begin(&mut self, batch: u64) {
        if self.pins {
            self.batch.store(batch, Ordering::Relaxed);
        }
    }

    fn ask(&mut self, page_no: u32, tag: u32) -> bool {
        let Some(held) = self.cache.get(&key(page_no, tag)) else { return false };
        if let Some(batch) = &held.batch {
            batch.store(self.batch.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        true
    }

    fn use_again(&mut self, page_no: u32, tag: u32) -> bool {
        let key = key(page_no, tag);
        if self.pins { self.cache.peek(&key).is_some() } else { self.cache.get(&key).is_some() }
    }

    fn hold(&mut self, page_no: u32, tag: u32) {
        if let Some(Held { batch: Some(batch), .. }) = self.cache.peek(&key(page_no, tag)) {
            batch.store(self.batch.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn find(&mut self, page_no: u32, tag: u32) -> bool {
        self.cache.get(&key(page_no, tag)).is_some()
    }

    fn insert(&mut self, page_no: u32, tag: u32) {
        let held = self.held(self.batch.load(Ordering::Relaxed), self.maker.read());
        self.cache.insert(key(page_no, tag), held);
    }

    fn replace(&mut self, old: (u32, u32), new: (u32, u32)) {
        self.cache.insert(key(new.0, new.1), self.held(NO_BATCH, self.maker.read()));
        self.cache.remove(&key(old.0, old.1));
    }

    fn pages(&self) -> usize {
        self.cache.len()
    }

    fn get(&self, page_no: u32) -> bool {
        self.cache.get(&key(page_no, 0)).is_some()
    }

    fn miss(&self, page_no: u32, page: &Page) {
        if self.cache.get(&key(page_no, 0)).is_none() {
            let page = self.maker.fill(page);
            self.cache.insert(key(page_no, 0), self.held(NO_BATCH, page));
        }
    }
}

struct FoyerPages {
    cache: Foyer<u64, Arc<CachedPage>>,
    maker: Maker,
}

impl Pages for FoyerPages {
    fn begin(&mut self, _: u64) {}

    fn ask(&mut self, page_no: u32, tag: u32) -> bool {
        self.cache.get(&key(page_no, tag)).is_some()
    }

    fn use_again(&mut self, page_no: u32, tag: u32) -> bool {
        self.ask(page_no, tag)
    }

    fn hold(&mut self, _: u32, _: u32) {}

    fn find(&mut self, page_no: u32, tag: u32) -> bool {
        self.ask(page_no, tag)
    }

    fn insert(&mut self, page_no: u32, tag: u32) {
        self.cache.insert(key(page_no, tag), self.maker.read());
    }

    fn replace(&mut self, old: (u32, u32), new: (u32, u32)) {
        self.insert(new.0, new.1);
        self.cache.remove(&key(old.0, old.1));
    }

    fn pages(&self) -> usize {
        self.cache.entries()
    }

    fn get(&self, page_no: u32) -> bool {
        self.cache.get(&key(page_no, 0)).is_some()
    }

    fn miss(&self, page_no: u32, page: &Page) {
        if self.cache.get(&key(page_no, 0)).is_none() {
            let page = self.maker.fill(page);
            self.cache.insert(key(page_no, 0), page);
        }
    }
}
