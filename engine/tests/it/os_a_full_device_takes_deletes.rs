//! A device that has become full takes deletes, is drained, and then takes puts again, without a reopen. The log of puts once took
//! the room that deletes, flushes and checkpoints need: a node was stuck until it was closed and opened.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pleach::errors::NoRoom;
use pleach::{Access, Db, Error, Options, SessionOptions, Value};

use crate::common::{cases, uniform};

/// A small file system, gone with this.
struct Small(tempfile::TempDir);

impl Small {
    /// On memory, or on a loop device over a file beside the folder.
    fn mounted(kind: &str, mib: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("at");
        std::fs::create_dir(&at).expect("made");
        let done = |command: &mut Command| {
            command.output().is_ok_and(|output| output.status.success()).then_some(())
        };
        let size = format!("size={mib}m");
        let (options, source) = if kind == "tmpfs" {
            (size.as_str(), "tmpfs".into())
        } else {
            let image = folder.path().join("image");
            std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("made");
            done(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
            ("loop", image)
        };
        done(Command::new("mount").args(["-t", kind, "-o", options]).arg(source).arg(&at))?;
        Some(Self(folder))
    }

    fn folder(&self) -> std::path::PathBuf {
        self.0.path().join("at/db")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("at")).status();
    }
}

/// Keys of a commit.
const KEYS: u64 = 1000;

fn write(db: &Db, batch: u64, value: Option<usize>) -> Result<u64, Error> {
    let value = value.map(|len| Value::from(vec![7; len]));
    let keys = (batch * KEYS..(batch + 1) * KEYS).map(uniform);
    let accesses = keys.map(|key| Access::write(key, value.clone()));
    let block = db.session(SessionOptions::new())?.finish(accesses);
    block?.commit().map_err(pleach::CommitError::into_error)
}

/// Puts batches until there is no more room, and says how many.
fn fill(db: &Db, from: u64, len: usize) -> u64 {
    for batch in from.. {
        let since = Instant::now();
        match write(db, batch, Some(len)) {
            Ok(_) => {}
            Err(Error::Full(why @ NoRoom::Reserve { .. })) => {
                println!("{why}, after {} batches", batch - from);
                assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
                return batch - from;
            }
            Err(error) => panic!("batch {batch}: {error}"),
        }
    }
    unreachable!("a file system of some MiB is full before");
}

