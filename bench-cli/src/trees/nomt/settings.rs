//! Settings of the crate `nomt`, from `--peer-arg nomt.NAME=VALUE`. A setting that is not given has the crate's own
//! default, or follows from the flags that all backends share.

use core::ops::RangeInclusive;

use nomt::Options;

use super::super::memory;
use crate::error::{BenchError, Result};
use crate::stores::StoreOptions;
use crate::stores::help::{flag, whole};

/// Reading threads where keys are announced.
const READERS: u64 = 16;
/// Names that may follow `nomt.`. The crate names `commit_workers` "commit concurrency" and documents it as "commit
/// workers": both are accepted.
const KNOWN: [&str; 10] = [
    "readers",
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
pub(crate) struct Settings {
    /// Threads that read the keys of a block.
    pub(super) readers: usize,
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
    pub(crate) fn new(options: &StoreOptions) -> Result<Self> {
        let given = options.peer_args_of("nomt", &KNOWN)?;
        let find = |names: &[&str]| given.iter().rev().find(|(name, _)| names.contains(name));
        let number = |names: &[&str], default: u64, range: RangeInclusive<u64>| {
            let number = match find(names) {
                Some((name, value)) => whole("nomt", name, value, range)?,
                None => default,
            };
            Ok::<_, BenchError>(usize::try_from(number).unwrap_or(usize::MAX))
        };
        let switch =
            |name| find(&[name]).map_or(Ok(false), |(name, value)| flag("nomt", name, value));
        let half = (options.cache_mib / 2).max(1);
        // With several commit workers, version 1.0.5 takes their witnesses in the order of their arrival and hands
        // out operations as if that were key order: such witnesses name wrong paths and do not verify.
        let workers = if options.witness { 1 } else { options.threads.min(64) as u64 };
        let readers = if options.prefetch { READERS } else { 1 };
        let buckets = memory::nomt_buckets(options.keys);
        let buckets = number(&["buckets"], buckets, 1..=u32::MAX.into())?;
        Ok(Self {
            readers: number(&["readers"], readers, 1..=1024)?,
            commit_workers: number(&["commit_workers", "commit_concurrency"], workers, 1..=64)?,
            io_workers: number(&["io_workers"], 3, 1..=64)?,
            page_cache_mib: number(&["page_cache_mib"], half, 1..=16_777_216)?,
            leaf_cache_mib: number(&["leaf_cache_mib"], half, 1..=16_777_216)?,
            upper_levels: number(&["upper_levels"], 2, 0..=4)?,
            prepopulate: switch("prepopulate")?,
            warm_up: switch("warm_up")?,
            buckets: u32::try_from(buckets).map_err(|_| {
                BenchError::Usage(format!(
                    "nomt's hash table cannot have {buckets} buckets: lower the number of keys"
                ))
            })?,
        })
    }

    /// The settings in the crate's own form.
    pub(super) fn options(&self, options: &StoreOptions) -> Options {
        let mut to = Options::new();
        to.path(&options.folder);
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
            "readers={} commit_workers={} io_workers={} page_cache_mib={} leaf_cache_mib={} upper_levels={} \
             prepopulate={} warm_up={} buckets={}",
            self.readers,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Single parts once had one reading thread, and left the crate out above 4 million keys.
    #[test]
    fn all_workloads_have_readers_and_a_table_of_the_size_that_keys_need() {
        let options =
            StoreOptions { keys: 50_000_000, ..StoreOptions::of_test(std::path::Path::new("")) };
        let settings = Settings::new(&options).expect("settings");
        assert_eq!((settings.readers, settings.commit_workers), (16, 2));
        assert!(settings.buckets > 250_000, "{}", settings.buckets);
        let peer_args = vec![("nomt.buckets".to_owned(), "70000".to_owned())];
        let given = Settings::new(&StoreOptions { peer_args, ..options }).expect("settings");
        assert_eq!(given.buckets, 70_000);
    }
}
