//! A proof of any state that a session reads is, byte for byte, the one that the naive trie writes for that
//! state, and verifies against the session's root: on the tip, over overlays, on old commits, present and
//! absent keys, while commits, flushes and checkpoints go on.

use std::sync::atomic::{AtomicBool, Ordering};

use pleach::load::LoadOptions;
use pleach::{Access, Error, Geometry, Hasher, Key, Options};
use pleach::{Session, SessionOptions, Value};
use pleach_core::proof::{Lookup, change, multi, path, range, witness};
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, SimDisk, SimOptions, SimRuntime, code};
use pleach_io::{IoError, Operation};

use crate::common::{Keys, Model, Rng, bytes, commit, key, open, ops, uniform};
use crate::crash::SimDb;

/// What the model says of a key, as a verifier says it.
fn said(model: &Model, key: &Key) -> Lookup {
    match model.values.get(key) {
        Some(value) => Lookup::Present(pleach_core::node::value_hash(Hasher::BLAKE3, value)),
        None => Lookup::Absent,
    }
}

fn check(session: &Session, model: &Model, keys: &[Key]) {
    let naive = model.naive(Hasher::BLAKE3);
    assert_eq!(session.root(), naive.root(Hasher::BLAKE3));
    let proof = session.prove_many(keys).expect("proven");
    assert_eq!(
        proof,
        naive.multi(Hasher::BLAKE3, keys).encode(Hasher::BLAKE3).expect("encoded").into()
    );
    let verified = multi::verify(Hasher::BLAKE3, &proof, &session.root()).expect("verified");
    for key in keys {
        assert_eq!(verified.get(key), said(model, key));
    }
    for key in keys.iter().take(3) {
        let proof = session.prove(key).expect("proven");
        assert_eq!(
            proof,
            naive.path(Hasher::BLAKE3, key).encode(Hasher::BLAKE3).expect("encoded").into()
        );
        let verified = path::verify(Hasher::BLAKE3, &proof, &session.root()).expect("verified");
        assert_eq!(verified.get(key), said(model, key));
    }
}

/// The pages of old commits have been cut, split, merged and emptied since.
#[test]
fn of_old_commits_whatever_became_of_their_pages() {
    for kind in [Keys::Uniform, Keys::SharedPrefix, Keys::Sequential] {
        let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
        // Nothing is flushed before it is drained.
        let options = Options::new("sim")
            .create(true)
            .cache_mib(64)
            .small()
            .tune(|tuning| tuning.flush_at = 255);
        let options = options.history(100).undo_memory_bytes(1 << 30);
        let db = SimDb::open_on(disk, runtime, options).expect("opened");
        let (mut model, mut then) = (Model::default(), vec![Model::default()]);
        let keys: Vec<Key> = (0..6200).step_by(61).map(|id| key(kind, id)).collect();
        // Which keys, whether they are deleted, and whether a flush comes next.
        let steps = [
            ((0..50), 1, false, true),
            ((0..6000), 1, false, false),
            ((0..6000), 2, false, false),
            ((0..6000), 3, false, true),
            ((0..6000), 1, true, true),
            ((3000..6000), 7, false, true),
            ((3000..6000), 7, true, false),
            ((0..6000), 500, false, true),
        ];
        for (round, (ids, step, deletes, drains)) in (0_u64..).zip(steps) {
            let value = |id: u64| (!deletes).then(|| Value::from(&(id + round).to_le_bytes()));
            let ids = ids.step_by(step).filter(|id| !deletes || id % 97 > 0);
            let accesses: Vec<_> = ids.map(|id| Access::write(key(kind, id), value(id))).collect();
            model.apply(&accesses);
            commit(&db, accesses);
            then.push(model.clone());
            if drains {
                db.drain(0).expect("drained");
            }
            for (number, model) in (0..).zip(&then) {
                check(&db.at(number).expect("in the history"), model, &keys);
            }
        }
    }
}

