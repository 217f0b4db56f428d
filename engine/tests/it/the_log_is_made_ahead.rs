//! The log's next segment is there before a commit needs it: making it takes as long as several
//! commits.

use std::time::{Duration, Instant};

use pleach::{Access, Geometry, Options, Pleach, SessionOptions, Value};

fn commit(db: &Pleach, number: u8) {
    let session = db.session(SessionOptions::new()).expect("a session");
    // With key, nodes and head three blocks of the log: three of these fill nine sixteenths of a segment.
    let value = Value::from(&[number; 8 << 10][..]);
    let block = session.finish(vec![Access::write([number; 32], Some(value))]).expect("finished");
    block.commit().expect("committed");
}

#[test]
fn a_segment_is_made_when_the_last_one_is_half_full() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path()).create(true).geometry(Geometry::tiny());
    let db = Pleach::open(options).expect("opened");
    let second = folder.path().join("log-0000000000000001");
    db.pause_background();
    (0..3).for_each(|number| commit(&db, number));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!second.exists(), "no commit has needed it, and the background stands still");
    db.resume_background();
    let since = Instant::now();
    while !second.exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "made by the background");
        std::thread::sleep(Duration::from_millis(5));
    }
    (3..20).for_each(|number| commit(&db, number));
    db.close().expect("closed");
}
