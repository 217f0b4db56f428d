use nomt::hasher::{Blake3Hasher, ValueHasher};
use nomt::proof::{MultiProof, PathUpdate, verify_multi_proof, verify_update};
use nomt::trie::{KeyPath, LeafData};
use nomt::{KeyReadWrite, SessionParams, Witness, WitnessMode, WitnessedPath};

use crate::common::{Database, finish, folder, get, key, open, put};

fn leaf(id: u8, value: &[u8]) -> LeafData {
    LeafData { key_path: key(id), value_hash: Blake3Hasher::hash_value(value) }
}

fn bits(
    key: &KeyPath,
) -> impl std::ops::Deref<Target = bitvec::slice::BitSlice<u8, bitvec::order::Msb0>> {
    bitvec::vec::BitVec::from_slice(key)
}

fn some_keys(db: &Database) {
    let write = |id: u8| (key(id), KeyReadWrite::Write(Some(vec![id; usize::from(id) * 40])));
    finish(db, &[], (0..100).map(write).collect()).commit(db).expect("committed");
}

#[test]
fn a_session_reads_its_state_whatever_is_committed() {
    let folder = folder();
    let db = open(folder.path());
    put(&db, &[], 1, b"old").commit(&db).expect("committed");
    let session = db.begin_session(SessionParams::default());
    let root = db.root();
    put(&db, &[], 1, b"new").commit(&db).expect("no session keeps it waiting");
    assert_eq!(session.read(key(1)).expect("read"), Some(b"old".to_vec()));
    assert_eq!(session.read(key(2)).expect("read"), None);
    assert_eq!(session.prev_root(), root);
    assert_eq!(get(&db, 1), Some(b"new".to_vec()));
}

#[test]
fn proofs_verify_against_the_root() {
    let folder = folder();
    let db = open(folder.path());
    some_keys(&db);
    let session = db.begin_session(SessionParams::default());
    let root = session.prev_root().into_inner();
    let mut proofs = Vec::new();
    for id in [0, 7, 99, 100, 255] {
        let proof = session.prove(key(id)).expect("proven");
        let verified = proof.verify::<Blake3Hasher>(&bits(&key(id)), root).expect("verified");
        if id < 100 {
            let value = vec![id; usize::from(id) * 40];
            assert!(verified.confirm_value(&leaf(id, &value)).expect("in scope"));
        } else {
            assert!(verified.confirm_nonexistence(&key(id)).expect("in scope"));
        }
        assert!(proof.verify::<Blake3Hasher>(&bits(&key(id)), [1; 32]).is_err());
        proofs.push(proof);
    }
    proofs.sort_by(|a, b| a.terminal.path().cmp(b.terminal.path()));
    proofs.dedup_by(|a, b| a.terminal.path() == b.terminal.path());
    let multi = MultiProof::from_path_proofs(proofs);
    let verified = verify_multi_proof::<Blake3Hasher>(&multi, root).expect("verified");
    assert!(verified.confirm_value(&leaf(7, &[7; 280])).expect("in scope"));
    assert!(verified.confirm_nonexistence(&key(255)).expect("in scope"));
}

#[test]
fn values_of_any_length_come_back() {
    let folder = folder();
    let db = open(folder.path());
    for (id, len) in [(1, 0), (2, 1333), (3, 70_000), (4, 3 << 20)] {
        put(&db, &[], id, &vec![id; len]).commit(&db).expect("committed");
        assert_eq!(get(&db, id), Some(vec![id; len]));
    }
    assert!(finish(&db, &[], vec![]).commit(&db).is_ok());
}

/// From the old root to the new one with what a light client has: paths, and the operations.
fn replay(witness: &Witness, root: [u8; 32]) -> [u8; 32] {
    let mut updates = Vec::new();
    for (index, WitnessedPath { inner, path }) in witness.path_proofs.iter().enumerate() {
        let verified = inner.verify::<Blake3Hasher>(path.path(), root).expect("verified");
        for read in witness.operations.reads.iter().filter(|read| read.path_index == index) {
            let proven = match read.value {
                None => verified.confirm_nonexistence(&read.key),
                Some(value_hash) => {
                    verified.confirm_value(&LeafData { key_path: read.key, value_hash })
                }
            };
            assert!(proven.expect("in scope"), "{:?}", read.key);
        }
        let writes = witness.operations.writes.iter().filter(|write| write.path_index == index);
        let ops: Vec<_> = writes.map(|write| (write.key, write.value)).collect();
        if !ops.is_empty() {
            updates.push(PathUpdate { inner: verified, ops });
        }
    }
    verify_update::<Blake3Hasher>(root, &updates).expect("updated")
}

#[test]
fn a_witness_leads_to_the_new_root() {
    let folder = folder();
    let db = open(folder.path());
    some_keys(&db);
    let params = SessionParams::default().witness_mode(WitnessMode::read_write());
    let session = db.begin_session(params);
    let mut last = KeyReadWrite::Write(Some(b"first".to_vec()));
    last.read(Some(b"before".to_vec()));
    last.write(Some(b"last".to_vec()));
    assert!(last.is_write());
    assert_eq!(last.last_value(), Some(&b"last"[..]));
    let mut read = KeyReadWrite::Read(None);
    read.read(Some(b"a second read".to_vec()));
    assert!(!read.is_write());
    let mut finished = session
        .finish(vec![
            (key(3), KeyReadWrite::Read(Some(vec![3; 120]))),
            (key(5), KeyReadWrite::Write(None)),
            (key(200), KeyReadWrite::Write(Some(b"new".to_vec()))),
            (key(201), read),
            (key(202), last),
        ])
        .expect("finished");
    let witness = finished.take_witness().expect("asked for");
    assert!(finished.take_witness().is_none(), "once");
    assert_eq!((witness.operations.reads.len(), witness.operations.writes.len()), (3, 3));
    assert_eq!(finished.prev_root(), db.root());
    let root = finished.root();
    assert_eq!(replay(&witness, db.root().into_inner()), root.into_inner());
    finished.commit(&db).expect("committed");
    assert_eq!(db.root(), root);
    let mut without = put(&db, &[], 1, b"one");
    assert!(without.take_witness().is_none(), "not asked for");
}

/// The crate `nomt` takes reads as they are told; here the witness says what the state has.
#[test]
fn a_read_of_another_value_is_witnessed_as_it_is() {
    let folder = folder();
    let db = open(folder.path());
    put(&db, &[], 1, b"one").commit(&db).expect("committed");
    let params = SessionParams::default().witness_mode(WitnessMode::read_write());
    let told = KeyReadWrite::Read(Some(b"two".to_vec()));
    let finished = db.begin_session(params).finish(vec![(key(1), told)]);
    let witness = finished.expect("finished").take_witness().expect("asked for");
    assert_eq!(witness.operations.reads[0].value, Some(Blake3Hasher::hash_value(b"one")));
}

#[test]
fn handles_go_to_any_thread() {
    fn shared<T: Send + Sync>() {}
    shared::<Database>();
    shared::<nomt::Session<Blake3Hasher>>();
    shared::<nomt::FinishedSession>();
    shared::<nomt::Overlay>();
}
