//! A plain namespace is committed with the others, and has what they have but nodes, hashes and proofs.

use pleach::load::LoadOptions;
use pleach::{Access, Error, Hasher, Overlay, SessionOptions, Value};
use pleach_core::{Key, Node};
use pleach_io::sim::SimDisk;

use crate::common::{commit, uniform};
use crate::crash::{Setup, SimDb, unrecorded};

const PLAIN: u8 = 7;

fn setup(history: u64) -> Setup {
    let mut setup = Setup::draw(3);
    (setup.history, setup.flush_at, setup.cache_kib) = (history, 1, 8 << 10);
    setup
}

fn put(id: u64, len: usize) -> Access {
    let value = vec![u8::try_from(id % 251).expect("a byte"); len];
    Access::write(uniform(id), Some(Value::from(value)))
}

fn plain(ids: std::ops::Range<u64>) -> Vec<Access> {
    ids.map(|id| put(id, 60).in_namespace(PLAIN)).collect()
}

/// The formula of the format page, with values of up to 1 KiB.
fn digest(before: [u8; 32], accesses: &[Access]) -> [u8; 32] {
    let mut changes: Vec<(Key, Option<Value>)> = accesses
        .iter()
        .map(|access| match &access.kind {
            pleach::AccessKind::Write(value) => (access.key, value.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    changes.sort_unstable_by_key(|change| change.0);
    let mut message = before.to_vec();
    for (key, value) in changes {
        message.extend_from_slice(&key);
        match value {
            None => message.push(0),
            Some(value) => {
                message.push(1);
                let len = u32::try_from(value.len()).expect("short");
                message.extend_from_slice(&len.to_le_bytes());
                message.extend_from_slice(&value);
            }
        }
    }
    pleach_core::hasher::keyed_blake3(b"pleach plain namespace digest v1", &message)
}

fn digest_of(db: &SimDb) -> [u8; 32] {
    db.roots().digest(PLAIN).expect("it is there, and plain")
}

#[test]
fn its_pages_count_for_no_nodes() {
    let (setup, disk) = (setup(0), SimDisk::new(1, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    commit(&db, (0..500).map(|id| put(id, 60)).collect());
    db.drain(0).expect("drained");
    let pages = |db: &SimDb| (db.metrics().leaf_pages, db.metrics().leaf_pages_with_nodes);
    let (merkle, with_nodes) = pages(&db);
    assert_eq!(merkle, with_nodes);
    for round in 0..10 {
        commit(&db, plain(round * 300..round * 300 + 300));
    }
    db.drain(0).expect("drained");
    let (all, still) = pages(&db);
    assert!(all > merkle + 20 && still == merkle, "{merkle} pages, then {all}, {still} with nodes");
    drop(db);
    let (db, _) = setup.open(&disk, 2).expect("opens");
    assert_eq!(pages(&db), (all, merkle));
    db.drop_namespace(PLAIN).expect("dropped");
    db.drain(0).expect("drained");
    assert_eq!(db.metrics().leaf_pages_with_nodes, merkle);
}

/// Each of the pages is read once, though they are more than the cache holds.
#[test]
fn a_finish_reads_each_page_once() {
    let (mut setup, disk) = (setup(0), SimDisk::new(1, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    for round in 0..10 {
        let ids = round * 2_000..round * 2_000 + 2_000;
        commit(&db, ids.map(|id| put(id, 700).in_namespace(PLAIN)).collect());
    }
    db.drain(0).expect("drained");
    db.close().expect("closed");
    setup.cache_kib = 16 << 10;
    let (db, _) = setup.open(&disk, 2).expect("opens");
    let session = db.session(SessionOptions::new()).expect("a session");
    let before = db.metrics();
    let all: Vec<_> = (0..20_000).map(|id| put(id, 20).in_namespace(PLAIN)).collect();
    session.finish(all).expect("finished");
    let after = db.metrics();
    let (reads, pages) = (after.cache_misses - before.cache_misses, after.leaf_pages);
    assert!(pages > 4_000, "{pages} pages");
    assert!(reads <= pages + pages / 10, "{reads} reads of {pages} pages");
}

#[test]
fn its_digest_is_that_of_its_changes_and_is_there_again_after_restarts() {
    for close in [false, true] {
        let (setup, disk) = (setup(0), SimDisk::new(1, unrecorded()));
        let (db, _) = setup.open(&disk, 1).expect("created");
        db.add_plain_namespace(PLAIN).expect("added");
        let mut expected = [0; 32];
        for round in 0..20 {
            let mut batch = plain(round * 30..round * 30 + 50);
            batch[3] = Access::write(batch[3].key, None).in_namespace(PLAIN);
            expected = digest(expected, &batch);
            commit(&db, batch);
            assert_eq!(digest_of(&db), expected);
        }
        let over_all = db.roots().over_all(Hasher::BLAKE3);
        if close {
            db.close().expect("closed");
        }
        drop(db);
        let (db, _) = setup.open(&disk, 2).expect("opens");
        assert_eq!(digest_of(&db), expected);
        assert_eq!(db.roots().over_all(Hasher::BLAKE3), over_all, "it has no place in it");
        assert_eq!((db.roots().get(PLAIN), db.roots().iter().count()), (None, 1));
    }
}

#[test]
fn it_takes_no_nodes_and_no_hashes() {
    let (setup, disk) = (setup(0), SimDisk::new(2, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    let before = db.metrics();
    for round in 0..30 {
        commit(&db, plain(round * 100..round * 100 + 120));
    }
    db.drain(0).expect("flushed");
    let after = db.metrics();
    assert!(after.leaf_pages > before.leaf_pages + 40, "{} pages", after.leaf_pages);
    assert_eq!(after.node_bytes, before.node_bytes, "no nodes in memory");
    assert_eq!(after.hashes, before.hashes, "nothing is hashed");
    // The same in a Merkle trie takes both.
    db.add_namespace(1).expect("added");
    for round in 0..30 {
        let batch = plain(round * 100..round * 100 + 120);
        commit(&db, batch.into_iter().map(|access| access.in_namespace(1)).collect());
    }
    db.drain(0).expect("flushed");
    let merkle = db.metrics();
    let grown = merkle.index_bytes - after.index_bytes;
    let of_plain = after.index_bytes - before.index_bytes;
    assert!(grown > of_plain + 40 * 32, "{grown} bytes of the index, {of_plain} of a plain one");
    assert!(merkle.hashes > after.hashes);
    db.close().expect("closed");
    drop(db);
    // Nor does an open make any.
    let (db, _) = setup.open(&disk, 2).expect("opens");
    let opened = db.metrics().node_bytes;
    commit(&db, plain(0..50));
    assert_eq!(db.metrics().node_bytes, opened);
    assert_eq!(opened, merkle.node_bytes, "those of the others");
}

/// Regions are those of the moment, and each takes a commit at once, however large that is.
#[test]
fn a_large_commit_is_of_many_regions() {
    let (setup, disk) = (setup(2), SimDisk::new(7, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    for round in 0..3 {
        commit(&db, plain(0..9000));
        commit(&db, plain(round * 1000..round * 1000 + 2500));
        db.drain(0).expect("flushed");
    }
    assert!(db.metrics().regions > 3, "{} regions", db.metrics().regions);
    let session = db.snapshot().expect("a snapshot");
    let namespace = session.namespace(PLAIN).expect("it exists");
    assert_eq!(namespace.iter(..).flatten().count(), 9000);
    drop(session);
    db.rollback(2).expect("rolled back");
    db.close().expect("closed");
    let options = pleach_ops::CheckOptions::default();
    let report = pleach_ops::check_on(&disk, options).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Whatever the order of the pairs and the load's memory; commits go on from there.
#[test]
fn a_load_has_one_digest_and_leaves_no_nodes() {
    let long = [40, 900, 3000].into_iter().cycle();
    let mut pairs: Vec<(Key, Value)> =
        (0..9000).zip(long).map(|(id, long)| (uniform(id), Value::from(vec![7; long]))).collect();
    let mut digests = Vec::new();
    for memory in [1, 64] {
        let (setup, disk) = (setup(2), SimDisk::new(8, unrecorded()));
        let (db, _) = setup.open(&disk, 1).expect("created");
        db.add_namespace(1).expect("added");
        db.add_plain_namespace(PLAIN).expect("added");
        pairs.reverse();
        let load = |namespace| {
            let options = LoadOptions::new().memory_mib(memory).namespace(namespace);
            db.bulk_load(pairs.iter().cloned(), &options)
        };
        let root = load(1).expect("loaded").root;
        let before = db.metrics();
        let report = load(PLAIN).expect("loaded");
        let after = db.metrics();
        assert_eq!(report.root.to_bytes(), digest_of(&db));
        let message = [[0; 32], root.to_bytes()].concat();
        let expected =
            pleach_core::hasher::keyed_blake3(b"pleach plain namespace digest v1", &message);
        assert_eq!(digest_of(&db), expected, "of the root that the same pairs have in a trie");
        assert_eq!(after.leaf_pages, 2 * before.leaf_pages);
        assert_eq!(after.leaf_pages_with_nodes, before.leaf_pages_with_nodes);
        assert_eq!(after.node_bytes, before.node_bytes, "no nodes in memory");
        let again = load(PLAIN);
        assert!(matches!(again, Err(Error::NotEmpty(_))), "{again:?}");
        // Over the pages of the load.
        let batch = plain(8000..9500);
        let expected = digest(expected, &batch);
        commit(&db, batch);
        commit(&db, vec![Access::write(uniform(3), None).in_namespace(PLAIN)]);
        db.rollback(1).expect("rolled back");
        assert_eq!(digest_of(&db), expected);
        // No checkpoint has come: the rollback is replayed.
        drop(db);
        let (db, _) = setup.open(&disk, 3).expect("opens");
        assert_eq!(digest_of(&db), expected);
        db.drain(0).expect("flushed");
        drop(db);
        let (db, _) = setup.open(&disk, 2).expect("opens");
        assert_eq!(digest_of(&db), expected);
        let session = db.snapshot().expect("a snapshot");
        let namespace = session.namespace(PLAIN).expect("it exists");
        let found: Vec<_> = namespace.iter(..).map(|pair| pair.expect("read")).collect();
        let mut model: std::collections::BTreeMap<Key, Value> = pairs.iter().cloned().collect();
        model.extend(plain(8000..9500).into_iter().map(|access| match access.kind {
            pleach::AccessKind::Write(Some(value)) => (access.key, value),
            other => panic!("{other:?}"),
        }));
        assert!(found.into_iter().eq(model));
        drop(session);
        db.close().expect("closed");
        let options = pleach_ops::CheckOptions::default();
        let report = pleach_ops::check_on(&disk, options).expect("checked");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        digests.push(expected);
    }
    assert_eq!(digests[0], digests[1]);
}

/// Buffered changes make a namespace no empty one, and what it once had is in the digest.
#[test]
fn a_load_wants_it_empty() {
    let (setup, disk) = (setup(0), SimDisk::new(9, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    let load = |namespace, pairs: Vec<(Key, Value)>| {
        let options = LoadOptions::new().memory_mib(1).namespace(namespace);
        db.bulk_load(pairs, &options)
    };
    let none = load(PLAIN, Vec::new()).expect("of nothing");
    assert_eq!((none.root.to_bytes(), digest_of(&db)), ([0; 32], [0; 32]), "nothing was changed");
    commit(&db, plain(0..3));
    let pair = (uniform(9), Value::from(b"9"));
    let refused = load(PLAIN, vec![pair.clone()]);
    assert!(matches!(refused, Err(Error::NotEmpty(_))), "{refused:?}");
    // And the load's right is given back.
    db.add_plain_namespace(8).expect("added");
    let twice = load(8, vec![pair.clone(), pair.clone()]);
    assert!(matches!(twice, Err(Error::RepeatedKey(key)) if key == pair.0), "{twice:?}");
    load(8, vec![pair]).expect("loaded");
}

#[test]
fn what_it_cannot_do_is_refused() {
    let (setup, disk) = (setup(0), SimDisk::new(3, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    assert!(matches!(db.add_plain_namespace(PLAIN), Err(Error::NamespaceExists(PLAIN))));
    assert!(matches!(db.add_plain_namespace(0), Err(Error::NamespaceExists(0))));
    commit(&db, plain(0..9));
    let session = db.session(SessionOptions::new()).expect("a session");
    let namespace = session.namespace(PLAIN).expect("it exists");
    let range = [0; 32]..=[255; 32];
    for refused in [
        namespace.prove(&uniform(1)).map(drop),
        namespace.prove_many(&[]).map(drop),
        namespace.prove_range(range.clone()).map(drop),
        namespace.prove_change(namespace, range.clone()).map(drop),
    ] {
        let Err(error) = refused else { panic!("a proof of a plain namespace") };
        assert!(matches!(error, Error::Plain(PLAIN)), "{error}");
        assert!(error.to_string().contains("plain"), "{error}");
    }
    let (key, proof) = (pleach::proof::roots::namespace_key(PLAIN), session.prove_namespace(PLAIN));
    let over_all = session.roots().over_all(Hasher::BLAKE3);
    let verified = pleach::proof::path::verify(Hasher::BLAKE3, &proof, &over_all).expect("holds");
    assert_eq!(verified.get(&key), pleach::proof::Lookup::Absent, "no proof leads to its digest");
    // A witness is of the others.
    let mut batch = plain(3..6);
    batch.push(put(1, 30));
    let mut block = session.finish(batch).expect("finished");
    let witnesses = block.take_witnesses();
    assert_eq!(witnesses.iter().map(|witness| witness.0).collect::<Vec<_>>(), [0]);
}

/// With the others in one record, and its priors are those of its own keys.
#[test]
fn it_is_committed_with_merkle_namespaces() {
    let disks = [4, 5].map(|seed| SimDisk::new(seed, unrecorded()));
    let [with, without] = disks.each_ref().map(|disk| setup(5).open(disk, 1).expect("created").0);
    with.add_plain_namespace(PLAIN).expect("added");
    for round in 0..12 {
        let merkle: Vec<Access> = (round * 7..round * 7 + 30).map(|id| put(id, 90)).collect();
        let both: Vec<_> = merkle.iter().cloned().chain(plain(round * 9..round * 9 + 40)).collect();
        let block = with.session(SessionOptions::new()).expect("a session").finish(both);
        let block = block.expect("finished");
        for change in block.changes().filter(|change| change.namespace() == PLAIN) {
            let session = with.snapshot().expect("a snapshot");
            let before = session.namespace(PLAIN).expect("it exists").read(change.key());
            assert_eq!(change.prior().expect("read"), before.expect("read"));
        }
        let number = block.commit().expect("committed");
        commit(&without, merkle);
        assert_eq!(with.root(), without.root());
        assert_eq!(with.commit_number(), number);
    }
}

type SimOverlay = Overlay;

fn overlay(db: &SimDb, over: Option<&SimOverlay>, batch: Vec<Access>) -> SimOverlay {
    let options = over.map_or(SessionOptions::new(), |over| SessionOptions::new().over(over));
    let session = db.session(options).expect("a session");
    session.finish(batch).expect("finished").into_overlay()
}

/// Blocks that are one commit have the digest of the last of them, and a rollback has that of back then; a
/// replay takes both.
#[test]
fn digests_of_merged_overlays_and_of_rollbacks_are_replayed() {
    let (setup, disk) = (setup(8), SimDisk::new(6, unrecorded()));
    let (db, _) = setup.open(&disk, 1).expect("created");
    db.add_plain_namespace(PLAIN).expect("added");
    commit(&db, plain(0..40));
    let then = digest_of(&db);
    let first = overlay(&db, None, plain(10..60));
    let sibling = overlay(&db, None, plain(10..61));
    let second = overlay(&db, Some(&first), plain(30..90));
    let expected = digest(digest(then, &plain(10..60)), &plain(30..90));
    assert_eq!(second.roots().digest(PLAIN), Some(expected));
    second.commit().expect("committed with what is below");
    assert_eq!(digest_of(&db), expected);
    // The roots are the same: the digests are what tells them.
    assert!(matches!(sibling.commit(), Err(Error::StaleParent { .. })));
    db.rollback(1).expect("rolled back");
    assert_eq!(digest_of(&db), then);
    sibling.commit().expect("its parent's state came back");
    let newest = digest(then, &plain(10..61));
    assert_eq!(digest_of(&db), newest);
    db.drop_namespace(PLAIN).expect("dropped");
    db.rollback(1).expect("restored");
    assert_eq!(digest_of(&db), newest);
    // Over a rollback, to the same digest by other changes.
    commit(&db, plain(5..9));
    db.rollback(1).expect("rolled back");
    db.rollback(2).expect("rolled back over that");
    assert_eq!(digest_of(&db), newest);
    drop((first, second, sibling, db));
    let (db, _) = setup.open(&disk, 2).expect("opens after a kill");
    assert_eq!(digest_of(&db), newest);
    let past = db.history().map(|number| db.commit_at(number).expect("in the history").roots);
    let digests: Vec<_> = past.map(|roots| roots.digest(PLAIN)).collect();
    // Eight commits before the newest one.
    assert_eq!(digests[..5], [Some(then), Some(expected), Some(then), Some(newest), None]);
    assert_eq!(digests[5], Some(newest));
    assert!(![then, newest].map(Some).contains(&digests[6]));
    assert_eq!(digests[7..], [Some(newest); 2]);
    let session = db.snapshot().expect("a snapshot");
    let keys: Vec<Key> = (0..90).map(uniform).collect();
    let found = session.namespace(PLAIN).expect("restored").read_many(&keys).expect("read");
    assert_eq!(found.iter().flatten().count(), 61);
    assert_eq!(session.namespace(PLAIN).expect("restored").root(), None::<Node>);
}
