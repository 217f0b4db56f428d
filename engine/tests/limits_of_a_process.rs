//! What the system gives a process too little of, or takes from it, is an error that says so: threads, the size of its
//! files, the folder.
#![expect(unsafe_code, reason = "limits of a process, in a child")]

mod forks;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forks::{alone, in_child};
use pleach::errors::{InvalidOption, IoError};
use pleach::load::LoadOptions;
use pleach::{
    Access, Advice, Db, Error, Geometry, Hasher, IoMode, Options, Outcome, SessionOptions, Value,
};
use pleach_io::{
    Event, Executor, Operation, OsDevice, OsOptions, Runtime, Task, TaskHandle, Threads,
};

/// Threads, of which few are left.
#[derive(Clone, Debug)]
struct Few {
    threads: Threads,
    left: Arc<AtomicU32>,
}

impl From<Few> for Executor {
    fn from(runtime: Few) -> Self {
        Arc::new(runtime)
    }
}

impl Runtime for Few {
    fn now(&self) -> Duration {
        self.threads.now()
    }
    fn random(&self) -> u64 {
        self.threads.random()
    }
    fn event(&self) -> Event {
        self.threads.event()
    }
    fn spawn(&self, name: &str, event: &Event, task: Task) -> Result<TaskHandle, IoError> {
        let less = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return self.threads.spawn(name, event, task);
        }
        Err(IoError::Os {
            file: name.to_owned(),
            offset: 0,
            operation: Operation::StartThread,
            code: libc::EAGAIN,
            kind: std::io::ErrorKind::WouldBlock,
            message: "no further thread".to_owned(),
        })
    }
    fn wait(
        &self,
        event: &Event,
        timeout: Option<Duration>,
        done: &mut dyn FnMut() -> bool,
    ) -> bool {
        self.threads.wait(event, timeout, done)
    }
    fn workers(&self) -> usize {
        self.threads.workers()
    }
    fn fork_join(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        self.threads.fork_join(count, job);
    }
    fn trim_memory(&self, above: u64) -> Option<u64> {
        self.threads.trim_memory(above)
    }
}

fn is_refused(error: &Error) {
    let device = error.device().expect("the system's error");
    assert_eq!(device.operation(), Operation::StartThread, "{error}");
    assert_eq!((error.outcome(), error.advice()), (Outcome::DidNotHappen, Advice::RaiseLimit));
}

/// The open panicked, and where one task had been started by then the process waited for ever for its end.
#[test]
fn an_open_that_gets_too_few_threads_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        || Options::new(folder.path()).create(true).cache_mib(64).geometry(Geometry::least());
    // A new database, and one that is there.
    for commits in 0..2 {
        for left in 0..4 {
            let device = OsDevice::open(folder.path(), OsOptions::default()).expect("a folder");
            let threads = Threads::new(2).expect("threads");
            let runtime = Few { threads, left: Arc::new(AtomicU32::new(left)) };
            match Db::open_on(device, runtime, options()) {
                Ok(_) => assert_eq!(left, 3, "there are three tasks"),
                Err(error) => {
                    assert!(left < 3, "{error}");
                    is_refused(&error);
                }
            }
        }
        let db = Db::open(options()).expect("the folder is not locked");
        assert_eq!(db.commit_number(), commits);
        let put = Access::write([7; 32], Some(Value::from(&commits.to_le_bytes())));
        let block = db.session(SessionOptions::new()).expect("a session").finish(vec![put]);
        block.expect("finished").commit().expect("committed");
    }
}

/// As a user of its own, since root has no limit.
#[test]
fn a_limit_on_processes_is_an_error_of_the_open() {
    const NOBODY: u32 = 65_521;
    let _alone = alone();
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return println!("SKIPPED: only root becomes another user");
    }
    for io in [IoMode::Auto, IoMode::Blocking] {
        let mut refused = 0;
        for limit in 1..=24 {
            let folder = tempfile::tempdir().expect("a folder");
            let rights = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(folder.path(), rights).expect("its owner may");
            let path = folder.path().join("db");
            let opened = path.join("opened");
            in_child(|| {
                let bound = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                // SAFETY: the limit is read during the call.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const bound) }, 0);
                // SAFETY: the child alone becomes another user.
                assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
                let options = Options::new(&path).create(true).cache_mib(64).threads(2).io(io);
                match Db::open(options) {
                    Ok(db) => {
                        db.close().expect("closed");
                        std::fs::write(&opened, "").expect("written");
                    }
                    Err(error) => is_refused(&error),
                }
            });
            if opened.exists() {
                break;
            }
            refused += 1;
        }
        assert!((2..24).contains(&refused), "{io:?}: {refused} threads were too few");
    }
}

