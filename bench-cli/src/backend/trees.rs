//! Other people's Merkle trees, which [`crate::trees`] has, as backends of the stream of batches. How many batches a
//! database has is found by its root in the record of roots.

use core::fmt;
use std::path::Path;
use std::time::Instant;

use pleach_core::Key;

use crate::account;
use crate::args::values::{Durability, Switch};
use crate::backend::roots::batches_by_root;
use crate::backend::{Backend, Done, EngineOptions, Place, Root, View, Work};
use crate::error::{BenchError, Result};
use crate::stores::StoreOptions;
use crate::trees::{self, Change as Write, Ground, Tree};
use crate::workload::transfer::Change;

/// Accounts between two calls of a load's progress.
const STEP: u64 = 1024;

/// An open tree.
pub(crate) struct TreeBackend {
    tree: Box<dyn Tree>,
    ground: Ground,
    place: Place,
    options: EngineOptions,
    /// Batches that are finished and not committed.
    behind: u32,
}

impl fmt::Debug for TreeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("TreeBackend");
        text.field("ground", &self.ground).field("place", &self.place).finish_non_exhaustive()
    }
}

impl TreeBackend {
    /// Opens or creates the database.
    pub(crate) fn open(ground: Ground, place: &Place, options: &EngineOptions) -> Result<Self> {
        let tree = trees::open(ground, &store_options(&place.folder, options))?;
        let (place, options) = (place.clone(), options.clone());
        Ok(Self { tree, ground, place, options, behind: 0 })
    }

    fn newest(&self) -> Result<Root> {
        let none = || BenchError::backend(self.ground.name())("it has no root");
        self.tree.root().ok_or_else(none)
    }

    fn commit_behind(&mut self, keep: u32) -> Result<()> {
        while self.behind > keep {
            self.tree.commit()?;
            self.behind -= 1;
        }
        Ok(())
    }
}

impl Backend for TreeBackend {
    fn root(&self) -> Root {
        self.tree.root().unwrap_or_default()
    }

    fn batches(&self) -> Result<u64> {
        batches_by_root(&self.place, &self.newest()?)
    }

    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()> {
        let value = account::encode(account::INITIAL_BALANCE);
        let mut pairs = (0..accounts).map(|id| {
            if id % STEP == 0 {
                progress(id);
            }
            (account::key(id), value.to_vec())
        });
        self.tree.load(&mut pairs)?;
        progress(accounts);
        Ok(())
    }

    fn run_batch(&mut self, work: Work<'_>) -> Result<Done> {
        let start = Instant::now();
        let prev_root = self.newest()?;
        match self.options.witness {
            Switch(true) => self.tree.begin_witnessed()?,
            Switch(false) => self.tree.begin()?,
        }
        let values = self.tree.read(work.keys)?;
        let seen = values.iter().map(|value| value.as_deref().map(account::decode).transpose());
        let changes = (work.compute)(&seen.collect::<Result<Vec<_>>>()?)?;
        let executed = Instant::now();

        let written = work.keys.iter().zip(changes).filter_map(|(key, change)| match change {
            Change::Read => None,
            Change::Write(balance) => Some((*key, Some(account::encode(balance).to_vec()))),
            Change::Delete => Some((*key, None)),
        });
        let finished = self.tree.finish(written.collect::<Vec<Write>>())?;
        let root = self.newest()?;
        self.behind += 1;
        let made = Instant::now();

        (work.before_commit)(&root)?;
        self.commit_behind(self.options.overlay_window)?;
        Ok(Done {
            execute: executed - start,
            finish: made - executed,
            commit: made.elapsed(),
            prev_root,
            root,
            witness: finished.witness,
        })
    }

    fn settle(&mut self) -> Result<()> {
        self.commit_behind(0)
    }

    fn drain(&mut self, _pending_entries: u64) -> Result<()> {
        self.tree.drain()
    }

    fn works_on(&self) -> bool {
        self.tree.works_on()
    }

    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        self.tree.read(keys)
    }

    fn view(&mut self) -> Result<Box<dyn View>> {
        Err(BenchError::Usage(format!(
            "{} has no sessions that stay open here",
            self.ground.name()
        )))
    }

    fn notes(&self) -> Vec<String> {
        let name = self.ground.name();
        let settings = self.tree.settings();
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let mut notes = vec![format!("{name}: {}", settings.join("; "))];
        if !self.ground.has_our_roots() {
            notes
                .push(format!("{name}: a commitment of its own; balances are compared, not roots"));
        }
        if self.options.ahead {
            notes.push(format!("{name}: nothing is announced ahead of a batch"));
        }
        if self.tree.works_on() {
            notes.push(format!(
                "{name}: compactions go on while the clock stands between batches; what is left of them is waited for \
                 at the end of each turn and of the run, and counted as drained"
            ));
        }
        if matches!(self.options.durability, Durability::Periodic(_)) {
            notes.push(format!("{name}: syncs each commit with --durability periodic"));
        }
        notes
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.tree.close()
    }
}

/// What a tree is opened with.
fn store_options(folder: &Path, options: &EngineOptions) -> StoreOptions {
    StoreOptions {
        threads: options.threads,
        durable: options.durability != Durability::None,
        keys: options.expected_accounts,
        prefetch: options.prefetch.0,
        witness: options.witness.0,
        peer_args: options.peer_args.clone(),
        ..StoreOptions::new(folder, options.cache_mib)
    }
}

/// Refuses settings that the tree does not have.
pub(crate) fn check_settings(ground: Ground, options: &EngineOptions) -> Result<()> {
    trees::check_settings(ground, &store_options(Path::new(""), options))
}
