//! Faults strike exactly where they were set, look to the caller like the real thing, and are in the ledger.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pleach_io::sim::{
    Aftermath, Asserts, CrashMode, Damage, DamageKind, DamagedPage, Fault, FaultRates,
    FaultRepeats, FaultRule, Injected, Quota, SimDisk, SimOptions, Unpolled, code,
};
use pleach_io::{Device, File, IoError, OpenMode, Operation, PAGE, PageBuf, Request, RequestKind};

const PAGE_U64: u64 = PAGE as u64;

fn page(byte: u8) -> PageBuf {
    let mut buf = PageBuf::zeroed(1);
    buf.fill(byte);
    buf
}

fn disk_with(name: &str, pages: &[u8]) -> (SimDisk, File) {
    let disk = SimDisk::new(3, SimOptions::default());
    let file = disk.open(name, OpenMode::CreateNew).unwrap();
    for (at, &byte) in pages.iter().enumerate() {
        disk.write_at(&file, &page(byte), 1, at as u64 * PAGE_U64).unwrap();
    }
    disk.sync(&file).unwrap();
    disk.sync_folder().unwrap();
    (disk, file)
}

fn read(disk: &SimDisk, file: &File, at: u64) -> Result<PageBuf, IoError> {
    let mut buf = PageBuf::zeroed(1);
    disk.read_at(file, &mut buf, at * PAGE_U64).map(|()| buf)
}

fn code_of(error: &IoError) -> i32 {
    match error {
        IoError::Os { code, .. } => *code,
        _ => 0,
    }
}

fn request(file: &File, transfer: RequestKind, buf: PageBuf, token: u64) -> Request {
    Request { file: file.clone(), kind: transfer, offset: 0, buf, token }
}

/// A small workload that stops at the first error.
fn workload(disk: &SimDisk) -> Result<(), IoError> {
    let file = disk.open("w", OpenMode::CreateNew)?;
    disk.sync_folder()?;
    disk.allocate(&file, 0, 2 * PAGE_U64)?;
    disk.write_at(&file, &page(5), 1, 0)?;
    disk.sync(&file)?;
    let mut queue = disk.queue(2)?;
    queue.push(request(&file, RequestKind::Read, PageBuf::zeroed(1), 1));
    if let Some(done) = queue.wait()? {
        done.result?;
    }
    disk.len(&file)?;
    disk.rename("w", "v")?;
    disk.list()?;
    disk.remove("v")?;
    disk.sync_folder()
}

#[test]
fn failing_any_operation_fails_the_workload_with_that_error_and_one_ledger_entry() {
    let clean = SimDisk::new(1, SimOptions::default());
    workload(&clean).unwrap();
    let end = clean.operations();
    assert_eq!(end, 12, "each fallible call is an operation");
    for number in 1..=end {
        for code in [code::EIO, code::ENOSPC, code::EDQUOT, code::EFBIG] {
            let rules = vec![FaultRule::at(number, FaultRepeats::Once, Fault::Errno(code))];
            let disk = SimDisk::new(1, SimOptions { rules, ..SimOptions::default() });
            let error = workload(&disk).unwrap_err();
            assert_eq!(code_of(&error), code, "operation {number}");
            let ledger = disk.ledger();
            assert_eq!(ledger.len(), 1);
            assert_eq!(ledger[0].operation, number);
            assert!(
                matches!(ledger[0].injected, Injected::Fault(_, fault) if fault == Fault::Errno(code))
            );
        }
    }
}

