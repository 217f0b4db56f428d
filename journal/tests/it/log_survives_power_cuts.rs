//! Synced records survive any crash, and any crash during the recovery from it; unsynced records are there in order or
//! not at all, and never come back once they were cut off.

use std::collections::BTreeMap;

use crate::log_support::{append, cases, continue_log, input, new_log, read_log, record, sync};
use pleach_io::sim::{
    Aftermath, Fault, FaultRepeats, FaultRule, Quota, Rng, SimDisk, SimOptions, code,
};
use pleach_io::{Device as _, Operation};
use pleach_journal::format::record::{RecordBuf, body_checksum};
use pleach_journal::log::{LogError, LogTail, LogWriter};

/// Mark of a reopening; all other marks are numbers of acknowledged records.
const REOPENED: u64 = u64::MAX;

/// The last record known to be durable, and the last writer of each record.
#[derive(Clone, Default)]
struct Known {
    acknowledged: u64,
    bodies: BTreeMap<u64, Vec<u64>>,
}

impl Known {
    fn wrote(&mut self, number: u64, checksum: u64) {
        self.bodies.entry(number).or_default().push(checksum);
    }
}

struct Run {
    disk: SimDisk,
    writer: LogWriter,
    tail: LogTail,
    next: u64,
    known: Known,
}

impl Run {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed, SimOptions::default());
        let (writer, tail) = new_log(&disk, seed.is_multiple_of(2));
        Self { disk, writer, tail, next: 1, known: Known::default() }
    }

    /// Recovers a disk, checks what it holds, and opens it for writing.
    fn recover(disk: &SimDisk, incarnation: u32, mut known: Known, what: &str) -> Self {
        let (found, end) = read_log(disk, &input(incarnation - 1, 0))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        for (index, (header, body)) in found.iter().enumerate() {
            assert_eq!(header.number, index as u64 + 1, "{what}: a gap");
            let checksum = body_checksum(0, [body.as_slice()]);
            let bodies = known.bodies.get(&header.number).expect("written once");
            assert!(bodies.contains(&checksum), "{what}: an invented body");
        }
        let last = found.len() as u64;
        assert!(
            last >= known.acknowledged,
            "{what}: {} was acknowledged, {last} are left",
            known.acknowledged
        );
        // Records that were cut off must not come back.
        known.bodies.split_off(&(last + 1));
        for (header, body) in &found {
            known.bodies.insert(header.number, vec![body_checksum(0, [body.as_slice()])]);
        }
        let (writer, tail) =
            continue_log(disk, &end, incarnation).unwrap_or_else(|error| panic!("{what}: {error}"));
        known.acknowledged = last;
        Self { disk: disk.clone(), writer, tail, next: last + 1, known }
    }

    fn step(&mut self, rng: &mut Rng) -> Result<(), LogError> {
        let mut batch = Vec::new();
        for _ in 0..=rng.index(2) {
            let len = [0, 40, 300, 300, 3000, 5000, 12_000, 20_000][rng.index(8)];
            let record = record(self.next, len, rng.next());
            self.next += 1;
            batch.push(record);
        }
        for record in &batch {
            self.known.wrote(record.number(), checksum(record));
        }
        append(&mut self.writer, &mut self.tail, &mut batch)?;
        if rng.chance(2, 3) {
            sync(&mut self.writer, &mut self.tail)?;
            self.known.acknowledged = self.next - 1;
            self.disk.mark(self.next - 1);
        }
        Ok(())
    }
}

fn checksum(record: &RecordBuf) -> u64 {
    body_checksum(0, record.body_parts())
}

/// Crashes the run at points drawn from the seed, recovers, goes on, and crashes that again.
fn crash(run: &Run, incarnation: u32, base: u64, rng: &mut Rng, depth: u32) {
    let points: Vec<_> = run.disk.trace().crash_points().collect();
    for point in &points {
        if depth < 2 && !rng.chance(1, 12) {
            continue;
        }
        let acknowledged = point.marks().iter().copied().max().unwrap_or(base).max(base);
        for outcome in point.outcomes(rng.next(), if depth == 2 { 8 } else { 3 }) {
            let what = format!("depth {depth}, {point:?}, {outcome}");
            let known = Known { acknowledged, ..run.known.clone() };
            let disk = outcome.disk();
            let mut next = Run::recover(&disk, incarnation, known, &what);
            let base = next.known.acknowledged;
            // Before another sync only records that the reopening has made durable count.
            disk.mark(base);
            for _ in 0..3 {
                next.step(rng).expect("no faults");
            }
            if depth > 0 {
                crash(&next, incarnation + 1, acknowledged, rng, depth - 1);
            }
        }
    }
}

#[test]
fn synced_records_survive_every_crash_and_crashes_of_the_recovery() {
    for seed in 0..cases(3) {
        let mut rng = Rng::new(seed);
        let mut run = Run::new(seed);
        for _ in 0..6 {
            run.step(&mut rng).expect("no faults");
        }
        crash(&run, 2, 0, &mut rng, 2);
    }
}

