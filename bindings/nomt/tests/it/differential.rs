//! Random histories on the crate `nomt` and on this one, side by side: roots, reads, proofs, witnesses, which overlays stand on which, which
//! commits take place, rollbacks, and what is there after an open that nobody prepared.
//!
//! `PLEACH_CASES` is the number of histories, `PLEACH_SEED` the seed of the first.
//!
//! Version 1.0.5 of the crate `nomt` has faults that histories keep away from:
//! * a batch that deletes absent keys alone panics, also one that a rollback makes: only keys that are there are deleted, and no
//!   rollback leads to the state that is there;
//! * several commit workers misplace the operations of witnesses: there is one;
//! * a rollback over a value of more than 15 pages panics: values are shorter;
//! * a refused commit of an overlay counts as a commit to its children: they are dropped with it;
//! * a refused `try_commit_nonblocking` of a finished session leaves its prior values for the next rollback, which then leads to a
//!   state that never was: only `commit` is refused;
//! * sessions over stale overlays read a mixture: only commits of those are tried.
//!
//! And from one difference: a finished session over an overlay that is not committed is refused here even where the roots are equal.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use nomt::hasher::{Blake3Hasher, ValueHasher as _};
use nomt::proofs as convert;
use nomt::trie::{KeyPath, LeafData};
use nomt::{Nomt, Witness};
use nomt_original::Nomt as Original;
use pleach::Hasher;
use pleach_core::proof;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

type State = Rc<BTreeMap<KeyPath, Vec<u8>>>;

const KEYS: u64 = 60;
const STEPS: u64 = 40;

struct Rng(ChaCha8Rng);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }

    /// Half of them share a long prefix.
    fn key(&mut self) -> KeyPath {
        let id = self.below(KEYS);
        let mut key = Blake3Hasher::hash_value(&id.to_be_bytes());
        if id.is_multiple_of(2) {
            key[..9].copy_from_slice(&[0x5a; 9]);
        }
        key
    }

    fn value(&mut self) -> Vec<u8> {
        let len = [0, 8, 8, 40, 900, 1400, 9000][self.index(7)];
        let byte = self.0.next_u32().to_le_bytes()[0];
        vec![byte; len]
    }
}

/// A change, without the type of either crate.
#[derive(Clone)]
enum Done {
    Read(Option<Vec<u8>>),
    Write(Option<Vec<u8>>),
    ReadThenWrite(Option<Vec<u8>>, Option<Vec<u8>>),
}

macro_rules! accesses {
    ($batch:expr, $kind:path) => {{
        use $kind as Kind;
        let kind = |done: &Done| match done.clone() {
            Done::Read(value) => Kind::Read(value),
            Done::Write(value) => Kind::Write(value),
            Done::ReadThenWrite(before, value) => Kind::ReadThenWrite(before, value),
        };
        $batch.iter().map(|(key, done)| (*key, kind(done))).collect()
    }};
}

/// The same overlay in both.
struct Pair {
    id: u64,
    /// The overlays below that are not committed, newest first; the last one stands on this state of the database.
    below: Vec<u64>,
    version: u64,
    state: State,
    original: nomt_original::Overlay,
    ours: nomt::Overlay,
}

struct Both<'a> {
    folder: &'a Path,
    original: Original<Blake3Hasher>,
    ours: Nomt<Blake3Hasher>,
    overlays: Vec<Pair>,
    /// What a rollback goes back through; the last is the newest.
    states: Vec<State>,
    /// Changes with each commit and rollback.
    version: u64,
    ids: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    witnesses: u64,
    proofs: u64,
    commits: u64,
    refused: u64,
    rollbacks: u64,
    opens: u64,
}

macro_rules! options {
    ($options:ty, $folder:expr) => {{
        let mut options = <$options>::new();
        options.path($folder);
        options.commit_concurrency(1);
        options.hashtable_buckets(2000);
        options.preallocate_ht(false);
        options.rollback(true);
        options.page_cache_size(8);
        options.leaf_cache_size(8);
        options
    }};
}

fn open(folder: &Path) -> (Original<Blake3Hasher>, Nomt<Blake3Hasher>) {
    let original = Original::open(options!(nomt_original::Options, folder.join("original")));
    let ours = Nomt::open(options!(nomt::Options, folder.join("ours")));
    (original.expect("opened"), ours.expect("opened"))
}