fn is_filled_and_emptied(folder: &Path, rounds: u64, history: u64, len: usize) {
    let options = || Options::new(folder).cache_mib(256).threads(2).history(history);
    let db = Db::open(options().create(true)).expect("created");
    // Batches from `first` to `end` are there.
    let (mut first, mut end) = (0, 0);
    for round in 0..rounds {
        let filled = fill(&db, end, len);
        end += filled;
        assert!(
            filled > 2,
            "round {round}: there is no room for {filled} batches of {}",
            end - first
        );
        let half = u64::midpoint(first, end);
        for batch in first..half {
            write(&db, batch, None).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        first = half;
        db.drain(0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        // The history holds what the last deletes have replaced.
        for _ in 0..history {
            write(&db, first - 1, None).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        db.drain(0).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let root = db.root();
    db.close().expect("closed");
    drop(db);
    let db = Db::open(options()).expect("opened");
    assert_eq!(db.root(), root);
    let pairs = db.snapshot().expect("a session").iter(..).map(|pair| pair.expect("read"));
    assert_eq!(pairs.count() as u64, (end - first) * KEYS);
    db.close().expect("closed");
    drop(db);
    let report = pleach_ops::check(folder, pleach_ops::CheckOptions::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_full_device_takes_deletes_and_then_puts_again() {
    let all = [(200, 0, 400), (320, 3, 3000), (200, 0, 8), (1024, 0, 400)];
    // The others take minutes.
    let count = if cases(0) > 100 { all.len() } else { 2 };
    for (mib, history, len) in &all[..count] {
        let Some(device) = Small::mounted("tmpfs", *mib) else {
            return println!("SKIPPED: cannot mount a tmpfs here");
        };
        println!("{mib} MiB, values of {len} bytes, {history} commits of history");
        is_filled_and_emptied(&device.folder(), 4, *history, *len);
    }
}

/// File systems have journals and reservations of their own, and btrfs copies on write: there a full device refused the
/// first delete, and then each open. `.ci/filesystems` names a folder on one that it has mounted.
#[test]
fn full_file_systems_take_deletes_and_then_puts_again() {
    if let Some(folder) = std::env::var_os("PLEACH_FOLDER") {
        return is_filled_and_emptied(Path::new(&folder), 2, 0, 3000);
    }
    for (kind, mib) in [("ext4", 300), ("xfs", 320), ("btrfs", 800)] {
        let Some(device) = Small::mounted(kind, mib) else {
            println!("SKIPPED: cannot make or mount {kind} on a loop device here");
            continue;
        };
        println!("{kind}, {mib} MiB");
        is_filled_and_emptied(&device.folder(), 2, 0, 3000);
    }
}

/// Blocks that a copy shares are taken anew when they are overwritten: the reserve holds room for that.
#[test]
fn a_full_device_with_a_copy_that_shares_blocks_takes_deletes() {
    for (kind, mib) in [("xfs", 600), ("btrfs", 600)] {
        let Some(device) = Small::mounted(kind, mib) else {
            println!("SKIPPED: cannot make or mount {kind} on a loop device here");
            continue;
        };
        let folder = device.folder();
        let options = || Options::new(&folder).cache_mib(64).threads(2);
        let db = Db::open(options().create(true)).expect("created");
        for batch in 0..5 {
            write(&db, batch, Some(3000)).expect("there is room");
        }
        db.close().expect("closed");
        // btrfs shares no blocks of a file that it overwrites in place with one that it copies on write.
        let (program, how) = match kind {
            "btrfs" => ("btrfs", ["subvolume", "snapshot"]),
            _ => ("cp", ["-a", "--reflink=always"]),
        };
        let from =
            if kind == "btrfs" { device.folder().with_file_name("") } else { device.folder() };
        let mut copy = Command::new(program);
        copy.args(how).arg(from).arg(folder.with_extension("copy"));
        assert!(copy.output().expect("a copy").status.success(), "{kind}: {copy:?}");
        let db = Db::open(options()).expect("opened");
        let filled = fill(&db, 5, 3000);
        assert!(filled > 5, "{kind}: {filled}");
        for batch in 0..5 + filled {
            write(&db, batch, None).unwrap_or_else(|error| panic!("{kind}, {batch}: {error}"));
        }
        db.close().unwrap_or_else(|error| panic!("{kind}: {error}"));
        drop(db);
        Db::open(options()).unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

/// The overflow file kept its length, and none of it was used: all puts were refused, after deletes and a drain too, until
/// the next open but one.
#[test]
fn a_full_device_takes_puts_when_its_history_is_given_up() {
    for (mib, len) in [(200, 3000), (320, 9000)] {
        let Some(device) = Small::mounted("tmpfs", mib) else {
            return println!("SKIPPED: cannot mount a tmpfs here");
        };
        let folder = device.folder();
        let options = || Options::new(&folder).cache_mib(64).threads(2);
        let db = Db::open(options().create(true).history(40)).expect("created");
        let filled = fill(&db, 0, len);
        // They take no room as long as the history has what they delete.
        let deleted =
            (0..filled).take_while(|batch| write(&db, *batch, None).is_ok()).count() as u64;
        db.close().expect("closed");
        drop(db);
        let db = Db::open(options().history(0)).expect("opened");
        for batch in deleted..filled {
            write(&db, batch, None).expect("a delete");
        }
        write(&db, filled, None).expect("a delete");
        db.drain(0).expect("drained");
        for batch in 0..filled / 2 {
            write(&db, batch, Some(len)).unwrap_or_else(|error| panic!("batch {batch}: {error}"));
        }
    }
}
