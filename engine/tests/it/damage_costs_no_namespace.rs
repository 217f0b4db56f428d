//! Damage costs no namespace: the older image serves for all of them, and what cannot be read of the history gives none up.

use pleach_journal::format::names::parse_segment_name;

use crate::common::{Keys, key};
use pleach::{Access, Db, Options};
use pleach_io::Operation;
use pleach_io::sim::{
    Damage, DamagedPage, Fault, FaultRepeats, FaultRule, SimDisk, SimOptions, SimRuntime, code,
};

type SimDb = Db;
fn options(history: u64) -> Options {
    let options = Options::new("simulated").create(true).cache_mib(8).threads(1).in_flight(16);
    options.small().log_limit_bytes(256 << 10).tune(|tuning| tuning.flush_at = 2).history(history)
}

fn open(disk: &SimDisk, seed: u64, history: u64) -> pleach::Result<(SimDb, SimRuntime)> {
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
    Ok((SimDb::open_on(disk.clone(), runtime.clone(), options(history))?, runtime))
}

/// The older image serves for any page of the newest one, of whichever namespace it is.
#[test]
fn the_older_image_serves_for_all_namespaces() {
    let disk = SimDisk::new(1, SimOptions::default());
    let (db, _) = open(&disk, 1, 0).expect("created");
    db.add_namespace(1).expect("added");
    db.add_plain_namespace(77).expect("added");
    for round in 0..12 {
        let value = pleach::Value::from(vec![round; 200]);
        let write = |id| Access::write(key(Keys::Uniform, id), Some(value.clone()));
        let ids = || (0..200).map(|id| u64::from(round) * 20 + id);
        let of = |namespace| ids().map(move |id| (namespace, id));
        let all = of(0).chain(of(1)).chain(of(77));
        let all = all.map(|(namespace, id)| write(id).in_namespace(namespace));
        crate::common::commit(&db, all.collect());
    }
    let (newest, roots) = (db.commit_number(), db.roots());
    db.close().expect("closed");
    let image = disk.image();
    let mut fell_back = 0;
    for file in ["image-a", "image-b"] {
        for page in 0..image.file(file).expect("it is there").pages() {
            let disk = SimDisk::from_image(&image, 1);
            if !disk.damage(&Damage::Zero(DamagedPage { file: file.to_owned(), page })) {
                continue;
            }
            let (db, _) = open(&disk, 1, 0).expect("the other image serves");
            fell_back += u64::from(db.opened().fell_back.is_some());
            assert_eq!((db.commit_number(), db.roots()), (newest, roots.clone()));
        }
    }
    // A branch page, the map and the table at least.
    assert!(fell_back >= 3, "{fell_back}");
}

/// A history that is damaged may be there again for the next open, so a dropped namespace is not reclaimed for its
/// lack, until a record says that the history is gone.
#[test]
fn a_history_that_cannot_be_read_gives_nothing_up() {
    const HISTORY: u64 = 50;
    let disk = SimDisk::new(1, SimOptions::default());
    let (db, _) = open(&disk, 1, HISTORY).expect("created");
    let pairs = |namespace: u8, byte: u8| -> Vec<Access> {
        let value = pleach::Value::from(vec![byte; 90]);
        let write = |id| Access::write(key(Keys::Uniform, id), Some(value.clone()));
        (0..300).map(|id| write(id).in_namespace(namespace)).collect()
    };
    db.add_namespace(7).expect("added");
    crate::common::commit(&db, pairs(7, 1));
    crate::common::commit(&db, pairs(0, 2));
    db.drain(0).expect("flushed");
    let then = db.roots();
    db.drop_namespace(7).expect("dropped");
    crate::common::commit(&db, pairs(0, 3));
    // Without room for runs the history stays in the log.
    let full = Fault::Errno(code::ENOSPC);
    disk.inject(FaultRule::nth(Operation::Write, "overflow", 1, FaultRepeats::Forever, full));
    db.close().expect("closed");
    disk.heal();
    drop(db);
    let image = disk.image();
    let written =
        image.names().filter(|name| parse_segment_name(name).is_some()).flat_map(|name| {
            let bytes = image.file(name).expect("listed").to_vec();
            let pages = bytes.chunks(4096).map(|page| page.iter().any(|byte| *byte != 0));
            let pages: Vec<bool> = pages.collect();
            let written = (0..).zip(pages).filter(|(_, written)| *written);
            written.map(|(page, _)| DamagedPage { file: name.to_owned(), page }).collect::<Vec<_>>()
        });
    let mut lost = 0;
    for (nth, at) in (1..).zip(written) {
        let rot = Damage::Flip { at, byte: 70, bit: 3 };
        let disk = SimDisk::from_image(&image, nth);
        disk.damage(&rot);
        let Ok((db, runtime)) = open(&disk, nth, HISTORY) else { continue };
        let start = *db.history().start();
        // The drop is in what is lost.
        if start < 4 {
            continue;
        }
        lost += 1;
        let work = || {
            for _ in 0..20 {
                runtime.step_some(60);
                runtime.clock().advance(std::time::Duration::from_millis(30));
            }
        };
        let pages = db.metrics().leaf_pages;
        db.drain(0).expect("flushed");
        work();
        assert_eq!(db.metrics().leaf_pages, pages, "{rot:?}: nothing is given up");
        let survivor = SimDisk::from_image(&disk.image(), nth);
        survivor.damage(&rot);
        let (again, _) = open(&survivor, nth, HISTORY).expect("opened");
        assert_eq!((*again.history().start(), again.commit_number()), (0, 5), "{rot:?}");
        let past = again.at(3).expect("in the history");
        assert_eq!(*past.roots(), then);
        let view = past.namespace(7).expect("it existed then");
        let found = view.read(&key(Keys::Uniform, 17)).expect("read");
        assert_eq!(found.as_deref(), Some([1; 90].as_slice()));
        // The next commit's record says that the history is gone.
        crate::common::commit(&db, pairs(0, 4));
        db.drain(0).expect("flushed");
        work();
        assert!(db.metrics().leaf_pages < pages, "{rot:?}: it is given up");
        let survivor = SimDisk::from_image(&disk.image(), nth);
        let (again, _) = open(&survivor, nth, HISTORY).expect("opened");
        assert_eq!((*again.history().start(), again.commit_number()), (start, 6), "{rot:?}");
    }
    assert!(lost > 0, "no damage has cost the history");
}
