//! An open after a close, and a reader's, reads the levels above the regions, and the regions that the log names;
//! another comes when it is used, whatever uses it. Every open read all branch pages once.

use std::collections::BTreeMap;

use pleach::{Access, Db, Error, Geometry, Hasher, Key, Options, SessionOptions, Value};
use pleach_core::proof::path;
use pleach_io::sim::{Damage, DamageKind, DamagedPage, Image, SimDisk, SimOptions, SimRuntime};
use pleach_ops::{BackupOptions, CheckOptions, Verdict, backup_on, check_on};

use crate::common::held_device::Held;
use crate::common::{Model, uniform};
use crate::crash::{SimDb, unrecorded};

const IDS: u64 = 5000;

fn options() -> Options {
    let options = Options::new("sim").create(true).cache_mib(64).threads(1).in_flight(4);
    options.history(50).tune(|tuning| tuning.flush_at = 200).geometry(Geometry::least())
}

fn open(disk: &SimDisk, seed: u64) -> Result<(SimDb, SimRuntime), Error> {
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
    Ok((Db::open_on(disk.clone(), runtime.clone(), options())?, runtime))
}

fn value(id: u64, round: u64) -> Value {
    Value::from((id + 1000 * round).to_le_bytes().repeat(110).as_slice())
}

fn put(
    db: &Db,
    model: &mut Model,
    ids: impl Iterator<Item = u64>,
    round: u64,
) -> Result<u64, Error> {
    let puts: Vec<Access> =
        ids.map(|id| Access::write(uniform(id), Some(value(id, round)))).collect();
    model.apply(&puts);
    let session = db.session(SessionOptions::new())?;
    session.finish(puts)?.commit().map_err(pleach::CommitError::into_error)
}

/// A closed database of some 20 regions, a few with buffered changes, and its state; a plain namespace beside it.
fn closed() -> (Image, Model) {
    let disk = SimDisk::new(1, unrecorded());
    let (db, _) = open(&disk, 1).expect("created");
    let mut model = Model::default();
    db.add_plain_namespace(3).expect("added");
    put(&db, &mut model, 0..IDS, 0).expect("committed");
    let plain = (0..IDS).map(|id| Access::write(uniform(id), Some(value(id, 9))).in_namespace(3));
    crate::common::commit(&db, plain.collect());
    db.drain(0).expect("flushed");
    for round in 1..4 {
        put(&db, &mut model, (0..40).map(|at| 60 * at + round), round).expect("committed");
    }
    assert!(db.metrics().regions > 30, "{} regions", db.metrics().regions);
    db.close().expect("closed");
    (disk.image(), model)
}

/// The same after a kill, with a record of a commit of one key behind the image, and one that moves its page.
fn killed(moves: bool) -> (Image, Model) {
    let (image, mut model) = closed();
    let disk = SimDisk::from_image(&image, 1);
    let (mut db, _) = open(&disk, 2).expect("opens");
    if moves {
        // So that no other page is moved later.
        db.drain(0).expect("flushed");
        db.close().expect("closed");
        db = open(&disk, 2).expect("opens").0;
    }
    put(&db, &mut model, 900..901, 6).expect("committed");
    if moves {
        db.drain(0).expect("flushed");
        put(&db, &mut model, 900..901, 7).expect("committed");
    }
    drop(db);
    (disk.image(), model)
}

/// The pages of the newest image that were read.
fn image_pages(reads: &BTreeMap<(String, u64), u32>) -> Vec<u64> {
    let of_image = reads.keys().filter(|(file, _)| file.starts_with("image"));
    of_image.map(|(_, page)| *page).collect()
}

fn assert_is(db: &Db, model: &Model, what: &str) {
    let session = db.snapshot().expect("a snapshot");
    let mut pairs = BTreeMap::new();
    for pair in session.iter(..) {
        let (key, value) = pair.expect("read");
        pairs.insert(key, value);
    }
    assert!(pairs == model.values, "{what}: pairs");
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3), "{what}");
    let plain = session.namespace(3).expect("a namespace").iter(..).count();
    assert_eq!(plain as u64, IDS, "{what}");
}