#[test]
fn of_a_range_without_its_long_values_and_of_what_changed_without_the_rest() {
    let (db, disk, _) = loaded(64 << 10);
    let long = Value::from(vec![7; 20_000]);
    commit(&db, (0..50).map(|id| Access::write(uniform(id), Some(long.clone()))).collect());
    db.drain(0).expect("drained");
    let before = db.session(SessionOptions::new()).expect("a session");
    commit(&db, (0..3).map(|id| Access::write(uniform(id), None)).collect());
    // Written back as they were: no change.
    commit(&db, (1..2).map(|id| Access::write(uniform(id), Some(long.clone()))).collect());
    let after = db.session(SessionOptions::new()).expect("a session");
    // No long value can be read from here on.
    let fault = Fault::Errno(code::EIO);
    disk.inject(FaultRule::nth(Operation::Read, "overflow", 1, FaultRepeats::Forever, fault));
    let all = [0; 32]..=[0xff; 32];
    let misses = || db.metrics().cache_misses + db.metrics().pages_scanned;
    let read = misses();
    let proof = before.prove_change(&after, all.clone()).expect("proven");
    assert!(misses() - read <= 10, "only pages of what changed");
    let (from, to) = (before.root(), after.root());
    let proven = change::verify(Hasher::BLAKE3, &proof, &from, &to, all.start(), all.end());
    let mut keys: Vec<Key> = proven.expect("verified").changes().map(|one| one.0).collect();
    let mut expected = vec![uniform(0), uniform(2)];
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);
    let proof = after.prove_range(all.clone()).expect("proven");
    let proven =
        range::verify(Hasher::BLAKE3, &proof, &to, all.start(), all.end()).expect("verified");
    assert_eq!(proven.pairs().count(), 20_000 - 2);
    assert_eq!(proven.proves(&uniform(7), Some(&long)), Some(true));
    assert!(after.read(&uniform(7)).is_err());
    let empty = after.prove_range([2; 32]..=[1; 32]);
    assert!(matches!(empty, Err(Error::EmptyRange { .. })), "{empty:?}");
    let (other, ..) = loaded(64 << 10);
    let stranger = other.session(SessionOptions::new()).expect("a session");
    assert!(matches!(after.prove_change(&stranger, all.clone()), Err(Error::ForeignSession)));
}

#[test]
fn of_an_empty_database_one_key_and_no_keys() {
    let mut model = Model::default();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    for round in 0..3 {
        let session = db.session(SessionOptions::new()).expect("a session");
        let naive = model.naive(Hasher::BLAKE3);
        for keys in [&[uniform(1)][..], &[uniform(7), uniform(1), uniform(7)], &[]] {
            let proof = session.prove_many(keys).expect("proven");
            assert_eq!(
                proof,
                naive.multi(Hasher::BLAKE3, keys).encode(Hasher::BLAKE3).expect("encoded").into()
            );
            let verified =
                multi::verify(Hasher::BLAKE3, &proof, &session.root()).expect("verified");
            assert!(keys.iter().all(|key| verified.get(key) == said(&model, key)));
            // Without keys it answers for none.
            assert_eq!(
                verified.get(&uniform(9)) == Lookup::OutOfScope,
                keys.is_empty() || round == 2
            );
        }
        let proof = session.prove(&uniform(1)).expect("proven");
        let expected =
            naive.path(Hasher::BLAKE3, &uniform(1)).encode(Hasher::BLAKE3).expect("encoded");
        assert_eq!(proof, expected.into());
        let accesses = match round {
            0 => vec![Access::write(uniform(1), Some(Value::from(b"one")))],
            _ => (0..500).map(|id| Access::write(uniform(id), Some(Value::from(b"v")))).collect(),
        };
        model.apply(&accesses);
        commit(&db, accesses);
    }
}

