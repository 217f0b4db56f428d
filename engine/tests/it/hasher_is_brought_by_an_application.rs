//! A database with an application's own hash function is as any other to whoever has that function, and names it to
//! whoever does not.

use pleach::{
    Access, Advice, Db, Error, Hasher, Options, SessionOptions, Value,
    proof::{self, witness},
};
use pleach_io::{OsDevice, OsOptions, Threads};
use pleach_ops::BackupOptions;
use pleach_ops::repair::{RepairOptions, repair_on};
use pleach_ops::{CheckOptions, check_on, explain_on, stat_on};

use crate::common::commit;

/// BLAKE3 of the message turned round.
fn turned(message: &[u8]) -> [u8; 32] {
    let turned: Vec<u8> = message.iter().rev().copied().collect();
    Hasher::BLAKE3.hash(&turned)
}

const TURNED: Hasher = Hasher::new("turned-blake3", turned);
const OTHER: Hasher = Hasher::new("other", turned);

fn put(id: u8) -> Access {
    Access::write(TURNED.hash(&[id]), Some(Value::from([id; 30])))
}

#[test]
fn as_any_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (at, copy) = (folder.path().join("db"), folder.path().join("copy"));
    let options = || Options::new(&at).create(true).cache_mib(16).small().history(8);
    let db = Db::open(options().hasher(TURNED)).expect("created");
    assert_eq!(db.hasher().expect("open"), TURNED);
    let before = db.root();
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block = session.finish((0..200).map(put).collect::<Vec<_>>()).expect("finished");
    let proven = block.take_witness().expect("asked for");
    block.commit().expect("committed");
    let verified = witness::verify(TURNED, &proven, &before).expect("verifies");
    assert_eq!(*verified.new_root(), db.root());
    let newest = db.session(SessionOptions::new()).expect("a session");
    let proof = newest.prove(&TURNED.hash(&[7])).expect("proven");
    drop(newest);
    assert!(proof::path::verify(TURNED, &proof, &db.root()).is_ok());
    assert!(proof::path::verify(Hasher::BLAKE3, &proof, &db.root()).is_err());
    commit(&db, vec![Access::write(TURNED.hash(&[7]), None)]);
    // The copy is checked up to its roots.
    pleach_ops::backup(&db, &copy, &BackupOptions::default()).expect("copied");
    let root = db.root();
    db.close().expect("closed");
    for at in [&at, &copy] {
        let device = || OsDevice::open(at, OsOptions::default()).expect("a folder");
        let report = check_on(device(), CheckOptions::default().hasher(TURNED)).expect("checked");
        assert!(report.findings.is_empty() && report.root == root, "{:?}", report.findings);
        let stat = stat_on(device(), Some(TURNED)).expect("looked at");
        assert_eq!((stat.root, stat.hasher), (root, "turned-blake3"));
        let key = TURNED.hash(&[8]);
        assert!(explain_on(device(), Some(TURNED), 0, &key, true).expect("explained").present);
        let threads = Threads::new(1).expect("threads");
        repair_on(device(), &RepairOptions::new().hasher(TURNED), threads)
            .expect("nothing is wrong");
        let db = Db::open(Options::new(at).cache_mib(16).hasher(TURNED)).expect("opened");
        assert_eq!(db.root(), root);
        assert!(
            db.at(1).expect("in the history").read(&TURNED.hash(&[7])).expect("read").is_some()
        );
        db.close().expect("closed");
    }
}

#[test]
fn who_does_not_have_it_is_told_its_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = || Options::new(folder.path()).create(true).cache_mib(16).small();
    Db::open(options().hasher(TURNED)).expect("created").close().expect("closed");
    for wrong in [options(), options().hasher(OTHER), options().hasher(Hasher::BLAKE3)] {
        let error = Db::open(wrong).expect_err("another hasher");
        assert!(matches!(error, Error::WrongHasher { .. }), "{error}");
        assert!(error.to_string().contains("turned-blake3"), "{error}");
        assert_eq!(error.advice(), Advice::FixCall);
    }
    let error = pleach_ops::stat(folder.path()).expect_err("nobody gave it").to_string();
    assert!(error.contains("turned-blake3"), "{error}");
    assert_eq!(pleach_ops::hasher(folder.path()).expect("recorded"), "turned-blake3");
    Db::open(options().hasher(TURNED)).expect("its own");
}

#[test]
fn those_of_pleach_are_taken_as_recorded() {
    for hasher in [Hasher::BLAKE3, Hasher::SHA2_256] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = || Options::new(folder.path()).create(true).cache_mib(16).small();
        let db = Db::open(options().hasher(hasher)).expect("created");
        commit(&db, vec![put(1)]);
        db.close().expect("closed");
        let db = Db::open(options()).expect("opened");
        assert_eq!(db.hasher().expect("open"), hasher);
        commit(&db, vec![put(2)]);
        db.close().expect("closed");
        assert!(matches!(Db::open(options().hasher(OTHER)), Err(Error::WrongHasher { .. })));
    }
}
