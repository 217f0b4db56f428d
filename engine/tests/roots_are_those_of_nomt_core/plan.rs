//! What a run does, drawn from its seed. Each step has a seed of its own and names what it works on by numbers that are
//! taken modulo what is there, so that a plan without some of its steps is a plan, too.

use std::fmt;

use pleach::{Durability, Geometry, Hasher, Key, Options};

use crate::common::{self, Keys, Rng};

/// Namespaces that come and go; namespace 0 is always there.
pub const NAMESPACES: [u8; 5] = [0, 1, 63, 200, 255];
/// The one of them that is plain.
pub const PLAIN: u8 = 200;

/// How the accesses of a batch are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Some of all kinds, anywhere.
    Mixed,
    /// Values for ids in a row.
    Fill,
    /// Deletes of keys in a row.
    Wipe,
    /// Deletes of all keys but a few.
    WipeAll,
    /// Deletes of most keys everywhere, so that small pages are left.
    Thin,
    /// Keys in a row get values again, some of them the same.
    Rewrite,
}

/// What becomes of a block.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    Commit,
    Overlay,
    /// Both: an overlay that is committed at once.
    CommitOverlay,
    Drop,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// On the tip, or on one of the overlays (`over`; the newest is the likeliest).
    Batch {
        shape: Shape,
        size: u64,
        over: Option<u64>,
        then: Then,
        witness: bool,
    },
    CommitOverlay(u64),
    DropOverlay(u64),
    DropOverlays,
    /// Waits until no more than this many changes are pending.
    Drain(u64),
    Sync,
    RollBack(u64),
    /// Looks at a commit of the history.
    Past,
    /// Looks at the tip, or at an overlay.
    Look,
    /// Keeps a session on the tip, on an overlay or on a commit of the history.
    Hold,
    /// Looks at one that is kept, and lets it go.
    LetGo,
    Add,
    DropNamespace,
    /// Closes the database and opens it with other options.
    Close,
    /// Drops it without closing it.
    Abandon,
    /// Cuts the power, where the disk is simulated; else the same.
    PowerCut,
}

/// One step.
#[derive(Clone, Copy)]
pub struct Step {
    /// Place in the plan that was drawn.
    pub at: usize,
    pub op: Op,
    pub seed: u64,
    /// Steps of the background behind it.
    pub background: usize,
    /// Was its size made smaller?
    pub resized: bool,
}

/// What stays the same from the creation on.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// On a simulated disk, where the same plan is the same run; else in a folder, by real threads.
    pub simulated: bool,
    /// Nodes are hashed by SHA-256.
    pub sha2: bool,
    pub keys: Keys,
    pub ids: u64,
    /// Many values are as long as this. Long ones make many pages of few keys.
    pub typical: usize,
    /// No value is longer than this.
    pub longest: usize,
    pub geometry: Geometry,
}

#[derive(Clone)]
pub struct Plan {
    pub seed: u64,
    pub setup: Setup,
    pub steps: Vec<Step>,
}

/// How a database is opened.
#[derive(Clone, Debug)]
pub struct Opening {
    pub options: Options,
    pub threads: usize,
    pub history: u64,
    /// Can whatever is held be read, beyond the history, too?
    pub keeps_all: bool,
    pub durability: Durability,
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.index(choices.len())]
}

impl Setup {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5e70);
        let kinds = [Keys::Uniform, Keys::Uniform, Keys::SharedPrefix, Keys::Sequential];
        Self {
            simulated: !seed.is_multiple_of(8),
            sha2: rng.below(8) == 0,
            keys: one_of(&mut rng, &kinds),
            ids: one_of(&mut rng, &[12, 150, 600, 600, 1500, 1500, 4000, 20_000]),
            typical: one_of(&mut rng, &[8, 40, 200, 900]),
            longest: one_of(&mut rng, &[1000, 1000, 5000, 70_000]),
            geometry: one_of(&mut rng, &[Geometry::least(), Geometry::small()]),
        }
    }

    pub fn key(&self, id: u64) -> Key {
        common::key(self.keys, id)
    }

    /// Options for an open, which may differ from those of the last one.
    pub fn opening(&self, path: &std::path::Path, seed: u64) -> Opening {
        let mut rng = Rng::new(seed);
        let threads = 1 + rng.index(2);
        let history = one_of(&mut rng, &[0, 3, 24, 24]);
        let period = std::time::Duration::from_millis(20);
        let durability = if self.simulated {
            one_of(&mut rng, &[Durability::Commit, Durability::Periodic(period), Durability::None])
        } else {
            // Syncs of a real disk take most of the time.
            one_of(&mut rng, &[Durability::Periodic(period), Durability::None])
        };
        let least = self.geometry.log_segment < Geometry::small().log_segment;
        let cache_kib = if least { one_of(&mut rng, &[1024, 4096]) } else { 16 << 10 };
        let options = Options::new(path)
            .create(true)
            .hasher(if self.sha2 { Hasher::SHA2_256 } else { Hasher::BLAKE3 })
            .cache_kib(cache_kib)
            .threads(threads)
            .in_flight(one_of(&mut rng, &[1, 4, 64]))
            .durability(durability)
            .flush_at(one_of(&mut rng, &[1, 2, 3, 8, 255]))
            .trie_cache_kib(one_of(&mut rng, &[None, None, None, None, Some(0), Some(64)]))
            .log_limit_bytes(
                one_of(&mut rng, &[64 << 10, 256 << 10]).max(4 * self.geometry.log_segment),
            )
            .checkpoint_regions(one_of(&mut rng, &[1, 2, 4, 256]))
            .history(history)
            .geometry(self.geometry);
        // With the whole history in memory, some of it, and nothing.
        let history_bytes = match history {
            24 => one_of(&mut rng, &[1 << 30, 40_000, 1]),
            _ => 1 << 30,
        };
        let (options, keeps_all) = (options.history_bytes(history_bytes), history_bytes == 1 << 30);
        Opening { options, threads, history, keeps_all, durability }
    }
}