fn commit(db: &Db, id: u64) -> Result<u64, pleach::CommitError> {
    let put = |key: u64| {
        let mut place = [0; 32];
        place[..8]
            .copy_from_slice(&(id * 100 + key).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        Access::write(place, Some(Value::from([7; 500].as_slice())))
    };
    let session = db.session(SessionOptions::new()).expect("a session");
    session.finish((0..100).map(put).collect::<Vec<_>>()).expect("finished").commit()
}

/// An open, a load or a commit panicked or aborted, where the address space had no room for the budget.
#[test]
fn a_limit_on_the_address_space_is_an_error_of_the_open_or_enough_for_all() {
    let _alone = alone();
    let used = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("the kernel says");
        text.split_whitespace().next().expect("pages").parse::<u64>().expect("a number") * 4096
    };
    let (mut refused, mut enough) = (0, 0);
    for mib in (60..600).step_by(60) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("db");
        in_child(|| {
            let left =
                libc::rlimit { rlim_cur: used() + (mib << 20), rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the limit is read during the call.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const left) }, 0);
            let db = match Db::open(Options::new(&path).create(true).cache_mib(64).threads(2)) {
                Ok(db) => db,
                Err(Error::Options(InvalidOption::AddressSpace { .. })) => return,
                Err(error) => panic!("{mib} MiB: {error}"),
            };
            let key = |id: u64| Hasher::BLAKE3.hash(&id.to_be_bytes());
            let value = Value::from([7; 100].as_slice());
            let pairs = (0..60_000).map(|id| (key(id), value.clone()));
            db.bulk_load(pairs, &LoadOptions::new()).expect("loaded");
            for round in 0..15 {
                let put = |id: u64| Access::write(key(4000 * round + id), Some(value.clone()));
                let session = db.session(SessionOptions::new()).expect("a session");
                let block = session.finish((0..3000).map(put).collect::<Vec<_>>());
                block.expect("finished").commit().expect("committed");
            }
            db.close().expect("closed");
        });
        // A folder that was refused is not made.
        if path.exists() { enough += 1 } else { refused += 1 }
    }
    assert!(refused > 0 && enough > 0, "{refused} refused, {enough} were enough");
}

/// It poisoned the database.
#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        || Options::new(folder.path()).create(true).cache_mib(64).geometry(Geometry::least());
    in_child(|| {
        // Else the signal ends the process, as any that does not expect it.
        // SAFETY: no handler is given.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let limit = |bytes| {
            let bound = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the limit is read during the call.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const bound) }, 0);
        };
        limit(1 << 20);
        let db = Db::open(options()).expect("created");
        let failed = (1..=200).find_map(|id| commit(&db, id).err()).expect("50 KB a commit");
        let error = failed.error();
        assert!(matches!(error, Error::Full(_)) && !db.is_poisoned(), "{error}");
        assert_eq!(error.advice(), Advice::FreeSpace);
        limit(libc::RLIM_INFINITY);
        // The checkpoint tries again after a while; commits are told that there is no room until then.
        let mut full = Some(failed);
        for _ in 0..600 {
            let Some(failed) = full.take() else { break };
            assert!(matches!(failed.error(), Error::Full(_)), "{failed}");
            std::thread::sleep(Duration::from_millis(50));
            full = failed.into_block().commit().err();
        }
        assert!(full.is_none(), "there is room: {full:?}");
        for id in 1001..=1020 {
            commit(&db, id).expect("committed");
        }
        db.close().expect("closed");
    });
    Db::open(options()).expect("it opens");
}

/// The advice was to try again.
#[test]
fn a_folder_that_is_removed_under_a_database_is_said_to_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("db");
    let options = Options::new(&path).create(true).cache_mib(64).geometry(Geometry::least());
    let db = Db::open(options).expect("created");
    commit(&db, 1).expect("committed");
    // The background may make a file meanwhile.
    let removed = (0..100).any(|_| std::fs::remove_dir_all(&path).is_ok());
    assert!(removed, "the folder is removed");
    let failed = (2..=200).find_map(|id| commit(&db, id).err()).expect("the log has no place");
    let error = failed.error();
    let device = error.device().expect("the device's");
    assert!(matches!(device, IoError::FolderRemoved { .. }), "{error}");
    assert_eq!(error.advice(), Advice::Restore, "{error}");
    assert!(error.to_string().contains("was removed while it was open"), "{error}");
}