#[test]
fn sixteen_interruptions_are_hidden_and_seventeen_surface() {
    for code in [code::EINTR, code::EAGAIN] {
        for operation in [Operation::Read, Operation::Write] {
            for (count, passes) in [(1, true), (16, true), (17, false)] {
                let (disk, file) = disk_with("f", &[1]);
                let fault = Fault::Errno(code);
                disk.inject(FaultRule::nth(operation, "f", 1, FaultRepeats::Count(count), fault));
                let result = match operation {
                    Operation::Read => read(&disk, &file, 0).map(drop),
                    _ => disk.write_at(&file, &page(2), 1, 0),
                };
                assert_eq!(result.is_ok(), passes, "{count} times {code} on {operation:?}");
                assert_eq!(disk.ledger().len(), count as usize);
            }
        }
    }
}

#[test]
fn a_short_count_goes_on_and_a_count_of_zero_ends_the_transfer() {
    for bytes in [512, 2048] {
        let (disk, file) = disk_with("f", &[1]);
        let fault = Fault::Short(bytes);
        disk.inject(FaultRule::nth(Operation::Read, "f", 1, FaultRepeats::Forever, fault));
        assert!(read(&disk, &file, 0).unwrap().iter().all(|&byte| byte == 1));
        assert_eq!(disk.ledger().len(), PAGE / bytes as usize);
    }
    let (disk, file) = disk_with("f", &[1]);
    disk.inject(FaultRule::nth(Operation::Write, "f", 1, FaultRepeats::Once, Fault::Short(2048)));
    disk.inject(FaultRule::nth(Operation::Write, "f", 1, FaultRepeats::Once, Fault::Short(0)));
    let error = disk.write_at(&file, &page(2), 1, 0).unwrap_err();
    assert!(matches!(error, IoError::Short { done: 2048, expected: 4096, .. }), "{error}");
    let left = read(&disk, &file, 0).unwrap();
    assert!(left[..2048].iter().all(|&byte| byte == 2), "what had moved has landed");
}

#[test]
fn reading_past_the_end_is_short() {
    let (disk, file) = disk_with("f", &[1]);
    let error = read(&disk, &file, 1).unwrap_err();
    assert!(matches!(error, IoError::Short { done: 0, expected: 4096, .. }), "{error}");
}

#[test]
fn a_failed_sync_is_never_made_good_by_another() {
    for aftermath in [Aftermath::NewVisible, Aftermath::OldBack] {
        let (disk, file) = disk_with("f", &[1]);
        disk.write_at(&file, &page(2), 1, 0).unwrap();
        disk.inject(FaultRule::nth(
            Operation::Sync,
            "f",
            1,
            FaultRepeats::Once,
            Fault::Sync(aftermath),
        ));
        assert_eq!(code_of(&disk.sync(&file).unwrap_err()), code::EIO);
        disk.sync(&file).expect("the second one succeeds and covers nothing");
        let seen = read(&disk, &file, 0).unwrap()[0];
        assert_eq!(seen, if aftermath == Aftermath::OldBack { 1 } else { 2 });
        let trace = disk.trace();
        let kept = trace.crash_point(trace.len()).outcome(CrashMode::Kept);
        assert_eq!(kept.image().file("f").unwrap().page(0)[0], 1, "{aftermath:?}: gone");
    }
}

#[test]
fn a_mixed_aftermath_leaves_pages_of_all_three_kinds() {
    let old = [1; 48];
    let (disk, file) = disk_with("f", &old);
    let mut buf = PageBuf::zeroed(48);
    buf.fill(2);
    disk.write_at(&file, &buf, 48, 0).unwrap();
    disk.inject(FaultRule::nth(
        Operation::Sync,
        "f",
        1,
        FaultRepeats::Once,
        Fault::Sync(Aftermath::Mixed),
    ));
    disk.sync(&file).unwrap_err();
    let trace = disk.trace();
    let crashed = trace.crash_point(trace.len()).outcome(CrashMode::Dropped);
    let durable = crashed.image().file("f").unwrap();
    let mut kinds = std::collections::BTreeMap::<_, u32>::new();
    for at in 0..48 {
        let seen = read(&disk, &file, at).unwrap()[0];
        *kinds.entry((seen, durable.page(at)[0])).or_default() += 1;
    }
    let kinds: Vec<_> = kinds.into_keys().collect();
    assert_eq!(kinds, [(1, 1), (2, 1), (2, 2)], "(seen, durable): back, lost, stored");
}