fn assert_sound(disk: &SimDisk, what: &str) {
    let report = check_on(disk.clone(), CheckOptions::default()).expect("checked");
    assert_eq!(report.verdict(), Verdict::Clean, "{what}: {:?}", report.findings);
}

#[test]
fn a_clean_open_reads_no_region_and_a_read_reads_one() {
    let (image, model) = closed();
    for reads_only in [false, true] {
        let disk = SimDisk::from_image(&image, 1);
        let (held, gate) = Held::new(disk.clone());
        let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
        let options = options().create(false).read_only(reads_only);
        let db = Db::open_on(held, runtime.clone(), options).expect("opens");
        assert!(db.opened().closed);
        // The regions of namespace 0 are first in the image; those of the other namespace are behind its upper levels.
        let regions = db.metrics().regions / 2 - 2;
        let before = image_pages(&gate.reads());
        assert!(before.iter().all(|page| *page >= regions), "{before:?} of {regions} regions");
        let pages = db.metrics().leaf_pages;
        assert!(pages > 1000, "{pages} pages");
        let read = |id: u64| {
            let found = db.get(&uniform(id)).expect("read");
            assert!(found.as_ref() == model.values.get(&uniform(id)), "key {id}");
        };
        read(0);
        let come = image_pages(&gate.reads()).len() - before.len();
        // Its branch page, and its buffered changes.
        assert!((1..=6).contains(&come), "{come} pages of the image for one key");
        read(0);
        assert_eq!(image_pages(&gate.reads()).len() - before.len(), come);
        // The task reads the rest, many at once.
        for _ in 0..20 {
            runtime.clock().advance(std::time::Duration::from_millis(60));
            runtime.step_some(20);
        }
        let all = image_pages(&gate.reads());
        (0..IDS).for_each(read);
        assert_eq!(image_pages(&gate.reads()), all, "all regions were here");
        assert_eq!(db.metrics().leaf_pages, pages);
        db.close().expect("closed");
    }
}

/// A use of a database, which says what becomes of the state.
type Use = fn(&SimDb, &SimRuntime, &mut Model);

const USES: [(&str, Use); 9] = [
    ("nothing", |_, _, _| {}),
    ("commits", |db, runtime, model| {
        for round in 5..9 {
            put(db, model, (0..30).map(|at| 80 * at + round), round).expect("committed");
            runtime.step_some(3);
        }
    }),
    ("deletes and joins", |db, runtime, model| {
        let gone = (10..IDS).map(|id| Access::write(uniform(id), None)).collect::<Vec<_>>();
        model.apply(&gone);
        crate::common::commit(db, gone);
        db.drain(0).expect("flushed");
        for _ in 0..50 {
            runtime.clock().advance(std::time::Duration::from_millis(100));
            runtime.step_some(100);
        }
    }),
    ("proofs", |db, _, _| {
        let session = db.snapshot().expect("a snapshot");
        for id in [0, 7, 900, IDS + 5] {
            let proof = session.prove(&uniform(id)).expect("proven");
            path::verify(Hasher::BLAKE3, &proof, &session.root()).expect("verified");
        }
    }),
    ("reads of many and announced keys", |db, runtime, model| {
        let keys: Vec<Key> = (0..IDS).step_by(50).map(uniform).collect();
        let session = db.snapshot().expect("a snapshot");
        session.prefetch(&keys[..20]);
        runtime.step_some(10);
        let values = session.read_many(&keys).expect("read");
        assert!(
            keys.iter().zip(values).all(|(key, value)| value == model.values.get(key).cloned())
        );
    }),
    ("rollback", |db, _, model| {
        let before = db.commit_number();
        let mut later = model.clone();
        put(db, &mut later, 0..10, 7).expect("committed");
        db.rollback_to(before).expect("rolled back");
        assert!(db.at(before - 1).is_ok_and(|session| session.read(&uniform(3)).is_ok()));
    }),
    ("a backup", |db, _, model| {
        let target = SimDisk::new(5, unrecorded());
        backup_on(db, target.clone(), &BackupOptions::new()).expect("backed up");
        assert_is(&open(&target, 8).expect("opens").0, model, "a backup");
    }),
    ("a drain", |db, _, _| db.drain(0).expect("flushed")),
    ("all tasks", |db, runtime, model| {
        put(db, model, 0..3, 4).expect("committed");
        for _ in 0..30 {
            runtime.clock().advance(std::time::Duration::from_millis(60));
            runtime.step_some(50);
        }
    }),
];

