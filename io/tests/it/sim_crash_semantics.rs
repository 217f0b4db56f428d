//! What a power failure may and may not leave, one rule a test.

use pleach_io::sim::{
    CrashMode, CrashPoint, Fault, FaultRepeats, FaultRule, Grain, Image, SECTOR, SimDisk,
    SimOptions, code,
};
use pleach_io::{Device, File, OpenMode, Operation, PAGE, PageBuf, Request, RequestKind};

fn page(byte: u8) -> PageBuf {
    let mut buf = PageBuf::zeroed(1);
    buf.fill(byte);
    buf
}

/// A disk with the durable file "f" of `pages` pages of ones, and its handle.
fn disk_with_file(pages: usize) -> (SimDisk, File) {
    let disk = SimDisk::new(7, SimOptions::default());
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    disk.sync_folder().unwrap();
    let mut buf = PageBuf::zeroed(pages);
    buf.fill(1);
    disk.write_at(&file, &buf, pages, 0).unwrap();
    disk.sync(&file).unwrap();
    disk.record();
    (disk, file)
}

fn write(file: &File, byte: u8, at: u64, token: u64) -> Request {
    let offset = at * PAGE as u64;
    Request { file: file.clone(), kind: RequestKind::Write, offset, buf: page(byte), token }
}

fn now(disk: &SimDisk) -> CrashPoint {
    let trace = disk.trace();
    trace.crash_point(trace.len())
}

fn bytes(image: &Image) -> Vec<u8> {
    image.file("f").unwrap().to_vec()
}

#[test]
fn synced_data_always_survives() {
    let (disk, file) = disk_with_file(2);
    disk.write_at(&file, &page(2), 1, 0).unwrap();
    disk.sync(&file).unwrap();
    let point = now(&disk);
    assert_eq!(point.pending(), 0);
    let outcomes: Vec<_> = point.outcomes(1, 16).collect();
    assert_eq!(outcomes.len(), 1, "with nothing pending there is one outcome");
    assert!(bytes(outcomes[0].image())[..PAGE].iter().all(|&byte| byte == 2));
}

#[test]
fn unsynced_data_is_old_new_torn_or_garbage_and_nothing_else_changes() {
    let (disk, file) = disk_with_file(3);
    disk.write_at(&file, &page(2), 1, PAGE as u64).unwrap();
    let point = now(&disk);
    let (mut old, mut new, mut noise, mut torn, mut mixed) = (0, 0, 0, 0, 0);
    for outcome in point.outcomes(3, 400) {
        let bytes = bytes(outcome.image());
        assert_eq!(bytes.len(), 3 * PAGE);
        assert!(bytes[..PAGE].iter().chain(&bytes[2 * PAGE..]).all(|&byte| byte == 1));
        let sectors: Vec<_> = bytes[PAGE..2 * PAGE]
            .chunks(SECTOR)
            .map(|sector| match sector {
                _ if sector.iter().all(|&byte| byte == 1) => 'o',
                _ if sector.iter().all(|&byte| byte == 2) => 'n',
                _ => 'g',
            })
            .collect();
        let count = |kind| sectors.iter().filter(|&&sector| sector == kind).count();
        old += usize::from(count('o') == 8);
        new += usize::from(count('n') == 8);
        noise += usize::from(count('g') > 0);
        let cut = sectors.windows(2).filter(|pair| pair[0] != pair[1]).count();
        torn += usize::from(count('g') == 0 && sectors[0] == 'n' && cut == 1);
        mixed += usize::from(count('g') == 0 && cut > 1);
    }
    let all = [old, new, noise, torn, mixed];
    assert!(all.iter().all(|&count| count > 20), "old, new, noise, torn, mixed: {all:?}");
}

#[test]
fn a_sync_does_not_cover_a_write_that_completes_after_its_submission() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed, SimOptions::default());
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.set_len(&file, PAGE as u64).unwrap();
        disk.sync(&file).unwrap();
        disk.sync_folder().unwrap();
        let mut queue = disk.queue(4).unwrap();
        queue.push(write(&file, 2, 0, 1));
        queue.submit().unwrap();
        let sync = RequestKind::Sync;
        let buf = PageBuf::zeroed(0);
        queue.push(Request { file: file.clone(), kind: sync, offset: 0, buf, token: 2 });
        while queue.in_flight() > 0 {
            queue.wait().unwrap().unwrap().result.unwrap();
        }
        let lost = now(&disk).outcome(CrashMode::Dropped);
        assert!(bytes(lost.image()).iter().all(|&byte| byte == 0), "seed {seed}: not covered");
        disk.sync(&file).unwrap();
        let kept = now(&disk).outcome(CrashMode::Dropped);
        assert!(bytes(kept.image()).iter().all(|&byte| byte == 2), "seed {seed}: covered now");
    }
}