impl<'a> Both<'a> {
    fn new(folder: &'a Path) -> Self {
        let (original, ours) = open(folder);
        let (overlays, states, counts) = (Vec::new(), vec![State::default()], Counts::default());
        Self { folder, original, ours, overlays, states, version: 0, ids: 0, counts }
    }

    fn newest(&self) -> &State {
        self.states.last().expect("the empty one at least")
    }

    fn reopen(self) -> Self {
        let Self { folder, original, ours, overlays, states, version, ids, mut counts } = self;
        drop((original, ours, overlays));
        let (original, ours) = open(folder);
        counts.opens += 1;
        Self { folder, original, ours, overlays: Vec::new(), states, version, ids, counts }
    }

    /// Something to read from: the newest commit, or an overlay that is not stale.
    fn base(&self, rng: &mut Rng) -> Option<usize> {
        let fresh = |at: &usize| self.overlays[*at].version == self.version;
        let fresh: Vec<usize> = (0..self.overlays.len()).filter(fresh).collect();
        fresh.get(rng.index(fresh.len() + 1)).copied()
    }

    fn session(&mut self, rng: &mut Rng) {
        let at = |id: &u64| self.overlays.iter().find(|pair| pair.id == *id).expect("it lives");
        let chain: Vec<&Pair> = self.base(rng).map_or_else(Vec::new, |newest| {
            let pair = &self.overlays[newest];
            std::iter::once(pair).chain(pair.below.iter().map(at)).collect()
        });
        let counts = &mut self.counts;
        let newest = self.states.last().expect("the empty one at least");
        let state = chain.first().map_or(newest, |pair| &pair.state).clone();
        let witness = rng.below(3) > 0;
        let original = {
            use nomt_original::{SessionParams, WitnessMode};
            let mode = if witness { WitnessMode::read_write() } else { WitnessMode::disabled() };
            let params = SessionParams::default().witness_mode(mode);
            let over = params.overlay(chain.iter().map(|pair| &pair.original)).expect("a chain");
            self.original.begin_session(over)
        };
        let ours = {
            use nomt::{SessionParams, WitnessMode};
            let mode = if witness { WitnessMode::read_write() } else { WitnessMode::disabled() };
            let params = SessionParams::default().witness_mode(mode);
            let over = params.overlay(chain.iter().map(|pair| &pair.ours)).expect("a chain");
            self.ours.begin_session(over)
        };
        let root = ours.prev_root().into_inner();
        assert_eq!(original.prev_root().into_inner(), root);
        for _ in 0..4 {
            let key = rng.key();
            assert_eq!(ours.read(key).expect("read"), state.get(&key).cloned());
            assert_eq!(original.read(key).expect("read"), state.get(&key).cloned());
            let proofs = [original.prove(key), ours.prove(key)].map(|proof| proof.expect("proven"));
            assert_eq!(proofs[0].terminal, proofs[1].terminal);
            assert_eq!(proofs[0].siblings, proofs[1].siblings);
            check_proof(&proofs[0], key, state.get(&key), root);
            counts.proofs += 1;
        }
        let (batch, after) = batch(rng, &state);
        let mut original =
            original.finish(accesses!(batch, nomt_original::KeyReadWrite)).expect("finished");
        let mut ours = ours.finish(accesses!(batch, nomt::KeyReadWrite)).expect("finished");
        assert_eq!(original.root().into_inner(), ours.root().into_inner());
        assert_eq!(original.prev_root().into_inner(), ours.prev_root().into_inner());
        let new_root = ours.root().into_inner();
        match (original.take_witness(), ours.take_witness()) {
            (None, None) => assert!(!witness),
            (Some(theirs), Some(ours)) => {
                compare(&theirs, &ours);
                check_witness(&theirs, root, new_root);
                counts.witnesses += 1;
            }
            _ => panic!("one of both has a witness"),
        }
        let below: Vec<u64> = chain.iter().map(|pair| pair.id).collect();
        let stands_on = below.is_empty() || root != self.ours.root().into_inner();
        match rng.below(8) {
            0 => {}
            1..3 if stands_on => {
                let wait = rng.below(2) == 0 || !below.is_empty();
                let results = if wait {
                    (original.commit(&self.original), ours.commit(&self.ours))
                } else {
                    let taken = |back: bool| assert!(!back, "nothing is under way");
                    (
                        original
                            .try_commit_nonblocking(&self.original)
                            .map(|back| taken(back.is_some())),
                        ours.try_commit_nonblocking(&self.ours).map(|back| taken(back.is_some())),
                    )
                };
                if self.agree(results) {
                    self.committed(after);
                }
            }
            _ => {
                self.ids += 1;
                let (original, ours) = (original.into_overlay(), ours.into_overlay());
                let (id, version) = (self.ids, self.version);
                self.overlays.push(Pair { id, below, version, state: after, original, ours });
            }
        }
    }