/// Keys of deleted neighbours: terminals lie above their pages.
#[test]
fn of_keys_that_were_deleted_around_one_that_stays() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let options = Options::new("sim").create(true).cache_mib(8).geometry(Geometry::small());
    let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
    let db = SimDb::open_on(disk.clone(), runtime.clone(), options).expect("created");
    let mut rng = Rng::new(3);
    for kind in [Keys::Uniform, Keys::SharedPrefix, Keys::Sequential] {
        let mut model = Model::default();
        let all: Vec<Key> = (0..900).map(|id| key(kind, id)).collect();
        let put = |key: &Key| Access::write(*key, Some(bytes(&mut rng, 200)));
        let accesses: Vec<Access> = all.iter().map(put).collect();
        model.apply(&accesses);
        commit(&db, accesses);
        db.drain(0).expect("drained");
        let stays = all[rng.index(all.len())];
        for part in all.chunks(300) {
            let gone = part.iter().filter(|key| **key != stays);
            let accesses: Vec<Access> = gone.map(|key| Access::write(*key, None)).collect();
            model.apply(&accesses);
            commit(&db, accesses);
            let session = db.session(SessionOptions::new()).expect("a session");
            check(&session, &model, &all[..50]);
            check(&session, &model, &[all[1], stays, all[0]]);
            check(&session, &model, &all);
            db.drain(0).expect("drained");
            check(&session, &model, &all[..50]);
        }
        commit(&db, vec![Access::write(stays, None)]);
    }
}

/// All pairs below a prefix are gone, and several regions lie below it: one terminal is of all their keys, whichever chunk of the
/// finish has them, and only the first operation below it opens it.
#[test]
fn of_a_batch_whose_chunks_share_an_absent_terminal() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let options = Options::new("sim").create(true).cache_mib(64).small();
    let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
    let db = SimDb::open_on(disk, runtime, options).expect("created");
    let values = (0..4000).map(|id| (uniform(id), Value::from(vec![7; 300])));
    let mut model = Model { values: values.collect() };
    db.bulk_load(model.values.clone(), &LoadOptions::new()).expect("loaded");
    let gone = model.values.keys().filter(|key| key[0] < 0x80);
    let gone: Vec<Access> = gone.map(|key| Access::write(*key, None)).collect();
    model.apply(&gone);
    commit(&db, gone);
    let (found, joined) = (db.metrics().regions, db.metrics().regions_joined);
    assert!(found >= 8 && joined == 0, "{found} regions, {joined} joined");
    let ids = (4000..4400).filter(|id| uniform(*id)[0] < 0x80);
    let access = |id: u64| match id % 3 {
        0 => Access::read(uniform(id)),
        _ => Access::read_write(uniform(id), Some(Value::from(&id.to_le_bytes()))),
    };
    let accesses: Vec<Access> = ids.map(access).collect();
    assert!(accesses.len() > 150, "it is folded in chunks");
    let naive =
        model.naive(Hasher::BLAKE3).witness(Hasher::BLAKE3, &ops(Hasher::BLAKE3, &accesses));
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block = session.finish(accesses).expect("finished");
    let found = block.take_witness().expect("a witness");
    assert!(*found == *naive.encode(Hasher::BLAKE3).expect("encodes"));
    let verified = witness::verify(Hasher::BLAKE3, &found, &block.prev_root()).expect("verified");
    assert_eq!(*verified.new_root(), block.root());
}

fn loaded(cache_kib: u64) -> (SimDb, SimDisk, Model) {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let options = || {
        let geometry = Geometry { segment_pages: 16, log_segment: 16 << 10, size_factor: 150 };
        Options::new("sim").create(true).cache_kib(cache_kib).in_flight(16).geometry(geometry)
    };
    let runtime = || SimRuntime::with_clock(1, disk.clock(), 2);
    let db = SimDb::open_on(disk.clone(), runtime(), options()).expect("created");
    let model = Model {
        values: (0..20_000).map(|id| (uniform(id), Value::from(&id.to_le_bytes()))).collect(),
    };
    let pairs = model.values.iter().map(|(key, value)| (*key, value.clone()));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    db.close().expect("closed");
    let db = SimDb::open_on(disk.clone(), runtime(), options()).expect("opened");
    (db, disk, model)
}

