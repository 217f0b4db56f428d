//! All 256 namespaces in one commit: one record and one ticket, and each keeps what is its own.

use pleach::{Access, Db, Options, SessionOptions, Value};

use crate::common::{Keys, key};

/// The least that 256 namespaces are, on one machine with one log.
#[test]
fn all_256_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options::new(folder.path()).create(true).cache_mib(32).threads(2);
    let db = Db::open(options.history(8)).expect("opened");
    for namespace in 1..=255 {
        assert_eq!(db.add_namespace(namespace).expect("added"), u64::from(namespace));
    }
    let before = db.metrics();
    let key =
        |namespace: u8, id: u8| key(Keys::Uniform, u64::from(namespace) * 1000 + u64::from(id));
    let accesses = (0..=255_u8).flat_map(|namespace| {
        (0..4).map(move |id| {
            let value = Value::from(&[namespace, id]);
            Access::write(key(namespace, id), Some(value)).in_namespace(namespace)
        })
    });
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block = session.finish(accesses).expect("finished");
    assert_eq!(block.take_witnesses().len(), 256);
    assert_eq!(block.commit().expect("committed"), 256);
    let after = db.metrics();
    assert_eq!(after.commits - before.commits, 1, "one record and one ticket");
    assert_eq!(after.changes - before.changes, 1024);
    // Lists and nodes of the changes, and of each namespace a few shards: not four thousand.
    assert!(after.undo_bytes < 4 << 20, "{}", after.undo_bytes);
    let session = db.snapshot().expect("a session");
    for namespace in 0..=255_u8 {
        let found = session.namespace(namespace).expect("it exists");
        for other in [namespace, namespace.wrapping_add(1)] {
            let expected = (other == namespace).then(|| Value::from(&[namespace, 3]));
            assert_eq!(found.read(&key(other, 3)).expect("read"), expected);
        }
    }
    db.rollback(1).expect("rolled back");
    let empty = db.session(SessionOptions::new()).expect("a session");
    assert!(empty.roots().iter().all(|(_, root)| root == pleach_core::TERMINATOR));
}
