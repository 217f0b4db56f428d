//! Without io_uring, or without O_DIRECT: the fallback is taken, said, and keeps the promises.

#![expect(unsafe_code, reason = "a seccomp filter plays the kernel without io_uring")]

use std::path::Path;
use std::process::{Command, Output};

use crate::os_support::{SecondPath, bindfs, bytes, command, filled, role};
use pleach_io::{
    Device, DeviceInfo, IoError, IoMode, OpenMode, Operation, OsDevice, OsOptions, PageBuf,
    Request, RequestKind,
};

/// The system calls of io_uring: their numbers are the same on every architecture.
const CALLS: [(&str, u32); 3] =
    [("io_uring_setup", 425), ("io_uring_enter", 426), ("io_uring_register", 427)];

/// Makes a system call fail with `code` in this thread and its children, for ever.
fn forbid(call: u32, code: u32) {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // Load the call's number; fail if it is this one, else allow.
    let mut program = [
        statement(0x20, 0),
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: call },
        statement(0x06, libc::SECCOMP_RET_ERRNO | code),
        statement(0x06, libc::SECCOMP_RET_ALLOW),
    ];
    let len = u16::try_from(program.len()).expect("short");
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this thread; no memory is passed.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: `filter` and the program it points to live until the call has copied them.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(set, 0);
}

/// What the children do; without a parent it is a test that does nothing.
#[test]
fn child() {
    let Some((role, folder)) = role() else { return };
    match role.as_str() {
        "ramfs" => on_ramfs(&folder),
        role => {
            let (call, code) = role.split_once(' ').expect("a call and a code");
            let code = if code == "ENOSYS" { libc::ENOSYS } else { libc::EPERM };
            let number = CALLS.iter().find(|(name, _)| *name == call).expect("one of the three").1;
            without_io_uring(&folder, number, code);
        }
    }
    println!("\nPLAYED");
}

