//! The crate nomt, used the way its documentation says: a session on the newest state, keys that are announced warmed
//! up and read by several threads, `finish` with the actual reads and writes in key order, `commit`. Each commit is
//! synced: it knows no other. What no flag decides is the crate's own default, or follows from the flags that all
//! engines share.

use std::collections::VecDeque;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use hashbrown::HashSet;
use nomt::hasher::Blake3Hasher;
use nomt::proof::{MultiProof, PathProofTerminal, verify_multi_proof, verify_multi_proof_update};
use nomt::{
    FinishedSession, KeyReadWrite, Nomt, Options, Overlay, Session, SessionParams, WitnessMode,
    WitnessedOperations,
};
use pleach_core::Key;

use super::buffered::{by_block, hashed, in_blocks};
use super::{
    Args, Engine, EngineWitness, Op, Pair, Proven, Root, Setup, StateAccess, TxBody, ValueSink,
    kind,
};
use crate::error::{Error, Result, of_engine, usage};

/// Threads that read keys which were announced.
const READERS: usize = 16;
/// Keys that such a thread takes at a time: few, so that all are read in about the order of the announcement.
const BLOCK: usize = 64;
#[rustfmt::skip]
const KNOWN: [&str; 9] = [
    "readers", "warm_up", "commit_workers", "io_workers", "page_cache_mib", "leaf_cache_mib", "upper_levels",
    "prepopulate", "buckets",
];

