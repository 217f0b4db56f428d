//! A live simulated disk behind its lock: numbers operations, decides faults and turns each operation into events.
//!
//! A transfer has two halves. *Starting* numbers the operation, decides its end and, for a write, hands the data to the
//! device; *finishing* makes it complete. A blocking call does both at once, a queue puts time between them.

use core::time::Duration;
use std::sync::Arc;

use super::clock::SimClock;
use super::content::{PageBytes, SECTOR, SECTORS, pages_of, to_index};
use super::faults::{Aftermath, Attempt, Fault, Faults, code};
use super::file::{SimFile, refused};
use super::ledger::{Injected, LedgerEntry};
use super::options::{Quota, SimOptions};
use super::rng::Rng;
use super::state::{DiskEvent, DiskState, FileId, Masks, OpId, SyncEnd};
use crate::device::OpenFile;
use crate::error::{IoError, Operation, Result};
use crate::page::PAGE;

/// What an operation takes at least.
const TICK: Duration = Duration::from_micros(10);
/// Repetitions that the contract of `Device` allows.
const REPEATS: u32 = 16;
const PAGE_U64: u64 = PAGE as u64;
/// The disk's size where no quota is set: more than any simulation uses, and small enough for
/// the page map of one file that reserves all of it.
const WITHOUT_QUOTA: Quota = Quota { bytes: 16 << 30, code: code::ENOSPC };

/// Why a transfer ends before its length.
#[derive(Clone, Copy, Debug)]
enum StopReason {
    Code(i32),
    /// A count of 0.
    Nothing,
}

/// How a transfer will end, as far as faults decide it.
#[derive(Debug)]
pub(super) struct TransferPlan {
    /// Bytes moved before the end.
    done: usize,
    /// Why it ends early.
    problem: Option<StopReason>,
    pub(super) delay: Duration,
}

/// A write that the device has.
pub(super) struct WriteTicket {
    op: OpId,
    result: Result<()>,
    masks: Option<Masks>,
    fresh: u64,
    pub(super) delay: Duration,
}

/// A sync that the device has.
pub(super) struct SyncTicket {
    op: OpId,
    failure: Option<(i32, Aftermath)>,
    pub(super) delay: Duration,
}

pub(super) struct Recording {
    pub(super) initial: DiskState,
    pub(super) events: Vec<DiskEvent>,
}

pub(super) struct SimDiskInner {
    pub(super) state: DiskState,
    pub(super) rng: Rng,
    pub(super) options: SimOptions,
    pub(super) faults: Faults,
    pub(super) ledger: Vec<LedgerEntry>,
    /// Operations started so far; the first has number 1.
    pub(super) operations: u64,
    pub(super) clock: SimClock,
    pub(super) recording: Option<Recording>,
    /// One token a file; open handles share it.
    pub(super) tokens: Vec<Arc<()>>,
    /// Pages that writes in flight will occupy.
    reserved: u64,
    next_op: OpId,
    pub(super) readers: usize,
    pub(super) writer: bool,
}

impl SimDiskInner {
    pub(super) fn new(state: DiskState, seed: u64, options: SimOptions) -> Self {
        let recording =
            options.record.then(|| Recording { initial: state.clone(), events: Vec::new() });
        Self {
            tokens: state.files.iter().map(|_| Arc::new(())).collect(),
            state,
            rng: Rng::labelled(seed, 0xd15c),
            faults: Faults::new(options.rules.clone(), options.rates),
            options,
            ledger: Vec::new(),
            operations: 0,
            clock: SimClock::default(),
            recording,
            reserved: 0,
            next_op: 0,
            readers: 0,
            writer: false,
        }
    }

    pub(super) fn emit(&mut self, event: DiskEvent) {
        self.state.apply(&event);
        if let Some(recording) = &mut self.recording {
            recording.events.push(event);
        }
    }

    fn looked(&mut self, what: &'static str, id: Option<FileId>, offset: u64, code: i32) {
        self.emit(DiskEvent::Looked { what, id, offset, code });
    }

    fn note(&mut self, file: &str, offset: u64, operation: Option<Operation>, fault: Fault) {
        self.ledger.push(LedgerEntry {
            operation: self.operations,
            file: file.to_owned(),
            offset,
            injected: Injected::Fault(operation, fault),
        });
    }

