//! Files and folders: names, creation, lengths, reserving space, real short writes.

use std::path::Path;

use crate::os_support::{all_modes, bytes, command, filled, open, role};
use pleach_io::{
    Device, IoError, OpenMode, Operation, OsDevice, OsOptions, PAGE, PageBuf, Request, RequestKind,
};

fn device(folder: &Path) -> OsDevice {
    OsDevice::open(folder, OsOptions::default()).expect("open")
}

/// Size that a limited process may write to.
const LIMIT: usize = 3 * PAGE + 512;

/// What the child does; without a parent it is a test that does nothing.
#[test]
fn child() {
    let Some((role, folder)) = role() else { return };
    assert_eq!(role, "limited");
    for (name, options) in all_modes() {
        let Some(device) = open(&folder, &name, options) else { continue };
        let created = device.open("data", OpenMode::CreateNew);
        let file = created.expect("create");
        let too_big = |result: Result<(), IoError>| match result {
            // The first pages are written, then the limit is hit.
            Err(IoError::Os { code: libc::EFBIG, file, operation, .. }) => {
                assert_eq!((file.as_str(), operation), ("data", Operation::Write), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        };
        too_big(device.write_at(&file, &filled(8, 1), 8, 0));
        let mut queue = device.queue(2).expect("queue");
        let buf = filled(8, 2);
        let request =
            Request { file: file.clone(), kind: RequestKind::Write, offset: 0, buf, token: 0 };
        queue.push(request);
        too_big(queue.wait().expect("wait").expect("one").result);
        let mut back = PageBuf::zeroed(3);
        device.read_at(&file, &mut back, 0).expect("read");
        assert!(back[..] == filled(8, 2)[..3 * PAGE], "{name}: what came before the limit");
        // A refused reservation leaves the length as it was.
        let before = device.len(&file).expect("len");
        let refused = device.allocate(&file, 0, bytes(64));
        assert!(matches!(refused, Err(IoError::Os { code: libc::EFBIG, .. })), "{refused:?}");
        assert_eq!(device.len(&file).expect("len"), before);
        device.remove("data").expect("remove");
    }
}

#[test]
fn a_write_cut_short_by_a_limit_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().expect("tempdir");
    // The limit's signal would end the process; a shell sets both, without unsafe code here.
    let child = command(module_path!(), "limited", dir.path());
    let mut shell = std::process::Command::new("prlimit");
    shell.arg(format!("--fsize={LIMIT}")).arg("env").arg("--ignore-signal=XFSZ");
    shell.arg(child.get_program()).args(child.get_args());
    for (key, value) in child.get_envs() {
        shell.env(key, value.expect("set"));
    }
    match shell.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => println!("SKIPPED: no prlimit here: {error}"),
    }
}

#[test]
fn a_name_is_created_once_listed_renamed_and_removed() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    assert!(device.open("a", OpenMode::Write).expect_err("nothing there").is_not_found());
    device.open("a", OpenMode::CreateNew).expect("create");
    let again = device.open("a", OpenMode::CreateNew);
    assert!(matches!(again, Err(IoError::Os { code: libc::EEXIST, .. })), "{again:?}");
    device.open("b", OpenMode::CreateNew).expect("create");
    std::fs::create_dir(dir.path().join("folder")).expect("mkdir");
    let mut names = device.list().expect("list");
    names.sort();
    assert_eq!(names, ["a", "b"]);
    device.rename("a", "b").expect("rename");
    device.sync_folder().expect("sync");
    assert_eq!(device.list().expect("list"), ["b"]);
    assert_eq!(device.list().expect("list again"), ["b"], "a listing starts at the beginning");
    device.remove("b").expect("remove");
    assert!(device.remove("b").expect_err("gone").is_not_found());
}

/// A checkpoint of a database by hard links had the first commit on it damage the original.
#[test]
fn a_file_with_another_name_is_told_from_one_without() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    let file = device.open("a", OpenMode::CreateNew).expect("create");
    device.check_unlinked(&file).expect("one name");
    let elsewhere = tempfile::tempdir_in(dir.path()).expect("tempdir");
    std::fs::hard_link(dir.path().join("a"), elsewhere.path().join("b")).expect("linked");
    let refused = device.check_unlinked(&file).expect_err("two names");
    assert!(matches!(&refused, IoError::Linked { file, .. } if file == "a"), "{refused:?}");
    std::fs::remove_file(elsewhere.path().join("b")).expect("removed");
    device.check_unlinked(&file).expect("one name again");
    device.rename("a", "c").expect("rename");
    device.check_unlinked(&device.open("c", OpenMode::Write).expect("open")).expect("one name");
}

#[test]
fn two_names_are_exchanged_in_one_step() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    std::fs::write(dir.path().join("a"), "first").expect("write");
    std::fs::write(dir.path().join("b"), "second").expect("write");
    if device.exchange("a", "b").expect("exchange") {
        device.sync_folder().expect("sync");
        let read = |name| std::fs::read_to_string(dir.path().join(name)).expect("read");
        assert_eq!((read("a"), read("b")), ("second".to_owned(), "first".to_owned()));
    }
    assert!(device.exchange("a", "none").expect_err("no such file").is_not_found());
    assert!(device.exchange("a", "LOCK").is_err());
}