#[test]
fn a_quota_fails_reservations_and_writes_into_holes_and_room_lets_work_go_on() {
    let (disk, file) = disk_with("f", &[1, 1]);
    disk.set_quota(Some(Quota { bytes: 4 * PAGE_U64, code: code::ENOSPC }));
    assert_eq!(disk.free_space().unwrap(), (2 * PAGE_U64, 4 * PAGE_U64));
    let error = disk.allocate(&file, 0, 5 * PAGE_U64).unwrap_err();
    assert!(error.is_full());
    assert_eq!(disk.len(&file).unwrap(), 2 * PAGE_U64, "a failed reservation changes nothing");
    disk.allocate(&file, 0, 3 * PAGE_U64).unwrap();
    let error = disk.write_at(&file, &PageBuf::zeroed(3), 3, 2 * PAGE_U64).unwrap_err();
    assert!(matches!(error, IoError::Os { kind: ErrorKind::StorageFull, .. }));
    disk.write_at(&file, &page(2), 1, 0).expect("overwriting needs no room");
    disk.set_len(&file, 0).unwrap();
    disk.allocate(&file, 0, 4 * PAGE_U64).expect("what was cut is free again");
    let open = disk.open("f", OpenMode::Read).unwrap();
    drop(file);
    disk.remove("f").unwrap();
    assert_eq!(disk.used(), 4 * PAGE_U64, "an open file keeps its space");
    drop(open);
    assert_eq!(disk.used(), 0);
    disk.set_quota(Some(Quota { bytes: 0, code: code::EDQUOT }));
    let file = disk.open("g", OpenMode::CreateNew).unwrap();
    assert!(disk.allocate(&file, 0, 1).unwrap_err().is_full());
    assert_eq!(code_of(&disk.allocate(&file, 1, u64::MAX).unwrap_err()), code::EFBIG);
}

#[test]
fn a_refused_submission_leaves_its_requests_pending() {
    let (disk, file) = disk_with("f", &[1]);
    disk.inject(FaultRule::at(1, FaultRepeats::Count(2), Fault::Refuse(code::EBUSY)));
    let mut queue = disk.queue(2).unwrap();
    queue.push(request(&file, RequestKind::Read, PageBuf::zeroed(1), 9));
    assert_eq!(code_of(&queue.submit().unwrap_err()), code::EBUSY);
    assert_eq!(code_of(&queue.wait().unwrap_err()), code::EBUSY);
    assert_eq!(queue.in_flight(), 1);
    let done = queue.wait().unwrap().unwrap();
    assert_eq!((done.token, done.buf[0]), (9, 1));
}

#[test]
fn a_delayed_request_is_overtaken_and_takes_its_time() {
    let (disk, file) = disk_with("f", &[1]);
    let late = core::time::Duration::from_secs(1);
    disk.inject(FaultRule::nth(Operation::Read, "f", 1, FaultRepeats::Once, Fault::Delay(late)));
    let mut queue = disk.queue(8).unwrap();
    for token in 0..8 {
        queue.push(request(&file, RequestKind::Read, PageBuf::zeroed(1), token));
    }
    let order: Vec<_> =
        core::iter::from_fn(|| queue.wait().unwrap()).map(|done| done.token).collect();
    assert_eq!(order.len(), 8);
    assert_eq!(order[7], 0, "{order:?}");
    assert!(disk.clock().now() >= late);
}

