//! A session that reads many keys uses the ring that its thread made for an earlier one: making a ring
//! and registering its memory costs as much as a dozen reads.

use crate::common::{Keys, key};
use pleach::load::LoadOptions;
use pleach::{Geometry, Options, Session, SessionOptions, Value};
use pleach_core::Key;
use pleach_io::sim::{Fault, FaultRepeats, FaultRule, SimDisk, SimOptions, SimRuntime, code};
use pleach_io::{IoError, Operation};

type SimSession = Session;

fn is_refused(result: &Result<Vec<Option<Value>>, pleach::Error>) -> bool {
    matches!(result, Err(pleach::Error::Io(IoError::Os { operation: Operation::SetUpRing, .. })))
}

#[test]
fn sessions_of_one_thread_share_a_ring_and_other_threads_make_their_own() {
    let disk = SimDisk::new(1, SimOptions::default());
    let geometry = Geometry::least();
    let options = Options::new("").create(true).cache_kib(512).in_flight(16).geometry(geometry);
    let db = pleach::Db::open_on(disk.clone(), SimRuntime::new(1), options);
    let db = db.expect("created");
    let pairs = (0..60_000).map(|id| (key(Keys::Uniform, id), Value::from(&id.to_le_bytes())));
    db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
    let session = || -> SimSession { db.session(SessionOptions::new()).expect("a session") };
    let keys =
        |from: u64| -> Vec<Key> { (from..from + 300).map(|id| key(Keys::Uniform, id)).collect() };
    // The first session of this thread makes a ring, and no other can be made from here on.
    session().read_many(&keys(0)).expect("read");
    let (code, times) = (code::EIO, FaultRepeats::Forever);
    disk.inject(FaultRule::nth(Operation::SetUpRing, "", 1, times, Fault::Errno(code)));
    let before = db.metrics().cache_misses;
    for from in (300..6000).step_by(300) {
        let values = session().read_many(&keys(from)).expect("through the first one's ring");
        let expected = (from..from + 300).map(|id| Some(Value::from(&id.to_le_bytes())));
        assert!(values.into_iter().eq(expected));
    }
    assert!(db.metrics().cache_misses > before + 1000, "pages were read");
    let (keys, session) = (keys(7000), session());
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| session.read_many(&keys));
        assert!(is_refused(&elsewhere.join().expect("no panic")), "a ring serves its own thread");
    });
    // One key, or none, is not worth a ring.
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| (session.read_many(&keys[..1]), session.read_many(&[])));
        let (one, none) = elsewhere.join().expect("no panic");
        assert_eq!(one.expect("read"), [Some(Value::from(&7000_u64.to_le_bytes()))]);
        assert_eq!(none.expect("nothing to read"), []);
    });
    // What failed does not count as in use: more often than readers may be used at a time.
    std::thread::scope(|scope| {
        for _ in 0..20 {
            let elsewhere = scope.spawn(|| session.read_many(&keys));
            assert!(is_refused(&elsewhere.join().expect("no panic")));
        }
    });
    session.read_many(&keys).expect("this thread still has its own");
}
