//! Options of the crate `nomt`, and their meaning here.

use std::path::PathBuf;

/// Options of [`Nomt::open`](crate::Nomt::open).
#[derive(Debug)]
pub struct Options {
    pub(crate) path: PathBuf,
    commit_concurrency: usize,
    pub(crate) metrics: bool,
    pub(crate) rollback: bool,
    max_rollback_log_len: u32,
    read_only: bool,
    page_cache_size: usize,
    leaf_cache_size: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: "nomt_db".into(),
            commit_concurrency: 1,
            metrics: false,
            rollback: false,
            max_rollback_log_len: 100,
            read_only: false,
            page_cache_size: 256,
            leaf_cache_size: 256,
        }
    }
}

impl Options {
    /// The defaults of the crate `nomt`.
    pub fn new() -> Self {
        Self::default()
    }

    /// The folder. A database is created there when it is missing or empty (default: `nomt_db`).
    pub fn path(&mut self, path: impl Into<PathBuf>) {
        self.path = path.into();
    }

    /// Worker threads of a finish and a commit: at least 1, at most 64 (default: 1).
    pub fn commit_concurrency(&mut self, commit_concurrency: usize) {
        self.commit_concurrency = commit_concurrency;
    }

    /// Whether reads are timed (default: false). What the engine counts is counted in any case.
    pub fn metrics(&mut self, metrics: bool) {
        self.metrics = metrics;
    }

    /// Has no meaning here: the engine has one ring for each thread that needs one.
    pub fn io_workers(&mut self, _io_workers: usize) {}

    /// Has no meaning here: there is no hash table, files grow with their contents.
    pub fn hashtable_buckets(&mut self, _hashtable_buckets: u32) {}

    /// Has no meaning here: where a page lies does not depend on a seed.
    pub fn bitbox_seed(&mut self, _bitbox_seed: [u8; 16]) {}

    /// Whether commits can be rolled back (default: false). An open without it discards what could be rolled back.
    pub fn rollback(&mut self, rollback: bool) {
        self.rollback = rollback;
    }

    /// How many commits can be rolled back (default: 100). Twice as many and two are kept: a rollback is a commit and
    /// takes the place of one, and the crate `nomt` keeps one more after an open.
    pub fn max_rollback_log_len(&mut self, max_rollback_log_len: u32) {
        self.max_rollback_log_len = max_rollback_log_len;
    }

    /// Whether to open for reading alone, also while another process writes (default: false); not in the crate `nomt`.
    /// A session reads the commit that was the newest at the open, or at the last
    /// [`refresh`](pleach::Db::refresh) of the engine.
    pub fn read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Has no meaning here: [`Session::warm_up`](crate::Session::warm_up) always brings pages in.
    pub fn warm_up(&mut self, _warm_up: bool) {}

    /// Has no meaning here: a new database reserves 8 MiB for its log.
    pub fn preallocate_ht(&mut self, _preallocate_ht: bool) {}

    /// A part of the memory budget in MiB (default: 256). The budget is the sum of this and of
    /// [`leaf_cache_size`](Self::leaf_cache_size), at least 8 MiB, and bounds all memory of the engine.
    pub fn page_cache_size(&mut self, page_cache_size: usize) {
        self.page_cache_size = page_cache_size;
    }

    /// The other part of the memory budget in MiB (default: 256).
    pub fn leaf_cache_size(&mut self, leaf_cache_size: usize) {
        self.leaf_cache_size = leaf_cache_size;
    }

    /// Has no meaning here: pages come in as they are read.
    pub fn prepopulate_page_cache(&mut self, _prepopulate: bool) {}

    /// Has no meaning here: the upper nodes of the trie stay in memory as far as the budget goes.
    pub fn page_cache_upper_levels(&mut self, _upper_levels: usize) {}

    /// The engine's options.
    pub(crate) fn engine(self) -> pleach::Options {
        let mib = self.page_cache_size.saturating_add(self.leaf_cache_size).max(8) as u64;
        let history = if self.rollback { 2 * u64::from(self.max_rollback_log_len) + 2 } else { 0 };
        let options = pleach::Options::new(self.path).cache_mib(mib);
        let options = options.create(!self.read_only).read_only(self.read_only);
        options.threads(self.commit_concurrency.min(64)).history(history)
    }
}
