//! Overlays, blocks and witnesses count against the budget: the leaf cache gives way, and gets it back.

use pleach::{Access, Db, Durability, Key, Node, Options, Overlay, SessionOptions, Value};
use pleach_core::Hasher;

fn key(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

/// A batch that writes `count` keys.
fn batch(round: u64, count: u64) -> Vec<Access> {
    let value = |id: u64| Value::from((id ^ round << 32).to_be_bytes().repeat(5));
    (0..count)
        .map(|at| round * 7 + at * 3)
        .map(|id| Access::write(key(id), Some(value(id))))
        .collect()
}

fn opened(folder: &tempfile::TempDir, mib: u64) -> Db {
    let options = Options::new(folder.path()).create(true).small().cache_mib(mib);
    Db::open(options.durability(Durability::None)).expect("opened")
}

fn overlay(db: &Db, over: Option<&Overlay>, batch: Vec<Access>) -> Overlay {
    let options = SessionOptions::new();
    let options = over.map_or(options.clone(), |below| options.over(below));
    let session = db.session(options).expect("a session");
    session.finish(batch).expect("finished").into_overlay()
}

#[test]
fn the_leaf_cache_gives_way_to_overlays_and_gets_it_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = opened(&folder, 16);
    let commit = |round| {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(batch(round, 100)).expect("finished").commit().expect("committed")
    };
    commit(0);
    let alone = db.metrics();
    assert_eq!((alone.overlay_bytes, alone.batch_bytes, alone.witness_bytes), (0, 0, 0));

    let mut chain: Vec<Overlay> = Vec::new();
    for round in 1..9 {
        chain.push(overlay(&db, chain.last(), batch(round, 1000)));
    }
    let beside = db.metrics();
    assert!(beside.overlay_bytes > 1 << 20, "{} bytes", beside.overlay_bytes);
    assert!(beside.batch_bytes > 0, "what they are committed with counts as well");
    let less = alone.leaf_cache_budget - beside.leaf_cache_budget;
    assert!(less >= beside.overlay_bytes - (1 << 19), "{less} of {} bytes", beside.overlay_bytes);

    drop(chain);
    // At once: what follows may be reads alone.
    let after = db.metrics();
    assert_eq!((after.batch_bytes, after.overlay_bytes), (0, 0));
    // By steps of a 64th of the budget.
    assert!(alone.leaf_cache_budget.abs_diff(after.leaf_cache_budget) <= (16 << 20) / 64);
}

#[test]
fn blocks_and_witnesses_count_until_they_go() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = opened(&folder, 16);
    let finish = |round| {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.finish(batch(round, 1000)).expect("finished")
    };
    let mut block = finish(0);
    let witness = block.take_witness().expect("by default");
    let metrics = db.metrics();
    assert!(metrics.witness_bytes >= witness.len() as u64);
    assert!(metrics.batch_bytes >= 1000 * 100, "{} bytes", metrics.batch_bytes);
    block.commit().expect("committed");
    assert_eq!(db.metrics().batch_bytes, 0);
    let bytes = witness.into_vec();
    assert_eq!((bytes.is_empty(), db.metrics().witness_bytes), (false, 0), "they are the caller's");
    drop(finish(1));
    let metrics = db.metrics();
    assert_eq!((metrics.batch_bytes, metrics.witness_bytes), (0, 0));
    assert!(metrics.kept_bytes > 0, "for the next batch");
}

/// Where overlays take much the cache has little room for what folds learn. What is committed is the same.
#[test]
fn overlays_without_room_commit_what_others_do() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let (tight, ample) = (opened(&folders[0], 8), opened(&folders[1], 1024));
    let mut chain: Vec<Overlay> = Vec::new();
    let mut roots: Vec<Node> = Vec::new();
    for round in 0..24 {
        let session = ample.session(SessionOptions::new()).expect("a session");
        session.finish(batch(round, 5000)).expect("finished").commit().expect("committed");
        roots.push(ample.root());
        chain.push(overlay(&tight, chain.last(), batch(round, 5000)));
        assert_eq!(chain.last().map(Overlay::root), roots.last().copied());
        if chain.len() > 4 {
            chain.remove(0).commit().expect("committed");
            assert_eq!(tight.root(), roots[roots.len() - chain.len() - 1]);
        }
    }
    let held = tight.metrics();
    assert!(held.batch_bytes + held.overlay_bytes > (8 << 20) / 4, "they take much");
    for overlay in chain {
        overlay.commit().expect("committed");
    }
    assert_eq!(tight.root(), ample.root());
    for db in [tight, ample] {
        db.drain(0).expect("all nodes of pages agree with the index");
        assert_eq!(db.metrics().quarantined_pages, 0);
    }
}

/// What a batch is for the budget does not depend on how many namespaces it is in.
#[test]
fn a_large_batch_is_large_in_several_namespaces_too() {
    let held = |namespaces: u8| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let db = opened(&folder, 16);
        for number in 1..namespaces {
            db.add_namespace(number).expect("added");
        }
        let put = |round: u64| -> Vec<Access> {
            let put = |id: u64| {
                let number = u8::try_from(id % u64::from(namespaces)).expect("few");
                let value = Value::from((id + round).to_be_bytes().repeat(5));
                Access::write(key(id), Some(value)).in_namespace(number)
            };
            (0..12_000).map(put).collect()
        };
        for round in 0..3 {
            let session = db.session(SessionOptions::new().witness(false)).expect("a session");
            session.finish(put(round)).expect("finished").commit().expect("committed");
            db.drain(0).expect("drained");
        }
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let _block = session.finish(put(3)).expect("finished");
        db.metrics().batch_bytes
    };
    let (one, four) = (held(1), held(4));
    assert!(four < one + one / 4, "{one} bytes in one namespace, {four} in four");
}
