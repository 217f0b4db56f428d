//! A long range is proven in parts of a few pairs each: together they have all its pairs, and each part says where it ends.

use std::ops::Bound::{Excluded, Included, Unbounded};

use pleach::proof::RangeProof;
use pleach::{Access, Db, Error, Hasher, Key, Options, SessionOptions, Value};
use pleach_core::range::{key_after, with_prefix};

use crate::common::{commit, uniform};
use pleach::proof::ChangeProof;

fn database(pairs: u64) -> (Db, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(Options::new(folder.path()).create(true).small()).expect("created");
    let put = |id| Access::write(uniform(id), Some(Value::from(&id.to_be_bytes())));
    commit(&db, (0..pairs).map(put).collect());
    (db, folder)
}

#[test]
fn parts_have_all_pairs_of_the_range_and_no_more_than_asked_for() {
    let (db, _folder) = database(200);
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut keys: Vec<Key> = (0..200).map(uniform).collect();
    keys.sort_unstable();
    let within = keys[10]..=keys[189];
    for at_most in [0, 1, 7, 60, 179, 180, 181, 1000] {
        let (mut from, mut found, mut parts) = (*within.start(), Vec::new(), 0);
        loop {
            let part = session.prove_range_part(from..=*within.end(), at_most).expect("proven");
            let (proof, covered) = part;
            let proof = RangeProof::from(Vec::from(proof));
            let verified = proof.verify(Hasher::BLAKE3, &session.root(), covered.clone());
            let pairs: Vec<Key> = verified.expect("holds").pairs().map(|pair| pair.0).collect();
            assert!(pairs.len() <= at_most.max(1) && *covered.start() == from);
            found.extend(pairs);
            parts += 1;
            if covered.end() == within.end() {
                break;
            }
            from = key_after(covered.end()).expect("the range ends before");
        }
        assert!(found == keys[10..=189], "{at_most} a part");
        assert_eq!(parts, 180_usize.div_ceil(at_most.max(1)), "{at_most} a part");
    }
}

#[test]
fn parts_of_a_change_have_all_changed_keys_and_no_more_than_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).history(10).small();
    let db = Db::open(options).expect("created");
    let write = |id: u64, to: Option<u64>| {
        Access::write(uniform(id), to.map(|to| Value::from(&to.to_be_bytes())))
    };
    let old = commit(&db, (0..200).map(|id| write(id, Some(1))).collect());
    // Changed, deleted, new, written as it was; and changed twice.
    commit(
        &db,
        (0..90).map(|id| write(id, Some(2))).chain((90..120).map(|id| write(id, None))).collect(),
    );
    let again =
        (150..180).map(|id| write(id, Some(1))).chain((300..330).map(|id| write(id, Some(3))));
    let new = commit(&db, again.chain((0..9).map(|id| write(id, Some(4)))).collect());
    let (from, to) = (db.at(old).expect("there"), db.at(new).expect("there"));
    let mut changed: Vec<Key> = (0..120).chain(300..330).map(uniform).collect();
    changed.sort_unstable();
    assert_eq!(
        from.changed_keys(&to, .., usize::MAX).expect("found"),
        (changed.clone(), [0; 32]..=[0xff; 32])
    );
    let within = changed[10]..=changed[139];
    for at_most in [0, 1, 7, 129, 130, 131] {
        let (mut first, mut found, mut parts) = (*within.start(), Vec::new(), 0);
        loop {
            let (keys, of) = from.changed_keys(&to, first..=*within.end(), at_most).expect("found");
            let part = from.prove_change_part(&to, first..=*within.end(), at_most).expect("proven");
            let (proof, covered) = part;
            assert_eq!((&of, *covered.start()), (&covered, first));
            let proof = ChangeProof::from(Vec::from(proof));
            let verified = proof
                .verify(Hasher::BLAKE3, &from.root(), &to.root(), covered.clone())
                .expect("holds");
            assert!(verified.changes().map(|change| change.0).eq(keys.iter().copied()));
            assert!(keys.len() <= at_most.max(1));
            found.extend(keys);
            parts += 1;
            if covered.end() == within.end() {
                break;
            }
            first = key_after(covered.end()).expect("the range ends before");
        }
        assert!(found == changed[10..=139], "{at_most} a part");
        assert_eq!(parts, 130_usize.div_ceil(at_most.max(1)), "{at_most} a part");
    }
    assert_eq!(db.commit_of_root(&from.root()).expect("read"), Some(old));
    assert_eq!(db.commit_of_root(&db.roots().over_all(Hasher::BLAKE3)).expect("read"), Some(new));
    assert_eq!(db.commit_of_root(&[7; 32].into()).expect("read"), None);
}

#[test]
fn a_range_without_pairs_is_one_part_and_a_range_without_keys_is_refused() {
    let (db, _folder) = database(0);
    let session = db.session(SessionOptions::new()).expect("a session");
    assert!(session.is_empty().expect("read"));
    let (proof, covered) = session.prove_range_part(with_prefix(&[7]), 3).expect("proven");
    assert_eq!(covered, with_prefix(&[7]));
    let verified = proof.verify(Hasher::BLAKE3, &session.root(), covered).expect("holds");
    assert_eq!(verified.pairs().count(), 0);
    for empty in [[5; 32]..[5; 32], [6; 32]..[5; 32]] {
        let refused = session.prove_range_part(empty.clone(), 3).map(drop);
        assert!(matches!(refused, Err(Error::EmptyRange { .. })), "{refused:?}");
        assert!(matches!(session.prove_range(empty.clone()), Err(Error::EmptyRange { .. })));
        let change = session.prove_change(&session, empty);
        assert!(matches!(change, Err(Error::EmptyRange { .. })));
    }
}

/// All kinds of bounds name the range that the verifier is given.
#[test]
fn every_kind_of_range_is_proven_and_verified_as_it_is_written() {
    let (db, _folder) = database(50);
    let session = db.session(SessionOptions::new()).expect("a session");
    let (root, some) = (session.root(), uniform(7));
    assert!(!session.is_empty().expect("read"));
    let count = |proof: pleach::Result<RangeProof>,
                 range: (std::ops::Bound<Key>, std::ops::Bound<Key>)| {
        let proof = proof.expect("proven");
        let verified = proof.verify(Hasher::BLAKE3, &root, range).expect("holds");
        verified.pairs().count()
    };
    let before = count(session.prove_range(..some), (Unbounded, Excluded(some)));
    let from = count(session.prove_range(some..), (Included(some), Unbounded));
    let after =
        count(session.prove_range((Excluded(some), Unbounded)), (Excluded(some), Unbounded));
    assert_eq!((before + from, from), (50, after + 1));
    assert_eq!(count(session.prove_range(..), (Unbounded, Unbounded)), 50);
}
