//! What the prefetch task leaves behind.

use pleach_beatree::pages::{PageReader, ReadMode, Submission};
use pleach_beatree::{PageNo, PageRef};
use pleach_core::{Hasher, Key};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::load::LoadOptions;
use crate::{Access, Db, Geometry, Options, SessionOptions, Value};

/// A close abandons reads in flight. A read of a page that the flush has moved, and whose file was cut since, fails
/// then, which matters to nobody; the simulated disk, which wants each error handled, ended a test of the history
/// there.
#[test]
fn a_reader_that_goes_takes_what_is_on_its_way() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = Options::new("sim").create(true).geometry(Geometry::least());
    let db = Db::open_on(disk, runtime, options).expect("created");
    let state = db.state();
    let mut reader: PageReader<()> =
        PageReader::new(&state.store, 4, ReadMode::Keys).expect("a ring");
    let page = PageNo::new(1 << 20);
    let behind = PageRef { page, tag: 0, namespace: 0 };
    let asked = reader.enqueue(&state.store, behind, ());
    assert!(matches!(asked, Submission::InFlight), "it is not cached");
    reader.submit().expect("handed over");
    assert_eq!(reader.in_flight(), 1);
    drop(reader);
    db.close().expect("closed");
}

/// Where the cache has no room for the pages of one batch, those of the next are not read ahead: they took the room of
/// pages that the batch still needed, and right after a load a batch took twice as long.
#[test]
fn a_batch_that_fills_the_cache_leaves_no_room_for_the_next() {
    let disk = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
    let runtime = SimRuntime::with_clock(1, disk.clock(), 1);
    let options = || Options::new("sim").create(true).cache_mib(8).threads(1).small();
    let db = Db::open_on(disk.clone(), runtime.clone(), options()).expect("created");
    let keys: Vec<Key> = (0..20_000_u64).map(|id| Hasher::BLAKE3.hash(&id.to_be_bytes())).collect();
    let pairs = keys.iter().map(|key| (*key, Value::from(vec![1; 200])));
    db.bulk_load(pairs, &LoadOptions::new().memory_mib(8)).expect("loaded");
    db.close().expect("closed");
    let db = Db::open_on(disk, runtime.clone(), options()).expect("opens");
    let announce = |keys: &[Key]| {
        let session = db.session(SessionOptions::new()).expect("a session");
        session.prefetch(keys);
        runtime.step_some(2000);
        session
    };
    let (half, next) = keys.split_at(keys.len() / 2);
    let session = announce(half);
    assert!(session.has_prefetched() && !db.state().store.cache.can_hold(), "all room is taken");
    assert!(!announce(next).has_prefetched(), "the finish needs what it makes room of");
    let put: Vec<_> = half.iter().map(|key| Access::write(*key, None)).collect();
    session.finish(put).expect("finished").commit().expect("committed");
    assert!(announce(next).has_prefetched(), "the next batch announces its own");
    db.close().expect("closed");
}
