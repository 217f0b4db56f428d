//! Which pages the mask kernel folds: nearly all that are used again, whatever is done to their keys. In debug
//! builds each of them is compared with the general fold (`engine/src/finish/oracle.rs`).

use pleach::{Access, LoadOptions, Options, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimRuntime};

use crate::common::uniform as key;
use crate::crash::{SimDb, unrecorded};

const ACCOUNTS: u64 = 20_000;
const BATCH: u64 = 1_500;

#[test]
fn known_pages_take_the_kernel() {
    let disk = SimDisk::new(1, unrecorded());
    let runtime = SimRuntime::with_clock(1, disk.clock(), 2);
    let options = Options::new("sim").create(true).cache_mib(64).small();
    let db = SimDb::open_on(disk, runtime, options).expect("opened");
    let mut items: Vec<_> = (0..ACCOUNTS).map(|id| (key(id), Value::from(&[1; 8]))).collect();
    items.sort_by_key(|item| item.0);
    db.bulk_load(items.into_iter(), &LoadOptions::new()).expect("loaded");
    let mut counts = Vec::new();
    for round in 0..8 {
        let before = db.metrics();
        let access = |at: u64| {
            // Some are absent: those of numbers behind the last, and those that an earlier round has deleted.
            let key = key((at * 7919 + round * 13) % (ACCOUNTS + ACCOUNTS / 10));
            match at % 8 {
                0 => Access::read(key),
                1 => Access::write(key, None),
                2 => Access::read_write(key, Some(Value::from(vec![7; 2_000]))),
                _ => Access::read_write(key, Some(Value::from(&round.to_le_bytes()))),
            }
        };
        let session = db.session(SessionOptions::new()).expect("a session");
        let block = session.finish((0..BATCH).map(access).collect()).expect("finished");
        block.commit().expect("committed");
        let after = db.metrics();
        counts.push((
            after.pages_folded - before.pages_folded,
            after.pages_folded_by_treelet - before.pages_folded_by_treelet,
        ));
    }
    // A page is folded once as a whole, and learns its nodes at its second fold.
    let (folded, by_treelet) = counts[0];
    assert!(folded > 100 && by_treelet == 0, "{counts:?}");
    for (folded, by_treelet) in &counts[3..] {
        assert!(by_treelet * 100 >= folded * 95, "{counts:?}");
    }
}
