//! This project's engine, used through its embedding API. Blocks that are finished and not committed are overlays, the
//! newest excepted. As a plain store its keys are padded to 32 bytes; they are not hashed, so that a scan comes in
//! order.

use std::collections::VecDeque;

use pleach::load::LoadOptions;
use pleach::{
    Access as Own, AccessKind, Block, Db, Key, Namespace, Options, Overlay, Session,
    SessionOptions, Value,
};
use pleach_core::{Hasher, proof::Limits};

use super::buffered::{bare, by_block, padded};
use super::{
    Engine, EngineWitness, Op, Pair, Proven, Reader, Root, Setup, StateAccess, TxBody, ValueSink,
    View,
};
use crate::error::{Error, Result, of_engine, wrong};
use crate::flags::Durability;

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("pleach")(error)
}

/// An open database.
pub struct PleachEngine {
    pub db: Db,
    /// The namespace of space 0; that of space 1 is the next.
    base: u8,
    begun: Option<Session>,
    /// The newest block.
    made: Option<Block>,
    /// Blocks before it, the oldest first.
    overlays: VecDeque<Overlay>,
    mark: Option<u64>,
    durability: Durability,
    load_mib: Option<u64>,
}

impl PleachEngine {
    /// Opens or creates it; `is_plain`: in namespaces without a trie.
    pub fn open(setup: &Setup<'_>, is_plain: bool) -> Result<Self> {
        let flags = setup.flags;
        let name = if is_plain { "pleach-plain" } else { "pleach" };
        setup.args(name, &[])?;
        let mut options = Options::new(&setup.folder)
            .create(true)
            .cache_mib(setup.cache_mib)
            .threads(setup.threads())
            .in_flight(flags.in_flight as usize)
            .io(flags.io.mode())
            .set(&format!("durability={}", flags.durability))
            .map_err(wrap)?
            .tune(|tuning| {
                tuning.trie_cache = flags.trie_cache_kib.map(|kib| kib.saturating_mul(1 << 10));
            })
            .log_limit_mib(flags.log_limit_mib)
            .history(flags.history);
        if let Some(mib) = flags.undo_memory_mib {
            options = options.undo_memory_mib(mib);
        }
        let db = Db::open(options).map_err(wrap)?;
        Ok(Self {
            db,
            base: u8::from(is_plain),
            begun: None,
            made: None,
            overlays: VecDeque::new(),
            mark: None,
            durability: flags.durability,
            load_mib: flags.load_mib,
        })
        .and_then(Self::with_namespaces)
    }

    /// Makes the namespaces that a plain store needs.
    fn with_namespaces(self) -> Result<Self> {
        if self.base > 0 && self.db.roots().digest(self.base).is_none() {
            for namespace in [self.base, self.base + 1] {
                self.db.add_plain_namespace(namespace).map_err(wrap)?;
            }
        }
        Ok(self)
    }

    /// Makes the namespace of storage, with a trie of its own.
    pub fn add_storage(&self) -> Result<()> {
        if self.base == 0 && self.db.roots().digest(1).is_none() {
            self.db.add_namespace(1).map_err(wrap)?;
        }
        Ok(())
    }

