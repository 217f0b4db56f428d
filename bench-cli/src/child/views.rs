//! Sessions that a soak holds open while batches run. Until it ends, each must read what it read when
//! it was opened. They read between batches, while the clock and background work are stopped.

use std::collections::VecDeque;

use pleach_core::Key;

use crate::account;
use crate::backend::{Backend, Root, View};
use crate::child::{Spec, ViewPlan};
use crate::error::{BenchError, Result};

/// A session reads accounts that the next batches change: those of this many batches,
const BATCHES: u64 = 4;
/// at most this many of each.
const KEYS: usize = 512;
/// Accounts that a session reads again after each batch; when it ends, it reads all of them.
const SLICE: usize = 64;

/// A session that is held open.
#[derive(Debug)]
struct Held {
    view: Box<dyn View>,
    /// Batches that its state contains.
    opened: u64,
    root: Root,
    keys: Vec<Key>,
    /// The values of the keys when it was opened.
    values: Vec<Option<Vec<u8>>>,
    /// Index of the first key to read after the next batch.
    next: usize,
}

/// The open sessions, oldest first.
#[derive(Debug)]
pub(super) struct Views {
    plan: ViewPlan,
    open: VecDeque<Held>,
    /// Sessions that have ended, and read what they should to the end.
    pub(super) ended: u64,
    /// Values that were read and compared.
    pub(super) reads: u64,
    /// Accounts that had changed in the newest state by the time their session ended. Without any,
    /// the comparison would prove nothing.
    pub(super) changed: u64,
}

impl Views {
    pub(super) fn new(plan: ViewPlan) -> Self {
        Self { plan, open: VecDeque::new(), ended: 0, reads: 0, changed: 0 }
    }

    /// After a batch: every session reads some keys; those whose time is over read all and end; and
    /// a new one may be opened.
    pub(super) fn turn(
        &mut self,
        engine: &mut dyn Backend,
        spec: &Spec,
        batches: u64,
    ) -> Result<()> {
        for held in &mut self.open {
            self.reads += held.check_slice()?;
        }
        let (count, life) = (self.plan.sessions as usize, u64::from(self.plan.batches));
        while self.open.front().is_some_and(|oldest| batches >= oldest.opened + life) {
            self.end_one(engine)?;
        }
        let every = (life / u64::from(self.plan.sessions.max(1))).max(1);
        if self.open.len() < count && batches.is_multiple_of(every) {
            self.open.push_back(Held::open(engine, spec, batches)?);
        }
        Ok(())
    }

    /// Ends all sessions.
    pub(super) fn finish(&mut self, engine: &mut dyn Backend) -> Result<()> {
        while !self.open.is_empty() {
            self.end_one(engine)?;
        }
        Ok(())
    }

    fn end_one(&mut self, engine: &mut dyn Backend) -> Result<()> {
        if let Some(held) = self.open.pop_front() {
            held.check(0..held.keys.len())?;
            self.reads += held.keys.len() as u64;
            self.ended += 1;
            let newest = engine.read(&held.keys)?;
            let pairs = newest.iter().zip(&held.values);
            self.changed += pairs.filter(|(new, old)| new != old).count() as u64;
        }
        Ok(())
    }
}

impl Held {
    /// Opens a session and notes what it reads: accounts that the next batches will change.
    fn open(engine: &mut dyn Backend, spec: &Spec, batches: u64) -> Result<Self> {
        let mut keys: Vec<Key> = (batches..batches + BATCHES)
            .flat_map(|number| {
                let accounts = spec.stream.batch(spec.initial(), number).accounts;
                // Accounts that are closed come last.
                let last = accounts.len().saturating_sub(KEYS / 2);
                let few: Vec<u64> =
                    accounts.iter().take(KEYS / 2).chain(&accounts[last..]).copied().collect();
                few
            })
            .map(account::key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let values = engine.read(&keys)?;
        let root = engine.root();
        let view = engine.view()?;
        let held = Self { view, opened: batches, root, keys, values, next: 0 };
        held.check(0..held.keys.len())?;
        Ok(held)
    }

    fn check_slice(&mut self) -> Result<u64> {
        let end = (self.next + SLICE).min(self.keys.len());
        self.check(self.next..end)?;
        let read = end - self.next;
        self.next = if end == self.keys.len() { 0 } else { end };
        Ok(read as u64)
    }

    fn check(&self, part: core::ops::Range<usize>) -> Result<()> {
        let wrong = |what: &str| {
            let text = format!("the session opened after {} batches {what}", self.opened);
            Err(BenchError::Wrong(text))
        };
        if self.view.root() != self.root {
            return wrong("has another root now");
        }
        if self.view.read(&self.keys[part.clone()])? != self.values[part] {
            return wrong("reads other balances now");
        }
        Ok(())
    }
}
