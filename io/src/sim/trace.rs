//! A recorded run, and the walk over the moments at which it could have been cut off.
//!
//! Walking applies the recorded events to a copy of the first state, so each crash point costs
//! what its events cost; nothing is run again.

use core::fmt::Write as _;
use core::hash::{Hash, Hasher};
use std::sync::Arc;

use super::crash::CrashPoint;
use super::rng::mix;
use super::state::{DiskEvent, DiskState};

/// What happened on a disk since recording began. Clones share the events.
#[derive(Clone)]
pub struct Trace {
    initial: DiskState,
    events: Arc<[DiskEvent]>,
    marks: Arc<[u64]>,
}

impl core::fmt::Debug for Trace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Trace")
            .field("events", &self.events.len())
            .field("marks", &self.marks)
            .finish_non_exhaustive()
    }
}

impl Trace {
    pub(super) fn new(initial: DiskState, events: Vec<DiskEvent>) -> Self {
        let marks = events.iter().filter_map(|event| match event {
            DiskEvent::Mark(mark) => Some(*mark),
            _ => None,
        });
        Self { initial, marks: marks.collect(), events: events.into() }
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True when nothing happened.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// All marks, in order.
    pub fn marks(&self) -> &[u64] {
        &self.marks
    }

    /// Numbers of events before which a crash is of interest: at the run's start, and after each event
    /// that changes what a crash leaves or which marks precede it.
    pub fn boundaries(&self) -> Vec<usize> {
        let after = self.events.iter().enumerate().filter(|(_, event)| event.is_boundary());
        core::iter::once(0).chain(after.map(|(at, _)| at + 1)).collect()
    }

    /// All crash points, in order.
    pub fn crash_points(&self) -> CrashPoints {
        CrashPoints {
            trace: self.clone(),
            state: self.initial.clone(),
            at: 0,
            marked: 0,
            fresh: true,
        }
    }

    /// The crash point before event number `boundary` (after the last one when it is
    /// [`Trace::len`]), to look again at one that failed.
    pub fn crash_point(&self, boundary: usize) -> CrashPoint {
        let mut state = self.initial.clone();
        let events = &self.events[..boundary.min(self.events.len())];
        for event in events {
            state.apply(event);
        }
        let marked = events.iter().filter(|event| matches!(event, DiskEvent::Mark(_))).count();
        CrashPoint::new(&state, events.len(), Arc::clone(&self.marks), marked)
    }

    /// One number for all that happened, reads and data included.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest(0);
        self.events.hash(&mut digest);
        digest.finish()
    }

    /// The events around `boundary`, one a line, for a failure's report.
    pub fn describe(&self, boundary: usize) -> String {
        let from = boundary.saturating_sub(6).min(self.events.len());
        let to = (boundary + 2).min(self.events.len());
        let mut text = String::new();
        for (at, event) in self.events.iter().enumerate().take(to).skip(from) {
            if at == boundary {
                text.push_str("  ---- crash ----\n");
            }
            let _ = writeln!(text, "  {at}: {}", outline(event));
        }
        if boundary >= to {
            text.push_str("  ---- crash ----\n");
        }
        text
    }
}

/// An event without its data.
fn outline(event: &DiskEvent) -> String {
    match event {
        DiskEvent::Start { op, id, first, pages } => {
            format!("Start {{ op: {op}, id: {id:?}, first: {first}, pages: {} }}", pages.len())
        }
        DiskEvent::Damage { id, .. } => format!("Damage {{ id: {id:?} }}"),
        other => format!("{other:?}"),
    }
}

/// Iterator of [`Trace::crash_points`].
pub struct CrashPoints {
    trace: Trace,
    state: DiskState,
    at: usize,
    marked: usize,
    fresh: bool,
}

impl core::fmt::Debug for CrashPoints {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CrashPoints")
            .field("at", &self.at)
            .field("of", &self.trace.len())
            .finish_non_exhaustive()
    }
}

impl Iterator for CrashPoints {
    type Item = CrashPoint;

    fn next(&mut self) -> Option<CrashPoint> {
        let mut boundary = core::mem::take(&mut self.fresh);
        while !boundary {
            let event = self.trace.events.get(self.at)?;
            self.state.apply(event);
            self.at += 1;
            self.marked += usize::from(matches!(event, DiskEvent::Mark(_)));
            boundary = event.is_boundary();
        }
        let marks = Arc::clone(&self.trace.marks);
        Some(CrashPoint::new(&self.state, self.at, marks, self.marked))
    }
}

/// A hasher with a fixed start, so that a digest is the same in each process.
struct Digest(u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        mix(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            let word = u64::from_le_bytes(word) ^ part.len() as u64;
            self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
}