    /// Loads pairs into a namespace.
    pub fn load_space(&self, space: u8, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let mut failed = None;
        let pairs = pairs.map_while(|(name, value)| match padded(&name) {
            Ok(key) => Some((key, value)),
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        let mut options = LoadOptions::new().namespace(self.base + space);
        if let Some(mib) = self.load_mib {
            options = options.memory_mib(mib);
        }
        let loaded = self.db.bulk_load(pairs, &options).map(drop).map_err(wrap);
        failed.map_or(loaded, Err)
    }

    /// Takes the newest block as an overlay.
    pub fn stack(&mut self) -> Option<&Overlay> {
        if let Some(block) = self.made.take() {
            self.overlays.push_back(block.into_overlay());
        }
        self.overlays.back()
    }

    /// A session over the newest block.
    pub fn session(&mut self, witness: bool) -> Result<Session> {
        let mut options = SessionOptions::new().witness(witness);
        if let Some(newest) = self.stack() {
            options = options.over(newest);
        }
        self.db.session(options).map_err(wrap)
    }

    fn begun(&self) -> Result<&Session> {
        self.begun.as_ref().ok_or_else(|| wrap("no block was begun"))
    }
}

impl Engine for PleachEngine {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let device = self.db.device_info();
        let direct = if device.direct { "O_DIRECT" } else { "the page cache" };
        let trie = if self.base == 0 { "always" } else { "none" };
        let mut settings = vec![
            ("io", format!("{} with {direct}", device.engine)),
            ("durability", self.durability.to_string()),
            ("merkle trie", trie.to_owned()),
        ];
        if !device.note.is_empty() {
            settings.push(("note", device.note));
        }
        settings
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        self.load_space(0, pairs)
    }

    fn transact(&mut self, sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        by_block(self, padded, work)?;
        if sync && self.durability != Durability::Commit { self.sync() } else { Ok(()) }
    }

    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(PleachReader(self.db.clone(), self.base)))
    }

    fn sync(&mut self) -> Result<()> {
        self.db.sync().map_err(wrap)
    }

    fn root(&self) -> Option<Root> {
        let newest = self.made.as_ref().map(Block::root);
        let newest = newest.or_else(|| self.overlays.back().map(Overlay::root));
        (self.base == 0).then(|| newest.unwrap_or_else(|| self.db.root()).to_bytes())
    }

    fn begin(&mut self, witness: bool) -> Result<()> {
        self.begun = Some(self.session(witness)?);
        Ok(())
    }

    fn announce(&mut self, space: u8, keys: &[Key]) -> Result<()> {
        let namespace = self.begun()?.namespace(self.base + space).map_err(wrap)?;
        namespace.prefetch(keys);
        Ok(())
    }

    fn read(&mut self, space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let namespace = self.begun()?.namespace(self.base + space).map_err(wrap)?;
        for (at, key) in keys.iter().enumerate() {
            see(at, namespace.read(key).map_err(wrap)?.as_deref());
        }
        Ok(())
    }

    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        let session = self.begun.take().ok_or_else(|| wrap("no block was begun"))?;
        let own = accesses.into_iter().map(|access| Own {
            namespace: self.base + access.space,
            key: access.key,
            kind: match access.op {
                Op::Read => AccessKind::Read,
                Op::Write(value) => AccessKind::Write(value),
                Op::ReadWrite(value) => AccessKind::ReadWrite(value),
            },
        });
        let mut block = session.finish(own.collect::<Vec<_>>()).map_err(wrap)?;
        let witness = block.take_witness();
        if let Some(number) = self.mark.take() {
            block.set_blob(number.to_be_bytes().to_vec()).map_err(wrap)?;
        }
        self.made = Some(block);
        Ok(witness.map(|bytes| Box::new(PleachWitness(bytes)) as Box<dyn EngineWitness>))
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(oldest) = self.overlays.pop_front() {
            return oldest.commit().map(drop).map_err(wrap);
        }
        self.made.take().map_or(Ok(()), |block| block.commit().map(drop).map_err(wrap))
    }

    fn discard(&mut self) -> Result<()> {
        self.begun = None;
        self.made = None;
        self.overlays.clear();
        Ok(())
    }

    fn mark(&mut self, number: u64) {
        self.mark = Some(number);
    }

    fn marked(&self) -> Result<Option<u64>> {
        let blob = self.db.blob();
        match <[u8; 8]>::try_from(&blob[..]) {
            Ok(bytes) => Ok(Some(u64::from_be_bytes(bytes))),
            Err(_) if blob.is_empty() => Ok(None),
            Err(_) => wrong(format!("the database's blob has {} bytes, not 8", blob.len())),
        }
    }

    fn pause(&mut self, pause: bool) {
        if pause { self.db.pause_background() } else { self.db.resume_background() }
    }

    fn pending(&self) -> u64 {
        self.db.metrics().pending_entries
    }

    fn drain(&mut self, pending: u64) -> Result<()> {
        self.db.drain(pending).map_err(wrap)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let metrics = self.db.metrics();
        let misses = metrics.cache_misses + metrics.page_rereads;
        vec![
            ("checkpoints", metrics.checkpoints),
            ("cache misses", misses),
            ("of leaves", metrics.cache_misses),
            ("rereads", metrics.page_rereads),
            ("pages written", metrics.pages_written),
            ("device writes of pages", metrics.page_runs_written),
            ("log bytes", metrics.log_bytes),
            ("image bytes", metrics.image_bytes),
            ("hashes", metrics.hashes),
            ("changes", metrics.changes),
            ("stalled us", metrics.stalled_micros),
        ]
    }

    fn as_pleach(&mut self) -> Option<&mut PleachEngine> {
        Some(self)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.discard()?;
        self.db.close().map(drop).map_err(wrap)
    }
}

struct PleachReader(Db, u8);

impl Reader for PleachReader {
    fn view(&mut self, work: &mut dyn FnMut(&dyn View) -> Result<()>) -> Result<()> {
        let session = self.0.session(SessionOptions::new().witness(false)).map_err(wrap)?;
        work(&PleachView(session.namespace(self.1).map_err(wrap)?))
    }
}

struct PleachView<'a>(&'a Namespace);

impl View for PleachView<'_> {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.0.read(&padded(key)?).map_err(wrap)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let from = if from.is_empty() { [0; 32] } else { padded(from)? };
        let each = |key: &Key, value: &[u8]| each(bare(key), value);
        self.0.iter(from..).for_each_pair(each).map_err(wrap)
    }
}

/// A witness in its wire encoding.
struct PleachWitness(pleach::Witness);

impl EngineWitness for PleachWitness {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn verify(&self, before: &Root) -> core::result::Result<Proven, String> {
        // The bytes are our own, and a block may have any size.
        let before = pleach_core::Node::ref_of(before);
        let verified = pleach_core::proof::witness::verify_with(
            Hasher::BLAKE3,
            &self.0,
            before,
            &Limits::UNLIMITED,
        )
        .map_err(|error| error.to_string())?;
        let mut proven = Proven { root: verified.new_root().to_bytes(), ..Proven::default() };
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

/// The findings of the offline checker in a closed or killed database.
pub fn check(folder: &std::path::Path) -> Result<()> {
    let report = pleach_ops::check(folder, pleach_ops::CheckOptions::default());
    let mut report = report.map_err(wrap)?;
    // A kill may cut a write of the log short. Whether an acknowledged batch is lost, the recovered state shows.
    report.findings.retain(|finding| !finding.what.starts_with("the log ends torn"));
    match report.findings.first() {
        None => Ok(()),
        Some(first) => {
            wrong(format!("the offline checker finds {}: {first}", report.findings.len()))
        }
    }
}

/// A number as the value that most workloads store.
pub fn value(number: u64) -> Value {
    Value::from(&number.to_le_bytes())
}
