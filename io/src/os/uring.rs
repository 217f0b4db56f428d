//! A queue over io_uring.
//!
//! The loop:
//! 1. `push` puts a request into a free slot and its number on the staged list.
//! 2. `submit` and `wait` turn staged slots into submission entries, all of which one
//!    `io_uring_enter` takes; `wait` sleeps in the same call until one completion is there.
//! 3. Completions are matched by slot and generation, stepped by [`TransferProgress::advance`], and either
//!    staged again or moved to the ready list, with their buffer.
//! 4. `poll` and `wait` return from the ready list.
//!
//! Invariants:
//! * a slot owns buffer and file from `push` until its completion; slots never move, and a slot whose entry is in the
//!   ring is not touched, even after an error of `io_uring_enter`: entries that the kernel took still run, others are
//!   offered again;
//! * slots = free + staged + in the ring; the ring has a submission entry and two completions for each slot, so that neither
//!   side is ever full;
//! * the ring belongs to the thread that submits first. Elsewhere `submit` and `wait` are errors (EEXIST), and a queue
//!   dropped elsewhere with requests in flight leaks their buffers rather than free memory that the kernel writes to.
//!
//! A completion wakes a sleeper; a signal does, too, and it sleeps again. Only a disk that never answers lets it sleep
//! for ever.
#![expect(
    unsafe_code,
    reason = "the kernel reads and writes the memory that submission entries name"
)]

use std::collections::VecDeque;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use crate::buffer::PageBuf;
use crate::device::{Completion, File, Queue, Request, RequestKind};
use crate::error::{Operation, Result};
use crate::page::PAGE;
use crate::pool::PagePool;

use super::error::failed_std;
use super::files::{self, OsFile};
use super::fixed::FixedMemory;
use super::lock::HeldLock;
use super::progress::{RETRIES, TransferOutcome, TransferProgress, check_range};
use super::setup::{RingSetup, build};
use super::table::{FileTable, Target};

/// Tries of a drop against a ring that returns errors, before it leaks.
const LAST_TRIES: u32 = 1000;

/// `IORING_ENTER_GETEVENTS`: process completions, waiting for as many as asked.
const GETEVENTS: u32 = 1;

/// Name of the ring in errors.
const RING: &str = "io_uring";

/// A request in a slot.
struct RunningRequest {
    token: u64,
    offset: u64,
    file: File,
    buf: PageBuf,
    progress: TransferProgress,
}

/// Room for one request.
struct RingSlot {
    /// Raised with each request, so that a completion for an earlier one is recognised.
    generation: u32,
    running: Option<RunningRequest>,
}

/// See the module's documentation.
pub(super) struct RingQueue {
    /// Before `slots`: closed first.
    ring: IoUring,
    slots: Vec<RingSlot>,
    free: Vec<u32>,
    staged: VecDeque<u32>,
    ready: VecDeque<Completion>,
    /// Entries pushed to the ring whose completions have not been seen, whether or not the kernel has taken them.
    in_ring: usize,
    files: FileTable,
    fixed: FixedMemory,
    lock: HeldLock,
    enabled: bool,
}

impl RingQueue {
    /// A queue of `depth` slots; `depth` is from 1 to [`super::MAX_DEPTH`].
    pub(super) fn new(setup: RingSetup, depth: usize, lock: HeldLock) -> std::io::Result<Self> {
        let count =
            u32::try_from(depth).map_err(|_| std::io::Error::from_raw_os_error(libc::EINVAL))?;
        let ring = build(setup, count.next_power_of_two())?;
        Ok(Self {
            ring,
            slots: (0..depth).map(|_| RingSlot { generation: 0, running: None }).collect(),
            free: (0..count).rev().collect(),
            staged: VecDeque::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
            in_ring: 0,
            files: FileTable::new(),
            fixed: FixedMemory::new(),
            lock,
            enabled: false,
        })
    }

