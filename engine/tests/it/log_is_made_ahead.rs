//! The log's next segment is there before a commit needs it: making it takes as long as several
//! commits.

use pleach::{Access, Options, Value};
use pleach_io::Device;
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::commit;
use crate::crash::{SimDb, unrecorded};

fn put(db: &SimDb, number: u8) {
    // With key, nodes and head six blocks of the log: three of these fill nine sixteenths of a segment.
    let value = Value::from(vec![number; 20 << 10]);
    commit(db, vec![Access::write([number; 32], Some(value))]);
}

fn segments(disk: &SimDisk) -> usize {
    let names = disk.list().expect("listed");
    names.iter().filter(|name| name.starts_with("log-")).count()
}

#[test]
fn a_segment_is_made_when_the_last_one_is_half_full() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed, unrecorded());
        let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
        let options = Options::new("sim").create(true).cache_mib(16).small();
        let db = SimDb::open_on(disk.clone(), runtime.clone(), options).expect("opened");
        // No commit needs it, however many steps the background has: it is held back.
        db.pause_background();
        (0..3).for_each(|number| put(&db, number));
        runtime.step_some(usize::MAX);
        assert_eq!(segments(&disk), 1, "seed {seed}");
        // The background makes it.
        db.resume_background();
        runtime.step_some(usize::MAX);
        assert_eq!(segments(&disk), 2, "seed {seed}");
        // The commit that goes on in it finds it there.
        db.pause_background();
        (3..7).for_each(|number| put(&db, number));
        assert_eq!(segments(&disk), 2, "seed {seed}");
        db.resume_background();
        (7..20).for_each(|number| put(&db, number));
        db.close().expect("closed");
    }
}
