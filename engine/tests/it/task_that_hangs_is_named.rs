//! A background task that does not come further is named, by the task and what it is at, while everything
//! that does not need it goes on.
//!
//! A flush that turned round and round in the page cache once held everybody up for eleven minutes, and
//! nothing said which task it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach::{Access, Db, Options, Value};
use pleach_io::os::{OsDevice, OsOptions};
use pleach_io::threads::Threads;
use pleach_io::{Device, DeviceInfo, Disk, File, LockMode, OpenMode, PageBuf, Queue, Result};

use crate::common::commit;

/// A device that, while it is told to, makes no room for leaf pages.
#[derive(Clone, Debug)]
struct Hangs {
    os: OsDevice,
    hangs: Arc<AtomicBool>,
}

impl From<Hangs> for Disk {
    fn from(device: Hangs) -> Self {
        Arc::new(device)
    }
}

impl Device for Hangs {
    fn info(&self) -> DeviceInfo {
        self.os.info()
    }
    fn list(&self) -> Result<Vec<String>> {
        self.os.list()
    }
    fn open(&self, name: &str, mode: OpenMode) -> Result<File> {
        self.os.open(name, mode)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.os.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.os.rename(from, to)
    }
    fn exchange(&self, from: &str, to: &str) -> Result<bool> {
        self.os.exchange(from, to)
    }
    fn sync_folder(&self) -> Result<()> {
        self.os.sync_folder()
    }
    fn lock(&self, mode: LockMode) -> Result<Box<dyn Send + Sync>> {
        self.os.lock(mode)
    }
    fn free_space(&self) -> Result<(u64, u64)> {
        self.os.free_space()
    }
    fn len(&self, file: &File) -> Result<u64> {
        self.os.len(file)
    }
    fn set_len(&self, file: &File, len: u64) -> Result<()> {
        self.os.set_len(file, len)
    }
    fn allocate(&self, file: &File, offset: u64, len: u64) -> Result<()> {
        while file.name() == "leaf" && self.hangs.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.os.allocate(file, offset, len)
    }
    fn read_at(&self, file: &File, buf: &mut PageBuf, offset: u64) -> Result<()> {
        self.os.read_at(file, buf, offset)
    }
    fn write_bytes(&self, file: &File, buf: &PageBuf, len: usize, at: u64) -> Result<()> {
        self.os.write_bytes(file, buf, len, at)
    }
    fn sync(&self, file: &File) -> Result<()> {
        self.os.sync(file)
    }
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.os.queue(depth)
    }
}

fn put(db: &Db, number: u8) {
    let value = Some(Value::from(&[number; 100][..]));
    commit(db, vec![Access::write([number; 32], value)]);
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_flush_that_hangs_in_the_device_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let os = OsDevice::open(folder.path(), OsOptions::default()).expect("a folder");
    let device = Hangs { os, hangs: Arc::default() };
    let hangs = Arc::clone(&device.hangs);
    let options = Options::new(folder.path())
        .create(true)
        .cache_mib(16)
        .tune(|tuning| tuning.flush_at = 1)
        .tune(|tuning| tuning.stall_after = Duration::from_millis(300))
        .small();
    let runtime = Threads::new(2).expect("threads");
    let db = Db::open_on(device, runtime, options).expect("created");
    let flush = || db.tasks().into_iter().find(|task| task.name == "pleach-flush").expect("listed");
    assert_eq!(db.metrics().stalled_tasks, 0);
    hangs.store(true, Ordering::Release);
    put(&db, 1);
    wait_for("the flush is named", || flush().stalled);
    let stalled = flush();
    assert_eq!(stalled.stage, "writing pages");
    assert!(stalled.since >= Duration::from_millis(300) && stalled.steps > 0);
    assert!(db.metrics().stalled_tasks >= 1);
    // Nobody else waits for it.
    put(&db, 2);
    assert!(flush().stalled);
    hangs.store(false, Ordering::Release);
    wait_for("the flush goes on", || !flush().stalled);
    db.drain(0).expect("flushed");
    wait_for("nothing is stalled", || db.metrics().stalled_tasks == 0);
    db.close().expect("closed");
}
