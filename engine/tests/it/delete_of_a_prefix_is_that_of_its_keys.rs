//! A delete of a prefix gives the roots and the witness of the deletes of its keys.

use pleach::{Access, AccessKind, Error, Key, SessionOptions, Value};

use crate::common::{commit, open};

fn put(key: Key, value: u64) -> Access {
    Access::write(key, Some(Value::from(value.to_le_bytes())))
}

/// An access has public fields: what is behind the prefix in the key says nothing, nor do more bytes than there are.
#[test]
fn however_the_access_was_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    commit(&db, vec![put([7; 32], 1), put([8; 32], 2)]);
    let made =
        |key, bytes| Access { kind: AccessKind::DeletePrefix(bytes), ..Access::write(key, None) };
    commit(&db, vec![made([8; 32], 200)]);
    assert!(db.get(&[8; 32]).expect("read").is_none());
    let mut key = [0xff; 32];
    key[0] = 7;
    commit(&db, vec![made(key, 1)]);
    assert_eq!(db.root(), pleach_core::TERMINATOR);
}

#[test]
fn in_a_namespace_that_is_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    db.add_plain_namespace(4).expect("added");
    commit(&db, vec![put([7; 32], 1), put([7; 32], 2).in_namespace(4)]);
    commit(&db, vec![Access::delete_prefix(&[7]).in_namespace(4)]);
    assert!(db.get(&[7; 32]).expect("read").is_some());
    let session = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(session.namespace(4).expect("there").read(&[7; 32]).expect("read"), None);
    let refused = session.finish(vec![Access::delete_prefix(&[7]).in_namespace(9)]);
    let (_, accesses, error) = refused.expect_err("no such namespace").into_parts();
    assert!(matches!(error, Error::Namespace(9)) && accesses.len() == 1);
}

/// A key that the batch reads was read before the delete; what it writes comes after it.
#[test]
fn after_reads_and_before_writes_of_the_same_batch() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path(), 16);
    let key = |last: u8| {
        let mut key = [7; 32];
        key[31] = last;
        key
    };
    commit(&db, (0..4).map(|last| put(key(last), 1)).collect());
    let batch = vec![
        Access::read(key(0)),
        put(key(1), 2),
        Access::read_write(key(2), Some(Value::from(3_u64.to_le_bytes()))),
        Access::read(key(9)),
        Access::delete_prefix(&[7]),
    ];
    commit(&db, batch);
    let values = [0, 1, 2, 3, 9].map(|last| db.get(&key(last)).expect("read").is_some());
    assert_eq!(values, [false, true, true, false, false]);
}

/// Keys right beside the prefix stay, and so do those below it in other namespaces.
#[test]
fn and_no_others() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let [by_prefix, by_key] = folders.each_ref().map(|folder| open(folder.path(), 16));
    let key = |lead: [u8; 3], rest: u8| {
        let mut key = [rest; 32];
        key[..3].copy_from_slice(&lead);
        key
    };
    let below = [key([7, 3, 0], 0), key([7, 3, 9], 9), key([7, 3, 0xff], 0xff)];
    let beside = [key([7, 2, 0xff], 0xff), key([7, 4, 0], 0), key([6, 3, 5], 5), key([8, 3, 5], 5)];
    for db in [&by_prefix, &by_key] {
        db.add_namespace(4).expect("added");
        // Each of the two namespaces has a key that the other one lacks.
        let first = below[1..].iter().chain(&beside).map(|key| put(*key, 1));
        let other = below[..2].iter().chain(&beside).map(|key| put(*key, 2).in_namespace(4));
        commit(db, first.chain(other).collect());
    }
    commit(&by_prefix, vec![Access::delete_prefix(&[7, 3]).in_namespace(4)]);
    let deletes = below[..2].iter().map(|key| Access::write(*key, None).in_namespace(4));
    commit(&by_key, deletes.collect());
    assert_eq!(by_prefix.roots(), by_key.roots());
    let session = by_prefix.session(SessionOptions::new()).expect("a session");
    for (namespace, there) in [(0, true), (4, false)] {
        let namespace = session.namespace(namespace).expect("there");
        assert_eq!(namespace.read(&below[1]).expect("read").is_some(), there);
        assert!(beside.iter().all(|key| namespace.read(key).expect("read").is_some()));
    }
}
