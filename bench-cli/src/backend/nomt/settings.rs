//! Settings of the crate `nomt`, from `--peer-arg nomt.NAME=VALUE`. A setting that is not
//! given has the crate's own default, or follows from the flags that all backends share.

use nomt::Options;

use crate::backend::options::peer_arg;
use crate::backend::sizing::nomt_buckets;
use crate::backend::{EngineOptions, Place};
use crate::error::{BenchError, Result};

/// Accounts per commit during the load.
const LOAD_BATCH: u64 = 65_536;
/// Reading threads when prefetch is on.
const READERS: u64 = 16;
/// Names that may follow `nomt.`.
const KNOWN: [&str; 11] = [
    "readers",
    "load_batch",
    "commit_workers",
    "commit_concurrency",
    "io_workers",
    "page_cache_mib",
    "leaf_cache_mib",
    "upper_levels",
    "prepopulate",
    "warm_up",
    "buckets",
];

/// All settings of an open database.
#[derive(Debug)]
pub(super) struct Settings {
    /// Threads that read a batch's accounts.
    pub(super) readers: usize,
    /// Accounts per commit during the load.
    pub(super) load_batch: u64,
    commit_workers: usize,
    io_workers: usize,
    page_cache_mib: usize,
    leaf_cache_mib: usize,
    upper_levels: usize,
    prepopulate: bool,
    warm_up: bool,
    buckets: u32,
}

impl Settings {
    /// The settings that follow from the flags; refuses unknown names and bad values.
    pub(super) fn new(options: &EngineOptions) -> Result<Self> {
        check_names(options)?;
        let half = (options.cache_mib / 2).max(1);
        // With several commit workers, version 1.0.5 takes their witnesses in the order of their
        // arrival and hands out operations as if that were key order: such witnesses name wrong
        // paths and do not verify.
        let workers = if options.witness.0 { 1 } else { options.threads.min(64) as u64 };
        let readers = if options.prefetch.0 { READERS } else { 1 };
        // Checked here because `nomt_buckets` silently ignores what is not a number.
        number(options, "buckets", 1, 1..=u64::from(u32::MAX))?;
        let buckets = nomt_buckets(options);
        Ok(Self {
            readers: small(options, "readers", readers, 1..=1024)?,
            load_batch: number(options, "load_batch", LOAD_BATCH, 1..=100_000_000)?,
            commit_workers: small(options, workers_name(options)?, workers, 1..=64)?,
            io_workers: small(options, "io_workers", 3, 1..=64)?,
            page_cache_mib: small(options, "page_cache_mib", half, 1..=16_777_216)?,
            leaf_cache_mib: small(options, "leaf_cache_mib", half, 1..=16_777_216)?,
            upper_levels: small(options, "upper_levels", 2, 0..=4)?,
            prepopulate: switch(options, "prepopulate")?,
            warm_up: switch(options, "warm_up")?,
            buckets: u32::try_from(buckets).map_err(|_| {
                BenchError::Usage(format!(
                    "nomt's hash table cannot have {buckets} buckets; lower --log2"
                ))
            })?,
        })
    }

    /// The settings in the crate's own form.
    pub(super) fn options(&self, place: &Place) -> Options {
        let mut to = Options::new();
        to.path(&place.folder);
        to.commit_concurrency(self.commit_workers);
        to.io_workers(self.io_workers);
        to.page_cache_size(self.page_cache_mib);
        to.leaf_cache_size(self.leaf_cache_mib);
        to.page_cache_upper_levels(self.upper_levels);
        to.prepopulate_page_cache(self.prepopulate);
        to.warm_up(self.warm_up);
        to.hashtable_buckets(self.buckets);
        // The seed decides where pages lie in its hash table. It is fixed so that runs repeat.
        to.bitbox_seed(*b"pleach-bench v1.");
        to
    }

    /// All of them, to be printed with the result.
    pub(super) fn note(&self) -> String {
        format!(
            "nomt: readers={} load_batch={} commit_workers={} io_workers={} page_cache_mib={} \
             leaf_cache_mib={} upper_levels={} prepopulate={} warm_up={} buckets={}",
            self.readers,
            self.load_batch,
            self.commit_workers,
            self.io_workers,
            self.page_cache_mib,
            self.leaf_cache_mib,
            self.upper_levels,
            self.prepopulate,
            self.warm_up,
            self.buckets
        )
    }
}

fn check_names(options: &EngineOptions) -> Result<()> {
    for (name, _) in &options.peer_args {
        if let Some(own) = name.strip_prefix("nomt.")
            && !KNOWN.contains(&own)
        {
            let text = format!("--peer-arg {name} is unknown; nomt has {}", KNOWN.join(", "));
            return Err(BenchError::Usage(text));
        }
    }
    Ok(())
}

/// The crate names this setting "commit concurrency" and documents it as "commit workers"; both
/// names are accepted.
fn workers_name(options: &EngineOptions) -> Result<&'static str> {
    let given = |name| peer_arg(options, &format!("nomt.{name}")).is_some();
    match (given("commit_workers"), given("commit_concurrency")) {
        (true, true) => Err(BenchError::Usage(
            "nomt.commit_workers and nomt.commit_concurrency are the same: say one".to_owned(),
        )),
        (false, true) => Ok("commit_concurrency"),
        _ => Ok("commit_workers"),
    }
}

fn number(
    options: &EngineOptions,
    name: &str,
    default: u64,
    range: core::ops::RangeInclusive<u64>,
) -> Result<u64> {
    let Some(text) = peer_arg(options, &format!("nomt.{name}")) else { return Ok(default) };
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        BenchError::Usage(format!("--peer-arg nomt.{name}={text}: say {least} to {most}"))
    })
}

fn small(
    options: &EngineOptions,
    name: &str,
    default: u64,
    range: core::ops::RangeInclusive<u64>,
) -> Result<usize> {
    number(options, name, default, range).map(|value| usize::try_from(value).unwrap_or(usize::MAX))
}

fn switch(options: &EngineOptions, name: &str) -> Result<bool> {
    match peer_arg(options, &format!("nomt.{name}")) {
        None | Some("off" | "false") => Ok(false),
        Some("on" | "true") => Ok(true),
        Some(other) => {
            let text = format!("--peer-arg nomt.{name}={other}: say true or false");
            Err(BenchError::Usage(text))
        }
    }
}
