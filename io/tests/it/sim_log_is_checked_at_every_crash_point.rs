//! A demonstration of crash testing: a toy log (append a record, sync, acknowledge) is cut at
//! every crash point; the same log without its sync, and one that syncs too early, are caught.

use std::time::Instant;

use pleach_io::Result;
use pleach_io::sim::{CrashMode, Grain, SimDisk, SimOptions};
use pleach_io::{Device, File, OpenMode, PAGE, PageBuf};

#[derive(Clone, Copy, PartialEq)]
enum Syncs {
    AfterAppend,
    BeforeAppend,
    Never,
}

/// One record a page: number, and a checksum over the rest of the page.
struct Log {
    disk: SimDisk,
    file: File,
    next: u64,
    syncs: Syncs,
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, &byte| (sum.rotate_left(9) ^ u64::from(byte)).wrapping_mul(31))
}

fn word(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

impl Log {
    fn create(disk: &SimDisk, syncs: Syncs) -> Result<Self> {
        let file = disk.open("log", OpenMode::CreateNew)?;
        disk.sync_folder()?;
        Ok(Self { disk: disk.clone(), file, next: 0, syncs })
    }

    fn append(&mut self) -> Result<()> {
        let mut page = PageBuf::zeroed(1);
        page.fill(self.next.to_le_bytes()[0] ^ 0x5a);
        page[8..16].copy_from_slice(&self.next.to_le_bytes());
        let sum = checksum(&page[8..]);
        page[..8].copy_from_slice(&sum.to_le_bytes());
        if self.syncs == Syncs::BeforeAppend {
            self.disk.sync(&self.file)?;
        }
        self.disk.write_at(&self.file, &page, 1, self.next * PAGE as u64)?;
        if self.syncs == Syncs::AfterAppend {
            self.disk.sync(&self.file)?;
        }
        self.next += 1;
        self.disk.mark(self.next);
        Ok(())
    }

    /// Number of records up to the first that is not whole. Garbage after it is cut off.
    fn recover(disk: &SimDisk) -> Result<u64> {
        let file = match disk.open("log", OpenMode::Write) {
            Err(error) if error.is_not_found() => return Ok(0),
            other => other?,
        };
        let pages = disk.len(&file)? / PAGE as u64;
        let mut page = PageBuf::zeroed(1);
        let mut records = 0;
        while records < pages {
            disk.read_at(&file, &mut page, records * PAGE as u64)?;
            if word(&page, 0) != checksum(&page[8..]) || word(&page, 8) != records {
                break;
            }
            records += 1;
        }
        disk.set_len(&file, records * PAGE as u64)?;
        disk.sync(&file)?;
        Ok(records)
    }
}

/// Crashes that lost an acknowledged record, and the number of schedules.
fn violations(syncs: Syncs, outcomes: usize) -> (Vec<CrashMode>, u64) {
    let disk = SimDisk::new(1, SimOptions::default());
    let mut log = Log::create(&disk, syncs).unwrap();
    (0..8).for_each(|_| log.append().unwrap());
    let (mut bad, mut schedules) = (Vec::new(), 0);
    for point in disk.trace().crash_points() {
        let acknowledged = point.marks().last().copied().unwrap_or(0);
        let random = point.outcomes(5, outcomes);
        let all = point.subsets(Grain::Sector).into_iter().flatten();
        for outcome in random.chain(all) {
            schedules += 1;
            let survivor = outcome.disk();
            let found = Log::recover(&survivor).unwrap();
            if found < acknowledged || found > acknowledged + 1 {
                bad.push(outcome.mode());
            }
            // A crash during recovery loses nothing either.
            if schedules % 50 == 0 && syncs == Syncs::AfterAppend {
                for second in survivor.trace().crash_points() {
                    for outcome in second.outcomes(6, 4) {
                        assert_eq!(Log::recover(&outcome.disk()).unwrap(), found, "{outcome}");
                    }
                }
            }
        }
    }
    (bad, schedules)
}

#[test]
fn a_log_that_syncs_before_it_acknowledges_loses_nothing() {
    let (bad, schedules) = violations(Syncs::AfterAppend, 64);
    assert!(schedules > 1000, "{schedules}");
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn a_log_that_never_syncs_is_caught() {
    let (bad, _) = violations(Syncs::Never, 16);
    assert!(bad.contains(&CrashMode::Dropped), "{bad:?}");
}

#[test]
fn a_log_that_syncs_before_the_append_is_caught() {
    let (bad, _) = violations(Syncs::BeforeAppend, 16);
    assert!(!bad.is_empty());
}

/// Images of a database of 256 pages in three files with a dozen writes pending. The figure is
/// printed; the test asks for a tenth of what an idle machine does.
#[test]
fn an_image_costs_microseconds() {
    let disk = SimDisk::new(2, SimOptions::default());
    let mut files = Vec::new();
    for name in ["log", "pages", "image"] {
        let file = disk.open(name, OpenMode::CreateNew).unwrap();
        disk.write_at(&file, &PageBuf::zeroed(85), 85, 0).unwrap();
        disk.sync(&file).unwrap();
        files.push(file);
    }
    disk.sync_folder().unwrap();
    disk.record();
    for at in 0..12 {
        let mut page = PageBuf::zeroed(1);
        page.fill(9);
        disk.write_at(&files[at % 3], &page, 1, (at * 5 * PAGE) as u64).unwrap();
    }
    let (start, mut images, mut disks) = (Instant::now(), 0_u32, 0_u32);
    for point in disk.trace().crash_points() {
        images += u32::try_from(point.outcomes(1, 1000).count()).unwrap();
    }
    let built = start.elapsed();
    let start = Instant::now();
    for point in disk.trace().crash_points() {
        for outcome in point.outcomes(1, 1000) {
            let disk = outcome.disk();
            disk.mark(1);
            disks += 1;
        }
    }
    let opened = start.elapsed();
    println!("{images} images: {:?} each; with a disk: {:?}", built / images, opened / disks);
    assert!(opened.as_secs_f64() / f64::from(disks) < 1e-3);
}