#[test]
fn a_failed_write_or_sync_poisons_for_ever_and_is_never_repeated() {
    for operation in [Operation::Write, Operation::Sync] {
        let mut rng = Rng::new(1);
        let mut run = Run::new(1);
        run.step(&mut rng).expect("no faults");
        run.writer.segments().prepare_through(run.tail.position() + (64 << 10)).expect("no faults");
        let fault = Fault::Errno(code::EIO);
        run.disk.inject(FaultRule::nth(operation, "log-", 1, FaultRepeats::Once, fault));
        let mut failed = append(&mut run.writer, &mut run.tail, &mut [record(50, 100, 1)]);
        if operation == Operation::Sync {
            failed.expect("the sync is to fail");
            failed = sync(&mut run.writer, &mut run.tail).map(drop);
        }
        assert!(matches!(failed, Err(LogError::Io(_))), "{operation:?}: {failed:?}");
        let durable = run.writer.durable();
        let before = run.disk.operations();
        assert!(run.writer.is_poisoned());
        assert!(matches!(run.writer.sync(), Err(LogError::Poisoned)));
        let again = append(&mut run.writer, &mut run.tail, &mut [record(51, 100, 1)]);
        assert!(matches!(again, Err(LogError::Poisoned)));
        assert_eq!((run.disk.operations(), run.writer.durable()), (before, durable));
    }
}

#[test]
fn what_a_failed_sync_left_visible_is_durable_after_the_reopening() {
    // A sync fails and loses what it covered, which can still be read. The process reopens without a crash, reads it,
    // acknowledges more behind it, and then the power fails: a log with a hole would lose the last acknowledged
    // records.
    for aftermath in [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed] {
        for seed in 0..cases(30) {
            let mut rng = Rng::labelled(seed, 7);
            let mut run = Run::new(seed);
            let sync = 1 + rng.below(5);
            run.disk.inject(FaultRule::nth(
                Operation::Sync,
                "log",
                sync,
                FaultRepeats::Once,
                Fault::Sync(aftermath),
            ));
            let mut failed = false;
            for _ in 0..8 {
                if run.step(&mut rng).is_err() {
                    failed = true;
                    break;
                }
            }
            let what = format!("{aftermath:?}, seed {seed}, failed {failed}");
            drop(run.writer);
            let mut next = Run::recover(&run.disk, 2, run.known.clone(), &what);
            run.disk.mark(REOPENED);
            let base = next.known.acknowledged;
            for _ in 0..3 {
                next.step(&mut rng).expect("the fault strikes once");
            }
            // Points before the reopening belong to the first run.
            let points = run.disk.trace().crash_points();
            for point in points.filter(|point| point.marks().contains(&REOPENED)) {
                let marks = point.marks().iter().copied().filter(|mark| *mark != REOPENED);
                let acknowledged = marks.max().unwrap_or(base).max(base);
                for outcome in point.outcomes(seed, 6) {
                    let known = Known { acknowledged, bodies: next.known.bodies.clone() };
                    Run::recover(&outcome.disk(), 3, known, &format!("{what}, {outcome}"));
                }
            }
        }
    }
}

#[test]
fn a_full_disk_refuses_before_anything_is_written_and_goes_on_with_room() {
    for kib in 20..120 {
        let options = SimOptions {
            quota: Some(Quota { bytes: kib << 10, code: code::ENOSPC }),
            ..SimOptions::default()
        };
        let disk = SimDisk::new(kib, options);
        let (mut writer, mut tail) = new_log(&disk, kib.is_multiple_of(2));
        let mut written = 0;
        let full = loop {
            let before = tail;
            match append(&mut writer, &mut tail, &mut [record(written + 1, 5000, 1)]) {
                Ok(()) => written += 1,
                Err(error) => {
                    assert_eq!(tail, before, "nothing is reserved");
                    break error;
                }
            }
            sync(&mut writer, &mut tail).expect("no faults");
        };
        assert!(matches!(&full, LogError::Io(error) if error.is_full()), "{full}");
        assert!(!writer.is_poisoned());
        assert!(!disk.list().expect("no faults").contains(&"log.new".to_owned()), "undone");
        disk.set_quota(None);
        append(&mut writer, &mut tail, &mut [record(written + 1, 5000, 1)]).expect("there is room");
        writer.sync().expect("no faults");
        let (found, _) = read_log(&disk, &input(1, writer.durable())).expect("an intact log");
        assert_eq!(found.len() as u64, written + 1);
    }
}

#[test]
fn every_failing_operation_is_an_error_and_no_false_acknowledgement() {
    for number in 1..cases(90) {
        for times in [FaultRepeats::Once, FaultRepeats::Forever] {
            for fault in [Fault::Errno(code::EIO), Fault::Short(0), Fault::Errno(code::ENOSPC)] {
                let mut rng = Rng::new(11);
                let mut run = Run::new(5);
                run.disk.inject(FaultRule::at(number, times, fault));
                for _ in 0..6 {
                    if run.step(&mut rng).is_err() {
                        break;
                    }
                }
                let trace = run.disk.trace();
                let point = trace.crash_point(trace.len());
                for outcome in point.outcomes(number, 4) {
                    let what = format!("{fault:?} {times:?} at {number}, {outcome}");
                    Run::recover(&outcome.disk(), 2, run.known.clone(), &what);
                }
            }
        }
    }
}