    /// True when the commit took place.
    fn agree(&mut self, (original, ours): (anyhow::Result<()>, anyhow::Result<()>)) -> bool {
        assert_eq!(original.is_ok(), ours.is_ok(), "nomt: {original:?}, here: {ours:?}");
        *(if ours.is_ok() { &mut self.counts.commits } else { &mut self.counts.refused }) += 1;
        ours.is_ok()
    }

    fn committed(&mut self, state: State) {
        self.version += 1;
        self.states.push(state);
    }

    /// Takes an overlay, and drops those above it if it is not committed.
    fn take(&mut self, rng: &mut Rng, commits: bool) {
        if self.overlays.is_empty() {
            return;
        }
        let at = rng.index(self.overlays.len());
        let Pair { id, state, original, ours, .. } = self.overlays.swap_remove(at);
        let committed = if commits {
            let results = (original.commit(&self.original), ours.commit(&self.ours));
            self.agree(results)
        } else {
            drop((original, ours));
            false
        };
        if committed {
            self.committed(state);
            for pair in &mut self.overlays {
                if pair.below.last() == Some(&id) {
                    pair.below.pop();
                    pair.version = self.version;
                }
            }
        } else {
            let above = |pair: &Pair| pair.below.contains(&id);
            for pair in self.overlays.iter().filter(|pair| above(pair)) {
                let over = nomt::SessionParams::default().overlay([&pair.ours]);
                assert_eq!(over.err(), Some(nomt::InvalidAncestors::Incomplete));
                // A refused commit counts as one to its children there.
                if !commits {
                    let over = nomt_original::SessionParams::default().overlay([&pair.original]);
                    assert!(over.err() == Some(nomt_original::InvalidAncestors::Incomplete));
                }
            }
            self.overlays.retain(|pair| !above(pair));
        }
    }

    fn rollback(&mut self, rng: &mut Rng) {
        let n = rng.index(5);
        let enough = n < self.states.len();
        if enough && self.states[self.states.len() - 1 - n] == *self.newest() {
            // It may be made of deletes of absent keys alone.
            return;
        }
        let (original, ours) = (self.original.rollback(n), self.ours.rollback(n));
        assert_eq!(
            (original.is_ok(), ours.is_ok()),
            (enough, enough),
            "{n}: {original:?}, {ours:?}"
        );
        if enough {
            self.states.truncate(self.states.len() - n);
            self.version += 1;
        }
        self.counts.rollbacks += 1;
    }

    fn check(&self, rng: &mut Rng) {
        assert_eq!(self.original.root().into_inner(), self.ours.root().into_inner());
        assert_eq!(self.ours.is_empty(), self.newest().is_empty());
        let (key, newest) = (rng.key(), self.newest());
        let read = self.ours.begin_session(nomt::SessionParams::default()).read(key);
        assert_eq!(read.expect("read"), newest.get(&key).cloned());
        assert_eq!(self.original.read(key).expect("read"), newest.get(&key).cloned());
    }
}