impl Step {
    /// Makes a batch of another size.
    pub fn resize(&mut self, to: u64) {
        if let Op::Batch { size, .. } = &mut self.op {
            (*size, self.resized) = (to, true);
        }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}, then {} steps behind", self.at, self.op, self.background)
    }
}

impl Op {
    fn batch(rng: &mut Rng, shape: Shape, size: u64) -> Self {
        let over = (rng.below(3) == 0).then(|| rng.next() % 1000);
        let then = match rng.below(10) {
            0 | 1 => Then::Overlay,
            2 => Then::CommitOverlay,
            3 => Then::Drop,
            _ => Then::Commit,
        };
        Self::Batch { shape, size, over, then, witness: rng.below(4) > 0 }
    }

    /// A batch on the tip that is committed.
    fn commit(rng: &mut Rng, shape: Shape, size: u64) -> Self {
        Self::Batch { shape, size, over: None, then: Then::Commit, witness: rng.below(4) > 0 }
    }

    /// Anything.
    fn any(rng: &mut Rng, most: u64) -> Self {
        let size = 1 + one_of(rng, &[12, 60, most]);
        let size = rng.below(size);
        match rng.below(34) {
            0..8 => Self::batch(rng, Shape::Mixed, size),
            8 => Self::batch(rng, Shape::Fill, size),
            9 => Self::batch(rng, Shape::Wipe, size),
            10 => Self::batch(rng, Shape::Rewrite, size),
            11..14 => Self::CommitOverlay(rng.next() % 1000),
            14 => Self::DropOverlay(rng.next() % 1000),
            15 => Self::DropOverlays,
            16 => Self::Drain(rng.below(2) * rng.below(200)),
            17 => Self::Sync,
            18 | 19 => Self::RollBack(1 + rng.below(6)),
            20 => Self::Past,
            21 | 22 => Self::Look,
            23 | 24 => Self::Hold,
            25 => Self::LetGo,
            26 | 27 => Self::Add,
            28 | 29 => Self::DropNamespace,
            30 => Self::Close,
            31 => Self::Abandon,
            _ => Self::PowerCut,
        }
    }
}

impl Plan {
    /// Pages are split and merged again and again: keys are filled in and deleted, with a few small commits and time for
    /// the background in between, and anything else at any place.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let setup = Setup::draw(seed);
        let most = one_of(&mut rng, &[100, 300, 300, 2000]).min(setup.ids);
        let anything = one_of(&mut rng, &[0, 1, 2, 4]);
        let mut ops = vec![Op::Add; one_of(&mut rng, &[0, 0, 0, 2, 6])];
        for _ in 0..2 + rng.below(4) {
            let mut part = Vec::new();
            let fill = |rng: &mut Rng| {
                let size = 1 + one_of(rng, &[most / 3, most]);
                let size = size - rng.below(size / 2 + 1);
                Op::commit(rng, Shape::Fill, size)
            };
            let settle = |rng: &mut Rng| (rng.below(3) > 0).then_some(Op::Drain(0));
            let few = |rng: &mut Rng| {
                let (size, most) = (1 + rng.below(4), rng.below(14));
                let shape = one_of(rng, &[Shape::Mixed, Shape::Fill]);
                (0..most).map(|_| Op::commit(rng, shape, size)).collect::<Vec<_>>()
            };
            part.push(fill(&mut rng));
            part.extend(settle(&mut rng));
            let wipe = one_of(&mut rng, &[Shape::Wipe, Shape::WipeAll, Shape::Thin, Shape::Thin]);
            let size = 1 + rng.below(most);
            part.push(Op::commit(&mut rng, wipe, size));
            part.extend(settle(&mut rng));
            part.extend(few(&mut rng));
            part.push(fill(&mut rng));
            part.extend(settle(&mut rng));
            part.extend(few(&mut rng));
            for op in part {
                while rng.below(10) < anything {
                    let op = Op::any(&mut rng, most);
                    ops.push(op);
                    if let Op::DropNamespace = op {
                        ops.push(Op::RollBack(1 + rng.below(2)));
                    }
                }
                ops.push(op);
            }
        }
        let step = |(at, op)| {
            let background = one_of(&mut rng, &[0, 10, 40]);
            Step { at, op, seed: rng.next(), background, resized: false }
        };
        let steps = ops.into_iter().enumerate().map(step).collect();
        Self { seed, setup, steps }
    }

    /// The plan that a failure was printed as: `SEED`, or `SEED:STEP,STEP=SIZE,STEP`.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((seed, chosen)) = text.split_once(':') else {
            return Some(Self::draw(text.parse().ok()?));
        };
        let mut plan = Self::draw(seed.parse().ok()?);
        let step = |text: &str| {
            let (at, size) =
                text.split_once('=').map_or((text, None), |(at, size)| (at, Some(size)));
            let mut step = *plan.steps.get(at.parse::<usize>().ok()?)?;
            if let Some(size) = size {
                step.resize(size.parse().ok()?);
            }
            Some(step)
        };
        plan.steps = chosen.split(',').map(step).collect::<Option<_>>()?;
        Some(plan)
    }
}

/// As [`Plan::parse`] takes it.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        for (index, step) in self.steps.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { ':' } else { ',' }, step.at)?;
            if let Op::Batch { size, .. } = step.op
                && step.resized
            {
                write!(f, "={size}")?;
            }
        }
        Ok(())
    }
}