#[test]
fn a_write_that_nobody_submitted_never_reaches_the_disk() {
    let (disk, file) = disk_with_file(1);
    let mut queue = disk.queue(4).unwrap();
    queue.push(write(&file, 2, 0, 1));
    assert_eq!(now(&disk).pending(), 0);
    queue.submit().unwrap();
    assert_eq!(now(&disk).pending(), 1, "from here on it may land");
    queue.wait().unwrap().unwrap().result.unwrap();
}

#[test]
fn a_new_length_and_its_data_survive_apart() {
    let (disk, file) = disk_with_file(1);
    disk.write_at(&file, &page(2), 1, PAGE as u64).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for outcome in now(&disk).outcomes(5, 200) {
        let bytes = bytes(outcome.image());
        let tail = bytes.get(PAGE..).unwrap_or_default();
        seen.insert((bytes.len() / PAGE, tail.iter().all(|&byte| byte == 2)));
    }
    assert!(seen.contains(&(1, true)), "length lost: {seen:?}");
    assert!(seen.contains(&(2, true)), "both kept: {seen:?}");
    assert!(seen.contains(&(2, false)), "length without data: {seen:?}");
}

#[test]
fn lengths_and_reservations_are_volatile_until_a_sync_of_the_file() {
    let (disk, file) = disk_with_file(4);
    disk.set_len(&file, PAGE as u64).unwrap();
    disk.allocate(&file, 0, 8 * PAGE as u64).unwrap();
    let lengths: std::collections::BTreeSet<_> = now(&disk)
        .subsets(Grain::Item)
        .unwrap()
        .map(|outcome| bytes(outcome.image()).len() / PAGE)
        .collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1, 4, 8]);
    disk.sync(&file).unwrap();
    let image = now(&disk).outcome(CrashMode::Dropped);
    let content = image.image().file("f").unwrap();
    assert_eq!((content.pages(), content.occupied()), (8, 8));
    assert!(content.page(2).iter().all(|&byte| byte == 0), "what was cut is gone");
}

#[test]
fn an_exchange_is_lost_or_kept_as_a_whole() {
    let (disk, file) = disk_with_file(1);
    disk.sync(&file).unwrap();
    let other = disk.open("g", OpenMode::CreateNew).unwrap();
    disk.allocate(&other, 0, 3 * PAGE as u64).unwrap();
    disk.sync(&other).unwrap();
    disk.sync_folder().unwrap();
    assert!(disk.exchange("f", "g").unwrap());
    let pages = |image: &pleach_io::sim::Image| {
        (image.file("f").unwrap().pages(), image.file("g").unwrap().pages())
    };
    let before = pages(now(&disk).outcome(CrashMode::Dropped).image());
    let after = pages(now(&disk).outcome(CrashMode::Kept).image());
    assert_eq!((before.1, after.0), (3, 3));
    assert_eq!((before.0, before.1), (after.1, after.0));
    for outcome in now(&disk).outcomes(1, 12) {
        let found = pages(outcome.image());
        assert!(found == before || found == after, "never half done");
    }
    disk.sync_folder().unwrap();
    assert_eq!(pages(now(&disk).outcome(CrashMode::Dropped).image()), after);
    assert!(disk.exchange("f", "none").is_err());
}

#[test]
fn folder_changes_are_volatile_until_a_folder_sync() {
    let (disk, file) = disk_with_file(1);
    disk.sync(&file).unwrap();
    disk.rename("f", "g").unwrap();
    let named =
        |name| now(&disk).outcomes(1, 8).filter(|it| it.image().file(name).is_some()).count();
    assert!(named("f") > 0, "the rename may be lost");
    assert!(named("g") > 0, "or kept");
    assert_eq!(named("f") + named("g"), 8, "but is never half done");
    disk.sync_folder().unwrap();
    let kept = now(&disk).outcome(CrashMode::Dropped);
    assert_eq!(kept.image().names().collect::<Vec<_>>(), ["g"]);

    disk.remove("g").unwrap();
    assert!(now(&disk).outcome(CrashMode::Dropped).image().file("g").is_some());
    disk.sync_folder().unwrap();
    assert!(now(&disk).outcome(CrashMode::Dropped).image().file("g").is_none());
}

#[test]
fn a_synced_file_without_a_folder_sync_may_have_no_name() {
    let disk = SimDisk::new(1, SimOptions::default());
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    disk.write_at(&file, &page(3), 1, 0).unwrap();
    disk.sync(&file).unwrap();
    assert!(now(&disk).outcome(CrashMode::Dropped).image().file("f").is_none());
    let kept = now(&disk).outcome(CrashMode::Kept);
    assert!(bytes(kept.image()).iter().all(|&byte| byte == 3));
}

