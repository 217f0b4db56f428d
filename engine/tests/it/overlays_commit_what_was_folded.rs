//! An overlay whose parent is the newest commit is committed as its block would have been: what its finish
//! has folded is published, and nothing is folded again. Once an overlay of one batch took five to ten
//! times the commit of its block, because every overlay was folded again.

use std::thread;
use std::time::Duration;

use pleach::{Access, Db, Error, Geometry, Hasher, Options, SessionOptions, Value};
use pleach_io::sim::SimDisk;

use crate::common::held_device::{Held, Patient};
use crate::common::{Model, commit, uniform};
use crate::crash::unrecorded;

type Overlay = pleach::Overlay;

fn open(folder: &std::path::Path) -> Db {
    let options = Options::new(folder)
        .create(true)
        .cache_mib(16)
        .threads(2)
        .in_flight(16)
        .tune(|tuning| tuning.flush_at = 1)
        .geometry(Geometry::small());
    let db = Db::open(options).expect("opened");
    db.pause_background();
    db
}

fn puts(ids: impl Iterator<Item = u64>, value: u64) -> Vec<Access> {
    let value = Value::from(&value.to_be_bytes()[..]);
    ids.map(|id| Access::read_write(uniform(id), Some(value.clone()))).collect()
}

fn overlay(db: &Db, parent: Option<&Overlay>, accesses: Vec<Access>) -> Overlay {
    let options = SessionOptions::new();
    let options = parent.map_or(options.clone(), |parent| options.over(parent));
    db.session(options).expect("a session").finish(accesses).expect("finished").into_overlay()
}

/// A chain of three with batches of several chunks, and the model of each.
fn chain(db: &Db, model: &mut Model) -> [(Overlay, Model); 3] {
    let mut parent: Option<Overlay> = None;
    [2, 3, 4].map(|value| {
        let accesses = puts((0..3000).map(|id| (id + value * 1000) % 6000), value);
        model.apply(&accesses);
        let made = overlay(db, parent.as_ref(), accesses);
        parent = Some(made.clone());
        (made, model.clone())
    })
}

fn started(db: &Db) -> Model {
    let mut model = Model::default();
    let first = puts(0..6000, 1);
    model.apply(&first);
    commit(db, first);
    db.drain(0).expect("drained");
    model
}

#[test]
fn each_of_a_chain_in_order_is_not_folded_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let mut model = started(&db);
    let chain = chain(&db, &mut model);
    let before = db.metrics();
    for (number, (overlay, model)) in (2..).zip(&chain) {
        // The second and the third were folded over overlays that are committed by now.
        assert_eq!(overlay.commit().expect("committed"), number);
        assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    }
    let after = db.metrics();
    assert_eq!((after.hashes, after.refolds), (before.hashes, before.refolds));
    // A block over them, too.
    let last = chain.last().map(|(overlay, _)| overlay).expect("three");
    let session = db.session(SessionOptions::new().over(last)).expect("a session");
    let accesses = puts(0..500, 5);
    model.apply(&accesses);
    let block = session.finish(accesses).expect("finished");
    let before = db.metrics().hashes;
    block.commit().expect("committed");
    assert_eq!(db.metrics().hashes, before);
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    drop((chain, db));
    assert_eq!(open(folder.path()).root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
}

#[test]
fn a_merged_chain_is_folded_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let mut model = started(&db);
    let chain = chain(&db, &mut model);
    let before = db.metrics().hashes;
    assert_eq!(chain[2].0.commit().expect("committed"), 2);
    assert!(db.metrics().hashes > before);
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    for (overlay, _) in &chain {
        assert_eq!((overlay.is_committed(), overlay.commit_number()), (true, Some(2)));
    }
}

#[test]
fn only_what_a_flush_has_cut_is_folded_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let mut model = started(&db);
    // Over one overlay, of which the first is committed, and pages split before the second is.
    let wide = puts(6000..9000, 7);
    model.apply(&wide);
    let first = overlay(&db, None, wide);
    let accesses = puts(8990..9010, 8);
    model.apply(&accesses);
    let second = overlay(&db, Some(&first), accesses);
    first.commit().expect("committed");
    db.drain(0).expect("drained");
    let before = db.metrics();
    second.commit().expect("committed");
    let after = db.metrics();
    assert!(after.refolds > before.refolds, "layouts have changed");
    assert!(after.hashes > before.hashes);
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    drop((first, second, db));
    assert_eq!(open(folder.path()).root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
}