#[test]
fn a_reader_behind_a_kill_reads_the_regions_that_the_log_names() {
    for (moves, reads_only) in [(false, false), (true, false), (false, true), (true, true)] {
        let (image, model) = killed(moves);
        let disk = SimDisk::from_image(&image, 1);
        let (held, gate) = Held::new(disk.clone());
        let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
        let options = options().create(false).read_only(reads_only);
        let db = Db::open_on(held, runtime, options).expect("opens");
        assert!(!db.opened().closed);
        let regions = db.metrics().regions / 2 - 2;
        let read = image_pages(&gate.reads()).iter().filter(|page| **page < regions).count();
        // A writer reads all, in runs of many pages.
        assert_eq!(read, 1, "of {regions} regions");
        let away = !reads_only || db.metrics().index_bytes < 50 * db.metrics().leaf_pages;
        assert!(away, "nobody has used them");
        assert_is(&db, &model, "after a kill");
        // Their pages are counted as they are when all are here.
        let (pages, pending) = (db.metrics().leaf_pages, db.metrics().pending_entries);
        drop(db);
        let whole = pleach_ops::stat_on(disk, None).expect("read");
        assert_eq!((pages, pending), (whole.pages, whole.buffered_entries), "moves: {moves}");
    }
}

#[test]
fn whatever_uses_a_database_finds_regions_that_are_away() {
    for (image, model) in [closed(), killed(false), killed(true)] {
        uses_find_regions(&image, &model);
    }
}

fn uses_find_regions(image: &Image, model: &Model) {
    for (what, uses) in USES {
        for closes in [true, false] {
            let (disk, mut model) = (SimDisk::from_image(image, 1), model.clone());
            let (db, runtime) = open(&disk, 3).expect("opens");
            uses(&db, &runtime, &mut model);
            if what != "nothing" {
                assert_is(&db, &model, what);
            }
            if closes {
                db.close().expect("closed");
            }
            drop(db);
            assert_sound(&disk, what);
            let (db, _) = open(&disk, 4).expect("opens");
            assert_eq!(db.opened().closed, closes, "{what}");
            assert_is(&db, &model, what);
        }
    }
}

/// A power cut while regions are away, and while the first image behind the open is written.
#[test]
fn a_power_cut_finds_the_image_that_regions_were_in() {
    let (image, mut model) = closed();
    let disk = SimDisk::from_image_with(&image, 1, SimOptions::default());
    let (db, runtime) = open(&disk, 3).expect("opens");
    let mut models = BTreeMap::from([(db.commit_number(), model.clone())]);
    for round in 5..9 {
        let number = put(&db, &mut model, (0..9).map(|at| 200 * at + round), round);
        models.insert(number.expect("committed"), model.clone());
        runtime.step_some(4);
    }
    db.close().expect("closed");
    let trace = disk.trace();
    let stride = trace.boundaries().len().div_ceil(30).max(1);
    for point in trace.crash_points().step_by(stride) {
        for outcome in point.outcomes(7, 2) {
            let disk = outcome.disk_with(unrecorded());
            let (db, _) = open(&disk, 5).unwrap_or_else(|error| panic!("{outcome}: {error}"));
            let expected = models.get(&db.commit_number()).expect("a commit");
            assert_is(&db, expected, &outcome.to_string());
        }
    }
}

