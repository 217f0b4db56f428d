//! [`SimQueue`]: requests in flight that end in an order drawn from the seed.
//!
//! A request completes when [`Queue::poll`] or [`Queue::wait`] returns it, never before: nobody may
//! rely on what nobody has seen complete, so a crash treats it as in flight. Whether reads see a
//! queued write early, and whether a queued read looks early, is chance.

use core::time::Duration;
use std::sync::Arc;

use parking_lot::Mutex;

use super::file::{SimFile, operation_of};
use super::inner::{SimDiskInner, SyncTicket, TransferPlan, WriteTicket};
use super::options::Unpolled;
use crate::device::{Completion, Queue, Request, RequestKind};
use crate::error::{IoError, Result};

enum QueuedWork {
    Read(TransferPlan),
    /// A read that has already looked.
    Looked(Result<()>),
    Write(WriteTicket),
    Sync(SyncTicket),
    /// Refused before it reached the device.
    Rejected(IoError),
}

struct Outstanding {
    request: Request,
    work: QueuedWork,
    ready: Duration,
}

/// Submission queue of a [`SimDisk`](super::SimDisk).
pub(super) struct SimQueue {
    disk: Arc<Mutex<SimDiskInner>>,
    depth: usize,
    pushed: Vec<Request>,
    outstanding: Vec<Outstanding>,
}

impl SimQueue {
    pub(super) fn new(disk: Arc<Mutex<SimDiskInner>>, depth: usize) -> Self {
        Self { disk, depth: depth.max(1), pushed: Vec::new(), outstanding: Vec::new() }
    }

    /// Ends one request: any of those that are ready, or, when `patient`, the first to be.
    fn reap(&mut self, patient: bool) -> Option<(RequestKind, Completion)> {
        let mut inner = self.disk.lock();
        let now = inner.clock.now();
        let mut ready: Vec<usize> =
            (0..self.outstanding.len()).filter(|&at| self.outstanding[at].ready <= now).collect();
        if ready.is_empty() && patient {
            let first = (0..self.outstanding.len()).min_by_key(|&at| self.outstanding[at].ready)?;
            inner.clock.advance_to(self.outstanding[first].ready);
            ready.push(first);
        }
        if ready.is_empty() {
            return None;
        }
        let at = ready[inner.rng.index(ready.len())];
        let ended = self.outstanding.swap_remove(at);
        // The data of another write may become visible meanwhile.
        if !self.outstanding.is_empty() && inner.rng.chance(1, 8) {
            let other = inner.rng.index(self.outstanding.len());
            show(&mut inner, &self.outstanding[other]);
        }
        Some((ended.request.kind, complete(&mut inner, ended)))
    }
}

fn show(inner: &mut SimDiskInner, other: &Outstanding) {
    if let QueuedWork::Write(ticket) = &other.work {
        inner.show(other.request.file.downcast(), ticket);
    }
}

fn start(inner: &mut SimDiskInner, mut request: Request) -> Outstanding {
    let (file, offset) = (request.file.downcast::<SimFile>().clone(), request.offset);
    let file = &file;
    inner.check(file);
    let len = if request.kind == RequestKind::Sync { 0 } else { request.buf.len() };
    let offset_checked = if request.kind == RequestKind::Sync { 0 } else { offset };
    let (work, delay) = match (file.admit(request.kind, offset_checked, len), request.kind) {
        (Err(error), _) => (QueuedWork::Rejected(error), Duration::ZERO),
        (Ok(()), RequestKind::Read) => {
            let plan = inner.start_read(file, offset, len);
            let delay = plan.delay;
            if inner.rng.chance(1, 3) {
                let result = inner.finish_read(file, &plan, offset, &mut request.buf);
                (QueuedWork::Looked(result), delay)
            } else {
                (QueuedWork::Read(plan), delay)
            }
        }
        (Ok(()), RequestKind::Write) => {
            let ticket = inner.start_write(file, offset, &request.buf);
            if inner.rng.chance(1, 4) {
                inner.show(file, &ticket);
            }
            let delay = ticket.delay;
            (QueuedWork::Write(ticket), delay)
        }
        (Ok(()), RequestKind::Sync) => {
            let ticket = inner.start_sync(file);
            let delay = ticket.delay;
            (QueuedWork::Sync(ticket), delay)
        }
    };
    Outstanding { request, work, ready: inner.clock.now() + delay }
}

fn complete(inner: &mut SimDiskInner, ended: Outstanding) -> Completion {
    let Request { file, offset, mut buf, token, .. } = ended.request;
    let file: &SimFile = file.downcast();
    let result = match ended.work {
        QueuedWork::Read(plan) => inner.finish_read(file, &plan, offset, &mut buf),
        QueuedWork::Looked(result) => result,
        QueuedWork::Write(ticket) => inner.finish_write(file, ticket),
        QueuedWork::Sync(ticket) => inner.finish_sync(file, &ticket),
        QueuedWork::Rejected(error) => Err(error),
    };
    Completion { token, buf, result }
}

impl Queue for SimQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.outstanding.len()
    }

    fn push(&mut self, request: Request) {
        assert!(self.in_flight() < self.depth, "the queue holds its {} requests", self.depth);
        self.pushed.push(request);
    }

    fn submit(&mut self) -> Result<()> {
        let Some(first) = self.pushed.first() else { return Ok(()) };
        let mut inner = self.disk.lock();
        inner.submission(first.file.name(), first.offset, operation_of(first.kind))?;
        for request in self.pushed.drain(..) {
            let started = start(&mut inner, request);
            self.outstanding.push(started);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        let lucky = {
            let mut inner = self.disk.lock();
            inner.clock.advance(Duration::from_micros(1));
            inner.rng.chance(1, 2)
        };
        if lucky { self.reap(false).map(|(_, completion)| completion) } else { None }
    }

    fn wait(&mut self) -> Result<Option<Completion>> {
        self.submit()?;
        Ok(self.reap(true).map(|(_, completion)| completion))
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let policy = self.disk.lock().options.asserts.unpolled;
        let pushed = self.pushed.iter().any(|request| request.kind != RequestKind::Read);
        let mut unseen = (pushed && policy == Unpolled::ErrorsAndWrites)
            .then(|| "a write or sync that was pushed and never submitted".to_owned());
        while let Some((transfer, Completion { token, result, .. })) = self.reap(true) {
            let strict = policy == Unpolled::ErrorsAndWrites && transfer != RequestKind::Read;
            match result {
                Err(error) if policy != Unpolled::Ignore => {
                    unseen.get_or_insert(format!("request {token}, which failed: {error}"));
                }
                _ if strict => {
                    unseen.get_or_insert(format!("request {token}, a {transfer:?}"));
                }
                _ => {}
            }
        }
        if let Some(unseen) = unseen.filter(|_| !std::thread::panicking()) {
            panic!("a queue was dropped and nobody took the result of {unseen}");
        }
    }
}
