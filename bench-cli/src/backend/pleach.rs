//! This project's engine, used through its embedding API. Only this module and the binary `pleach`
//! name the engine.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use pleach::{
    Access, AccessKind, Block, Key, LoadOptions, Options, Overlay, Pleach, SessionOptions,
};
use pleach_core::{Blake3, Limits};

use crate::account;
use crate::args::values::{Durability, IoChoice};
use crate::backend::options::peer_arg;
use crate::backend::{
    Backend, Counters, Done, EngineOptions, Place, Proven, Root, Timing, View, Witness, Work,
};
use crate::error::{BenchError, Result};
use crate::trees::readers::read_with;
use crate::workload::transfer::Change;

const NAME: &str = "pleach";

/// An open database.
#[derive(Debug)]
pub(crate) struct PleachBackend {
    db: Pleach,
    options: EngineOptions,
    reads: Reads,
    /// Uncommitted overlays, oldest first.
    overlays: VecDeque<Overlay>,
}

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend(NAME)(error)
}

impl PleachBackend {
    /// Opens or creates the database.
    pub(crate) fn open(place: &Place, options: &EngineOptions) -> Result<Self> {
        let reads = reads(options)?;
        let durability = match options.durability {
            Durability::Commit => pleach::Durability::Commit,
            Durability::Periodic(millis) => {
                pleach::Durability::Periodic(Duration::from_millis(millis))
            }
            Durability::None => pleach::Durability::None,
        };
        let io = match options.io {
            IoChoice::Auto => pleach::IoMode::Auto,
            IoChoice::Uring => pleach::IoMode::Uring,
            IoChoice::Blocking => pleach::IoMode::Blocking,
        };
        let settings = Options::new(&place.folder)
            .create(true)
            .cache_mib(options.cache_mib)
            .threads(options.threads)
            .in_flight(options.in_flight as usize)
            .durability(durability)
            .io(io)
            .trie_cache_kib(options.trie_cache_kib)
            .log_limit_mib(options.log_limit_mib)
            .history(options.history);
        let settings = match options.history_mib {
            Some(mib) => settings.history_bytes(mib << 20),
            None => settings,
        };
        let db = Pleach::open(settings).map_err(wrap)?;
        db.record_timings(options.timed);
        Ok(Self { db, options: options.clone(), reads, overlays: VecDeque::new() })
    }

    fn commit(&mut self, block: Block) -> Result<()> {
        if self.options.overlay_window == 0 {
            block.commit().map_err(wrap)?;
            return Ok(());
        }
        self.overlays.push_back(block.into_overlay());
        self.commit_behind(self.options.overlay_window as usize)
    }

    fn commit_behind(&mut self, keep: usize) -> Result<()> {
        while self.overlays.len() > keep {
            if let Some(oldest) = self.overlays.pop_front() {
                oldest.commit().map_err(wrap)?;
            }
        }
        Ok(())
    }

    fn session_options(&self, witness: bool) -> SessionOptions {
        let options = SessionOptions::new().witness(witness);
        match self.overlays.back() {
            Some(newest) => options.over(newest),
            None => options,
        }
    }
}

impl Backend for PleachBackend {
    fn root(&self) -> Root {
        self.overlays.back().map_or_else(|| self.db.root(), Overlay::root).to_bytes()
    }