/// A batch on a state, in key order, and the state after it.
fn batch(rng: &mut Rng, state: &State) -> (Vec<(KeyPath, Done)>, State) {
    let (mut batch, mut after) = (BTreeMap::new(), BTreeMap::clone(state));
    for _ in 0..[0, 1, 3, 20][rng.index(4)] {
        let key = rng.key();
        let before = state.get(&key).cloned();
        let deletes = before.is_some() && rng.below(3) == 0;
        let new = if deletes { None } else { Some(rng.value()) };
        let done = match rng.below(3) {
            0 => Done::Read(before),
            1 => Done::Write(new),
            _ => Done::ReadThenWrite(before, new),
        };
        batch.insert(key, done);
    }
    for (key, done) in &batch {
        match done {
            Done::Read(_) => {}
            Done::Write(Some(value)) | Done::ReadThenWrite(_, Some(value)) => {
                after.insert(*key, value.clone());
            }
            Done::Write(None) | Done::ReadThenWrite(_, None) => drop(after.remove(key)),
        }
    }
    (batch.into_iter().collect(), Rc::new(after))
}

/// A proof of either, with the verifiers of both.
fn check_proof(
    proof: &nomt::proof::PathProof,
    key: KeyPath,
    value: Option<&Vec<u8>>,
    root: [u8; 32],
) {
    let path = bitvec::vec::BitVec::from_slice(&key);
    let verified = proof.verify::<Blake3Hasher>(&path, root).expect("verified");
    let said = match value {
        None => verified.confirm_nonexistence(&key),
        Some(value) => {
            let value_hash = Blake3Hasher::hash_value(value);
            verified.confirm_value(&LeafData { key_path: key, value_hash })
        }
    };
    assert!(said.expect("in scope"));
    let ours =
        convert::path_from(proof).expect("converted").encode(Hasher::BLAKE3).expect("encoded");
    let verified = proof::path::verify(Hasher::BLAKE3, &ours, &root.into()).expect("verified");
    assert_eq!(verified.proves(&key, value.map(Vec::as_slice)), Some(true));
}

fn compare(theirs: &Witness, ours: &Witness) {
    assert_eq!(theirs.path_proofs.len(), ours.path_proofs.len());
    for (theirs, ours) in theirs.path_proofs.iter().zip(&ours.path_proofs) {
        assert!(theirs.path == ours.path);
        assert_eq!(theirs.inner.terminal, ours.inner.terminal);
        assert_eq!(theirs.inner.siblings, ours.inner.siblings);
    }
    let reads = |witness: &Witness| -> Vec<_> {
        witness.operations.reads.iter().map(|one| (one.key, one.value, one.path_index)).collect()
    };
    let writes = |witness: &Witness| -> Vec<_> {
        witness.operations.writes.iter().map(|one| (one.key, one.value, one.path_index)).collect()
    };
    assert_eq!((reads(theirs), writes(theirs)), (reads(ours), writes(ours)));
}

/// The witness of the crate `nomt`, with the verifier of Pleach.
fn check_witness(theirs: &Witness, before: [u8; 32], after: [u8; 32]) {
    let ours =
        convert::witness_from(theirs).expect("converted").encode(Hasher::BLAKE3).expect("encoded");
    let verified = proof::witness::verify(Hasher::BLAKE3, &ours, &before.into()).expect("verified");
    assert_eq!(*verified.new_root(), after.into());
}

fn history(seed: u64) -> Counts {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut rng = Rng(ChaCha8Rng::seed_from_u64(seed));
    let mut both = Both::new(folder.path());
    for _ in 0..STEPS {
        match rng.below(20) {
            0 => both = both.reopen(),
            1..3 => both.rollback(&mut rng),
            3 => both.take(&mut rng, false),
            4..9 => both.take(&mut rng, true),
            _ => both.session(&mut rng),
        }
        both.check(&mut rng);
    }
    both.counts
}

#[test]
fn both_do_the_same() {
    let number = |name: &str, without| {
        std::env::var(name).map_or(without, |text| text.parse().expect("a number"))
    };
    let first: u64 = number("PLEACH_SEED", 1);
    let mut all = Counts::default();
    for seed in first..first + number("PLEACH_CASES", 25) {
        // Shown when it fails.
        println!("PLEACH_SEED={seed}");
        let one = history(seed);
        all.witnesses += one.witnesses;
        all.proofs += one.proofs;
        all.commits += one.commits;
        all.refused += one.refused;
        all.rollbacks += one.rollbacks;
        all.opens += one.opens;
    }
    println!("{all:?}");
    assert!(all.commits > 0 && all.refused > 0 && all.rollbacks > 0, "{all:?}");
}
