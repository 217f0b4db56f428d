//! Transfers on real files agree with a vector of bytes, on every engine, direct and buffered.

use std::collections::HashMap;

use crate::os_support::{Rng, all_modes, bindfs, bytes, cases, filled, open};
use pleach_io::{
    Completion, Device, File, IoError, IoMode, OpenMode, Operation, OsDevice, OsOptions, PAGE,
    PageBuf, PagePool, Queue, Request, RequestKind,
};

const FILE_PAGES: usize = 64;

/// A queue's requests in flight never overlap, so that each has one right answer.
struct Model {
    rng: Rng,
    content: Vec<u8>,
    busy: [bool; FILE_PAGES],
    expected: HashMap<u64, Expected>,
    next: u64,
    pool: PagePool,
}

struct Expected {
    first: usize,
    pages: usize,
    /// What a read must give.
    read: Option<Vec<u8>>,
}

impl Model {
    /// A random request, or `None` when its pages are in use.
    fn draw(&mut self, file: &File) -> Option<Request> {
        let pages = 1 + self.rng.below(5);
        let first = self.rng.below(FILE_PAGES - pages + 1);
        let token = self.next;
        let transfer = match self.rng.below(20) {
            0 => RequestKind::Sync,
            1..10 => RequestKind::Write,
            _ => RequestKind::Read,
        };
        let (first, pages) = if transfer == RequestKind::Sync { (0, 0) } else { (first, pages) };
        if self.busy[first..first + pages].contains(&true) {
            return None;
        }
        self.busy[first..first + pages].fill(true);
        self.next += 1;
        let range = first * PAGE..(first + pages) * PAGE;
        let mut read = None;
        let buf = match transfer {
            RequestKind::Write => {
                let mut buf = buffer(&self.pool, pages);
                buf.copy_from_slice(&filled(pages, token));
                self.content[range].copy_from_slice(&buf);
                buf
            }
            RequestKind::Read => {
                read = Some(self.content[range].to_vec());
                buffer(&self.pool, pages)
            }
            RequestKind::Sync => PageBuf::zeroed(0),
        };
        self.expected.insert(token, Expected { first, pages, read });
        Some(Request { file: file.clone(), kind: transfer, offset: bytes(first), buf, token })
    }

    fn check(&mut self, completion: Completion) {
        let expected = self.expected.remove(&completion.token).expect("a token once");
        completion.result.expect("no faults here");
        assert_eq!(completion.buf.pages(), expected.pages);
        if let Some(read) = expected.read {
            assert!(completion.buf[..] == read[..], "read of page {}", expected.first);
        }
        self.busy[expected.first..expected.first + expected.pages].fill(false);
    }
}

/// Buffers from a pool, where it has one, and of their own otherwise: a device takes both.
fn buffer(pool: &PagePool, pages: usize) -> PageBuf {
    if pages == pool.pages() {
        pool.take().expect("as many as requests")
    } else {
        PageBuf::zeroed(pages)
    }
}

fn run_model(device: &OsDevice, file: &File, depth: usize, seed: u64, content: &mut Vec<u8>) {
    let mut queue = device.queue(depth).expect("queue");
    assert_eq!(queue.depth(), depth);
    let pool = PagePool::new(3, depth);
    let registered = seed.is_multiple_of(2) && queue.register(&pool);
    assert!(!registered || queue.register(&pool), "registering again changes nothing");
    assert!(!registered || !queue.register(&PagePool::new(1, 1)), "one pool a ring");
    let mut model = Model {
        pool,
        rng: Rng(seed),
        content: std::mem::take(content),
        busy: [false; FILE_PAGES],
        expected: HashMap::new(),
        next: seed << 32,
    };
    for _ in 0..cases(600) {
        match model.rng.below(8) {
            0..4 if queue.in_flight() < depth => {
                if let Some(request) = model.draw(file) {
                    queue.push(request);
                }
            }
            4 => queue.submit().expect("submit"),
            5 => {
                if let Some(completion) = queue.poll() {
                    model.check(completion);
                }
            }
            _ => match queue.wait().expect("wait") {
                Some(completion) => model.check(completion),
                None => assert_eq!(queue.in_flight(), 0),
            },
        }
        assert_eq!(queue.in_flight(), model.expected.len());
    }
    while let Some(completion) = queue.wait().expect("wait") {
        model.check(completion);
    }
    assert!(model.expected.is_empty());
    *content = model.content;
}