#[test]
fn what_is_no_plain_regular_file_is_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    std::fs::write(dir.path().join("real"), "x").expect("write");
    std::os::unix::fs::symlink("real", dir.path().join("link")).expect("symlink");
    std::fs::create_dir(dir.path().join("folder")).expect("mkdir");
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no mkfifo here: the pipe");
    }
    for name in ["link", "folder", "pipe", "folder/../real", "..", "", "a\0b", "/etc/passwd"] {
        for mode in [OpenMode::Read, OpenMode::Write] {
            assert!(device.open(name, mode).is_err(), "{name:?}");
        }
    }
    assert!(device.open("link", OpenMode::CreateNew).is_err());
    assert!(device.open(&"x".repeat(300), OpenMode::CreateNew).is_err());
}

#[test]
fn folders_are_created_on_request_only() {
    let dir = tempfile::tempdir().expect("tempdir");
    let deep = dir.path().join("a/b/c");
    let missing = OsDevice::open(&deep, OsOptions::default()).expect_err("not there");
    assert!(missing.is_not_found());
    let reading = OsOptions { create_folder: true, read_only: true, ..OsOptions::default() };
    assert!(OsDevice::open(&deep, reading).is_err());
    let options = OsOptions { create_folder: true, ..OsOptions::default() };
    for _ in 0..2 {
        OsDevice::open(&deep, options.clone()).expect("created");
    }
    std::fs::write(dir.path().join("file"), "x").expect("write");
    assert!(OsDevice::open(&dir.path().join("file"), options).is_err());
}

#[test]
fn a_folder_opened_for_reading_is_not_written_to() {
    let dir = tempfile::tempdir().expect("tempdir");
    device(dir.path()).open("data", OpenMode::CreateNew).expect("create");
    let options = OsOptions { read_only: true, ..OsOptions::default() };
    let reader = OsDevice::open(dir.path(), options).expect("open");
    let file = reader.open("data", OpenMode::Read).expect("open");
    let refused = [
        reader.open("data", OpenMode::Write).map(drop),
        reader.open("new", OpenMode::CreateNew).map(drop),
        reader.remove("data"),
        reader.rename("data", "other"),
        reader.set_len(&file, 1),
        reader.allocate(&file, 0, 4096),
        reader.write_at(&file, &PageBuf::zeroed(1), 1, 0),
    ];
    for result in refused {
        assert!(result.is_err());
    }
    assert_eq!(reader.list().expect("list"), ["data"]);
    assert_eq!(reader.len(&file).expect("len"), 0);
}

#[test]
fn reserving_extends_reads_as_zeros_and_keeps_what_is_there() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    let file = device.open("data", OpenMode::CreateNew).expect("create");
    let buf = filled(2, 1);
    device.write_at(&file, &buf, 2, 0).expect("write");
    device.allocate(&file, 0, bytes(8)).expect("room");
    device.allocate(&file, bytes(2), bytes(2)).expect("inside");
    assert_eq!(device.len(&file).expect("len"), bytes(8));
    let mut back = PageBuf::zeroed(8);
    device.read_at(&file, &mut back, 0).expect("read");
    assert!(back[..2 * PAGE] == buf[..] && back[2 * PAGE..].iter().all(|byte| *byte == 0));
    let (free, size) = device.free_space().expect("statvfs");
    assert!(0 < free && free <= size);
    assert!(device.allocate(&file, 0, 1 << 60).is_err(), "more than any disk");
    assert!(device.allocate(&file, u64::MAX - 4095, u64::MAX).is_err());
    assert_eq!(device.len(&file).expect("len"), bytes(8));
    device.set_len(&file, 5000).expect("cut");
    assert_eq!(device.len(&file).expect("len"), 5000);
}

#[test]
fn handles_outlive_the_name_and_the_device() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = device(dir.path());
    let file = device.open("data", OpenMode::CreateNew).expect("create");
    let clone = file.clone();
    device.write_at(&file, &filled(1, 5), 1, 0).expect("write");
    device.remove("data").expect("remove");
    drop(file);
    let mut back = PageBuf::zeroed(1);
    device.read_at(&clone, &mut back, 0).expect("read");
    assert!(back[..] == filled(1, 5)[..]);
}

/// A database was said to be missing, although it was to be created.
#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("nowhere", path("link")).expect("a link");
    std::fs::write(path("file"), "no folder").expect("written");
    let options = || OsOptions { create_folder: true, ..OsOptions::default() };
    for (asked, named) in
        [("link", "link"), ("link/a/b", "link"), ("file", "file"), ("file/a/b", "file")]
    {
        let error = OsDevice::open(&path(asked), options()).map(drop).expect_err("not there");
        assert!(!error.is_not_found(), "{error}");
        assert_eq!(error.file(), path(named).to_str(), "{error}");
    }
    std::fs::create_dir(path("nowhere")).expect("made");
    OsDevice::open(&path("link/a/b"), options()).expect("the link leads somewhere");
}
