//! The crate `nomt`, used the way its documentation says: a session on the newest state, `warm_up`
//! and reads, `finish` with the actual reads and writes in key order, `commit`.

mod settings;

use core::fmt;
use std::collections::VecDeque;
use std::time::Instant;

use nomt::hasher::Blake3Hasher;
use nomt::proof::{PathUpdate, verify_update};
use nomt::trie::LeafData;
use nomt::{FinishedSession, KeyReadWrite, Nomt, Overlay, Session, SessionParams, WitnessMode};
use pleach_core::Key;

use crate::account;
use crate::backend::readers::read_with;
use crate::backend::roots::batches_by_root;
use crate::backend::{Backend, Done, EngineOptions, Place, Proven, Root, View, Witness, Work};
use crate::error::{BenchError, Result};
use crate::workload::transfer::Change;
use settings::Settings;

const NAME: &str = "nomt";

type Actuals = Vec<(Key, KeyReadWrite)>;

/// Refuses peer arguments that mean nothing.
pub(crate) fn check_settings(options: &EngineOptions) -> Result<()> {
    Settings::new(options).map(|_| ())
}

/// An open `nomt` database.
pub(crate) struct NomtBackend {
    db: Nomt<Blake3Hasher>,
    place: Place,
    settings: Settings,
    witness: bool,
    prefetch: bool,
    window: usize,
    other_durability: bool,
    /// Uncommitted overlays, newest first, as sessions want them.
    overlays: VecDeque<Overlay>,
}

impl fmt::Debug for NomtBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NomtBackend")
            .field("place", &self.place)
            .field("settings", &self.settings)
            .field("overlays", &self.overlays.len())
            .finish_non_exhaustive()
    }
}

impl NomtBackend {
    /// Opens or creates the database.
    pub(crate) fn open(place: &Place, options: &EngineOptions) -> Result<Self> {
        let settings = Settings::new(options)?;
        let db = Nomt::open(settings.options(place)).map_err(BenchError::backend(NAME))?;
        Ok(Self {
            db,
            place: place.clone(),
            settings,
            witness: options.witness.0,
            prefetch: options.prefetch.0,
            window: options.overlay_window as usize,
            other_durability: options.durability != crate::args::values::Durability::Commit,
            overlays: VecDeque::new(),
        })
    }

    fn session(&self, witness: bool) -> Result<Session<Blake3Hasher>> {
        let mode = if witness { WitnessMode::read_write() } else { WitnessMode::disabled() };
        let params = SessionParams::default().witness_mode(mode);
        let params = params.overlay(self.overlays.iter());
        let params = params.map_err(|_| BenchError::Backend {
            backend: NAME,
            message: "the overlays are no chain".to_owned(),
        })?;
        Ok(self.db.begin_session(params))
    }

    /// Reads keys with `nomt.readers` threads.
    fn read_keys<E: fmt::Display>(
        &self,
        keys: &[Key],
        read: impl Fn(Key) -> core::result::Result<Option<Vec<u8>>, E> + Sync,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let read = |key: &Key| read(*key).map_err(BenchError::backend(NAME));
        read_with(keys, self.settings.readers, read)
    }

    fn commit(&mut self, block: FinishedSession) -> Result<()> {
        if self.window == 0 {
            return block.commit(&self.db).map_err(BenchError::backend(NAME));
        }
        self.overlays.push_front(block.into_overlay());
        self.commit_behind(self.window)
    }

    fn commit_behind(&mut self, keep: usize) -> Result<()> {
        while self.overlays.len() > keep {
            if let Some(oldest) = self.overlays.pop_back() {
                oldest.commit(&self.db).map_err(BenchError::backend(NAME))?;
            }
        }
        Ok(())
    }
}

impl Backend for NomtBackend {
    fn root(&self) -> Root {
        let tip = self.overlays.front().map_or_else(|| self.db.root(), Overlay::root);
        tip.into_inner()
    }

    fn batches(&self) -> Result<u64> {
        batches_by_root(&self.place, &self.db.root().into_inner())
    }

    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()> {
        let value = account::encode(account::INITIAL_BALANCE);
        let mut next = 0;
        while next < accounts {
            let end = (next + self.settings.load_batch).min(accounts);
            let mut actuals: Actuals = (next..end)
                .map(|id| (account::key(id), KeyReadWrite::Write(Some(value.to_vec()))))
                .collect();
            actuals.sort_unstable_by_key(|access| access.0);
            let session = self.session(false)?;
            for (key, _) in &actuals {
                session.warm_up(*key);
            }
            let block = session.finish(actuals).map_err(BenchError::backend(NAME))?;
            block.commit(&self.db).map_err(BenchError::backend(NAME))?;
            progress(end);
            next = end;
        }
        Ok(())
    }

    fn run_batch(&mut self, work: Work<'_>) -> Result<Done> {
        let start = Instant::now();
        let session = self.session(self.witness)?;
        if self.prefetch {
            for key in work.keys {
                session.warm_up(*key);
            }
        }
        let values = self.read_keys(work.keys, |key| session.read(key))?;
        let seen = balances(&values)?;
        let changes = (work.compute)(&seen)?;
        let executed = Instant::now();

        let actuals = actuals(work.keys, values, &changes);
        let mut block = session.finish(actuals).map_err(BenchError::backend(NAME))?;
        let (prev_root, root) = (block.prev_root().into_inner(), block.root().into_inner());
        let witness = block.take_witness();
        let finished = Instant::now();

        (work.before_commit)(&root)?;
        self.commit(block)?;
        Ok(Done {
            execute: executed - start,
            finish: finished - executed,
            commit: finished.elapsed(),
            prev_root,
            root,
            witness: witness.map(|witness| Box::new(NomtWitness(witness)) as Box<dyn Witness>),
        })
    }