/// A setting, which is noted.
fn noted<T>(note: &mut Vec<String>, args: &Args<'_>, name: &str, without: T) -> Result<T>
where
    T: FromStr + Display,
{
    let value = args.of(name, without)?;
    note.push(format!("{name}={value}"));
    Ok(value)
}

/// A key and its value when it was read.
type NomtRead = (Key, Option<Vec<u8>>);

fn wrap<E: std::fmt::Display>(error: E) -> Error {
    of_engine("nomt")(error)
}

/// A block that was begun.
struct OpenBlock {
    session: Session<Blake3Hasher>,
    /// True when the block's keys were announced.
    announced: bool,
    /// True when the block has read. Keys announced from then on are the next block's.
    has_read: bool,
    /// The block's reads, where they are to be proven.
    reads: Option<Vec<NomtRead>>,
}

/// An open database.
pub struct NomtEngine {
    db: Nomt<Blake3Hasher>,
    readers: usize,
    warm_up: bool,
    note: Vec<String>,
    begun: Option<OpenBlock>,
    /// The newest block.
    made: Option<FinishedSession>,
    /// Blocks before it, the newest first, as sessions take them.
    overlays: VecDeque<Overlay>,
}

impl NomtEngine {
    /// Opens or creates it.
    pub fn open(setup: &Setup<'_>) -> Result<Self> {
        let args = setup.args("nomt", &KNOWN)?;
        let mut note = Vec::new();
        let workers = setup.threads().min(64);
        let half = usize::try_from(setup.cache_mib / 2).map_err(wrap)?;
        let readers = noted(&mut note, &args, "readers", READERS)?;
        let warm_up = noted(&mut note, &args, "warm_up", false)?;
        let mut options = Options::new();
        options.path(&setup.folder);
        options.commit_concurrency(noted(&mut note, &args, "commit_workers", workers)?);
        options.io_workers(noted(&mut note, &args, "io_workers", 3)?);
        options.page_cache_size(noted(&mut note, &args, "page_cache_mib", half)?);
        options.leaf_cache_size(noted(&mut note, &args, "leaf_cache_mib", half)?);
        options.page_cache_upper_levels(noted(&mut note, &args, "upper_levels", 2)?);
        options.prepopulate_page_cache(noted(&mut note, &args, "prepopulate", false)?);
        options.warm_up(warm_up);
        let buckets = noted(&mut note, &args, "buckets", kind::nomt_buckets(setup.keys))?;
        let Ok(buckets) = u32::try_from(buckets) else {
            return usage("nomt's hash table cannot have 2^32 buckets: use fewer keys");
        };
        options.hashtable_buckets(buckets);
        // The seed decides where pages lie in its hash table. It is fixed so that runs repeat.
        options.bitbox_seed(*b"pleach-bench v1.");
        let db = Nomt::open(options).map_err(wrap)?;
        let (begun, made, overlays) = (None, None, VecDeque::new());
        Ok(Self { db, readers, warm_up, note, begun, made, overlays })
    }
}

impl Engine for NomtEngine {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let table = self.db.hash_table_utilization();
        vec![
            ("settings", self.note.join(" ")),
            ("buckets in use", format!("{} of {}", table.occupied, table.capacity)),
            ("durability", "each commit synced; it knows no other".to_owned()),
        ]
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        in_blocks(pairs, |block| {
            self.begin(false)?;
            self.finish(block)?;
            self.commit()
        })
    }

    fn transact(&mut self, _sync: bool, work: &mut TxBody<'_>) -> Result<()> {
        by_block(self, hashed, work)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn root(&self) -> Option<Root> {
        let newest = self.made.as_ref().map(FinishedSession::root);
        let newest = newest.or_else(|| self.overlays.front().map(Overlay::root));
        Some(newest.unwrap_or_else(|| self.db.root()).into_inner())
    }

    fn begin(&mut self, witness: bool) -> Result<()> {
        if let Some(block) = self.made.take() {
            self.overlays.push_front(block.into_overlay());
        }
        let mode = if witness { WitnessMode::read_write() } else { WitnessMode::disabled() };
        let params = SessionParams::default().witness_mode(mode).overlay(self.overlays.iter());
        let params = params.map_err(|_| wrap("the overlays are no chain"))?;
        let session = self.db.begin_session(params);
        let reads = witness.then(Vec::new);
        self.begun = Some(OpenBlock { session, announced: false, has_read: false, reads });
        Ok(())
    }

    /// Pages warmed up by one session do not serve the next one.
    fn announce(&mut self, _space: u8, keys: &[Key]) -> Result<()> {
        let Some(begun) = self.begun.as_mut().filter(|begun| !begun.has_read) else {
            return Ok(());
        };
        for key in keys {
            begun.session.warm_up(*key);
        }
        begun.announced = true;
        Ok(())
    }

    fn read(&mut self, _space: u8, keys: &[Key], see: &mut ValueSink<'_>) -> Result<()> {
        let begun = self.begun.as_mut().ok_or_else(|| wrap("no block was begun"))?;
        begun.has_read = true;
        let readers = if begun.announced { self.readers } else { 1 };
        let values = read_with(&begun.session, keys, readers)?;
        for (at, (key, value)) in keys.iter().zip(values).enumerate() {
            see(at, value.as_deref());
            if let Some(reads) = &mut begun.reads {
                reads.push((*key, value));
            }
        }
        Ok(())
    }

    fn finish(&mut self, accesses: Vec<StateAccess>) -> Result<Option<Box<dyn EngineWitness>>> {
        let begun = self.begun.take().ok_or_else(|| wrap("no block was begun"))?;
        let mut block = begun.session.finish(actuals(begun.reads, accesses)?).map_err(wrap)?;
        let witness = block.take_witness();
        self.made = Some(block);
        Ok(witness.map(|witness| Box::new(NomtWitness::new(witness)) as Box<dyn EngineWitness>))
    }

    fn commit(&mut self) -> Result<()> {
        if self.begun.is_some() {
            // The crate would wait for ever.
            return Err(wrap("it commits nothing while a block is begun"));
        }
        if let Some(oldest) = self.overlays.pop_back() {
            return oldest.commit(&self.db).map_err(wrap);
        }
        self.made.take().map_or(Ok(()), |block| block.commit(&self.db).map_err(wrap))
    }

    fn discard(&mut self) -> Result<()> {
        if let Some(begun) = self.begun.take().filter(|_| self.warm_up) {
            // Dropping an unfinished session makes its warm-up worker panic.
            begun.session.finish(Vec::new()).map_err(wrap)?;
        }
        self.made = None;
        self.overlays.clear();
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Reads keys with this many threads, the caller's included.
fn read_with(
    session: &Session<Blake3Hasher>,
    keys: &[Key],
    readers: usize,
) -> Result<Vec<Option<Vec<u8>>>> {
    let readers = readers.min(keys.len().div_ceil(BLOCK));
    if readers <= 1 {
        return keys.iter().map(|key| session.read(*key).map_err(wrap)).collect();
    }
    let mut values = vec![None; keys.len()];
    let left = Mutex::new(keys.chunks(BLOCK).zip(values.chunks_mut(BLOCK)));
    let read = || -> Result<()> {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((keys, values)) = next else { return Ok(()) };
            for (key, value) in keys.iter().zip(values) {
                *value = session.read(*key).map_err(wrap)?;
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..readers).map(|_| scope.spawn(read)).collect();
        let joined = others.into_iter().map(ScopedJoinHandle::join);
        let panicked = |_| Err(wrap("a reader panicked"));
        joined.fold(read(), |done, other| done.and(other.unwrap_or_else(panicked)))
    })?;
    Ok(values)
}

/// A session's accesses in key order; where they are to be proven, with the values that were read.
fn actuals(
    reads: Option<Vec<NomtRead>>,
    accesses: Vec<StateAccess>,
) -> Result<Vec<(Key, KeyReadWrite)>> {
    let (proves, mut reads) = (reads.is_some(), reads.unwrap_or_default());
    reads.sort_unstable_by_key(|read| read.0);
    let mut reads = reads.into_iter().peekable();
    let mut accesses = accesses;
    accesses.sort_unstable_by_key(|access| access.key);
    let mut actuals = Vec::with_capacity(accesses.len());
    for StateAccess { key, op, .. } in accesses {
        let mut seen = || {
            while reads.next_if(|read| read.0 < key).is_some() {}
            let read = reads.next_if(|read| read.0 == key);
            read.map(|read| read.1).ok_or_else(|| wrap("a read that was not made is to be proven"))
        };
        let bytes = |value: Option<pleach::Value>| value.map(|value| value.to_vec());
        actuals.push((
            key,
            match op {
                Op::Read if proves => KeyReadWrite::Read(seen()?),
                Op::ReadWrite(value) if proves => {
                    KeyReadWrite::ReadThenWrite(seen()?, bytes(value))
                }
                Op::Write(value) | Op::ReadWrite(value) => KeyReadWrite::Write(bytes(value)),
                Op::Read => continue,
            },
        ));
    }
    Ok(actuals)
}

/// A multi-proof of what was read and written: the crate's most compact form. An application makes it of the session's
/// path proofs before it sends them; here it is made when it is first asked for, so that no clock of a finish has it.
struct NomtWitness {
    proof: LazyLock<MultiProof, Box<dyn FnOnce() -> MultiProof + Send>>,
    operations: WitnessedOperations,
}

impl NomtWitness {
    fn new(witness: nomt::Witness) -> Self {
        let nomt::Witness { path_proofs, operations } = witness;
        let proof = LazyLock::new(Box::new(move || {
            let mut paths: Vec<_> = path_proofs.into_iter().map(|path| path.inner).collect();
            // Workers hand in their paths in any order, and each one that it shares with another.
            paths.sort_unstable_by(|a, b| a.terminal.path().cmp(b.terminal.path()));
            paths.dedup_by(|a, b| a.terminal.path() == b.terminal.path());
            MultiProof::from_path_proofs(paths)
        }) as Box<dyn FnOnce() -> _ + Send>);
        Self { proof, operations }
    }
}

impl EngineWitness for NomtWitness {
    /// The size if it were written out: siblings; of each terminal two bytes of depth, a byte that says its kind, and
    /// its key and value hash, or its path; of each key a byte that says what was done, and, unless a terminal has it,
    /// the key; of each write the new value's hash. The hash of a value read is that of its terminal.
    fn bytes(&self) -> u64 {
        let terminals = self.proof.paths.iter().map(|path| match path.terminal {
            PathProofTerminal::Leaf(_) => 3 + 64,
            PathProofTerminal::Terminator(_) => 3 + path.depth.div_ceil(8),
        });
        let WitnessedOperations { reads, writes } = &self.operations;
        let keys = reads.iter().map(|read| read.key).chain(writes.iter().map(|write| write.key));
        let keys: HashSet<Key> = keys.collect();
        let leaves = self.proof.paths.iter().filter_map(|path| path.terminal.as_leaf_option());
        let named = leaves.filter(|leaf| keys.contains(&leaf.key_path)).count();
        let new = writes.iter().filter(|write| write.value.is_some()).count();
        let hashes = self.proof.siblings.len() + keys.len() - named + new;
        (32 * hashes + keys.len() + terminals.sum::<usize>()) as u64
    }

    fn verify(&self, before: &Root) -> core::result::Result<Proven, String> {
        let proof = verify_multi_proof::<Blake3Hasher>(&self.proof, *before)
            .map_err(|error| format!("the multi-proof does not verify: {error:?}"))?;
        // The value read is that of the terminal. With several commit workers, version 1.0.5 takes their paths in the
        // order of their arrival and gives reads the values of other paths.
        let read = |key: Key| {
            let index = proof.find_index_for(&key).map_err(|_| "a read lies outside its path")?;
            let leaf = self.proof.paths.get(index).and_then(|path| path.terminal.as_leaf_option());
            let leaf = leaf.filter(|leaf| leaf.key_path == key);
            Ok((key, leaf.map(|leaf| leaf.value_hash.into())))
        };
        let reads = self.operations.reads.iter().map(|one| read(one.key));
        let reads = reads.collect::<core::result::Result<_, String>>()?;
        let writes = self.operations.writes.iter().map(|new| (new.key, new.value));
        let root = verify_multi_proof_update::<Blake3Hasher>(&proof, writes.clone().collect())
            .map_err(|error| format!("the update does not verify: {error:?}"))?;
        let writes = writes.map(|(key, value)| (key, value.map(Into::into)));
        Ok(Proven { root, reads, writes: writes.collect() })
    }
}
