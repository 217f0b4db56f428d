//! A commit that waits for the background ends, whatever the background does meanwhile: nobody else wakes it.

use pleach::{Access, Db, Geometry, Options, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::{commit, uniform};
use crate::crash::unrecorded;

const LOG_LIMIT: u64 = 64 << 10;

fn put(ids: std::ops::Range<u64>, bytes: usize) -> Vec<Access> {
    let value = Value::from(vec![7; bytes]);
    ids.map(|id| Access::write(uniform(id), Some(value.clone()))).collect()
}

/// The commit waits for the flush of buffered changes, and the records of the flush fill the log from below the limit,
/// where no checkpoint is due, to above twice the limit, where the commit waits for a checkpoint.
#[test]
fn for_a_checkpoint_that_only_the_flush_has_made_due() {
    let disk = SimDisk::new(1, unrecorded());
    let open = |seed| {
        let options = Options::new("sim").create(true).cache_kib(512).geometry(Geometry::least());
        let options = options.log_limit_bytes(LOG_LIMIT);
        Db::open_on(disk.clone(), SimRuntime::with_clock(seed, disk.clock(), 1), options)
            .expect("opened")
    };
    let db = open(1);
    commit(&db, put(0..8000, 1000));
    // The image of a clean close has the buffered changes, and the log is short.
    db.close().expect("closed");
    drop(db);
    let db = open(2);
    let (buffered, log) = (db.metrics().pending_bytes, db.metrics().log_bytes);
    assert!(buffered > 4 << 20, "{buffered} bytes are buffered");
    assert!(log < LOG_LIMIT, "the log has {log} bytes");
    let session = db.session(SessionOptions::new()).expect("a session");
    let block = session.finish(put(0..2, 8)).expect("finished");
    assert_eq!(block.commit().expect("committed"), 2);
    let metrics = db.metrics();
    assert!(metrics.log_bytes > 2 * LOG_LIMIT, "the flush wrote {} bytes", metrics.log_bytes);
    assert!(metrics.checkpoints > 0, "the commit did not wait for a checkpoint");
    db.close().expect("closed");
}
