//! [`SimQueue`]: requests in flight that end in an order drawn from the seed.
//!
//! A request completes when [`Queue::poll`] or [`Queue::wait`] returns it, never before: nobody may
//! rely on what nobody has seen complete, so a crash treats it as in flight. Whether reads see a
//! queued write early, and whether a queued read looks early, is chance.

use core::time::Duration;
use std::sync::Arc;

use parking_lot::Mutex;

use super::file::{SimFile, operation_of};
use super::inner::{Inner, Plan, SyncTicket, WriteTicket};
use super::options::Unpolled;
use crate::device::{Completion, Queue, Request, Transfer};
use crate::error::{IoError, Result};

enum Work {
    Read(Plan),
    /// A read that has already looked.
    Looked(Result<()>),
    Write(WriteTicket),
    Sync(SyncTicket),
    /// Refused before it reached the device.
    Rejected(IoError),
}

struct Outstanding {
    request: Request,
    work: Work,
    ready: Duration,
}

/// Submission queue of a [`SimDisk`](super::SimDisk).
pub(super) struct SimQueue {
    disk: Arc<Mutex<Inner>>,
    depth: usize,
    pushed: Vec<Request>,
    outstanding: Vec<Outstanding>,
}

impl SimQueue {
    pub(super) fn new(disk: Arc<Mutex<Inner>>, depth: usize) -> Self {
        Self { disk, depth: depth.max(1), pushed: Vec::new(), outstanding: Vec::new() }
    }

    /// Ends one request: any of those that are ready, or, when `patient`, the first to be.
    fn reap(&mut self, patient: bool) -> Option<(Transfer, Completion)> {
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
        Some((ended.request.transfer, complete(&mut inner, ended)))
    }
}

fn show(inner: &mut Inner, other: &Outstanding) {
    if let Work::Write(ticket) = &other.work {
        inner.show(other.request.file.of(), ticket);
    }
}

fn start(inner: &mut Inner, mut request: Request) -> Outstanding {
    let (file, offset) = (request.file.of::<SimFile>().clone(), request.offset);
    let file = &file;
    inner.check(file);
    let len = if request.transfer == Transfer::Sync { 0 } else { request.buf.len() };
    let offset_checked = if request.transfer == Transfer::Sync { 0 } else { offset };
    let (work, delay) = match (file.admit(request.transfer, offset_checked, len), request.transfer)
    {
        (Err(error), _) => (Work::Rejected(error), Duration::ZERO),
        (Ok(()), Transfer::Read) => {
            let plan = inner.start_read(file, offset, len);
            let delay = plan.delay;
            if inner.rng.chance(1, 3) {
                let result = inner.finish_read(file, &plan, offset, &mut request.buf);
                (Work::Looked(result), delay)
            } else {
                (Work::Read(plan), delay)
            }
        }
        (Ok(()), Transfer::Write) => {
            let ticket = inner.start_write(file, offset, &request.buf);
            if inner.rng.chance(1, 4) {
                inner.show(file, &ticket);
            }
            let delay = ticket.delay;
            (Work::Write(ticket), delay)
        }
        (Ok(()), Transfer::Sync) => {
            let ticket = inner.start_sync(file);
            let delay = ticket.delay;
            (Work::Sync(ticket), delay)
        }
    };
    Outstanding { request, work, ready: inner.clock.now() + delay }
}

fn complete(inner: &mut Inner, ended: Outstanding) -> Completion {
    let Request { file, offset, mut buf, token, .. } = ended.request;
    let file: &SimFile = file.of();
    let result = match ended.work {
        Work::Read(plan) => inner.finish_read(file, &plan, offset, &mut buf),
        Work::Looked(result) => result,
        Work::Write(ticket) => inner.finish_write(file, ticket),
        Work::Sync(ticket) => inner.finish_sync(file, &ticket),
        Work::Rejected(error) => Err(error),
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
        inner.submission(first.file.name(), first.offset, operation_of(first.transfer))?;
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
        let pushed = self.pushed.iter().any(|request| request.transfer != Transfer::Read);
        let mut unseen = (pushed && policy == Unpolled::ErrorsAndWrites)
            .then(|| "a write or sync that was pushed and never submitted".to_owned());
        while let Some((transfer, Completion { token, result, .. })) = self.reap(true) {
            let strict = policy == Unpolled::ErrorsAndWrites && transfer != Transfer::Read;
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