/// A flush may split pages after a commit has looked at the layouts: its ticket compares them once more. The device flushes
/// while the block's long value is synced, between the two.
#[test]
fn what_a_flush_cuts_before_the_ticket_is_folded_again() {
    let disk = SimDisk::new(1, unrecorded());
    let open = || {
        let (device, gate) = Held::new(disk.clone());
        let options = Options::new("sim").create(true).cache_mib(16).geometry(Geometry::small());
        let options = options.tune(|tuning| tuning.flush_at = 1);
        (Db::open_on(device, Patient::new(2, &gate), options).expect("opened"), gate)
    };
    let (db, gate) = open();
    db.pause_background();
    let mut model = Model::default();
    let first = puts(0..3000, 1);
    model.apply(&first);
    commit(&db, first);
    let mut accesses = puts((0..3000).step_by(7), 2);
    accesses.push(Access::write(uniform(9000), Some(Value::from(vec![9; 150_000]))));
    model.apply(&accesses);
    let block = db.session(SessionOptions::new()).expect("a session").finish(accesses);
    let block = block.expect("finished");
    let (flushed, before) = (db.clone(), db.metrics().refolds);
    gate.behind_sync("overflow", move || {
        // One page becomes dozens.
        let flush = thread::spawn(move || flushed.drain(0));
        flush.join().expect("no panic").expect("flushed");
    });
    assert_eq!(block.commit().expect("committed"), 2);
    assert!(db.metrics().refolds > before, "its layout was another");
    let root = model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
    assert_eq!(db.root(), root);
    // Another batch stands on the nodes that were published.
    let accesses = puts((0..3000).step_by(5), 3);
    model.apply(&accesses);
    commit(&db, accesses);
    let root = model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3);
    assert_eq!(db.root(), root);
    drop(db);
    let (db, _gate) = open();
    assert_eq!(db.root(), root);
}

/// Another commit may come first after a commit has looked at its parent, and before it folds again what a flush has cut:
/// the regions have nodes of a state that it was not folded on. It is told that it is late, and nothing else.
#[test]
fn a_commit_that_another_overtakes_folds_on_its_own_state() {
    let (device, gate) = Held::new(SimDisk::new(1, unrecorded()));
    let options = Options::new("sim").create(true).cache_mib(16).geometry(Geometry::small());
    let options = options.tune(|tuning| tuning.flush_at = 1);
    let db = Db::open_on(device, Patient::new(2, &gate), options).expect("opened");
    db.pause_background();
    let mut model = Model::default();
    let first = puts(0..3000, 1);
    model.apply(&first);
    commit(&db, first);
    let finish = |accesses: Vec<Access>| {
        db.session(SessionOptions::new()).expect("a session").finish(accesses)
    };
    let long = Access::write(uniform(9000), Some(Value::from(vec![9; 150_000])));
    let late = finish(puts((0..3000).step_by(7), 2).into_iter().chain([long]).collect());
    let late = late.expect("finished");
    let accesses = puts((0..3000).step_by(5), 3);
    model.apply(&accesses);
    let other = finish(accesses).expect("finished");
    // One page becomes dozens.
    db.drain(0).expect("flushed");
    gate.behind_sync("overflow", move || {
        let other = thread::spawn(move || other.commit());
        assert_eq!(other.join().expect("no panic").expect("committed"), 2);
    });
    let refused = late.commit().expect_err("another has come first");
    assert!(matches!(refused.error(), Error::StaleParent { .. }), "{refused}");
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
}

/// What an overlay takes is counted, and is gone with it.
#[test]
fn bytes_are_counted_while_an_overlay_lives() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    commit(&db, puts(0..100, 1));
    assert_eq!(db.metrics().overlay_bytes, 0);
    let one = overlay(&db, None, puts(0..1000, 2));
    let alone = db.metrics().overlay_bytes;
    assert!(alone > 1000 * 64, "{alone}");
    let two = overlay(&db, Some(&one), puts(0..10, 3));
    let both = db.metrics().overlay_bytes;
    assert!(both > alone && both < 2 * alone, "{alone}, {both}");
    drop(one);
    assert_eq!(db.metrics().overlay_bytes, both, "the other stands on it");
    drop(two);
    assert_eq!(db.metrics().overlay_bytes, 0);
}

#[test]
fn changes_come_in_order_with_the_values_before() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = open(folder.path());
    let long = |byte: u8| Value::from(&vec![byte; 100_000][..]);
    let (a, b, c, d) = (uniform(1), uniform(2), uniform(3), uniform(4));
    commit(
        &db,
        vec![
            Access::write(a, Some(long(1))),
            Access::write(b, Some(Value::from(&b"short"[..]))),
            Access::write(d, Some(long(4))),
        ],
    );
    db.drain(0).expect("drained");
    let accesses = vec![
        Access::write(a, Some(long(2))),
        Access::write(b, None),
        Access::read_write(c, Some(Value::from(&b"new"[..]))),
        Access::read(d),
    ];
    let mut expected = vec![
        (a, Some(long(2)), Some(long(1))),
        (b, None, Some(Value::from(&b"short"[..]))),
        (c, Some(Value::from(&b"new"[..])), None),
    ];
    expected.sort_by_key(|one| one.0);
    let block = db.session(SessionOptions::new()).unwrap().finish(accesses).unwrap();
    let list = |change: pleach::Change<'_>| {
        (*change.key(), change.value().expect("a value"), change.prior().expect("a prior value"))
    };
    assert_eq!(block.change_count(), 3);
    assert_eq!(block.changes().map(list).collect::<Vec<_>>(), expected);
    let overlay = block.into_overlay();
    assert_eq!(overlay.changes().map(list).collect::<Vec<_>>(), expected);
    // And once it is committed, when what it replaced has left the newest state.
    overlay.commit().expect("committed");
    for round in 0..3 {
        commit(&db, puts(100..200, round));
        db.drain(0).expect("drained");
    }
    assert_eq!(overlay.changes().map(list).collect::<Vec<_>>(), expected);
}

