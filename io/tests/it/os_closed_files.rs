//! A ring's registration must not keep a closed file, and its space, alive.
//!
//! A write lease is granted only while nobody else has the file open, rings included, so it tells.

#![expect(unsafe_code, reason = "leases have no safe wrapper here")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::os_support::{filled, open};
use pleach_io::{Device, IoMode, OpenMode, OsOptions, PageBuf, Queue, Request, RequestKind};

fn is_open_elsewhere(path: &Path) -> bool {
    let file = File::options().write(true).open(path).expect("open");
    // SAFETY: the descriptor is open for the duration of the call; no memory is passed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    result != 0
}

fn read(queue: &mut Box<dyn Queue>, file: &pleach_io::File, times: usize) {
    for _ in 0..times {
        let (file, buf) = (file.clone(), PageBuf::zeroed(1));
        queue.push(Request { file, kind: RequestKind::Read, offset: 0, buf, token: 0 });
        queue.wait().expect("wait").expect("one").result.expect("read");
    }
}

#[test]
fn a_closed_file_leaves_the_ring_at_its_next_submission() {
    let dir = tempfile::tempdir().expect("tempdir");
    let options = OsOptions { io: IoMode::Uring, ..OsOptions::default() };
    let Some(device) = open(dir.path(), "uring", options) else { return };
    let make = |name: &str| {
        let file = device.open(name, OpenMode::CreateNew).expect("create");
        device.write_at(&file, &filled(1, 1), 1, 0).expect("write");
        file
    };
    let (short, long) = (make("short"), make("long"));
    let path = dir.path().join("short");
    let mut queue = device.queue(4).expect("queue");
    read(&mut queue, &short, 200);
    read(&mut queue, &long, 200);
    assert!(is_open_elsewhere(&path));
    drop(short);
    if !is_open_elsewhere(&path) {
        println!("SKIPPED: this kernel registers no files");
        return;
    }
    read(&mut queue, &long, 1);
    // Other tests of this process start children, each of which has all files open until it runs its own
    // program: so looked at for a while.
    let closed = (0..1000).any(|look| {
        std::thread::sleep(std::time::Duration::from_millis(u64::from(look > 0)));
        !is_open_elsewhere(&path)
    });
    assert!(closed, "one submission later it is closed");
    assert!(is_open_elsewhere(&dir.path().join("long")));
    // Its entry is free for another.
    let other = make("other");
    read(&mut queue, &other, 200);
}
