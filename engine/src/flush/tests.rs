//! What others see of a flush while it publishes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pleach_core::page::branch::MAX_ENTRIES;
use pleach_core::{Blake3, Key};

use crate::{Access, Db, Geometry, Options, SessionOptions, Value};

/// Where keys are appended: some regions are always about to split, many are flushed with them.
const FRONTS: u64 = 48;
/// Keys that a batch appends at each.
const MORE: u64 = 60;

/// As a checkpoint walks through the regions, again and again, on a thread of its own.
fn walk(db: &Db<Blake3>, stop: &AtomicBool) -> (u64, usize) {
    let (mut rounds, mut largest) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let mut key: Option<Key> = Some([0; 32]);
        while let Some(at) = key {
            key = db.shared.in_region(&at, |region, state| {
                largest = largest.max(state.cuts.len());
                region.prefix().next().map(|next| *next.first_key())
            });
        }
        rounds += 1;
    }
    (rounds, largest)
}

#[test]
fn nobody_sees_a_region_that_is_too_large_for_its_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(64)
        .threads(2)
        .flush_at(1)
        .geometry(Geometry { segment_pages: 64, log_segment: 1 << 20, size_factor: 150 });
    let db = Arc::new(Db::<Blake3>::open(options).expect("created"));
    let stop = Arc::new(AtomicBool::new(false));
    let walker = std::thread::spawn({
        let (db, stop) = (Arc::clone(&db), Arc::clone(&stop));
        move || walk(&db, &stop)
    });
    for batch in 0..60u64 {
        let accesses = (0..FRONTS * MORE).map(|at| {
            let (front, next) = (at / MORE, batch * MORE + at % MORE);
            let mut key = [0; 32];
            key[..8].copy_from_slice(&((front << 58) + (next << 44)).to_be_bytes());
            Access::write(key, Some(Value::from(&next.to_le_bytes().repeat(12)[..])))
        });
        let session = db.session(SessionOptions::new().witness(false)).expect("a session");
        let block = session.finish(accesses.collect()).expect("finished");
        block.commit().expect("committed");
    }
    stop.store(true, Ordering::Relaxed);
    let (rounds, largest) = walker.join().expect("no panic");
    let regions = db.shared.top.load().regions().len();
    assert!(regions > 100 && rounds > 100, "{regions} regions, {rounds} looks at all of them");
    assert!(largest <= MAX_ENTRIES, "a region of {largest} children was seen");
}