/// Its chunks have to be folded again where a flush has split pages. That was done on the state below, whose
/// undo was gone, and gave `SnapshotTooOld` for ever, though the newest commit is that very state.
#[test]
fn an_overlay_whose_base_cannot_be_read_any_more_is_committed_over_the_newest_commit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(16)
        .threads(2)
        .tune(|tuning| tuning.flush_at = 1);
    let db = Db::open(options.undo_memory_bytes(1).small()).expect("opened");
    db.pause_background();
    let mut model = Model::default();
    let below = puts(0..3000, 1);
    model.apply(&below);
    let below = overlay(&db, None, below);
    let above = puts((0..3000).step_by(7), 2);
    model.apply(&above);
    let above = overlay(&db, Some(&below), above);
    below.commit().expect("committed");
    let before = db.metrics().refolds;
    // One page becomes dozens.
    db.drain(0).expect("flushed");
    assert_eq!(above.commit().expect("committed"), 2);
    assert!(db.metrics().refolds > before, "its layout was another");
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    drop((below, above));
    db.close().expect("closed");
}

/// The history may move on beyond that base at any moment of a commit: here a checkpoint writes its undo, which is more
/// than `history_disk_mib` allows, while the commit writes a long value, and a flush splits pages. It gave `SnapshotTooOld`.
#[test]
fn an_overlay_whose_base_leaves_the_history_during_its_commit_is_committed() {
    for merged in [false, true] {
        let (device, gate) = Held::new(SimDisk::new(1, unrecorded()));
        let options = Options::new("sim").create(true).cache_mib(16).geometry(Geometry::small());
        let options = options.history(200).history_disk_mib(0).log_limit_bytes(256 << 10);
        let options = options.tune(|tuning| tuning.flush_at = 1);
        let db = Db::open_on(device, Patient::new(2, &gate), options).expect("opened");
        db.pause_background();
        let mut model = Model::default();
        let mut made = Vec::<Overlay>::new();
        let long = Access::write(uniform(9000), Some(Value::from(vec![9; 150_000])));
        let batches =
            [puts(0..7000, 1), puts((0..3000).step_by(7), 2), puts((0..3000).step_by(5), 3)];
        for mut accesses in batches.into_iter().take(2 + usize::from(merged)) {
            if made.len() == 1 {
                accesses.push(long.clone());
            }
            model.apply(&accesses);
            made.push(overlay(&db, made.last(), accesses));
        }
        made[0].commit().expect("committed");
        assert_eq!(db.history(), 0..=1);
        let (other, before) = (db.clone(), db.metrics().refolds);
        gate.behind_sync("overflow", move || {
            // One page becomes dozens.
            let flush = thread::spawn(move || {
                other.drain(0).expect("flushed");
                other.resume_background();
                for _ in 0..20_000 {
                    if other.history() == (1..=1) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                panic!("the log is long, and there is no checkpoint: {:?}", other.metrics());
            });
            flush.join().expect("no panic");
        });
        assert_eq!(made[made.len() - 1].commit().expect("committed"), 2);
        assert!(db.metrics().refolds > before, "its layout was another");
        assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
        drop(made);
        db.close().expect("closed");
    }
}

/// With a history a record has the values before. Those of an overlay below are in memory when the finish sees
/// them, and long ones went into the record whole, though its commit had written them elsewhere by then.
#[test]
fn a_record_names_the_long_values_of_an_overlay_below() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).cache_mib(16).threads(2);
    let db = Db::open(options.history(2).small()).expect("opened");
    db.pause_background();
    let long = Value::from(vec![7; 300_000]);
    let put = |value: Option<Value>| vec![Access::write(uniform(1), value)];
    let below = overlay(&db, None, put(Some(long.clone())));
    let above = overlay(&db, Some(&below), put(None));
    below.commit().expect("committed");
    let before = db.metrics().log_bytes;
    above.commit().expect("committed");
    let record = db.metrics().log_bytes - before;
    assert!(record <= 2 * 4096, "{record} bytes of log for a deletion");
    assert_eq!(db.at(1).expect("kept").read(&uniform(1)).expect("read"), Some(long.clone()));
    assert_eq!(db.rollback(1).expect("rolled back"), 3);
    let session = db.session(SessionOptions::new()).expect("a session");
    assert_eq!(session.read(&uniform(1)).expect("read"), Some(long));
    drop((below, above, session));
    db.close().expect("closed");
}
