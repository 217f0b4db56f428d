//! A queue over threads that call pread, pwrite and fdatasync, for systems where io_uring is missing or forbidden.
//!
//! A device has one pool, shared by its queues; it starts with the first queue and ends with the device's last handle.
//! Idle threads sleep on the pool's channel, a waiting queue sleeps on its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use crate::device::{Completion, Queue, Request, RequestKind};
use crate::error::Result;
use crate::threads::no_thread;

use super::files;

/// A request, and where its completion goes.
struct BlockingJob {
    request: Request,
    reply: Sender<Completion>,
}

/// The threads of a device.
pub(super) struct Pool {
    /// `None` only while dropping.
    jobs: Option<Sender<BlockingJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn start(threads: usize) -> Result<Self> {
        let (jobs, inbox) = unbounded::<BlockingJob>();
        // A pool from the first thread on, so that a failure to start one ends the others.
        let mut pool = Self { jobs: Some(jobs), threads: Vec::with_capacity(threads) };
        for number in 0..threads.max(1) {
            let inbox = inbox.clone();
            let thread = std::thread::Builder::new()
                .name(format!("pleach-io-{number}"))
                .spawn(move || serve(&inbox))
                .map_err(|error| no_thread("blocking pool", &error))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread of the pool cannot panic: it runs system calls only.
            let _ = thread.join();
        }
    }
}

fn serve(inbox: &Receiver<BlockingJob>) {
    while let Ok(BlockingJob { request, reply }) = inbox.recv() {
        let Request { file, kind: transfer, offset, mut buf, token } = request;
        let result = match transfer {
            RequestKind::Read => files::read(file.downcast(), &mut buf, offset),
            RequestKind::Write => files::write(file.downcast(), &buf, offset),
            RequestKind::Sync => files::sync(file.downcast()),
        };
        // Before the reply: when the caller has all completions and drops its handle, the file is closed.
        drop(file);
        // A queue waits for its completions before it is dropped.
        let _ = reply.send(Completion { token, buf, result });
    }
}

/// A queue on a pool.
pub(super) struct PoolQueue {
    pool: Arc<Pool>,
    depth: usize,
    staged: VecDeque<Request>,
    /// Requests that the pool has and whose completions have not been received.
    running: usize,
    reply: Sender<Completion>,
    done: Receiver<Completion>,
}

impl PoolQueue {
    pub(super) fn new(pool: Arc<Pool>, depth: usize) -> Self {
        let (reply, done) = bounded(depth);
        Self { pool, depth, staged: VecDeque::with_capacity(depth), running: 0, reply, done }
    }
}

impl Queue for PoolQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.staged.len() + self.running
    }

    fn push(&mut self, request: Request) {
        assert!(self.in_flight() < self.depth, "a queue's depth is the caller's to respect");
        self.staged.push_back(request);
    }

    fn submit(&mut self) -> Result<()> {
        let Some(jobs) = &self.pool.jobs else { return Ok(()) };
        for request in self.staged.drain(..) {
            // The threads receive for as long as the pool exists, and we hold it.
            let _ = jobs.send(BlockingJob { request, reply: self.reply.clone() });
            self.running += 1;
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        match self.done.try_recv() {
            Ok(completion) => {
                self.running -= 1;
                Some(completion)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    fn wait(&mut self) -> Result<Option<Completion>> {
        self.submit()?;
        if self.running == 0 {
            return Ok(None);
        }
        // Never disconnected: we hold a sender.
        let Ok(completion) = self.done.recv() else { return Ok(None) };
        self.running -= 1;
        Ok(Some(completion))
    }
}

impl Drop for PoolQueue {
    fn drop(&mut self) {
        while self.running > 0 && self.done.recv().is_ok() {
            self.running -= 1;
        }
    }
}
