//! A region that a flush lets grow beyond its branch page is replaced in the same moment.
//!
//! It once was not: a flush put its pages into all regions of its round, gave up their locks and split
//! the large ones afterwards. A checkpoint that came in between met a region of more children than a
//! branch page holds, panicked with "the page is full", and the database was poisoned: twice in some
//! forty runs of a workload with many inserts.

use pleach::{Access, Db, Geometry, Options, SessionOptions, Value};

/// Where keys are appended: some regions are always about to split, many are flushed with them.
const FRONTS: u64 = 48;
/// Keys that a batch appends at each.
const MORE: u64 = 60;

/// Many inserts, each page flushed as soon as it is touched, and one checkpoint after the other.
fn grow(seed: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(64)
        .threads(2)
        .tune(|tuning| tuning.flush_at = 1)
        .tune(|tuning| tuning.checkpoint_regions = 4)
        .log_limit_bytes(256 << 10)
        .geometry(Geometry { segment_pages: 64, log_segment: 1 << 20, size_factor: 150 });
    let db = Db::open(options.clone()).expect("created");
    for batch in 0..60u64 {
        let accesses = (0..FRONTS * MORE).map(|at| {
            let (front, next) = (at / MORE, batch * MORE + at % MORE + seed);
            let mut key = [0; 32];
            // Spread, so that a front's keys differ in their leading bits.
            key[..8].copy_from_slice(&((front << 58) + (next << 44)).to_be_bytes());
            Access::write(key, Some(Value::from(&next.to_le_bytes().repeat(12)[..])))
        });
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let block = session.finish(accesses).expect("finished");
        block.commit().unwrap_or_else(|error| panic!("batch {batch}: {error}"));
    }
    assert!(db.metrics().checkpoints > 5, "checkpoints ran beside the flush");
    let root = db.root();
    db.close().expect("closed");
    let db = Db::open(options).expect("opened");
    assert_eq!(db.root(), root);
}

#[test]
fn checkpoints_beside_flushes_that_split_regions() {
    for seed in 0..crate::common::cases(3) {
        grow(seed);
    }
}
