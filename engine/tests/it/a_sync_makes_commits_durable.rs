//! Without durability a power cut may take the newest commits; those before a `Db::sync` stay.

use crate::common::{commit, uniform};
use crate::crash::{Setup, unrecorded};
use pleach::{Access, Durability, Error, Value};
use pleach_io::sim::{SimDisk, SimOptions};

const COMMITS: u64 = 3;

/// Three commits, perhaps a sync, and one commit more; then the power fails. Numbers of the newest commit that is
/// there, in several outcomes.
fn left(seed: u64, sync: bool) -> Vec<u64> {
    let setup = Setup::draw(seed).durability(Durability::None);
    let disk = SimDisk::new(seed, SimOptions::default());
    let (db, _runtime) = setup.open(&disk, 1).expect("no faults");
    let put = |id: u64| vec![Access::write(uniform(id), Some(Value::from(&id.to_be_bytes())))];
    for id in 1..=COMMITS {
        assert_eq!(commit(&db, put(id)), id);
    }
    if sync {
        db.sync().expect("no faults");
        // There is nothing left to do.
        db.sync().expect("no faults");
    }
    commit(&db, put(COMMITS + 1));
    let trace = disk.trace();
    let point = trace.crash_point(trace.len());
    let mut numbers = Vec::new();
    for outcome in point.outcomes(seed, 8) {
        let (db, _runtime) = setup.open(&outcome.disk_with(unrecorded()), 2).expect("it opens");
        numbers.push(db.commit_number());
    }
    numbers
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    let mut lost = 0;
    for seed in 7300..7310 {
        for number in left(seed, true) {
            assert!((COMMITS..=COMMITS + 1).contains(&number), "seed {seed}: {number}");
        }
        lost += left(seed, false).into_iter().filter(|number| *number < COMMITS).count();
    }
    assert!(lost > 0, "nothing is ever lost without it");
}

#[test]
fn a_closed_database_syncs_nothing() {
    let setup = Setup::draw(7320).durability(Durability::None);
    let (db, _runtime) = setup.open(&SimDisk::new(1, unrecorded()), 1).expect("no faults");
    db.close().expect("closed");
    assert!(matches!(db.sync(), Err(Error::Closed)));
}