#[test]
fn random_requests_agree_with_a_vector() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let file = device.open("data", OpenMode::CreateNew).expect("create");
        let zeros = PageBuf::zeroed(FILE_PAGES);
        device.write_at(&file, &zeros, FILE_PAGES, 0).expect("write");
        let mut content = zeros.to_vec();
        for (seed, depth) in [(1, 1), (2, 3), (3, 16), (4, 64), (5, 200)] {
            run_model(&device, &file, depth, seed, &mut content);
        }
        let mut whole = PageBuf::zeroed(FILE_PAGES);
        device.read_at(&file, &mut whole, 0).expect("read");
        assert!(whole[..] == content[..], "{name}: the file differs");
    }
}

#[test]
fn single_calls_write_the_pages_asked_for_and_read_them_back() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let file = device.open("data", OpenMode::CreateNew).expect("create");
        let buf = filled(4, 9);
        device.write_at(&file, &buf, 3, bytes(1)).expect("write");
        assert_eq!(device.len(&file).expect("len"), bytes(4));
        let mut back = PageBuf::zeroed(4);
        device.read_at(&file, &mut back, 0).expect("read");
        assert!(back[PAGE..] == buf[..3 * PAGE] && back[..PAGE] == [0; PAGE], "{name}");
        assert!(device.write_at(&file, &buf, 5, 0).is_err(), "more pages than the buffer has");
        device.sync(&file).expect("sync");
    }
}

#[test]
fn reading_past_the_end_is_short_wherever_the_end_is() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let file = device.open("data", OpenMode::CreateNew).expect("create");
        for len in [0, 1, 511, 512, 4095, 4096, 5000, 8191, 12288] {
            device.set_len(&file, len).expect("resize");
            let check = |result: Result<(), IoError>| match result {
                Err(IoError::Short { done, expected: 16384, operation, offset: 0, .. }) => {
                    assert_eq!((done, operation), (len, Operation::Read), "{name}");
                }
                other => panic!("{name}, length {len}: {other:?}"),
            };
            check(device.read_at(&file, &mut PageBuf::zeroed(4), 0));
            let mut queue = device.queue(1).expect("queue");
            let buf = PageBuf::zeroed(4);
            let file = file.clone();
            queue.push(Request { file, kind: RequestKind::Read, offset: 0, buf, token: 1 });
            check(queue.wait().expect("wait").expect("one").result);
        }
    }
}

/// FUSE keeps lengths for a second: a third of all opens beside a process that wrote the folder itself failed.
#[test]
fn a_file_that_grows_behind_a_fuse_view_is_read_to_its_new_end() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some((folder, view)) = bindfs(dir.path()) else { return };
        let writer = OsDevice::open(&folder, OsOptions::default()).expect("open");
        let written = writer.open("data", OpenMode::CreateNew).expect("create");
        let Some(reader) = open(&view.0, &name, options) else { continue };
        let read = reader.open("data", OpenMode::Read).expect("open");
        let mut queue = reader.queue(1).expect("queue");
        assert_eq!(reader.len(&read).expect("len"), 0);
        for page in (0..8).step_by(2) {
            let pages = filled(2, page as u64);
            writer.write_at(&written, &pages, 2, bytes(page)).expect("write");
            let mut back = PageBuf::zeroed(2);
            let at = bytes(page);
            if page % 4 == 0 {
                reader.read_at(&read, &mut back, at).unwrap_or_else(|e| panic!("{name}: {e}"));
            } else {
                let request = Request {
                    file: read.clone(),
                    kind: RequestKind::Read,
                    offset: at,
                    buf: back,
                    token: 0,
                };
                queue.push(request);
                let completion = queue.wait().expect("wait").expect("one");
                completion.result.unwrap_or_else(|e| panic!("{name}: {e}"));
                back = completion.buf;
            }
            assert!(back[..] == pages[..], "{name}, page {page}");
            writer.set_len(&written, bytes(page + 2) + 1).expect("resize");
            assert_eq!(reader.len(&read).expect("len"), bytes(page + 2) + 1, "{name}");
            writer.set_len(&written, bytes(page + 2)).expect("resize");
            let end = reader.read_at(&read, &mut PageBuf::zeroed(1), bytes(page + 2));
            assert!(matches!(end, Err(IoError::Short { .. })), "{name}: {end:?}");
        }
    }
}