    /// Enables the ring, for this thread.
    fn enable(&mut self) -> Result<()> {
        if self.enabled {
            return Ok(());
        }
        let ring = self.ring.submitter();
        ring.register_enable_rings().map_err(failed_std(RING, Operation::SetUpRing))?;
        self.enabled = true;
        if let Some(lock) = self.lock.lock().upgrade() {
            self.files.register_lock(&ring, &lock);
        }
        Ok(())
    }

    /// Turns staged slots into submission entries.
    fn fill(&mut self) -> Result<()> {
        self.enable()?;
        let (ring, mut entries, _) = self.ring.split();
        self.files.remove_closed(&ring);
        while let Some(number) = self.staged.pop_front() {
            let slot = &mut self.slots[number as usize];
            let Some(running) = &mut slot.running else { continue };
            let target = self.files.target(&ring, running.file.downcast());
            let user_data = u64::from(slot.generation) << 32 | u64::from(number);
            let entry = entry(running, target, &self.fixed).user_data(user_data);
            // SAFETY: the entry points into the buffer of a slot. The slot owns the buffer and its file until the
            // entry's completion was seen, it does not move (`slots` is never resized), nothing touches the buffer
            // meanwhile, and dropping the queue waits for the completion or leaks the slots.
            let pushed = unsafe { entries.push(&entry) };
            if pushed.is_err() {
                // Cannot be: the ring has an entry for each slot.
                self.staged.push_front(number);
                break;
            }
            self.in_ring += 1;
        }
        Ok(())
    }

    /// Hands entries to the kernel and, when `want` is 1, sleeps until a completion is there.
    /// A signal ends the sleep without an error; a kernel short of memory is asked again.
    fn enter(&mut self, want: usize) -> Result<()> {
        let mut retries = 0;
        loop {
            let Err(error) = self.ring.submit_and_wait(want) else { return Ok(()) };
            match error.raw_os_error() {
                Some(libc::EINTR) => return Ok(()),
                Some(libc::EAGAIN | libc::EBUSY) if retries < RETRIES => {
                    retries += 1;
                    self.reap();
                    std::thread::yield_now();
                }
                _ => return Err(failed_std(RING, Operation::Submit)(error)),
            }
            if want > 0 && !self.ready.is_empty() {
                return Ok(());
            }
        }
    }

    /// Takes all completions that the kernel has posted.
    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            self.complete(entry.user_data(), entry.result());
        }
    }

    fn complete(&mut self, user_data: u64, result: i32) {
        let number = (user_data & 0xffff_ffff) as u32;
        let generation = (user_data >> 32) as u32;
        let slot = self.slots.get_mut(number as usize).filter(|s| s.generation == generation);
        let Some((slot, running)) = slot.and_then(|slot| {
            let running = slot.running.take()?;
            Some((slot, running))
        }) else {
            tracing::error!(user_data, result, "completion of no request; ignored");
            return;
        };
        self.in_ring -= 1;
        let mut running = running;
        let RunningRequest { file, offset, progress, .. } = &mut running;
        let result = match files::advance(progress, file.downcast(), *offset, result) {
            TransferOutcome::Resubmit => {
                slot.running = Some(running);
                self.staged.push_back(number);
                return;
            }
            TransferOutcome::Done => Ok(()),
            TransferOutcome::Failed(failure) => {
                Err(running.progress.error(failure, running.file.name(), running.offset))
            }
        };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(number);
        self.ready.push_back(Completion { token: running.token, buf: running.buf, result });
    }

    /// True when the kernel holds back finished requests until it is called.
    fn has_deferred(&mut self) -> bool {
        let entries = self.ring.submission();
        entries.taskrun() || entries.cq_overflow()
    }

    /// Waits, for dropping, until the kernel has returned all that it took. False when the kernel returns errors.
    fn drain(&mut self) -> bool {
        let mut failures = 0;
        loop {
            // What is staged again by a completion stays staged: it never reaches the kernel.
            self.reap();
            let untaken = self.ring.submission().len();
            if self.in_ring == untaken {
                return true;
            }
            // SAFETY: no argument is passed; nothing is submitted, so no entry is read.
            let result =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
            match result.map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::EINTR)) => failures = 0,
                Err(Some(libc::EEXIST)) => return false,
                Err(_) if failures < LAST_TRIES => {
                    failures += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return false,
            }
        }
    }
}

