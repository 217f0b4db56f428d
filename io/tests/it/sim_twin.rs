//! Random operations against an obvious model: a `Vec<u8>` of durable bytes a file, one of bytes
//! that reads see, and lists of what is pending.

use pleach_io::sim::{CrashMode, FaultRates, Image, Rng, SECTOR, SimDisk, SimOptions};
use pleach_io::{Device, File, OpenMode, PAGE, PageBuf, Queue, Request, RequestKind};

const PAGES: u64 = 12;
const NAMES: [&str; 2] = ["a", "b"];

#[derive(Clone)]
enum Change {
    Write { page: u64, data: Vec<u8> },
    Resize(usize),
    Grow(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { page, data } => {
                let at = usize::try_from(*page).unwrap() * PAGE;
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[at..at + data.len()].copy_from_slice(data);
            }
            Self::Resize(len) => bytes.resize(*len, 0),
            Self::Grow(len) => bytes.resize(bytes.len().max(*len), 0),
        }
    }

    /// True when it says anything about the sector at `at`.
    fn touches(&self, at: usize) -> bool {
        match self {
            Self::Write { page, data } => {
                let start = usize::try_from(*page).unwrap() * PAGE;
                (start..start + data.len()).contains(&at)
            }
            Self::Resize(_) => true,
            Self::Grow(_) => false,
        }
    }
}

#[derive(Default)]
struct TwinFile {
    durable: Vec<u8>,
    seen: Vec<u8>,
    /// When it completed, and what.
    done: Vec<(u64, Change)>,
    flying: Vec<(u64, Change)>,
    syncs: Vec<(u64, u64)>,
}

impl TwinFile {
    fn complete(&mut self, now: u64, change: Change) {
        change.apply(&mut self.seen);
        self.done.push((now, change));
    }

    fn sync(&mut self, submitted: u64) {
        while self.done.first().is_some_and(|(when, _)| *when < submitted) {
            self.done.remove(0).1.apply(&mut self.durable);
        }
    }
}

struct Twin {
    disk: SimDisk,
    queue: Box<dyn Queue>,
    handles: Vec<File>,
    files: Vec<TwinFile>,
    rng: Rng,
    now: u64,
    token: u64,
}

impl Twin {
    fn new(seed: u64, rates: FaultRates) -> Self {
        let disk = SimDisk::new(seed, SimOptions { rates, ..SimOptions::default() });
        let handles =
            NAMES.iter().map(|name| disk.open(name, OpenMode::CreateNew).unwrap()).collect();
        disk.sync_folder().unwrap();
        let queue = disk.queue(6).unwrap();
        let files = NAMES.iter().map(|_| TwinFile::default()).collect();
        Self { disk, queue, handles, files, rng: Rng::new(seed), now: 0, token: 0 }
    }

    fn fill(&mut self, pages: usize) -> PageBuf {
        let mut buf = PageBuf::zeroed(pages);
        self.rng.fill(&mut buf);
        buf
    }

    /// Pages that no write in flight touches, from a random place.
    fn free_run(&mut self, file: usize) -> Option<(u64, u64)> {
        let (page, count) = (self.rng.below(PAGES), 1 + self.rng.below(3));
        let free = (page..page + count).all(|page| {
            let at = usize::try_from(page).unwrap() * PAGE;
            !self.files[file].flying.iter().any(|(_, change)| change.touches(at))
        });
        free.then_some((page, count))
    }

    fn step(&mut self) {
        self.now += 1;
        let file = self.rng.index(NAMES.len());
        let handle = self.handles[file].clone();
        let room = self.queue.in_flight() < self.queue.depth();
        match self.rng.below(10) {
            0 | 1 => self.write(file, &handle),
            2 | 3 if room => self.push_write(file, handle),
            4 if room => {
                self.push(handle, RequestKind::Sync, 0, PageBuf::zeroed(0));
                self.files[file].syncs.push((self.token, self.now));
            }
            5 => {
                self.disk.sync(&handle).unwrap();
                self.files[file].sync(self.now);
            }
            6 => self.change_length(file, &handle),
            7 => self.read(file, &handle),
            _ => self.reap(),
        }
    }

    fn write(&mut self, file: usize, handle: &File) {
        let Some((page, count)) = self.free_run(file) else { return };
        let pages = usize::try_from(count).unwrap();
        let buf = self.fill(pages);
        self.disk.write_at(handle, &buf, pages, page * PAGE as u64).unwrap();
        self.files[file].complete(self.now, Change::Write { page, data: buf.to_vec() });
    }

    fn push(&mut self, file: File, transfer: RequestKind, offset: u64, buf: PageBuf) {
        self.token += 1;
        self.queue.push(Request { file, kind: transfer, offset, buf, token: self.token });
        self.queue.submit().unwrap();
    }

    fn push_write(&mut self, file: usize, handle: File) {
        let Some((page, count)) = self.free_run(file) else { return };
        let buf = self.fill(usize::try_from(count).unwrap());
        let data = buf.to_vec();
        self.push(handle, RequestKind::Write, page * PAGE as u64, buf);
        self.files[file].flying.push((self.token, Change::Write { page, data }));
    }

