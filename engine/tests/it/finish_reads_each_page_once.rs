//! Pages that a session has read stay cached until its commit, whatever else is read meanwhile.
//!
//! The engine once told its cache of no batch at all: nothing was held, and at 2^27 accounts a finish
//! read four pages of ten a second time.

use pleach::load::LoadOptions;
use pleach::{Access, SessionOptions, Value};
use pleach_core::Key;

use crate::common::{open, uniform as key};

const ACCOUNTS: u64 = 320_000;

#[test]
fn a_finish_finds_the_pages_that_its_session_has_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Half of it caches leaf pages, about 900 of some 5,000.
    let db = open(folder.path(), 8);
    let items = (0..ACCOUNTS).map(|id| (key(id), Value::from(&7u64.to_le_bytes())));
    db.bulk_load(items, &LoadOptions::new()).expect("loaded");
    for batch in 0..4 {
        let session = db.session(SessionOptions::new()).expect("a session");
        let own: Vec<Key> = (0..200).map(|id| key(batch * 1000 + id)).collect();
        for key in &own {
            session.read(key).expect("read");
        }
        // A scan of others passes through what is not held.
        for id in 0..4000 {
            session.read(&key(100_000 + batch * 4000 + id)).expect("read");
        }
        let before = db.metrics();
        let accesses: Vec<_> =
            own.iter().map(|key| Access::read_write(*key, Some(Value::from(b"8")))).collect();
        let block = session.finish(accesses).expect("finished");
        let after = db.metrics();
        assert_eq!(after.cache_misses, before.cache_misses, "batch {batch}: read again");
        assert!(before.cache_misses > 1000, "the cache is smaller than what was read");
        block.commit().expect("committed");
    }
}