#[test]
fn requests_that_cannot_be_are_errors_and_empty_ones_succeed() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let created = device.open("data", OpenMode::CreateNew).expect("create");
        device.set_len(&created, bytes(2)).expect("resize");
        let file = device.open("data", OpenMode::Read).expect("open");
        let mut queue = device.queue(8).expect("queue");
        let push = |queue: &mut Box<dyn Queue>, transfer, offset, pages, token| {
            let buf = PageBuf::zeroed(pages);
            queue.push(Request { file: file.clone(), kind: transfer, offset, buf, token });
        };
        push(&mut queue, RequestKind::Read, 512, 1, 0);
        push(&mut queue, RequestKind::Read, u64::MAX - 4095, 1, 1);
        push(&mut queue, RequestKind::Read, 1 << 63, 1, 2);
        push(&mut queue, RequestKind::Write, 0, 1, 3); // opened for reading
        push(&mut queue, RequestKind::Read, 0, 0, 10);
        push(&mut queue, RequestKind::Read, 0, 2, 11);
        let mut results = HashMap::new();
        while let Some(completion) = queue.wait().expect("wait") {
            results.insert(completion.token, completion.result);
        }
        assert_eq!(results.len(), 6);
        for (token, result) in results {
            assert_eq!(result.is_ok(), token >= 10, "{name}, request {token}: {result:?}");
        }
    }
}

#[test]
#[should_panic(expected = "depth")]
fn pushing_beyond_the_depth_panics() {
    let dir = tempfile::tempdir().expect("tempdir");
    let device = OsDevice::open(dir.path(), OsOptions::default()).expect("open");
    let file = device.open("data", OpenMode::CreateNew).expect("create");
    let mut queue = device.queue(2).expect("queue");
    for token in 0..3 {
        let (file, buf) = (file.clone(), PageBuf::zeroed(1));
        queue.push(Request { file, kind: RequestKind::Write, offset: 0, buf, token });
    }
}

#[test]
fn depth_is_kept_and_its_limit_is_an_error() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        assert!(device.queue(pleach_io::os::MAX_DEPTH + 1).is_err(), "{name}");
        for depth in [1, 2, 3, 100, 129] {
            assert_eq!(device.queue(depth).expect("queue").depth(), depth, "{name}");
        }
    }
}

#[test]
fn dropping_a_queue_waits_for_its_writes() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let file = device.open("data", OpenMode::CreateNew).expect("create");
        device.set_len(&file, bytes(256)).expect("resize");
        for round in 0..20 {
            let mut queue = device.queue(64).expect("queue");
            for token in 0..64u64 {
                let buf = filled(4, round << 32 | token);
                let offset = token * bytes(4);
                queue.push(Request {
                    file: file.clone(),
                    kind: RequestKind::Write,
                    offset,
                    buf,
                    token,
                });
            }
            queue.submit().expect("submit");
            drop(queue);
            let mut back = PageBuf::zeroed(4);
            for token in 0..64u64 {
                device.read_at(&file, &mut back, token * bytes(4)).expect("read");
                assert!(back[..] == filled(4, round << 32 | token)[..], "{name}, write {token}");
            }
        }
    }
}

