//! What goes wrong while the disk is used: rules that name an operation, and rates from which the seed draws.
//!
//! A fault is decided when its operation is submitted, and each one that strikes is put in the
//! [ledger](super::ledger). Retrying is the device's duty, so the simulated device retries as the
//! contract of [`Device`](crate::Device) says, and asks for a fault once per attempt.

use core::fmt;
use core::time::Duration;

use super::rng::Rng;
use crate::error::Operation;

/// Error numbers that a disk gives.
pub mod code {
    /// The device failed.
    pub const EIO: i32 = libc::EIO;
    /// No space left.
    pub const ENOSPC: i32 = libc::ENOSPC;
    /// Quota exceeded.
    pub const EDQUOT: i32 = libc::EDQUOT;
    /// Interrupted; the device repeats a transfer up to 16 times.
    pub const EINTR: i32 = libc::EINTR;
    /// Try again; the device repeats a transfer up to 16 times.
    pub const EAGAIN: i32 = libc::EAGAIN;
    /// File too large.
    pub const EFBIG: i32 = libc::EFBIG;
    /// Too many requests.
    pub const EBUSY: i32 = libc::EBUSY;
}

/// What becomes of the writes that a failed sync covered. No later sync makes them durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aftermath {
    /// Reads go on seeing the new data; it is gone after a crash.
    NewVisible,
    /// Reads see the old data again.
    OldBack,
    /// Each page by the seed: durable, gone but visible, or old.
    Mixed,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The operation fails with this error number. A failed write has reached the medium in part
    /// or not at all; a failed sync has the aftermath that the seed draws.
    Errno(i32),
    /// A transfer moves at most this many bytes, then goes on from there; 0 ends it.
    Short(u32),
    /// A sync fails with EIO and this aftermath.
    Sync(Aftermath),
    /// The operation takes this long; queued requests overtake it.
    Delay(Duration),
    /// The queue's submission is refused with this error number; its requests stay pending.
    Refuse(i32),
}

impl Fault {
    /// True when this fault can strike `operation`. `None` is a queue's submission.
    fn applies(self, operation: Option<Operation>) -> bool {
        let Some(operation) = operation else { return matches!(self, Self::Refuse(_)) };
        match self {
            Self::Errno(_) | Self::Delay(_) => true,
            Self::Short(_) => matches!(operation, Operation::Read | Operation::Write),
            Self::Sync(_) => matches!(operation, Operation::Sync | Operation::SyncFolder),
            Self::Refuse(_) => false,
        }
    }
}

/// When a rule begins to strike. Counts start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTrigger {
    /// At the first matching operation whose number on the disk is this or higher.
    Operation(u64),
    /// At this many matching operations.
    Match(u64),
}

/// How often a rule strikes once it has begun. Each attempt of a repeated transfer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRepeats {
    /// One attempt.
    Once,
    /// This many attempts.
    Count(u32),
    /// Always from then on.
    Forever,
}

/// A fault set by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// When it begins.
    pub when: FaultTrigger,
    /// How often it strikes.
    pub times: FaultRepeats,
    /// Only this operation; all when absent.
    pub operation: Option<Operation>,
    /// Only files whose name starts with this; all when absent.
    pub file: Option<String>,
    /// What goes wrong.
    pub fault: Fault,
}

impl FaultRule {
    /// `fault` at operation number `number`, or at the first after it that it can strike.
    pub fn at(number: u64, times: FaultRepeats, fault: Fault) -> Self {
        Self { when: FaultTrigger::Operation(number), times, operation: None, file: None, fault }
    }

    /// `fault` at the `nth` time that `operation` is done on a file whose name starts with `file`.
    pub fn nth(
        operation: Operation,
        file: &str,
        nth: u64,
        times: FaultRepeats,
        fault: Fault,
    ) -> Self {
        let (operation, file) = (Some(operation), Some(file.to_owned()));
        Self { when: FaultTrigger::Match(nth), times, operation, file, fault }
    }
}

/// Chances of each class in a million operations. All zero: nothing goes wrong by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Any operation but a sync fails for good.
    pub error: u32,
    /// A transfer is interrupted, or must be tried again.
    pub interrupted: u32,
    /// A transfer stops early, at a multiple of 512 bytes.
    pub short: u32,
    /// A sync fails.
    pub sync: u32,
    /// An operation is late by up to a second.
    pub delay: u32,
    /// A submission is refused.
    pub refuse: u32,
}

