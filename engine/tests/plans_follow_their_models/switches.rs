//! Kinds of plans: which operations they have, how often, and on which medium.

use std::fmt;

use crate::common::Rng;
use crate::plan::{Op, Reader, Shape};

/// Draws an operation, of this size if it has one.
pub type Draw = fn(&mut Rng, u64) -> Op;

/// What plans of one kind may do, and where.
pub struct Switches {
    /// Comes before the seed where a plan is printed.
    pub name: &'static str,
    /// Plans that are played, unless the environment says otherwise.
    pub cases: u64,
    /// One plan of so many runs in a folder of the system by real threads, the others on the simulated disk. 0: none does.
    pub folder_every: u64,
    /// What a power failure at moments of the whole plan leaves is looked at, too.
    pub crashes: bool,
    /// Pages are filled and emptied again and again; else any operation follows any other.
    pub pages: bool,
    /// How many keys there may be.
    pub ids: &'static [u64],
    /// The longest value.
    pub longest: &'static [usize],
    /// Lengths of the history.
    pub histories: &'static [u64],
    /// Operations, and how often each comes.
    pub ops: &'static [(u64, Draw)],
    /// What all plans together have to come across.
    pub sees: &'static [&'static str],
}

impl fmt::Debug for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Batches that split and merge pages.
pub static PAGES: Switches = Switches {
    name: "pages",
    cases: 50,
    folder_every: 8,
    crashes: false,
    pages: true,
    ids: &[12, 150, 600, 600, 1500, 1500, 4000, 20_000],
    longest: &[1000, 1000, 5000, 70_000],
    histories: &[0, 3, 24, 24],
    ops: &[
        (8, |rng, size| Op::batch(rng, Shape::Mixed, size)),
        (1, |rng, size| Op::batch(rng, Shape::Fill, size)),
        (1, |rng, size| Op::batch(rng, Shape::Wipe, size)),
        (1, |rng, size| Op::batch(rng, Shape::Rewrite, size)),
        (3, |rng, _| Op::CommitOverlay(rng.next() % 1000)),
        (1, |rng, _| Op::DropOverlay(rng.next() % 1000)),
        (1, |_, _| Op::DropOverlays),
        (1, |rng, _| Op::Drain(rng.below(2) * rng.below(200))),
        (1, |_, _| Op::Sync),
        (2, |rng, _| Op::RollBack(1 + rng.below(6))),
        (1, |_, _| Op::Past),
        (2, |_, _| Op::Look),
        (2, |_, _| Op::Hold),
        (1, |_, _| Op::LetGo),
        (2, |_, _| Op::Add),
        (2, |_, _| Op::DropNamespace),
        (1, |_, _| Op::Close),
        (1, |_, _| Op::Abandon),
        (2, |_, _| Op::PowerCut),
    ],
    sees: &[
        "commits",
        "stale",
        "restored namespaces",
        "checkpoints",
        "pages tidied",
        "regions joined",
        "commits lost",
    ],
};

/// Everything beside everything: short batches, each session, iterator, overlay and reader at any place.
pub static ANYTHING: Switches = Switches {
    name: "anything",
    cases: 60,
    folder_every: 8,
    crashes: false,
    pages: false,
    ids: &[3, 12, 40, 40, 150, 600, 2500],
    longest: &[1000, 5000, 70_000],
    histories: &[0, 0, 1, 2, 5, 12],
    ops: &[
        (16, |rng, size| Op::batch(rng, Shape::Mixed, size)),
        (3, |rng, size| Op::batch(rng, Shape::Fill, size)),
        (2, |rng, size| Op::batch(rng, Shape::Wipe, size)),
        (1, |rng, size| Op::batch(rng, Shape::WipeAll, size)),
        (2, |rng, size| Op::batch(rng, Shape::Rewrite, size)),
        (2, |rng, _| Op::batch(rng, Shape::Prefixes, 4)),
        (4, |rng, size| Op::BatchBehind { size: size.min(40), held: rng.below(2) == 0 }),
        (7, |rng, _| Op::CommitOverlay(rng.next() % 1000)),
        (2, |rng, _| Op::DropOverlay(rng.next() % 1000)),
        (1, |_, _| Op::DropOverlays),
        (3, |rng, _| Op::Drain(rng.below(2) * rng.below(200))),
        (1, |_, _| Op::Sync),
        (6, |rng, _| Op::RollBack(1 + rng.below(6))),
        (4, |_, _| Op::Past),
        (2, |_, _| Op::Look),
        (5, |_, _| Op::Hold),
        (3, |_, _| Op::LetGo),
        (2, |_, _| Op::Rest),
        (4, |_, _| Op::Add),
        (2, |_, _| Op::DropNamespace),
        (3, |rng, size| Op::Load { size: size * [1, 4][rng.index(2)], alone: rng.below(3) > 0 }),
        (3, |_, _| Op::Reader(Reader::Open)),
        (1, |_, _| Op::Reader(Reader::Close)),
        (5, |_, _| Op::Reader(Reader::Refresh)),
        (3, |_, _| Op::Reader(Reader::Past)),
        (2, |_, _| Op::Reader(Reader::Finish)),
        (2, |_, _| Op::Close),
        (2, |_, _| Op::Abandon),
        (1, |_, _| Op::PowerCut),
    ],
    sees: &[
        "commits",
        "stale",
        "states came back",
        "restored namespaces",
        "namespaces in use",
        "namespaces added again",
        "loads",
        "loads that spilled",
        "iterators that rested",
        "sessions too old",
        "states of readers",
        "states too old for readers",
        "blocks of readers",
        "checkpoints",
        "commits lost",
    ],
};

/// Short plans, of which the power fails at many moments.
pub static CRASHES: Switches = Switches {
    name: "crashes",
    cases: 36,
    folder_every: 0,
    crashes: true,
    pages: false,
    ids: &[3, 12, 40, 100, 100, 360],
    longest: &[1000, 70_000, 70_000],
    histories: &[0, 0, 1, 3, 7],
    ops: &[
        (20, |rng, size| Op::batch(rng, Shape::Mixed, size)),
        (3, |rng, size| Op::batch(rng, Shape::Fill, size)),
        (1, |rng, size| Op::batch(rng, Shape::WipeAll, size)),
        (1, |rng, size| Op::batch(rng, Shape::Rewrite, size)),
        (1, |rng, _| Op::batch(rng, Shape::Prefixes, 4)),
        (3, |rng, _| Op::CommitOverlay(rng.next() % 1000)),
        (3, |_, _| Op::Drain(0)),
        (1, |_, _| Op::Sync),
        (4, |rng, _| Op::RollBack(1 + rng.below(3))),
        (4, |_, _| Op::Add),
        (2, |_, _| Op::DropNamespace),
        (3, |rng, size| Op::Load { size, alone: rng.below(8) > 0 }),
        (2, |_, _| Op::Close),
        (2, |_, _| Op::Abandon),
    ],
    sees: &[
        "commits",
        "loads",
        "restored namespaces",
        "checkpoints",
        "regions joined",
        "files cut",
        "crashes",
        "commits lost",
    ],
};

pub static ALL: [&Switches; 3] = [&PAGES, &ANYTHING, &CRASHES];