#[test]
fn what_was_never_submitted_never_reaches_the_file() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let file = device.open("data", OpenMode::CreateNew).expect("create");
        let mut queue = device.queue(4).expect("queue");
        let buf = filled(1, 1);
        let request =
            Request { file: file.clone(), kind: RequestKind::Write, offset: 0, buf, token: 0 };
        queue.push(request);
        drop(queue);
        assert_eq!(device.len(&file).expect("len"), 0, "{name}");
    }
}

#[test]
fn a_queue_may_be_made_on_one_thread_and_used_on_another() {
    for (name, options) in all_modes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(device) = open(dir.path(), &name, options) else { continue };
        let file = device.open("data", OpenMode::CreateNew).expect("create");
        device.set_len(&file, bytes(1)).expect("resize");
        let mut queue = device.queue(4).expect("queue");
        let worker = std::thread::spawn(move || {
            let buf = PageBuf::zeroed(1);
            queue.push(Request { file, kind: RequestKind::Read, offset: 0, buf, token: 7 });
            let completion = queue.wait().expect("wait").expect("one");
            completion.result.expect("read");
            assert_eq!(completion.token, 7);
            queue
        });
        let queue = worker.join().expect("no panic");
        // Dropped here, idle: no matter whose ring it is.
        assert_eq!(queue.in_flight(), 0, "{name}");
    }
}

/// Used from a second thread, a ring is an error at worst; its buffers stay valid or leak.
#[test]
fn a_queue_that_changes_threads_with_requests_in_flight_is_an_error_not_a_corruption() {
    let dir = tempfile::tempdir().expect("tempdir");
    let options = OsOptions { io: IoMode::Uring, ..OsOptions::default() };
    let Some(device) = open(dir.path(), "uring", options) else { return };
    let file = device.open("data", OpenMode::CreateNew).expect("create");
    device.set_len(&file, bytes(8)).expect("resize");
    let mut queue = device.queue(8).expect("queue");
    let request = |token| {
        let (file, buf) = (file.clone(), PageBuf::zeroed(8));
        Request { file, kind: RequestKind::Read, offset: 0, buf, token }
    };
    for token in 0..4 {
        queue.push(request(token));
    }
    queue.submit().expect("submit");
    let last = request(4);
    std::thread::spawn(move || {
        queue.push(last);
        let mut seen = 0;
        loop {
            match queue.wait() {
                Ok(Some(completion)) => {
                    completion.result.expect("read");
                    seen += 1;
                }
                Ok(None) => return assert_eq!(seen, 5, "kernels without single issuers"),
                Err(error) => {
                    assert!(matches!(error, IoError::Os { code: libc::EEXIST, .. }), "{error}");
                    return;
                }
            }
        }
    })
    .join()
    .expect("no panic");
}

#[test]
fn closed_files_leave_a_rings_table() {
    let dir = tempfile::tempdir().expect("tempdir");
    let options = OsOptions { io: IoMode::Uring, ..OsOptions::default() };
    let Some(device) = open(dir.path(), "uring", options) else { return };
    let mut queue = device.queue(8).expect("queue");
    // Far more files than entries, each used often enough to be registered, some kept open.
    let mut kept = Vec::new();
    for number in 0..60u64 {
        let name = format!("data{number}");
        let file = device.open(&name, OpenMode::CreateNew).expect("create");
        device.write_at(&file, &filled(1, number), 1, 0).expect("write");
        for token in 0..130 {
            let (file, buf) = (file.clone(), PageBuf::zeroed(1));
            queue.push(Request { file, kind: RequestKind::Read, offset: 0, buf, token });
            let completion = queue.wait().expect("wait").expect("one");
            completion.result.expect("read");
            assert!(completion.buf[..] == filled(1, number)[..], "file {number}");
        }
        device.remove(&name).expect("remove");
        if number % 7 == 0 {
            kept.push(file);
        }
    }
    // One more submission sweeps the last; what is left open in the process is what we kept.
    let file = kept[0].clone();
    let buf = PageBuf::zeroed(1);
    queue.push(Request { file, kind: RequestKind::Read, offset: 0, buf, token: 0 });
    queue.wait().expect("wait").expect("one").result.expect("read");
    drop(kept);
}
