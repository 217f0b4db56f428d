//! Folders with wrong nodes and right pairs.

use pleach_core::{Hasher, Key, Node};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::error::{Contradiction, Error, Result};
use crate::{Access, Db, Options, SessionOptions, Value};
use pleach_ops::{CheckOptions, check_on};

type SimDb = Db;

const WRONG: Node = Node::new([0x66; 32]);

fn key(at: u64) -> Key {
    Hasher::BLAKE3.hash(&at.to_be_bytes())
}

fn open(disk: &SimDisk, accept: Option<Node>) -> Result<SimDb> {
    let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
    let options = accept.into_iter().fold(options, Options::accept_root);
    SimDb::open_on(disk.clone(), SimRuntime::with_clock(1, disk.clock(), 1), options)
}

fn put(db: &SimDb, keys: std::ops::Range<u64>, byte: u8) {
    let session = db.session(SessionOptions::new()).expect("a session");
    let writes = keys.map(|at| Access::write(key(at), Some(Value::from(&[byte; 40]))));
    session.finish(writes.collect::<Vec<_>>()).expect("finished").commit().expect("committed");
}

/// A database of two commits, the first in leaf pages, and the second a buffered change over them.
fn filled() -> (SimDisk, SimDb) {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let db = open(&disk, None).expect("opened");
    put(&db, 0..1_000, 1);
    db.drain(0).expect("drained");
    put(&db, 500..1_100, 2);
    (disk, db)
}

fn assert_is_whole(db: &SimDb, root: Node) {
    assert_eq!(db.root(), root);
    let session = db.session(SessionOptions::new()).expect("a session");
    for at in 0..1_100 {
        let byte = if at < 500 { 1 } else { 2 };
        assert_eq!(session.read(&key(at)).expect("read").as_deref(), Some(&[byte; 40][..]));
    }
    session.prove(&key(7)).expect("its nodes lead to the root");
}

/// An image had a wrong node: the open failed, although all pairs were there.
#[test]
fn wrong_nodes_in_the_files_are_computed_from_the_pairs() {
    let (disk, db) = filled();
    let root = db.root();
    let index = db.state().tree.load_full();
    let mut state = index.regions()[0].write();
    let nodes = vec![WRONG; state.children().len()];
    state.replace_nodes(nodes);
    drop(state);
    db.close().expect("closed");
    drop((index, db));
    let db = open(&disk, None).expect("opened");
    let notes = db.opened().notes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(notes.iter().any(|note| note.contains("computed from its pairs")), "{notes:?}");
    assert_is_whole(&db, root);
    put(&db, 0..10, 1);
    db.close().expect("closed");
    drop(db);
    let db = open(&disk, None).expect("opened");
    assert!(db.opened().notes.is_empty(), "the image has right nodes again");
    assert_is_whole(&db, root);
}

/// A commit recorded a wrong root, as a faulty version did: only the pairs are right.
#[test]
fn a_wrong_recorded_root_is_named_and_that_of_the_pairs_accepted() {
    let (disk, db) = filled();
    let root = db.root();
    {
        let state = db.state();
        let mut sequencer = state.commits.sequencer.lock();
        let mut tip = state.commits.tip();
        let recorded = tip.roots.of(0).map(|found| crate::roots::TrieRoot { node: WRONG, ..found });
        tip.roots = tip.roots.with([(0, recorded)]);
        sequencer.newest = tip.clone();
        state.commits.publish(tip);
    }
    db.close().expect("closed");
    drop(db);
    let is_named = |error: &Error| {
        matches!(
            error,
            Error::Corrupt(Contradiction::Root { commit: 2, namespace: 0, expected: WRONG, found })
                if *found == root
        )
    };
    let refused = open(&disk, None).expect_err("the recorded root is wrong");
    assert!(is_named(&refused), "{refused}");
    let refused = open(&disk, Some(Node::new([0x77; 32]))).expect_err("another root is accepted");
    assert!(is_named(&refused), "{refused}");
    let report = check_on(&disk, CheckOptions::default()).expect("checked");
    assert!(report.findings.iter().any(|found| found.what.contains("accept_root")), "{report:?}");
    // From then on the state has its right root, with commits after it and without the option, whatever remains of the
    // log.
    drop(open(&disk, Some(root)).expect("opened"));
    for _ in 0..2 {
        let db = open(&disk, None).expect("opened");
        assert_is_whole(&db, root);
        put(&db, 0..10, 1);
        drop(db);
    }
}
