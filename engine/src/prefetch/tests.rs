//! What the prefetch task leaves behind.

use pleach_beatree::PageNo;
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::state::pages::in_flight::ReadMode;
use crate::state::pages::index::PageRef;
use crate::state::pages::reader::{PageReader, Submission};
use crate::{Db, Geometry, Options};

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