    fn change_length(&mut self, file: usize, handle: &File) {
        let pages = self.rng.below(PAGES);
        // A cut has no order with the writes in flight: the model would have to guess.
        if self.files[file].flying.is_empty() && self.rng.chance(1, 2) {
            // Cuts go anywhere, also into a page.
            let len = pages * PAGE as u64 + self.rng.below(2) * 700;
            self.disk.set_len(handle, len).unwrap();
            let resize = Change::Resize(usize::try_from(len).unwrap());
            self.files[file].complete(self.now, resize);
        } else {
            let len = (1 + pages) * PAGE as u64;
            self.disk.allocate(handle, 0, len).unwrap();
            let grow = Change::Grow(usize::try_from(len).unwrap());
            self.files[file].complete(self.now, grow);
        }
    }

    fn reap(&mut self) {
        let done =
            if self.rng.chance(1, 2) { self.queue.poll() } else { self.queue.wait().unwrap() };
        let Some(done) = done else { return };
        done.result.unwrap();
        for file in &mut self.files {
            if let Some(at) = file.flying.iter().position(|(token, _)| *token == done.token) {
                let (_, change) = file.flying.remove(at);
                file.complete(self.now, change);
            }
            if let Some(at) = file.syncs.iter().position(|(token, _)| *token == done.token) {
                let (_, submitted) = file.syncs.remove(at);
                file.sync(submitted);
            }
        }
    }

    /// Reads see what has completed; where a write is in flight, that or the new data.
    fn read(&mut self, file: usize, handle: &File) {
        let twin = &self.files[file];
        let growing = twin.flying.iter().any(|(_, change)| {
            let mut longer = twin.seen.clone();
            change.apply(&mut longer);
            longer.len() != twin.seen.len()
        });
        let len = usize::try_from(self.disk.len(handle).unwrap()).unwrap();
        assert!(len == twin.seen.len() || growing, "{len} for {}", twin.seen.len());
        let page = usize::try_from(self.rng.below(PAGES)).unwrap();
        let (mut buf, at) = (PageBuf::zeroed(1), page * PAGE);
        let result = self.disk.read_at(handle, &mut buf, at as u64);
        let mut allowed: Vec<Vec<u8>> = vec![twin.seen.get(at..).unwrap_or_default().to_vec()];
        for (_, change) in &twin.flying {
            let mut bytes = twin.seen.clone();
            change.apply(&mut bytes);
            allowed.push(bytes.get(at..).unwrap_or_default().to_vec());
        }
        // A hole below the end of a write in flight.
        allowed.push(vec![0; if growing { PAGE } else { 0 }]);
        match result {
            Ok(()) => assert!(allowed.iter().any(|bytes| bytes.get(..PAGE) == Some(&buf[..]))),
            Err(_) => assert!(at + PAGE > twin.seen.len(), "a page inside the file reads"),
        }
    }

    /// Crashes here: each sector is durable, or as something pending says.
    fn crash(&mut self) {
        let trace = self.disk.trace();
        let point = trace.crash_point(trace.len());
        for outcome in point.outcomes(self.now, 12) {
            for (name, file) in NAMES.iter().zip(&self.files) {
                check(outcome.image(), outcome.mode(), name, file);
            }
        }
    }
}

fn check(image: &Image, mode: CrashMode, name: &str, file: &TwinFile) {
    let bytes = image.file(name).expect("the folder is synced").to_vec();
    if mode == CrashMode::Dropped || (file.done.is_empty() && file.flying.is_empty()) {
        assert!(bytes == file.durable, "{mode:?}: {name} is what was durable");
    }
    let pending = || file.done.iter().chain(&file.flying).map(|(_, change)| change);
    if mode == CrashMode::Kept {
        let mut all = file.durable.clone();
        pending().for_each(|change| change.apply(&mut all));
        assert!(bytes == all, "{name} is all that was pending");
    }
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        let at = index * SECTOR;
        if !pending().any(|change| change.touches(at)) {
            let old = file.durable.get(at..).unwrap_or_default();
            let old = &old[..old.len().min(sector.len())];
            let (same, beyond) = sector.split_at(old.len());
            assert!(same == old && beyond.iter().all(|&byte| byte == 0), "{mode:?} {name} {at}");
        }
    }
}

fn cases() -> u64 {
    std::env::var("PLEACH_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
}

fn run(seed: u64, rates: FaultRates) {
    let mut twin = Twin::new(seed, rates);
    for step in 0..200 {
        twin.step();
        if step % 9 == 0 {
            twin.crash();
        }
    }
    while twin.queue.in_flight() > 0 {
        twin.reap();
    }
    let image = twin.disk.image();
    for (name, file) in NAMES.iter().zip(&twin.files) {
        assert!(image.file(name).unwrap().to_vec() == file.seen, "seed {seed}: {name}");
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    (0..cases()).for_each(|seed| run(seed, FaultRates::default()));
}

#[test]
fn interruptions_short_counts_and_delays_change_nothing() {
    for seed in 0..cases() {
        // Seventeen in a row do happen at 10 %, once in 10^17.
        run(seed, FaultRates::harmless(seed));
    }
}