    fn settle(&mut self) -> Result<()> {
        self.commit_behind(0)
    }

    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        if self.overlays.is_empty() {
            // Without a session: one that is dropped unfinished while warm-up is on makes its
            // worker panic.
            return self.read_keys(keys, |key| self.db.read(key));
        }
        let session = self.session(false)?;
        self.read_keys(keys, |key| session.read(key))
    }

    fn view(&mut self) -> Result<Box<dyn View>> {
        Err(BenchError::Usage("nomt's commits wait until all sessions are closed".to_owned()))
    }

    fn notes(&self) -> Vec<String> {
        let use_of_table = self.db.hash_table_utilization();
        let mut notes = vec![
            self.settings.note(),
            format!("nomt: {} of {} buckets in use", use_of_table.occupied, use_of_table.capacity),
        ];
        if self.other_durability {
            notes.push("nomt: syncs each commit whatever --durability says".to_owned());
        }
        notes
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn balances(values: &[Option<Vec<u8>>]) -> Result<Vec<Option<u64>>> {
    values.iter().map(|value| value.as_deref().map(account::decode).transpose()).collect()
}

/// The session's accesses, in key order, with the values that were read.
fn actuals(keys: &[Key], values: Vec<Option<Vec<u8>>>, changes: &[Change]) -> Actuals {
    let mut actuals: Actuals = keys
        .iter()
        .zip(values)
        .zip(changes)
        .map(|((key, old), change)| {
            let access = match change {
                Change::Read => KeyReadWrite::Read(old),
                Change::Write(new) => {
                    KeyReadWrite::ReadThenWrite(old, Some(account::encode(*new).to_vec()))
                }
                Change::Delete => KeyReadWrite::ReadThenWrite(old, None),
            };
            (*key, access)
        })
        .collect();
    actuals.sort_unstable_by_key(|access| access.0);
    actuals
}

/// A witness: path proofs and the operations under each.
struct NomtWitness(nomt::Witness);

impl fmt::Debug for NomtWitness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NomtWitness").field(&self.bytes()).finish()
    }
}

impl Witness for NomtWitness {
    /// The size if its path proofs were written out: siblings, terminal (key and value hash), position.
    fn bytes(&self) -> u64 {
        let proofs = self.0.path_proofs.iter();
        let proofs: usize = proofs.map(|proof| proof.inner.siblings.len() * 32 + 66 + 34).sum();
        let operations = self.0.operations.reads.len() + self.0.operations.writes.len();
        (proofs + operations * 68) as u64
    }

    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String> {
        let mut reads: Vec<Vec<&nomt::WitnessedRead>> = Vec::new();
        reads.resize_with(self.0.path_proofs.len(), Vec::new);
        for read in &self.0.operations.reads {
            reads.get_mut(read.path_index).ok_or("a read names no path")?.push(read);
        }
        let mut writes = Vec::new();
        writes.resize_with(self.0.path_proofs.len(), Vec::new);
        for write in &self.0.operations.writes {
            let path = writes.get_mut(write.path_index).ok_or("a write names no path")?;
            path.push((write.key, write.value));
        }
        let mut updates = Vec::new();
        for ((witnessed, reads), ops) in self.0.path_proofs.iter().zip(reads).zip(writes) {
            let verified =
                witnessed.inner.verify::<Blake3Hasher>(witnessed.path.path(), *prev_root);
            let verified =
                verified.map_err(|error| format!("a path does not verify: {error:?}"))?;
            for read in reads {
                confirm(&verified, read)?;
            }
            if !ops.is_empty() {
                updates.push(PathUpdate { inner: verified, ops });
            }
        }
        // Workers hand in their paths in any order; the verifier needs them in trie order.
        updates.sort_by(|a, b| a.inner.path().cmp(b.inner.path()));
        let new_root = verify_update::<Blake3Hasher>(*prev_root, &updates)
            .map_err(|error| format!("the update does not verify: {error:?}"))?;
        let operations = &self.0.operations;
        Ok(Proven {
            new_root,
            reads: operations
                .reads
                .iter()
                .map(|read| (read.key, read.value.map(Into::into)))
                .collect(),
            writes: operations
                .writes
                .iter()
                .map(|write| (write.key, write.value.map(Into::into)))
                .collect(),
        })
    }
}

fn confirm(
    path: &nomt::proof::VerifiedPathProof,
    read: &nomt::WitnessedRead,
) -> core::result::Result<(), String> {
    let holds = match read.value {
        None => path.confirm_nonexistence(&read.key),
        Some(value_hash) => path.confirm_value(&LeafData { key_path: read.key, value_hash }),
    };
    match holds {
        Ok(true) => Ok(()),
        Ok(false) => Err("a read is not what the path proves".to_owned()),
        Err(_) => Err("a read lies outside its path".to_owned()),
    }
}
