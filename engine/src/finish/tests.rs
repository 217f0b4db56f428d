//! What a finish leaves behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use pleach_core::{Hasher, Key, Node};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::error::{Contradiction, Error};
use crate::load::LoadOptions;
use crate::{Access, Db, Options, SessionOptions, Value};

/// Nodes to be hashed until one panics; 0 for never.
static FUSE: AtomicU64 = AtomicU64::new(0);

fn touchy(message: &[u8]) -> [u8; 32] {
    if message.len() == 64 && FUSE.load(Ordering::SeqCst) > 0 {
        assert_ne!(FUSE.fetch_sub(1, Ordering::SeqCst), 1, "burnt down");
    }
    Hasher::BLAKE3.hash(message)
}

/// A worker that had panicked kept its claims until it was run again, perhaps never: each reader of one of these pages
/// waited for as long as it can.
#[test]
fn a_panic_leaves_no_page_claimed() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = || {
        let options = Options::new("sim").create(true).hasher(Hasher::new("touchy", touchy));
        let options = options.cache_mib(8).in_flight(64).threads(1).small();
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        Db::open_on(disk.clone(), runtime, options).expect("opened")
    };
    let key = |at: u64| Hasher::BLAKE3.hash(&at.to_be_bytes());
    let pairs = (0..20_000).map(|at| (key(at), Value::from(vec![1; 100])));
    let db = open();
    db.bulk_load(pairs, &LoadOptions::new().memory_mib(8)).expect("loaded");
    db.close().expect("closed");
    let mut met = 0;
    for fuse in [1, 10, 100, 1_000, 5_000, 20_000] {
        // Nothing is cached: pages are in flight while the first chunks are folded.
        let db = open();
        let session = db.session(SessionOptions::new()).expect("a session");
        let batch: Vec<_> = (0..10_000).map(|at| Access::write(key(at), None)).collect();
        FUSE.store(fuse, Ordering::SeqCst);
        let finished = catch_unwind(AssertUnwindSafe(|| session.finish(batch).map(|_| ())));
        FUSE.store(0, Ordering::SeqCst);
        met += u32::from(finished.is_err());
        let in_flight = &db.state().store.in_flight;
        let is_free = |page| in_flight.claim(pleach_beatree::PageNo::new(page)).is_some();
        assert!((0..1_000).all(is_free), "fuse {fuse}");
    }
    assert!(met >= 4, "{met} panics");
}

/// Whatever makes a node in memory wrong: a finish finds it, and so does a proof. No block is made, nothing is
/// committed, and a database that is opened again has all its data.
#[test]
fn a_wrong_node_in_memory_gives_an_error_and_no_block() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let open = || {
        let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
        let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
        Db::open_on(disk.clone(), runtime, options).expect("opened")
    };
    let key = |at: u64| Hasher::BLAKE3.hash(&at.to_be_bytes());
    let db = open();
    let pairs = (0..2_000).map(|at| (key(at), Value::from(vec![1; 100])));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    let root = db.root();
    let index = db.state().tree.load_full();
    let region = &index.regions()[0];
    let child = {
        let mut state = region.write();
        let nodes = (0..state.children().len()).map(|child| *state.node(child));
        let mut nodes: Vec<Node> = nodes.collect();
        nodes[0] = Node::new([0x66; 32]);
        state.replace_nodes(nodes);
        state.children().get(0)
    };
    let is_refused = |error: &Error| matches!(error, Error::Corrupt(Contradiction::NodesInMemory { expected, .. }) if *expected == root);
    // Neither key is below the wrong node, which so is a sibling.
    let keys = (0..2_000).map(key).filter(|key| !child.prefix.covers(key));
    let keys: Vec<Key> = keys.filter(|key| region.prefix().covers(key)).take(2).collect();
    for witness in [true, false] {
        let session = db.session(SessionOptions::new().witness(witness)).expect("a session");
        let put = Access::write(keys[0], Some(Value::from(&[2; 8])));
        let refused = session.finish(vec![put]).expect_err("its root would be wrong");
        assert!(is_refused(refused.error()), "{refused}");
    }
    let session = db.session(SessionOptions::new()).expect("a session");
    let refused = session.prove_many(&keys).expect_err("it would not verify");
    assert!(is_refused(&refused), "{refused}");
    drop(session);
    assert_eq!(db.commit_number(), 1);
    drop(db);
    let db = open();
    assert_eq!(db.root(), root);
    let session = db.session(SessionOptions::new()).expect("a session");
    let put = Access::write(keys[0], Some(Value::from(&[2; 8])));
    session.finish(vec![put]).expect("finished").commit().expect("committed");
}

/// A proof of an old state asks the history for the node of each region that has changed since; the next one of the same
/// session has these nodes in memory, and is refused where one of them is wrong.
#[test]
fn a_session_on_an_old_commit_keeps_the_nodes_of_regions_between_proofs() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let options = Options::new("sim").create(true).cache_mib(8).threads(1).history(9).small();
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let db = Db::open_on(disk.clone(), runtime, options).expect("opened");
    let key = |at: u64| Hasher::BLAKE3.hash(&at.to_be_bytes());
    let pairs = (0..20_000).map(|at| (key(at), Value::from(vec![1; 100])));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    let (old, root) = (db.commit_number(), db.root());
    let new = db.session(SessionOptions::new()).expect("a session");
    let batch: Vec<_> = (0..2_000).map(|at| Access::write(key(at), None)).collect();
    new.finish(batch).expect("finished").commit().expect("committed");
    let index = db.state().tree.load_full();
    let (first, last) = (index.regions()[0].prefix(), index.regions().last().expect("some"));
    assert_ne!(first, last.prefix(), "several regions");
    for (commit, keeps) in [(old, true), (db.commit_number(), false)] {
        let session = db.at(commit).expect("in the history");
        let proof = session.prove(first.first_key()).expect("proven");
        proof.verify(Hasher::BLAKE3, &session.root()).expect("right");
        assert_eq!(session.view().kept_past_node(last.prefix()).is_some(), keeps);
    }
    let session = db.at(old).expect("in the history");
    session.prove(first.first_key()).expect("proven");
    let again = session.prove(last.prefix().first_key()).expect("proven");
    again.verify(Hasher::BLAKE3, &root).expect("right");
    session.view().keep_past_node(last.prefix(), Node::new([0x66; 32]));
    let refused = session.prove(first.first_key()).expect_err("a wrong node");
    assert!(matches!(&refused, Error::Corrupt(Contradiction::NodesInMemory { .. })), "{refused}");
}

/// A small batch has chunks for all workers.
#[test]
fn chunks_are_small_where_there_is_little() {
    let sizes = [129, 200, 350, 100_000]
        .map(|accesses| [1, 2, 16].map(|workers| super::chunk_accesses(accesses, workers)));
    assert_eq!(sizes, [[64, 64, 16], [64, 64, 16], [64, 64, 22], [64; 3]]);
}