fn without_io_uring(folder: &Path, call: u32, code: i32) {
    forbid(call, code.unsigned_abs());
    let device = OsDevice::open(folder, OsOptions::default()).expect("fallback");
    let info = device.info();
    assert_eq!(info.engine, "blocking");
    assert!(info.note.contains("io_uring"), "{info:?}");
    exercise(&device);
    let options = OsOptions { io: IoMode::Uring, ..OsOptions::default() };
    match OsDevice::open(folder, options).map(drop) {
        Err(IoError::Os { operation: Operation::SetUpRing, code: found, message, .. }) => {
            assert_eq!(found, code);
            assert!(message.contains("choose another I/O mode"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let options = OsOptions { io: IoMode::Blocking, ..OsOptions::default() };
    let info = OsDevice::open(folder, options).expect("asked for").info();
    assert_eq!((info.engine, info.note.as_str()), ("blocking", ""));
}

/// tmpfs takes O_DIRECT, and was called a device that goes around the page cache.
#[test]
fn a_folder_in_memory_is_called_that() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: there is no /dev/shm here");
        return;
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("read");
    if !mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")) {
        eprintln!("SKIPPED: /dev/shm is no tmpfs here");
        return;
    }
    let device = OsDevice::open(folder.path(), OsOptions::default()).expect("opened");
    let DeviceInfo { direct, note, .. } = device.info();
    assert!(!direct && note.contains("in memory"), "{note}");
    exercise(&device);
}

/// Refuses O_DIRECT and cannot reserve.
fn on_ramfs(folder: &Path) {
    for io in [IoMode::Auto, IoMode::Blocking] {
        let device = OsDevice::open(folder, OsOptions { io, ..OsOptions::default() });
        let device = device.expect("fallback");
        let DeviceInfo { direct, note, .. } = device.info();
        assert!(!direct && note.contains("O_DIRECT"), "{note}");
        exercise(&device);
        let options = OsOptions { io, read_only: true, ..OsOptions::default() };
        let reader = OsDevice::open(folder, options).expect("open");
        std::fs::write(folder.join("other"), [1; 8192]).expect("write");
        let file = reader.open("other", OpenMode::Read).expect("open");
        reader.read_at(&file, &mut PageBuf::zeroed(2), 0).expect("read");
        assert!(!reader.info().direct, "found out at the first file");
        std::fs::remove_file(folder.join("other")).expect("remove");
    }
}

fn exercise(device: &OsDevice) {
    let file = device.open("data", OpenMode::CreateNew).expect("create");
    device.allocate(&file, 0, bytes(64) + 100).expect("room");
    assert_eq!(device.len(&file).expect("len"), bytes(64) + 100);
    let mut queue = device.queue(16).expect("queue");
    for token in 0..16u64 {
        let (file, buf) = (file.clone(), filled(4, token));
        let offset = token * bytes(4);
        queue.push(Request { file, kind: RequestKind::Write, offset, buf, token });
    }
    while let Some(completion) = queue.wait().expect("wait") {
        completion.result.expect("write");
    }
    let (sync, buf) = (RequestKind::Sync, PageBuf::zeroed(0));
    queue.push(Request { file: file.clone(), kind: sync, offset: 0, buf, token: 99 });
    queue.wait().expect("wait").expect("one").result.expect("sync");
    for token in 0..16u64 {
        let mut back = PageBuf::zeroed(4);
        device.read_at(&file, &mut back, token * bytes(4)).expect("read");
        assert!(back[..] == filled(4, token)[..]);
    }
    device.remove("data").expect("remove");
    device.sync_folder().expect("sync");
}

fn assert_played(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("PLAYED"), "{text}{errors}");
}

/// Where a sandbox refused `io_uring_enter` alone, a database opened, took a few commits and refused all further ones.
#[test]
fn without_any_call_of_io_uring_threads_serve_and_asking_for_a_ring_is_an_error() {
    for (call, _) in CALLS {
        for code in ["ENOSYS", "EPERM"] {
            let (dir, role) = (tempfile::tempdir().expect("tempdir"), format!("{call} {code}"));
            assert_played(&command(module_path!(), &role, dir.path()).output().expect("spawn"));
        }
    }
}

#[test]
fn without_o_direct_files_go_through_the_page_cache() {
    let dir = tempfile::tempdir().expect("tempdir");
    let child = command(module_path!(), "ramfs", dir.path());
    // A mount namespace of its own: nothing is left over. Code 77 stands for "cannot mount".
    let script = "mount -t ramfs none \"$0\" || exit 77; exec \"$@\"";
    for flags in ["-m", "-rm"] {
        let mut shell = Command::new("unshare");
        shell.args([flags, "sh", "-c", script]).arg(dir.path());
        shell.arg(child.get_program()).args(child.get_args());
        for (key, value) in child.get_envs() {
            shell.env(key, value.expect("set"));
        }
        match shell.output() {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running") => {
                return assert_played(&output);
            }
            Ok(_) | Err(_) => {}
        }
    }
    println!("SKIPPED: cannot mount a ramfs here");
}

#[test]
fn a_view_by_fuse_is_called_that() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some((_, view)) = bindfs(dir.path()) else { return };
    let device = OsDevice::open(&view.0, OsOptions::default()).expect("opened");
    let note = device.info().note;
    assert!(note.contains("on FUSE: processes that reach it by another path"), "{note}");
    exercise(&device);
}

/// A device with sectors of 8 KiB refused the first page of a new database with "Invalid argument".
#[test]
fn a_device_with_units_above_a_page_is_used_through_the_page_cache() {
    let dir = tempfile::tempdir().expect("tempdir");
    // Detached, the loop device ends with the last mount.
    let script = "truncate -s 400M \"$0\" && L=$(losetup --find --show --sector-size 8192 \"$0\") || exit
        mkfs.xfs -q -b size=8192 -s size=8192 $L && mount $L \"$1\"; is=$?; losetup --detach $L; exit $is";
    let image = dir.path().join("image");
    let arguments = ["-c", script, image.to_str().expect("text")];
    let Some(at) = SecondPath::mounted("sh", &arguments, &dir.path().join("at")) else {
        return println!("SKIPPED: cannot mount XFS with sectors of 8 KiB here");
    };
    for io in [IoMode::Auto, IoMode::Blocking] {
        let device = OsDevice::open(&at.0, OsOptions { io, ..OsOptions::default() });
        let device = device.expect("fallback");
        let DeviceInfo { direct, note, .. } = device.info();
        assert!(!direct && note.contains("above 4 KiB"), "{note}");
        exercise(&device);
    }
}