#[test]
fn cold_each_page_is_read_once_and_warm_none() {
    let (db, _, model) = loaded(64 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    let pages = db.metrics().leaf_pages;
    for (count, from) in [(1, 0), (100, 1000), (4096, 4000), (20_000, 0)] {
        let keys: Vec<Key> = (from..from + count).map(uniform).collect();
        let before = db.metrics();
        check(&session, &model, &keys);
        let cold = db.metrics();
        let read = cold.cache_misses - before.cache_misses;
        assert!(read <= count, "{count} keys, {read} reads");
        check(&session, &model, &keys);
        let warm = db.metrics();
        assert_eq!(warm.cache_misses, cold.cache_misses, "{count} keys: read a second time");
        assert_eq!(warm.page_rereads, 0);
    }
    assert_eq!(db.metrics().cache_misses, pages, "each page of the database once");
}

#[test]
fn a_page_that_cannot_be_read_fails_the_proof_and_no_more() {
    let (db, disk, model) = loaded(64 << 10);
    let session = db.session(SessionOptions::new()).expect("a session");
    for count in [1, 100, 4000] {
        let keys: Vec<Key> = (0..count).map(uniform).collect();
        let fault = Fault::Errno(code::EIO);
        disk.inject(FaultRule::nth(Operation::Read, "leaf", 1, FaultRepeats::Once, fault));
        let failed = session.prove_many(&keys);
        assert!(matches!(failed, Err(Error::Io(IoError::Os { .. }))), "{failed:?}");
        check(&session, &model, &keys);
    }
}

/// Threads prove, one commits; with the flush behind it pages move and regions split.
#[test]
fn while_commits_and_flushes_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).cache_mib(16).threads(2).in_flight(16);
    let options = options
        .tune(|tuning| tuning.flush_at = 1)
        .geometry(Geometry::small())
        .log_limit_bytes(256 << 10);
    let db = pleach::Db::open(options).expect("created");
    let mut model = Model::default();
    let write = |model: &mut Model, round: u64| {
        let one =
            |id: u64| (!id.is_multiple_of(7)).then(|| Value::from(&(id + round).to_le_bytes()));
        let ids = (0..400).map(|at| (round * 131 + at * 29) % 8000);
        let accesses: Vec<Access> =
            ids.map(|id| Access::write(uniform(id), one(id + round))).collect();
        model.apply(&accesses);
        commit(&db, accesses);
    };
    write(&mut model, 0);
    let ended = AtomicBool::new(false);
    let proofs = std::thread::scope(|scope| {
        let provers: Vec<_> = (0..3)
            .map(|thread: u64| {
                let session = db.session(SessionOptions::new()).expect("a session");
                let (model, ended) = (model.clone(), &ended);
                scope.spawn(move || {
                    let naive = model.naive(Hasher::BLAKE3);
                    let mut rng = Rng::new(thread);
                    let mut count = 0;
                    while count < 3 || !ended.load(Ordering::Relaxed) {
                        let size = [1, 30, 500][rng.index(3)];
                        let keys: Vec<Key> = (0..size).map(|_| uniform(rng.below(9000))).collect();
                        let proof = session.prove_many(&keys).expect("proven");
                        let expected = naive.multi(Hasher::BLAKE3, &keys).encode(Hasher::BLAKE3);
                        assert!(
                            proof == expected.expect("encoded").into(),
                            "thread {thread}: {size} keys"
                        );
                        let value = session.read(&keys[0]).expect("read");
                        assert_eq!(value.as_ref(), model.values.get(&keys[0]));
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut newest = model.clone();
        for round in 1..25 {
            write(&mut newest, round);
        }
        // However busy the machine is: pages move while proofs are made.
        db.drain(0).expect("flushed");
        ended.store(true, Ordering::Relaxed);
        provers.into_iter().map(|prover| prover.join().expect("no panic")).sum::<u32>()
    });
    assert!(proofs >= 9);
    assert!(db.metrics().pages_written > 100, "pages moved meanwhile");
}
