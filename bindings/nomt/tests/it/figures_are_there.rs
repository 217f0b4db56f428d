use nomt::hasher::Blake3Hasher;
use nomt::{IoUringPermission, Nomt, SessionParams, check_iou_permissions};

use crate::common::{folder, key, open, options, put};

#[test]
fn pages_in_use_are_counted() {
    let folder = folder();
    let db = open(folder.path());
    for round in 0..20 {
        put(&db, &[], round, &[round; 3000]).commit(&db).expect("committed");
    }
    db.engine().drain(0).expect("drained");
    let utilization = db.hash_table_utilization();
    assert!(utilization.occupied > 0 && utilization.capacity > 1 << 31);
    assert!(utilization.occupancy_rate() > 0.0 && utilization.occupancy_rate() < 0.001);
}

#[test]
fn reads_are_timed_when_that_was_asked_for() {
    let folder = folder();
    let mut options = options(folder.path());
    options.metrics(true);
    let db = Nomt::<Blake3Hasher>::open(options).expect("opened");
    assert_eq!(db.metrics().get_value_fetch_time(), None);
    put(&db, &[], 1, b"one").commit(&db).expect("committed");
    db.engine().drain(0).expect("drained");
    let session = db.begin_session(SessionParams::default());
    for _ in 0..10 {
        session.read(key(1)).expect("read");
    }
    let metrics = db.metrics();
    assert!(metrics.get_value_fetch_time().is_some_and(|nanos| nanos > 0));
    assert!(metrics.get_page_requests() >= metrics.get_page_cache_misses());
    assert!(metrics.get_page_requests() > 0);
    assert_eq!(metrics.get_page_fetch_time(), None);
    metrics.print();
    // 65 lines of `Debug` were printed.
    let text = metrics.to_string();
    let labels: Vec<&str> =
        text.lines().map(|line| line.get(..22).unwrap_or(line).trim()).collect();
    assert_eq!(labels, ["metrics", "page requests", "page cache misses", "value fetch mean"]);
}

#[test]
fn reads_are_not_timed_otherwise() {
    let folder = folder();
    let db = open(folder.path());
    db.begin_session(SessionParams::default()).read(key(1)).expect("read");
    assert_eq!(db.metrics().get_value_fetch_time(), None);
}

#[test]
fn the_kernel_is_asked_for_a_ring() {
    let folder = folder();
    let uses = open(folder.path()).engine().device_info().engine == "uring";
    // The engine wants more of it than that there is one.
    assert!(!uses || matches!(check_iou_permissions(), IoUringPermission::Allowed));
}