#[test]
fn all_subsets_of_the_sectors_of_one_page_are_distinct_and_complete() {
    let (disk, file) = disk_with_file(1);
    disk.write_at(&file, &page(2), 1, 0).unwrap();
    let images: std::collections::BTreeSet<_> =
        now(&disk).subsets(Grain::Sector).unwrap().map(|outcome| bytes(outcome.image())).collect();
    assert_eq!(images.len(), 256);
    disk.write_at(&file, &page(3), 1, PAGE as u64).unwrap();
    assert!(now(&disk).subsets(Grain::Sector).is_none(), "17 sectors and lengths are too many");
    assert_eq!(now(&disk).subsets(Grain::Page).unwrap().count(), 8, "two pages and a length");
    assert_eq!(now(&disk).subsets(Grain::Item).unwrap().count(), 4);
}

#[test]
fn a_crash_during_recovery_can_be_crashed_again() {
    let (disk, file) = disk_with_file(1);
    disk.write_at(&file, &page(2), 1, 0).unwrap();
    let first = now(&disk).outcome(CrashMode::Dropped).disk();
    let again = first.open("f", OpenMode::Write).unwrap();
    first.write_at(&again, &page(4), 1, 0).unwrap();
    first.sync(&again).unwrap();
    first.write_at(&again, &page(5), 1, 0).unwrap();
    let second = now(&first).outcome(CrashMode::Dropped).disk();
    let third = second.trace().crash_point(0).outcome(CrashMode::Kept);
    assert!(bytes(third.image()).iter().all(|&byte| byte == 4));
    let untouched = now(&disk).outcome(CrashMode::Dropped);
    assert!(bytes(untouched.image()).iter().all(|&byte| byte == 1), "a fork leaves its origin");
}

#[test]
fn a_mode_gives_the_same_image_again() {
    let (disk, file) = disk_with_file(4);
    for at in 0..4 {
        disk.write_at(&file, &page(9), 1, at * PAGE as u64).unwrap();
    }
    for point in disk.trace().crash_points() {
        let same = disk.trace().crash_point(point.boundary());
        for outcome in point.outcomes(11, 24) {
            let again = same.outcome(outcome.mode());
            assert_eq!(bytes(outcome.image()), bytes(again.image()), "{outcome}");
        }
    }
}

#[test]
fn marks_are_known_at_each_crash_point() {
    let (disk, file) = disk_with_file(1);
    disk.mark(1);
    disk.write_at(&file, &page(2), 1, 0).unwrap();
    disk.sync(&file).unwrap();
    disk.mark(2);
    let seen: Vec<_> =
        disk.trace().crash_points().map(|point| (point.pending(), point.marks().len())).collect();
    assert_eq!(seen, [(0, 0), (0, 1), (1, 1), (0, 1), (0, 2)]);
    assert_eq!(disk.trace().boundaries().len(), seen.len());
}

/// Growing a file shows zeros, not what a lost length hid.
#[test]
fn data_whose_length_was_lost_never_comes_back() {
    let (disk, file) = disk_with_file(1);
    disk.write_at(&file, &page(2), 1, PAGE as u64).unwrap();
    let mut hidden = 0;
    for outcome in now(&disk).subsets(Grain::Page).unwrap() {
        if outcome.image().file("f").unwrap().len() > PAGE as u64 {
            continue;
        }
        let survivor = outcome.disk();
        let file = survivor.open("f", OpenMode::Write).unwrap();
        survivor.set_len(&file, 2 * PAGE as u64).unwrap();
        let mut buf = page(9);
        survivor.read_at(&file, &mut buf, PAGE as u64).unwrap();
        assert!(buf.iter().all(|&byte| byte == 0));
        hidden += 1;
    }
    assert_eq!(hidden, 2, "with and without the data");
}

#[test]
fn a_write_behind_a_cut_can_lose_its_length() {
    let (disk, file) = disk_with_file(4);
    disk.set_len(&file, 0).unwrap();
    disk.write_at(&file, &page(2), 1, 0).unwrap();
    let lengths: Vec<_> = now(&disk)
        .subsets(Grain::Page)
        .unwrap()
        .map(|outcome| bytes(outcome.image()).len() / PAGE)
        .collect();
    assert_eq!(lengths, [4, 0, 4, 0, 4, 1, 4, 1], "cut, data, length: one bit each");
}

#[test]
fn what_a_failed_write_did_not_land_is_on_no_image() {
    for seed in 0..20 {
        let options = SimOptions::default();
        let disk = SimDisk::new(seed, options);
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.write_at(&file, &page(1), 1, 0).unwrap();
        disk.sync(&file).unwrap();
        disk.sync_folder().unwrap();
        let fault = Fault::Errno(code::EIO);
        disk.inject(FaultRule::nth(Operation::Write, "f", 1, FaultRepeats::Once, fault));
        disk.write_at(&file, &page(2), 1, 0).unwrap_err();
        let seen = disk.image().file("f").unwrap().to_vec();
        for outcome in now(&disk).outcomes(seed, 40) {
            let bytes = bytes(outcome.image());
            for (sector, seen) in bytes.chunks(SECTOR).zip(seen.chunks(SECTOR)) {
                assert!(seen[0] == 2 || sector.iter().all(|&byte| byte == 1), "{outcome}");
            }
        }
    }
}