#[test]
fn a_failed_write_lands_in_any_part_and_leaves_noise_in_a_failed_reads_buffer() {
    let mut landed = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let disk = SimDisk::new(seed, SimOptions::default());
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.write_at(&file, &page(1), 1, 0).unwrap();
        disk.inject(FaultRule::nth(
            Operation::Write,
            "f",
            1,
            FaultRepeats::Once,
            Fault::Errno(code::EIO),
        ));
        disk.write_at(&file, &page(2), 1, 0).unwrap_err();
        let seen = read(&disk, &file, 0).unwrap();
        landed.insert(seen.chunks(512).filter(|sector| sector[0] == 2).count());
        disk.inject(FaultRule::nth(
            Operation::Read,
            "f",
            1,
            FaultRepeats::Once,
            Fault::Errno(code::EIO),
        ));
        let mut buf = page(0);
        disk.read_at(&file, &mut buf, 0).unwrap_err();
        assert!(buf.iter().any(|&byte| byte > 2), "noise, not zeros");
    }
    assert!(landed.contains(&0) && landed.len() > 3, "{landed:?}");
}

#[test]
fn each_kind_of_damage_changes_what_it_says_and_is_in_the_ledger() {
    let at = |page| DamagedPage { file: "f".into(), page };
    let (disk, file) = disk_with("f", &[1, 2, 3, 4]);
    disk.write_at(&file, &page(9), 1, 3 * PAGE_U64).unwrap();
    disk.sync(&file).unwrap();
    assert!(disk.damage(&Damage::Flip { at: at(0), byte: 100, bit: 7 }));
    assert_eq!(read(&disk, &file, 0).unwrap()[100], 0x81);
    assert!(disk.damage(&Damage::Misdirected { meant: at(2), hit: at(1) }));
    assert_eq!(read(&disk, &file, 1).unwrap()[0], 3);
    assert!(disk.damage(&Damage::Zero(at(2))));
    assert_eq!(read(&disk, &file, 2).unwrap()[0], 0);
    assert!(!disk.damage(&Damage::Zero(at(2))), "nothing would change");
    assert!(disk.damage(&Damage::Stale(at(3))));
    assert_eq!(read(&disk, &file, 3).unwrap()[0], 4);
    assert!(disk.damage(&Damage::Unreadable(at(3))));
    assert_eq!(code_of(&read(&disk, &file, 3).err().unwrap()), code::EIO);
    disk.write_at(&file, &page(5), 1, 3 * PAGE_U64).unwrap();
    assert_eq!(read(&disk, &file, 3).unwrap()[0], 5, "writing mends");
    disk.sync(&file).unwrap();
    assert!(disk.damage(&Damage::Truncate { file: "f".into(), len: 100 }));
    assert_eq!(disk.len(&file).unwrap(), 100);
    assert_eq!(disk.ledger().len(), 6);
    let trace = disk.trace();
    let crashed = trace.crash_point(trace.len()).outcome(CrashMode::Dropped);
    assert_eq!(crashed.image().file("f").unwrap().len(), 100, "damage is durable");
}

#[test]
fn random_damage_strikes_only_what_is_allowed() {
    for seed in 0..300 {
        let (disk, _file) = disk_with("f", &[1, 2, 3, 4]);
        let other = disk.open("g", OpenMode::CreateNew).unwrap();
        disk.write_at(&other, &page(7), 1, 0).unwrap();
        let before = disk.image();
        let kinds: Vec<_> =
            DamageKind::ALL.into_iter().filter(|&kind| kind != DamageKind::Truncate).collect();
        let allowed = |name: &str, page| name == "f" && page == 2;
        let Some(damage) = disk.damage_randomly(seed, &kinds, allowed) else { continue };
        assert_eq!(disk.ledger()[0].injected, Injected::Damage(damage.clone()));
        let after = disk.image();
        let (old, new) = (before.file("f").unwrap(), after.file("f").unwrap());
        for page in 0..4 {
            let same = old.page(page) == new.page(page) && !new.is_bad(page);
            assert_eq!(same, page != 2, "{damage:?}");
        }
        assert_eq!(before.file("g").unwrap().to_vec(), after.file("g").unwrap().to_vec());
    }
}

