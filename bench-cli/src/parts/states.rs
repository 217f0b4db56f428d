//! The states that a workload of single parts runs on, each in a folder of its own.

use std::path::Path;

use pleach::Key;

use super::ledger::{Item, Ledger};
use super::sheet::Sheet;
use crate::args::parts::StatesArgs;
use crate::error::{BenchError, Result};
use crate::machine;
use crate::stores::{StoreOptions, peer_args};
use crate::text::gib;
use crate::trees::{self, Ground, Tree};

/// Keys that are read at a time when all are read back.
const CHUNK: usize = 16_384;

/// What `--backend` has named, and what its states are opened with.
pub(super) struct States {
    pub(super) grounds: Vec<Ground>,
    /// How many each will have, at most.
    keys: u64,
    cache_mib: u64,
    peer_args: Vec<(String, String)>,
}

impl States {
    /// Those that can run a workload; the others are left out by name, with the reason.
    pub(super) fn new(
        args: &StatesArgs,
        (cache_mib, keys): (u64, u64),
        runs: impl Fn(Ground) -> core::result::Result<(), &'static str>,
        sheet: &mut Sheet,
    ) -> Result<Self> {
        let peer_args = peer_args(&args.settings.peer_arg, &args.backend)?;
        let mut grounds = Vec::new();
        for ground in Ground::chosen(&args.backend)? {
            match runs(ground) {
                Ok(()) => grounds.push(ground),
                Err(why) => sheet.notes.push(format!("{} left out: {why}", ground.name())),
            }
        }
        if grounds.is_empty() {
            return Err(BenchError::Usage("no --backend runs this workload".to_owned()));
        }
        Ok(Self { grounds, keys, cache_mib, peer_args })
    }

    /// Refuses what the machine has no memory for: all are open at once, and one is loaded at a time.
    pub(super) fn fit(&self) -> Result<()> {
        let each = self.grounds.iter().map(|ground| ground.memory(self.cache_mib, self.keys));
        let open: u64 = each.clone().map(|(open, _)| open).sum();
        let needed = open + each.map(|(_, loading)| loading).max().unwrap_or(0);
        match machine::free_memory() {
            Some(free) if free < needed => Err(BenchError::Usage(format!(
                "this needs about {} of memory, as all of --backend are open at once, and {} are free: lower \
                 --cache-mib or name fewer",
                gib(needed),
                gib(free)
            ))),
            _ => Ok(()),
        }
    }

    /// Opens or creates one in a folder. Each commit is synced.
    pub(super) fn open(&self, ground: Ground, folder: &Path) -> Result<Box<dyn Tree>> {
        let (keys, peer_args) = (self.keys, self.peer_args.clone());
        let new = StoreOptions::new(folder, self.cache_mib);
        trees::open(ground, &StoreOptions { keys, peer_args, ..new })
    }

    /// What each was opened with, as notes.
    pub(super) fn note(&self, ground: Ground, tree: &dyn Tree, sheet: &mut Sheet) {
        let settings = tree.settings().into_iter().map(|(name, value)| format!("{name}: {value}"));
        let settings = settings.collect::<Vec<_>>().join("; ");
        let name = ground.name();
        sheet.notes.push(format!("{name}: budget {} MiB; {settings}", self.cache_mib));
    }
}

/// Only states with a root.
pub(super) fn merkle(ground: Ground) -> core::result::Result<(), &'static str> {
    if ground.is_merkle() { Ok(()) } else { Err("it has no root") }
}

/// The digest of the values of all keys of a ledger, in the order of its items.
pub(super) fn contents(tree: &mut dyn Tree, ledger: &Ledger) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut items = ledger.items();
    loop {
        let keys: Vec<Key> = items.by_ref().take(CHUNK).map(Item::key).collect();
        if keys.is_empty() {
            return Ok(hasher.finalize());
        }
        for value in tree.read(&keys)? {
            digest(&mut hasher, value.as_deref());
        }
    }
}

/// The digest of the contents that a ledger should have.
pub(super) fn expected(ledger: &Ledger, number: impl Fn(Item) -> u64) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for item in ledger.items() {
        digest(&mut hasher, Some(&item.value(number(item))));
    }
    hasher.finalize()
}

fn digest(hasher: &mut blake3::Hasher, value: Option<&[u8]>) {
    // A value that is absent is none of any length.
    let length = value.map_or(u64::MAX, |value| value.len() as u64);
    hasher.update(&length.to_be_bytes());
    hasher.update(value.unwrap_or_default());
}