    fn batches(&self) -> Result<u64> {
        let blob = self.db.blob();
        if blob.is_empty() {
            return Ok(0);
        }
        let bytes = <[u8; 8]>::try_from(&blob[..]).map_err(|_| {
            BenchError::Wrong(format!("the database's blob has {} bytes, not 8", blob.len()))
        })?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn load(&mut self, accounts: u64, progress: Box<dyn Fn(u64) + Send + Sync>) -> Result<()> {
        let value = account::encode(account::INITIAL_BALANCE);
        let items = (0..accounts).map(move |id| (account::key(id), value.to_vec().into()));
        let mut options = LoadOptions::new().progress(Some(progress));
        if let Some(mib) = self.options.load_mib {
            options = options.memory_mib(mib);
        }
        let report = self.db.bulk_load(items, &options).map_err(wrap)?;
        if report.accounts == accounts {
            return Ok(());
        }
        Err(BenchError::Wrong(format!("{} of {accounts} accounts were loaded", report.accounts)))
    }

    fn run_batch(&mut self, work: Work<'_>) -> Result<Done> {
        let start = Instant::now();
        let session =
            self.db.session(self.session_options(self.options.witness.0)).map_err(wrap)?;
        if self.options.prefetch.0 {
            session.prefetch(work.keys);
        }
        let decode =
            |value: Option<pleach::Value>| value.map(|value| account::decode(&value)).transpose();
        let seen = match self.reads {
            Reads::Each(readers) => {
                read_with(work.keys, readers, |key| decode(session.read(key).map_err(wrap)?))?
            }
            Reads::Many => {
                let values = session.read_many(work.keys).map_err(wrap)?;
                values.into_iter().map(decode).collect::<Result<_>>()?
            }
        };
        let changes = (work.compute)(&seen)?;
        if let Some(next) = work.next {
            session.prefetch(next);
        }
        let executed = Instant::now();

        let mut block = session.finish(accesses(work.keys, &changes)).map_err(wrap)?;
        let (prev_root, root) = (block.prev_root(), block.root());
        let witness = block.take_witness();
        block.set_blob((work.number + 1).to_be_bytes().to_vec()).map_err(wrap)?;
        let finished = Instant::now();

        (work.before_commit)(root.as_bytes())?;
        self.commit(block)?;
        Ok(Done {
            execute: executed - start,
            finish: finished - executed,
            commit: finished.elapsed(),
            prev_root: prev_root.to_bytes(),
            root: root.to_bytes(),
            witness: witness.map(|bytes| Box::new(PleachWitness(bytes)) as Box<dyn Witness>),
        })
    }

    fn settle(&mut self) -> Result<()> {
        self.commit_behind(0)
    }

    fn drain(&mut self, pending_entries: u64) -> Result<()> {
        self.db.drain(pending_entries).map_err(wrap)
    }

    fn pause(&mut self) {
        self.db.pause_background();
    }

    fn resume(&mut self) {
        self.db.resume_background();
    }

    fn counters(&self) -> Counters {
        let metrics = self.db.metrics();
        Counters {
            cache_hits: Some(metrics.cache_hits),
            cache_misses: Some(metrics.cache_misses),
            page_rereads: Some(metrics.page_rereads),
            upper_trie_pages_read: Some(metrics.upper_trie_pages_read),
            pending_entries: Some(metrics.pending_entries),
            pending_bytes: Some(metrics.pending_bytes),
            checkpoints: Some(metrics.checkpoints),
            leaf_pages: Some(metrics.leaf_pages),
            pages_written: Some(metrics.pages_written),
            page_runs_written: Some(metrics.page_runs_written),
            bytes_written_log: Some(metrics.log_bytes),
            sequencer_nanos: Some(metrics.sequencer_nanos),
            stalled_micros: Some(metrics.stalled_micros),
            hashes: Some(metrics.hashes),
        }
    }

    fn timings(&mut self) -> Vec<Timing> {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let timings = self.db.take_timings().into_iter().map(|timing| Timing {
            phase: timing.phase.name().to_owned(),
            wall_us: micros(timing.wall),
            tasks_us: timing.tasks.into_iter().map(micros).collect(),
        });
        timings.collect()
    }

    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        self.view()?.read(keys)
    }

    fn view(&mut self) -> Result<Box<dyn View>> {
        let session = self.db.session(self.session_options(false)).map_err(wrap)?;
        Ok(Box::new(PleachView(session)))
    }

    fn notes(&self) -> Vec<String> {
        let device = self.db.device_info();
        let direct = if device.direct { "O_DIRECT" } else { "page cache" };
        let reads = match self.reads {
            Reads::Each(readers) => format!("readers={readers}"),
            Reads::Many => "reads=many".to_owned(),
        };
        let mut notes = vec![format!("pleach: {} with {direct}, {reads}", device.engine)];
        if !device.note.is_empty() {
            notes.push(format!("pleach: {}", device.note));
        }
        notes
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { db, overlays, .. } = *self;
        drop(overlays);
        db.close().map(drop).map_err(wrap)
    }
}