#[test]
fn a_damaged_region_costs_its_keys_until_the_next_open_takes_the_older_image() {
    let (image, model) = closed();
    for kind in [DamageKind::Flip, DamageKind::Zero, DamageKind::Unreadable] {
        let disk = SimDisk::from_image(&image, 1);
        let newest = {
            let (held, gate) = Held::new(disk.clone());
            let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
            drop(
                Db::open_on(held, runtime, options().create(false).read_only(true)).expect("opens"),
            );
            let reads = gate.reads();
            let names: Vec<&String> = reads.keys().map(|(file, _)| file).collect();
            names.into_iter().find(|file| file.starts_with("image")).expect("read").clone()
        };
        let at = DamagedPage { file: newest.clone(), page: 4 };
        let damage = match kind {
            DamageKind::Flip => Damage::Flip { at, byte: 700, bit: 3 },
            DamageKind::Zero => Damage::Zero(at),
            _ => Damage::Unreadable(at),
        };
        assert!(disk.damage(&damage));
        assert_ne!(
            check_on(disk.clone(), CheckOptions::default())
                .map_or(Verdict::DoesNotOpen, |of| of.verdict()),
            Verdict::Clean
        );
        let (db, runtime) = open(&disk, 3).expect("opens");
        let bad = |error: &Error| error.to_string().contains(&newest);
        let lost: Vec<u64> = (0..IDS)
            .filter(|id| match db.get(&uniform(*id)) {
                Ok(value) => {
                    assert!(value.as_ref() == model.values.get(&uniform(*id)), "{kind:?}");
                    false
                }
                Err(error) => {
                    assert!(bad(&error), "{kind:?}: {error}");
                    true
                }
            })
            .collect();
        assert!((10..400).contains(&lost.len()), "{kind:?}: {} keys", lost.len());
        assert_eq!((db.quarantined().len(), db.quarantined()[0].page), (1, 4));
        // Others are written, and the block of a lost key is refused.
        let mut later = model.clone();
        put(&db, &mut later, (0..IDS).filter(|id| !lost.contains(id)).take(20), 5)
            .expect("goes on");
        let refused = put(&db, &mut later.clone(), lost.iter().copied().take(1), 5);
        assert!(refused.as_ref().is_err_and(bad), "{kind:?}: {refused:?}");
        for _ in 0..30 {
            runtime.clock().advance(std::time::Duration::from_millis(60));
            runtime.step_some(50);
        }
        // An image without the region would lose it for good.
        let closed = db.close();
        assert!(closed.as_ref().is_err_and(bad), "{kind:?}: {closed:?}");
        drop(db);
        let (db, _) = open(&disk, 4).expect("the older image serves");
        assert!(db.opened().fell_back.is_some());
        assert_is(&db, &later, "behind the damage");
        db.close().expect("closed");
        assert_sound(&disk, "mended");
    }
}

/// A writer may make two images before a reader has all regions.
#[test]
fn a_reader_whose_image_is_overwritten_opens_anew() {
    let (image, mut model) = closed();
    let disk = SimDisk::from_image(&image, 1);
    let runtime = SimRuntime::with_clock(2, disk.clock(), 1);
    let reader =
        Db::open_on(disk.clone(), runtime, options().create(false).read_only(true)).expect("opens");
    let session = reader.snapshot().expect("a snapshot");
    for round in 5..8 {
        let (db, _) = open(&disk, round).expect("opens");
        put(&db, &mut model, (0..30).map(|at| 80 * at + round), round).expect("committed");
        db.close().expect("closed");
    }
    for id in (0..IDS).step_by(20) {
        match session.read(&uniform(id)) {
            Ok(found) => assert!(found.is_some()),
            Err(error) => assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error}"),
        }
    }
    drop(session);
    reader.refresh().expect("goes on");
    assert_is(&reader, &model, "a reader");
}
