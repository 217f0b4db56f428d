//! Sessions that a soak keeps open while batches go on: each must read to its end what it read
//! when it was opened. Called between batches, with the clock and background work stopped.

use std::collections::VecDeque;

use pleach_core::Key;

use crate::account;
use crate::backend::{Backend, Root, View};
use crate::child::{Spec, ViewPlan};
use crate::error::{BenchError, Result};

/// A session is asked for accounts of so many batches that follow its opening,
const BATCHES: u64 = 4;
/// so many of each batch,
const KEYS: usize = 512;
/// and so many of them after each batch; for all at its end.
const SLICE: usize = 64;

/// A session that is kept open.
struct Held {
    view: Box<dyn View>,
    /// Batches that its state contains.
    opened: u64,
    root: Root,
    keys: Vec<Key>,
    /// What the keys had when it was opened.
    values: Vec<Option<Vec<u8>>>,
    /// Place of the next slice.
    next: usize,
}

/// The open sessions, oldest first.
pub(super) struct Views {
    plan: ViewPlan,
    open: VecDeque<Held>,
    /// Sessions that have ended, right in all they read.
    pub(super) ended: u64,
    /// Values that were read and compared.
    pub(super) reads: u64,
    /// Accounts of ended sessions that had other values by then in the newest state: what the
    /// comparison is worth.
    pub(super) changed: u64,
}

impl Views {
    pub(super) fn new(plan: ViewPlan) -> Self {
        Self { plan, open: VecDeque::new(), ended: 0, reads: 0, changed: 0 }
    }

    /// After a batch: every session reads a little, the one whose time is over reads all and
    /// ends, and another begins.
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
    /// Opens a session and notes what it reads: accounts that the next batches change.
    fn open(engine: &mut dyn Backend, spec: &Spec, batches: u64) -> Result<Self> {
        let mut keys: Vec<Key> = (batches..batches + BATCHES)
            .flat_map(|number| {
                let accounts = spec.stream.batch(spec.initial(), number).accounts;
                // Those that close come last.
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