/// Refuses peer arguments that mean nothing.
pub(crate) fn check_settings(options: &EngineOptions) -> Result<()> {
    reads(options).map(|_| ())
}

/// How a batch's accounts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// Key by key, by this many threads.
    Each(usize),
    /// All keys in one call.
    Many,
}

/// How accounts are read by `--peer-arg pleach.readers=N` and `--peer-arg pleach.reads=each|many`;
/// without either, key by key by one thread.
fn reads(options: &EngineOptions) -> Result<Reads> {
    let known = ["pleach.readers", "pleach.reads"];
    let unknown = |name: &str| name.starts_with("pleach.") && !known.contains(&name);
    if let Some((name, _)) = options.peer_args.iter().find(|(name, _)| unknown(name)) {
        let text = format!("--peer-arg {name} is unknown; pleach has readers, reads");
        return Err(BenchError::Usage(text));
    }
    let text = peer_arg(options, known[0]);
    let readers = match text {
        None => 1,
        Some(text) => {
            text.parse().ok().filter(|count| (1..=1024).contains(count)).ok_or_else(|| {
                BenchError::Usage(format!("--peer-arg pleach.readers={text}: say 1 to 1024"))
            })?
        }
    };
    match (peer_arg(options, known[1]), text) {
        (None | Some("each"), _) => Ok(Reads::Each(readers)),
        (Some("many"), None) => Ok(Reads::Many),
        (Some("many"), Some(_)) => Err(BenchError::Usage(
            "--peer-arg pleach.reads=many is one call: leave pleach.readers out".to_owned(),
        )),
        (Some(other), _) => {
            Err(BenchError::Usage(format!("--peer-arg pleach.reads={other}: say each or many")))
        }
    }
}

/// A session, which stays on the state it was opened on.
#[derive(Debug)]
struct PleachView(pleach::Session);

impl View for PleachView {
    fn root(&self) -> Root {
        self.0.root().to_bytes()
    }

    fn read(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let values = self.0.read_many(keys).map_err(wrap)?;
        Ok(values.into_iter().map(|value| value.map(|value| value.to_vec())).collect())
    }
}

fn accesses(keys: &[Key], changes: &[Change]) -> Vec<Access> {
    let kind = |change: &Change| match change {
        Change::Read => AccessKind::Read,
        Change::Write(new) => AccessKind::ReadWrite(Some((&account::encode(*new)).into())),
        Change::Delete => AccessKind::ReadWrite(None),
    };
    keys.iter()
        .zip(changes)
        .map(|(key, change)| Access { namespace: 0, key: *key, kind: kind(change) })
        .collect()
}

/// A witness in its wire encoding.
#[derive(Debug)]
struct PleachWitness(pleach::Witness);

impl Witness for PleachWitness {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn verify(&self, prev_root: &Root) -> core::result::Result<Proven, String> {
        // The bytes are our own, and a batch may have any size.
        let limits = Limits::UNLIMITED;
        let verified = pleach_core::witness::verify_with::<Blake3>(
            &self.0,
            pleach_core::Node::ref_of(prev_root),
            &limits,
        )
        .map_err(|error| error.to_string())?;
        let mut proven = Proven { new_root: verified.new_root().to_bytes(), ..Proven::default() };
        for op in verified.ops() {
            if op.access.reads() {
                proven.reads.push((op.key, op.before));
            }
            if let Some(new) = op.access.written() {
                proven.writes.push((op.key, new.copied()));
            }
        }
        Ok(proven)
    }
}

/// Findings of the offline checker.
pub(crate) fn check(folder: &Path) -> Result<Vec<String>> {
    let report = pleach::tools::check(folder, pleach::tools::CheckOptions::default());
    Ok(report.map_err(wrap)?.findings.iter().map(ToString::to_string).collect())
}