    /// Numbers an operation.
    fn count(&mut self) {
        self.operations += 1;
        self.clock.advance(TICK);
    }

    fn strike(
        &mut self,
        operation: Operation,
        file: &str,
        offset: u64,
        first: bool,
    ) -> Option<Fault> {
        let attempt = Attempt { number: self.operations, operation: Some(operation), file, first };
        let fault = self.faults.strike(&mut self.rng, &attempt)?;
        self.note(file, offset, Some(operation), fault);
        Some(fault)
    }

    /// Begins an operation that is one step: fails, or waits out a delay.
    pub(super) fn begin(&mut self, operation: Operation, file: &str, offset: u64) -> Result<()> {
        self.count();
        match self.strike(operation, file, offset, true) {
            Some(Fault::Errno(code)) => Err(self.fail(operation, file, offset, code)),
            Some(Fault::Delay(delay)) => {
                self.clock.advance(delay);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The error of an operation that changed nothing.
    pub(super) fn fail(
        &mut self,
        operation: Operation,
        file: &str,
        offset: u64,
        code: i32,
    ) -> IoError {
        self.looked("failed", None, offset, code);
        refused(file, offset, operation, code)
    }

    /// The file of a handle, which must be this disk's.
    ///
    /// # Panics
    /// When the handle comes from another disk.
    pub(super) fn check(&self, file: &SimFile) -> FileId {
        let ours = self.tokens.get(file.id().0).is_some_and(|token| file.is(token));
        assert!(ours, "the handle of {} belongs to another simulated disk", file.name());
        file.id()
    }

    /// Bytes in use: named files and unnamed ones that are open.
    pub(super) fn used(&self) -> u64 {
        let named: std::collections::BTreeSet<_> =
            self.state.names.values().map(|id| id.0).collect();
        let files = self.state.files.iter().enumerate();
        let held = |id: usize| named.contains(&id) || Arc::strong_count(&self.tokens[id]) > 1;
        let pages: u64 =
            files.filter(|(id, _)| held(*id)).map(|(_, file)| file.visible.occupied()).sum();
        (pages + self.reserved) * PAGE_U64
    }

    /// Pages that may still be occupied.
    pub(super) fn room(&self) -> u64 {
        self.limit().bytes.saturating_sub(self.used()) / PAGE_U64
    }

    /// The space limit that holds.
    pub(super) fn limit(&self) -> Quota {
        self.options.quota.unwrap_or(WITHOUT_QUOTA)
    }

    /// Follows a transfer of `total` bytes through its attempts.
    fn plan(
        &mut self,
        operation: Operation,
        file: &str,
        offset: u64,
        total: usize,
    ) -> TransferPlan {
        self.count();
        let mut plan = TransferPlan { done: 0, problem: None, delay: Duration::ZERO };
        let mut repeated = 0;
        let mut first = true;
        while plan.done < total {
            let at = offset + plan.done as u64;
            let fault = self.strike(operation, file, at, first);
            first = false;
            match fault {
                Some(Fault::Errno(again @ (code::EINTR | code::EAGAIN))) => {
                    repeated += 1;
                    if repeated > REPEATS {
                        plan.problem = Some(StopReason::Code(again));
                        return plan;
                    }
                }
                Some(Fault::Errno(code)) => {
                    plan.problem = Some(StopReason::Code(code));
                    return plan;
                }
                Some(Fault::Short(0)) => {
                    plan.problem = Some(StopReason::Nothing);
                    return plan;
                }
                Some(Fault::Short(bytes)) => {
                    repeated = 0;
                    plan.done = total.min(plan.done + bytes as usize);
                }
                Some(Fault::Delay(delay)) => {
                    plan.delay += delay;
                    plan.done = total;
                }
                _ => plan.done = total,
            }
        }
        plan
    }

    pub(super) fn start_read(&mut self, file: &SimFile, offset: u64, len: usize) -> TransferPlan {
        self.plan(Operation::Read, file.name(), offset, len)
    }

    /// Fills `out` with what reads see now. After a failure the rest of the buffer is noise.
    pub(super) fn finish_read(
        &mut self,
        file: &SimFile,
        plan: &TransferPlan,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let (id, name, total) = (self.check(file), file.name(), out.len());
        let content = &self.state.files[id.0].visible;
        let there = content.len().saturating_sub(offset).min(total as u64);
        let there = to_index(there);
        let first = offset / PAGE_U64;
        let mut done = plan.done.min(there);
        let pages = done.div_ceil(PAGE);
        let bad = (0..pages).find(|&page| content.is_bad(first + page as u64));
        if let Some(page) = bad {
            done = done.min(page * PAGE);
        }
        for (page, part) in out[..done].chunks_mut(PAGE).enumerate() {
            part.copy_from_slice(&content.page(first + page as u64)[..part.len()]);
        }
        if done == total && plan.problem.is_none() {
            self.looked("read", Some(id), offset, 0);
            return Ok(());
        }
        let problem = match plan.problem {
            _ if bad.is_some() => StopReason::Code(code::EIO),
            Some(problem) if plan.done <= there => problem,
            // The end of the file comes first.
            _ => StopReason::Nothing,
        };
        self.rng.fill(&mut out[done..]);
        let told = if let StopReason::Code(code) = problem { code } else { 0 };
        self.looked("read in part", Some(id), offset, told);
        Err(ended(name, Operation::Read, offset, done, total, problem))
    }

    /// Hands a write to the device: of whole pages, which have what reads see where no bytes are written.
    pub(super) fn start_write(&mut self, file: &SimFile, offset: u64, bytes: &[u8]) -> WriteTicket {
        let (id, name) = (self.check(file), file.name());
        let (first, before) = (offset / PAGE_U64, to_index(offset % PAGE_U64));
        let count = pages_of(before as u64 + bytes.len() as u64);
        let content = &self.state.files[id.0].visible;
        let mut pages: Vec<PageBytes> =
            (first..first + count).map(|page| *content.page(page)).collect();
        pages.as_flattened_mut()[before..before + bytes.len()].copy_from_slice(bytes);
        let is_part = before != 0 || !bytes.len().is_multiple_of(PAGE);
        let is_bad = is_part && (first..first + count).any(|page| content.is_bad(page));
        assert!(!is_part || offset + bytes.len() as u64 <= content.len(), "bytes past the end");
        if self.options.asserts.overlapping_writes {
            let overlaps = self.state.files[id.0].overlaps(first, count);
            assert!(!overlaps, "two writes in flight on page {first} or after it of {name}");
        }
        let mut plan = self.plan(Operation::Write, name, offset, bytes.len());
        let fits = self.fitting(id, first, count);
        if fits < count && to_index(fits) * PAGE < before + plan.done {
            plan.done = (to_index(fits) * PAGE).saturating_sub(before);
            plan.problem = Some(StopReason::Code(self.limit().code));
        }
        if is_bad {
            // The rest of a page has to be read.
            (plan.done, plan.problem) = (0, Some(StopReason::Code(code::EIO)));
        }
        let total = bytes.len();
        let (masks, result) = match plan.problem {
            None => (None, Ok(())),
            Some(problem) => {
                let masks = self.reached(before + plan.done, to_index(fits), to_index(count));
                let short = ended(name, Operation::Write, offset, plan.done, total, problem);
                (Some(masks), Err(short))
            }
        };
        let fresh = self.state.files[id.0].visible.holes(first, fits);
        self.reserved += fresh;
        let op = self.next_op();
        let pages = pages.into_iter().map(Arc::new).collect();
        self.emit(DiskEvent::Start { op, id, first, pages });
        WriteTicket { op, result, masks, fresh, delay: plan.delay }
    }

    /// Pages of `count` from `first` that the quota has room for.
    fn fitting(&self, id: FileId, first: u64, count: u64) -> u64 {
        let content = &self.state.files[id.0].visible;
        if self.options.quota.is_none() {
            return count;
        }
        let mut room = self.room();
        for index in 0..count {
            let need = content.holes(first + index, 1);
            if need > room {
                return index;
            }
            room -= need;
        }
        count
    }

    /// What reached the medium of a failed write of `pages` pages: the bytes before its end and, half
    /// of the time, any of the sectors after it, as far as pages `fit`.
    fn reached(&mut self, done: usize, fit: usize, pages: usize) -> Masks {
        let stray = self.rng.chance(1, 2);
        let mut masks = vec![0_u8; pages];
        for sector in 0..fit * SECTORS {
            if sector < done / SECTOR || (stray && self.rng.chance(1, 2)) {
                masks[sector / SECTORS] |= 1 << (sector % SECTORS);
            }
        }
        masks.into()
    }

    /// Lets reads see a write that has not completed. One that will fail stays hidden.
    pub(super) fn show(&mut self, file: &SimFile, ticket: &WriteTicket) {
        if ticket.result.is_ok() {
            self.emit(DiskEvent::Show { op: ticket.op, id: file.id() });
        }
    }

    pub(super) fn finish_write(&mut self, file: &SimFile, ticket: WriteTicket) -> Result<()> {
        let WriteTicket { op, result, masks, fresh, .. } = ticket;
        self.reserved -= fresh;
        self.emit(DiskEvent::Finish { op, id: file.id(), masks });
        result
    }

    /// Hands a sync to the device: it covers what has completed until now.
    pub(super) fn start_sync(&mut self, file: &SimFile) -> SyncTicket {
        self.count();
        let id = self.check(file);
        let fault = self.strike(Operation::Sync, file.name(), 0, true);
        let (failure, delay) = self.sync_fault(fault);
        let op = self.next_op();
        self.emit(DiskEvent::SyncStart { op, id });
        SyncTicket { op, failure, delay }
    }

    fn sync_fault(&mut self, fault: Option<Fault>) -> (Option<(i32, Aftermath)>, Duration) {
        match fault {
            Some(Fault::Sync(aftermath)) => (Some((code::EIO, aftermath)), Duration::ZERO),
            Some(Fault::Errno(code)) => {
                let all = [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed];
                (Some((code, all[self.rng.index(3)])), Duration::ZERO)
            }
            Some(Fault::Delay(delay)) => (None, delay),
            _ => (None, Duration::ZERO),
        }
    }

    fn end_of(&mut self, failure: Option<(i32, Aftermath)>) -> SyncEnd {
        match failure {
            None => SyncEnd::Durable,
            Some((_, aftermath)) => SyncEnd::Failed(aftermath, self.rng.next()),
        }
    }

    pub(super) fn finish_sync(&mut self, file: &SimFile, ticket: &SyncTicket) -> Result<()> {
        let end = self.end_of(ticket.failure);
        self.emit(DiskEvent::SyncEnd { op: ticket.op, id: file.id(), end });
        match ticket.failure {
            None => Ok(()),
            Some((code, _)) => Err(refused(file.name(), 0, Operation::Sync, code)),
        }
    }

    pub(super) fn sync_folder(&mut self) -> Result<()> {
        self.count();
        let fault = self.strike(Operation::SyncFolder, "", 0, true);
        let (failure, delay) = self.sync_fault(fault);
        self.clock.advance(delay);
        let end = self.end_of(failure);
        self.emit(DiskEvent::FolderSync(end));
        match failure {
            None => Ok(()),
            Some((code, _)) => Err(refused("", 0, Operation::SyncFolder, code)),
        }
    }

    /// Asks whether a submission of requests, the first of them on `file`, is refused.
    pub(super) fn submission(
        &mut self,
        file: &str,
        offset: u64,
        operation: Operation,
    ) -> Result<()> {
        let attempt = Attempt { number: self.operations + 1, operation: None, file, first: true };
        match self.faults.strike(&mut self.rng, &attempt) {
            Some(fault @ Fault::Refuse(code)) => {
                self.note(file, offset, None, fault);
                self.looked("refused", None, offset, code);
                Err(refused(file, offset, operation, code))
            }
            _ => Ok(()),
        }
    }

    fn next_op(&mut self) -> OpId {
        self.next_op += 1;
        self.next_op
    }
}

/// The error of a transfer that ended after `done` bytes: with an error number, or a count of 0.
fn ended(
    file: &str,
    operation: Operation,
    offset: u64,
    done: usize,
    total: usize,
    problem: StopReason,
) -> IoError {
    match problem {
        StopReason::Code(code) => refused(file, offset + done as u64, operation, code),
        StopReason::Nothing => IoError::Short {
            file: file.to_owned(),
            offset,
            operation,
            done: done as u64,
            expected: total as u64,
        },
    }
}
