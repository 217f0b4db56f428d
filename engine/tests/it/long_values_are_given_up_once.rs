//! A long value's pages are retired once, however its replacement falls between the steps of a flush that is writing
//! it: with the buffered value that was replaced, or with the page that has it.

use crate::common::{Keys, commit};
use crate::crash::{Setup, unrecorded};
use pleach::{Access, Durability, SessionOptions, Value};
use pleach_io::sim::SimDisk;

#[test]
fn a_long_value_replaced_while_it_is_flushed_is_given_up_once() {
    let setup = Setup {
        seed: 1,
        keys: Keys::Uniform,
        ids: 4,
        flush_at: 1,
        durability: Durability::Commit,
        cache_kib: 512,
        keeps_lines: true,
        checkpoint_regions: 2,
        history: 0,
        history_bytes: 64 << 20,
    };
    for steps in 0..30 {
        let disk = SimDisk::new(steps, unrecorded());
        let (mut db, mut runtime) = setup.open(&disk, steps).expect("no faults");
        for round in 0..4_u8 {
            let value = Value::from(vec![round; 100_000]);
            let put = vec![Access::write(setup.key(0), Some(value.clone()))];
            commit(&db, put);
            runtime.step_some(usize::try_from(steps).expect("few"));
            let session = db.session(SessionOptions::new()).expect("a session");
            assert_eq!(session.read(&setup.key(0)).expect("read"), Some(value));
            if round == 2 {
                drop(session);
                drop(db);
                (db, runtime) = setup.open(&disk, 77).expect("reopened");
            }
        }
        db.drain(0).unwrap_or_else(|error| panic!("{steps} steps: {error}"));
        db.close().unwrap_or_else(|error| panic!("{steps} steps: {error}"));
        setup.open(&disk, 9).unwrap_or_else(|error| panic!("{steps} steps: {error}"));
    }
}
