//! A fresh database took 64 MiB of disk, two segments of the log, whatever was in it: test suites that
//! open hundreds of them waited for that. `Options::small` makes one of less than 2 MiB.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pleach::{Access, Db, Error, Options, SessionOptions, Value};
use pleach_core::Hasher;

use crate::common::{Model, commit, uniform};

/// Bytes that the device has given to the files of a folder.
fn allocated(folder: &Path) -> u64 {
    let blocks = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.and_then(|entry| entry.metadata()).expect("a file of the folder").blocks()
    };
    std::fs::read_dir(folder).expect("a folder").map(|entry| blocks(entry) * 512).sum()
}

/// Nothing of it says how small the database is but its name.
fn options(folder: &Path) -> Options {
    Options::new(folder).create(true).cache_mib(16).threads(2)
}

#[test]
fn a_fresh_small_database_takes_less_than_2_mib_before_and_after_a_close() {
    const LIMIT: u64 = 2 << 20;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(options(folder.path()).small()).expect("created");
    let fresh = allocated(folder.path());
    assert!(fresh < LIMIT, "{fresh} bytes of a fresh database");
    for number in 1..=20 {
        let value = Value::from(&[7; 100][..]);
        commit(&db, vec![Access::write(uniform(number), Some(value))]);
    }
    db.close().expect("closed");
    let closed = allocated(folder.path());
    assert!(closed < LIMIT, "{closed} bytes after 20 commits and a close");
    Db::open(options(folder.path())).expect("opened").close().expect("closed");
    let again = allocated(folder.path());
    assert!(again < LIMIT, "{again} bytes after another open");
}

#[test]
fn a_small_database_grows_far_beyond_its_size_and_keeps_its_geometry() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut model = Model::default();
    let mut open = options(folder.path()).small();
    // 60,000 keys are 6 MB of log in commits of up to 600 KB, each longer than a segment of it.
    for batch in 0..12 {
        let db = Db::open(open).expect("opened");
        // From the second open on the options do not name the geometry.
        open = options(folder.path());
        let accesses: Vec<Access> = (batch * 4000..batch * 4000 + 5000)
            .map(|id| {
                Access::write(
                    uniform(id),
                    Some(Value::from(&[u8::try_from(batch).expect("small"); 60][..])),
                )
            })
            .collect();
        model.apply(&accesses);
        commit(&db, accesses);
        assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3), "batch {batch}");
        if batch % 3 == 0 {
            db.close().expect("closed");
        }
    }
    let db = Db::open(open).expect("opened");
    assert_eq!(db.root(), model.naive(Hasher::BLAKE3).root(Hasher::BLAKE3));
    let session = db.session(SessionOptions::new()).expect("a session");
    for id in (0..49_000).step_by(97) {
        let value = session.read(&uniform(id)).expect("read").map(|value| value.to_vec());
        let batch = (id / 4000).min(11);
        assert_eq!(value.map(|value| value[0]), u8::try_from(batch).ok(), "{id}");
    }
    drop(session);
    // Segments of the log are still small: many would be many open files.
    let log = std::fs::read_dir(folder.path()).expect("a folder").filter_map(Result::ok);
    let log = log.filter(|file| file.file_name().to_string_lossy().starts_with("log-"));
    assert!(log.count() < 64);
    db.close().expect("closed");
}

#[test]
fn a_log_limit_of_too_many_segments_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = Db::open(options(folder.path()).small().log_limit_mib(512));
    let Err(Error::Options(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("log_limit_mib"), "{error}");
    Db::open(options(folder.path()).small()).expect("created").close().expect("closed");
    // The option of an open does not know the geometry: the database does, and nothing is changed.
    let refused = Db::open(options(folder.path()).log_limit_mib(512));
    assert!(matches!(refused, Err(Error::Options(_))), "{refused:?}");
    let db = Db::open(options(folder.path()).log_limit_mib(32)).expect("opened");
    assert!(db.opened().closed, "the open that was refused has left it closed");
    db.close().expect("closed");
}