#[test]
fn a_dropped_queue_asserts_that_results_were_taken() {
    let dropped = |unpolled, transfer, fails: bool| {
        let asserts = Asserts { unpolled, ..Asserts::default() };
        let disk = SimDisk::new(1, SimOptions { asserts, ..SimOptions::default() });
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.write_at(&file, &page(1), 1, 0).unwrap();
        let mut queue = disk.queue(1).unwrap();
        if fails {
            disk.inject(FaultRule::at(1, FaultRepeats::Forever, Fault::Errno(code::EIO)));
        }
        queue.push(request(&file, transfer, page(0), 1));
        queue.submit().unwrap();
        catch_unwind(AssertUnwindSafe(|| drop(queue))).is_err()
    };
    for unpolled in [Unpolled::Ignore, Unpolled::Errors, Unpolled::ErrorsAndWrites] {
        let strict = unpolled == Unpolled::ErrorsAndWrites;
        assert!(!dropped(unpolled, RequestKind::Read, false), "a read may be forgotten");
        assert_eq!(dropped(unpolled, RequestKind::Write, false), strict);
        assert_eq!(dropped(unpolled, RequestKind::Sync, false), strict);
        assert_eq!(dropped(unpolled, RequestKind::Read, true), unpolled != Unpolled::Ignore);
    }
}

#[test]
fn two_writes_in_flight_on_one_page_are_an_assertion() {
    let (disk, file) = disk_with("f", &[1]);
    let mut queue = disk.queue(2).unwrap();
    queue.push(request(&file, RequestKind::Write, page(2), 1));
    queue.submit().unwrap();
    let both = catch_unwind(AssertUnwindSafe(|| disk.write_at(&file, &page(3), 1, 0)));
    assert!(both.is_err());
    queue.wait().unwrap().unwrap().result.unwrap();
    disk.write_at(&file, &page(3), 1, 0).unwrap();
}

#[test]
fn handles_and_arguments_are_checked_like_the_system_does() {
    let (disk, file) = disk_with("f", &[1]);
    let read_only = disk.open("f", OpenMode::Read).unwrap();
    assert_eq!(code_of(&disk.write_at(&read_only, &page(2), 1, 0).unwrap_err()), libc::EBADF);
    assert_eq!(code_of(&disk.write_at(&file, &page(2), 1, 512).unwrap_err()), libc::EINVAL);
    assert_eq!(code_of(&disk.write_at(&file, &page(2), 2, 0).unwrap_err()), libc::EINVAL);
    assert_eq!(code_of(&disk.open("f", OpenMode::CreateNew).unwrap_err()), libc::EEXIST);
    assert!(disk.open("nothing", OpenMode::Write).unwrap_err().is_not_found());
    let lock = disk.lock(pleach_io::LockMode::Shared).unwrap();
    assert!(matches!(
        disk.lock(pleach_io::LockMode::Exclusive),
        Err(IoError::Locked { holder: pleach_io::LockHolder::Unknown, .. })
    ));
    drop(lock);
    disk.lock(pleach_io::LockMode::Exclusive).unwrap();
}

#[test]
fn drawn_faults_are_all_in_the_ledger_and_print_themselves() {
    let rates = FaultRates { error: 100_000, sync: 100_000, ..FaultRates::default() };
    let disk = SimDisk::new(4, SimOptions { rates, ..SimOptions::default() });
    let mut failures = 0;
    for _ in 0..2000 {
        failures += usize::from(disk.list().is_err());
        failures += usize::from(disk.sync_folder().is_err());
    }
    assert_eq!(disk.ledger().len(), failures);
    assert!((200..600).contains(&failures), "{failures}");
    assert!(disk.ledger()[0].to_string().contains("struck by"));
    assert!(rates.to_string().contains("error 100000"));
    disk.heal();
    (0..100).for_each(|_| disk.sync_folder().unwrap());
}