impl Queue for RingQueue {
    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.ready.len()
    }

    fn push(&mut self, request: Request) {
        assert!(self.in_flight() < self.depth(), "a queue's depth is the caller's to respect");
        let Request { file, kind: transfer, offset, buf, token } = request;
        let progress =
            TransferProgress::new(transfer, buf.len(), file.downcast::<OsFile>().align());
        let refused = check_range(file.name(), transfer, offset, buf.len(), PAGE);
        if refused.is_err() || progress.is_empty() {
            self.ready.push_back(Completion { token, buf, result: refused });
            return;
        }
        let number = self.free.pop().expect("in flight is below depth, so a slot is free");
        self.slots[number as usize].running =
            Some(RunningRequest { token, offset, file, buf, progress });
        self.staged.push_back(number);
    }

    fn submit(&mut self) -> Result<()> {
        self.fill()?;
        // The kernel may take a part only: after a refused entry, or when it is interrupted.
        let mut idle = 0;
        let mut left = self.ring.submission().len();
        while left > 0 {
            self.enter(0)?;
            let now = self.ring.submission().len();
            idle = if now < left { 0 } else { idle + 1 };
            if idle > u32::from(RETRIES) {
                let busy = std::io::Error::from_raw_os_error(libc::EBUSY);
                return Err(failed_std(RING, Operation::Submit)(busy));
            }
            left = now;
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.ready.is_empty() && self.in_ring > 0 {
            self.reap();
            if self.ready.is_empty() && self.has_deferred() {
                // SAFETY: no argument is passed; nothing is submitted, so no entry is read.
                let _ =
                    unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, GETEVENTS, None) };
                self.reap();
            }
        }
        self.ready.pop_front()
    }

    fn wait(&mut self) -> Result<Option<Completion>> {
        self.wait_for(1)
    }

    fn wait_for(&mut self, count: usize) -> Result<Option<Completion>> {
        loop {
            let want = count.clamp(1, self.in_flight().max(1));
            if self.ready.len() >= want {
                if !self.staged.is_empty() {
                    self.submit()?;
                }
                return Ok(self.ready.pop_front());
            }
            if self.in_flight() == 0 {
                return Ok(None);
            }
            self.fill()?;
            self.enter(want - self.ready.len())?;
            self.reap();
        }
    }

    fn register(&mut self, pool: &PagePool) -> bool {
        self.enable().is_ok() && self.fixed.register(&self.ring.submitter(), pool.slab())
    }
}

impl Drop for RingQueue {
    fn drop(&mut self) {
        if self.in_ring == 0 || self.drain() {
            return;
        }
        tracing::error!(
            in_flight = self.in_ring,
            "a queue was dropped away from its thread; its buffers are leaked"
        );
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}

/// The submission entry of a request's next attempt.
fn entry(running: &mut RunningRequest, target: Target, fixed: &FixedMemory) -> squeue::Entry {
    let (start, count) = running.progress.span();
    let offset = running.offset + start as u64;
    let piece = fixed.piece(&running.buf);
    let fd = types::Fd(target.number);
    let entry = match running.progress.transfer() {
        RequestKind::Read => {
            let to = running.buf[start..start + count as usize].as_mut_ptr();
            match piece {
                Some(piece) => opcode::ReadFixed::new(fd, to, count, piece).offset(offset).build(),
                None => opcode::Read::new(fd, to, count).offset(offset).build(),
            }
        }
        RequestKind::Write => {
            let from = running.buf[start..start + count as usize].as_ptr();
            match piece {
                Some(piece) => {
                    opcode::WriteFixed::new(fd, from, count, piece).offset(offset).build()
                }
                None => opcode::Write::new(fd, from, count).offset(offset).build(),
            }
        }
        RequestKind::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
    };
    if target.registered { entry.flags(squeue::Flags::FIXED_FILE) } else { entry }
}