impl FaultRates {
    /// Each class on or off by the seed, and if on, at a rate from 0.1 % to 10 %.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::labelled(seed, 0xfa);
        let mut rate = || {
            let on = rng.chance(1, 2);
            let rate = [1_000, 10_000, 30_000, 100_000][rng.index(4)];
            if on { rate } else { 0 }
        };
        Self {
            error: rate(),
            interrupted: rate(),
            short: rate(),
            sync: rate(),
            delay: rate(),
            refuse: rate(),
        }
    }

    /// Only what a device must hide from its user: interruptions, short transfers, delays.
    pub fn harmless(seed: u64) -> Self {
        Self { error: 0, sync: 0, refuse: 0, ..Self::draw(seed) }
    }

    fn pick(&self, rng: &mut Rng, operation: Option<Operation>) -> Option<Fault> {
        let mut strikes = |rate: u32| rate != 0 && rng.chance(u64::from(rate), 1_000_000);
        let Some(operation) = operation else {
            return strikes(self.refuse).then_some(Fault::Refuse(code::EBUSY));
        };
        let transfer = matches!(operation, Operation::Read | Operation::Write);
        let syncs = matches!(operation, Operation::Sync | Operation::SyncFolder);
        if syncs && strikes(self.sync) {
            let all = [Aftermath::NewVisible, Aftermath::OldBack, Aftermath::Mixed];
            return Some(Fault::Sync(all[rng.index(3)]));
        }
        if !syncs && strikes(self.error) {
            let grows = !matches!(operation, Operation::Read | Operation::Open | Operation::List);
            let codes = [code::EIO, code::ENOSPC, code::EDQUOT, code::EFBIG];
            return Some(Fault::Errno(if grows { codes[rng.index(4)] } else { code::EIO }));
        }
        if transfer && strikes(self.interrupted) {
            return Some(Fault::Errno([code::EINTR, code::EAGAIN][rng.index(2)]));
        }
        if transfer && strikes(self.short) {
            // Never 0 by chance: that is an error, not a hidden retry.
            return Some(Fault::Short([512, 1024, 2048, 4096][rng.index(4)]));
        }
        let late = strikes(self.delay);
        late.then(|| Fault::Delay(Duration::from_micros(1 + rng.below(1_000_000))))
    }
}

impl fmt::Display for FaultRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, interrupted, short, sync, delay, refuse } = self;
        write!(
            f,
            "faults in a million: error {error}, interrupted {interrupted}, short {short}, \
             sync {sync}, delay {delay}, refuse {refuse}"
        )
    }
}

#[derive(Debug)]
struct ArmedRule {
    rule: FaultRule,
    seen: u64,
    struck: u32,
}

/// Rules and rates of one disk.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: Vec<ArmedRule>,
    pub(super) rates: FaultRates,
}

impl Faults {
    pub(super) fn new(rules: Vec<FaultRule>, rates: FaultRates) -> Self {
        let mut faults = Self { rules: Vec::new(), rates };
        for rule in rules {
            faults.arm(rule);
        }
        faults
    }

    pub(super) fn arm(&mut self, rule: FaultRule) {
        self.rules.push(ArmedRule { rule, seen: 0, struck: 0 });
    }

    pub(super) fn disarm(&mut self) {
        self.rules.clear();
        self.rates = FaultRates::default();
    }

    /// The fault of one attempt. `number` is the operation's; `first` says that this is its first attempt.
    pub(super) fn strike(&mut self, rng: &mut Rng, attempt: &Attempt<'_>) -> Option<Fault> {
        let mut hit = None;
        for armed in &mut self.rules {
            if armed.matches(attempt) && hit.is_none() {
                armed.struck += 1;
                hit = Some(armed.rule.fault);
            }
        }
        hit.or_else(|| self.rates.pick(rng, attempt.operation))
    }
}

/// What is about to be tried.
pub(super) struct Attempt<'a> {
    pub(super) number: u64,
    /// `None` is a queue's submission.
    pub(super) operation: Option<Operation>,
    pub(super) file: &'a str,
    pub(super) first: bool,
}

impl ArmedRule {
    fn matches(&mut self, attempt: &Attempt<'_>) -> bool {
        let rule = &self.rule;
        let submission = attempt.operation.is_none();
        let concerned = submission || rule.operation.is_none_or(|op| Some(op) == attempt.operation);
        let named = rule.file.as_ref().is_none_or(|file| attempt.file.starts_with(file.as_str()));
        if !rule.fault.applies(attempt.operation) || !concerned || !named {
            return false;
        }
        self.seen += u64::from(attempt.first);
        let begun = match rule.when {
            FaultTrigger::Operation(number) => attempt.number >= number,
            FaultTrigger::Match(nth) => self.seen >= nth,
        };
        begun
            && match rule.times {
                FaultRepeats::Once => self.struck == 0,
                FaultRepeats::Count(count) => self.struck < count,
                FaultRepeats::Forever => true,
            }
    }
}
