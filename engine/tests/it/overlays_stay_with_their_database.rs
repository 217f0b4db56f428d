//! A node with two databases once gave one the other's overlay: the session read a mixture of
//! both, its finish gave a witness that does not verify, and only the commit said no, in words
//! that named another cause. Each overlay is of one open of one database now.

use std::path::Path;

use pleach::{Access, Db, Error, Geometry, Options, Overlay, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};

use crate::common::commit;

fn put(key: u8, value: u8) -> Access {
    Access::write([key; 32], Some(Value::from(&[value])))
}

fn open(folder: &Path) -> Db {
    let geometry = Geometry { segment_pages: 64, log_segment: 1 << 20, ..Geometry::default() };
    let options = Options::new(folder).create(true).threads(2).cache_mib(8).geometry(geometry);
    Db::open(options).expect("opened")
}

fn overlay(db: &Db, accesses: Vec<Access>) -> Overlay {
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish(accesses).expect("finished").into_overlay()
}

#[test]
fn an_overlay_of_another_database_is_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let [a, b] = [0, 1].map(|at| open(folders[at].path()));
    // Equal states and roots, so that nothing but identity tells them apart.
    for db in [&a, &b] {
        commit(db, vec![put(1, 1)]);
    }
    let of_a = overlay(&a, vec![put(1, 2)]);
    let of_b = overlay(&b, vec![put(1, 3)]);
    let refused = b.session(SessionOptions::new().over(&of_a)).expect_err("not its own");
    assert!(matches!(refused, Error::ForeignOverlay), "{refused}");
    assert!(refused.to_string().contains("make its block again"), "{refused}");
    assert!(matches!(a.session(SessionOptions::new().over(&of_b)), Err(Error::ForeignOverlay)));
    // Neither was harmed.
    for (db, own, value) in [(&a, &of_a, 2), (&b, &of_b, 3)] {
        let session = db.session(SessionOptions::new().over(own)).expect("its own");
        assert_eq!(session.read(&[1; 32]).expect("reads"), Some(Value::from(&[value])));
        assert_eq!(own.commit().expect("on its tip"), 2);
        assert_eq!(db.root(), own.root());
    }
}

/// The number of a database does not tell: a copy of the folder has the same one.
#[test]
fn an_overlay_of_a_copy_of_the_database_is_refused() {
    let first = SimDisk::new(1, SimOptions::default());
    let open = |disk: &SimDisk| {
        let options = Options::new("").create(true).threads(1).cache_mib(8);
        Db::open_on(disk.clone(), SimRuntime::new(1), options).expect("opened")
    };
    open(&first).close().expect("closed");
    let second = SimDisk::from_image(&first.image(), 1);
    let [a, b] = [&first, &second].map(open);
    let session = a.session(SessionOptions::new()).expect("a session");
    let of_a = session.finish(vec![put(1, 1)]).expect("finished").into_overlay();
    assert!(matches!(b.session(SessionOptions::new().over(&of_a)), Err(Error::ForeignOverlay)));
}
/// An overlay that outlived its open keeps the folder locked, so the next open of the folder
/// cannot meet it; another database that does refuses it.
#[test]
fn an_overlay_of_an_earlier_open_is_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let other = open(folders[1].path());
    let db = open(folders[0].path());
    let early = overlay(&db, vec![put(1, 1)]);
    drop(db);
    assert!(matches!(
        other.session(SessionOptions::new().over(&early)),
        Err(Error::ForeignOverlay)
    ));
    assert!(matches!(early.commit(), Err(Error::Closed)));
    let options = Options::new(folders[0].path());
    assert!(Db::open(options).is_err(), "the overlay reads from the folder");
    drop(early);
    assert_eq!(open(folders[0].path()).commit_number(), 0);
}
