//! What a run does, drawn from its seed. Each step has a seed of its own and names what it works on by numbers that are
//! taken modulo what is there, so that a plan without some of its steps is a plan, too.

use std::fmt;

use pleach::{Durability, Geometry, Hasher, Key, Options};

use crate::common::{self, Keys, Rng};
use crate::switches::{ALL, Switches};

/// Namespaces that come and go; namespace 0 is always there.
pub const NAMESPACES: [u8; 5] = [0, 1, 63, 200, 255];

/// True when namespaces of this number are plain.
pub fn is_plain(namespace: u8) -> bool {
    namespace >= 200
}

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
    /// Some of all kinds, and deletes of all keys that share some bytes.
    Prefixes,
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

/// What is done with opens of the database for reading alone, beside the one that writes.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    Open,
    Close,
    /// Goes on to the newest commit, and keeps a session on it.
    Refresh,
    /// Keeps a session on a commit of the reader's history.
    Past,
    /// Makes a block that nobody can commit.
    Finish,
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
    /// On a commit of the history, or on a session that is kept.
    BatchBehind {
        size: u64,
        held: bool,
    },
    CommitOverlay(u64),
    DropOverlay(u64),
    DropOverlays,
    /// Waits until no more than this many changes are buffered.
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
    /// Keeps an iterator, which goes on a little behind each step.
    Rest,
    Add,
    DropNamespace,
    /// Loads pairs into a namespace; `alone` lets go first what forbids that.
    Load {
        size: u64,
        alone: bool,
    },
    Reader(Reader),
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
    /// True when the step was made smaller.
    pub resized: bool,
}

/// What stays the same from the creation on.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub switches: &'static Switches,
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
    /// The history and the durability of all opens, where crashes are looked at: what they leave depends on both.
    pub always: Option<(u64, Durability)>,
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
    /// True when all commits that are held can be read, beyond the history, too.
    pub keeps_all: bool,
    /// True when the history may become shorter at each checkpoint, because of a limit in bytes of the device.
    pub limited: bool,
    pub durability: Durability,
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.index(choices.len())]
}

const PERIOD: std::time::Duration = std::time::Duration::from_millis(20);

impl Setup {
    fn draw(switches: &'static Switches, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5e70);
        let kinds = [Keys::Uniform, Keys::Uniform, Keys::SharedPrefix, Keys::Sequential];
        let in_folder = switches.folder_every > 0 && seed.is_multiple_of(switches.folder_every);
        let mut setup = Self {
            switches,
            simulated: !in_folder,
            sha2: rng.below(8) == 0,
            keys: one_of(&mut rng, &kinds),
            ids: one_of(&mut rng, switches.ids),
            typical: one_of(&mut rng, &[8, 40, 200, 900]),
            longest: one_of(&mut rng, switches.longest),
            geometry: one_of(&mut rng, &[Geometry::least(), Geometry::small()]),
            always: None,
        };
        if switches.crashes {
            setup.geometry = Geometry::least();
            let often = Durability::Commit;
            let choices = [often, often, often, Durability::None, Durability::Periodic(PERIOD)];
            setup.always = Some((one_of(&mut rng, switches.histories), one_of(&mut rng, &choices)));
        }
        setup
    }

    pub fn key(&self, id: u64) -> Key {
        common::key(self.keys, id)
    }

    /// Options for an open, which may differ from those of the last one.
    pub fn opening(&self, path: &std::path::Path, seed: u64) -> Opening {
        let mut rng = Rng::new(seed);
        let threads = 1 + rng.index(2);
        let mut history = one_of(&mut rng, self.switches.histories);
        let mut durability = if self.simulated {
            one_of(&mut rng, &[Durability::Commit, Durability::Periodic(PERIOD), Durability::None])
        } else {
            // Syncs of a real disk take most of the time.
            one_of(&mut rng, &[Durability::Periodic(PERIOD), Durability::None])
        };
        if let Some(always) = self.always {
            (history, durability) = always;
        }
        let least = self.geometry.log_segment < Geometry::small().log_segment;
        let cache_kib = match (least, self.switches.pages) {
            (true, true) => one_of(&mut rng, &[1024, 4096]),
            (true, false) => one_of(&mut rng, &[256, 512, 4096]),
            (false, _) => 16 << 10,
        };
        let options = Options::new(path)
            .create(true)
            .hasher(if self.sha2 { Hasher::SHA2_256 } else { Hasher::BLAKE3 })
            .cache_kib(cache_kib)
            .threads(threads)
            .in_flight(one_of(&mut rng, &[1, 4, 64]))
            .durability(durability)
            .tune(|tuning| tuning.flush_at = one_of(&mut rng, &[1, 2, 3, 8, 255]))
            .tune(|tuning| {
                tuning.trie_cache =
                    one_of(&mut rng, &[None, None, None, None, Some(0), Some(64 << 10)]);
            })
            .log_limit_bytes(
                one_of(&mut rng, &[64 << 10, 256 << 10]).max(4 * self.geometry.log_segment),
            )
            .tune(|tuning| tuning.checkpoint_regions = one_of(&mut rng, &[1, 2, 4, 256]))
            .history(history)
            .geometry(self.geometry);
        // With all undo in memory, some of it, and nothing.
        let history_bytes = if history == 24 || !self.switches.pages {
            one_of(&mut rng, &[1 << 30, 40_000, 1])
        } else {
            1 << 30
        };
        let (options, keeps_all) =
            (options.undo_memory_bytes(history_bytes), history_bytes == 1 << 30);
        // Of real threads any may come to a checkpoint between two looks at the history.
        let limited = self.simulated && self.always.is_none() && rng.below(3) == 0;
        let keeps_all = keeps_all && !limited;
        let options = if limited { options.history_disk_mib(rng.below(2)) } else { options };
        Opening { options, threads, history, keeps_all, limited, durability }
    }
}

impl Step {
    /// Makes a batch or a load of another size.
    pub fn resize(&mut self, to: u64) {
        if let Op::Batch { size, .. } | Op::Load { size, .. } = &mut self.op {
            (*size, self.resized) = (to, true);
        }
    }

    /// The size that can be made smaller.
    pub fn size(&self) -> Option<u64> {
        match self.op {
            Op::Batch { size, .. } | Op::Load { size, .. } => Some(size),
            _ => None,
        }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}, then {} steps behind", self.at, self.op, self.background)
    }
}

impl Op {
    pub fn batch(rng: &mut Rng, shape: Shape, size: u64) -> Self {
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

    /// Anything that the switches allow.
    fn any(rng: &mut Rng, switches: &Switches, most: u64) -> Self {
        let size = 1 + one_of(rng, &[12, 60, most]);
        let size = rng.below(size);
        let mut at = rng.below(switches.ops.iter().map(|op| op.0).sum());
        let chosen = switches.ops.iter().find(|(often, _)| {
            let is_here = at < *often;
            at = at.saturating_sub(*often);
            is_here
        });
        chosen.expect("one of them").1(rng, size)
    }
}

/// Keys whose pages, of three values each, are of several regions.
const MANY: u64 = 360;

impl Plan {
    pub fn draw(switches: &'static Switches, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let setup = Setup::draw(switches, seed);
        let ops = if switches.pages {
            Self::of_pages(&mut rng, &setup)
        } else if switches.crashes && setup.ids >= MANY {
            Self::of_shrinking(&mut rng, &setup)
        } else {
            Self::of_anything(&mut rng, &setup)
        };
        let step = |(at, op)| {
            let background = one_of(&mut rng, &[0, 10, 40]);
            Step { at, op, seed: rng.next(), background, resized: false }
        };
        let steps = ops.into_iter().enumerate().map(step).collect();
        Self { seed, setup, steps }
    }

    fn of_anything(rng: &mut Rng, setup: &Setup) -> Vec<Op> {
        let most = if setup.ids > 1000 { setup.ids } else { setup.ids.min(300) };
        let count = if setup.switches.crashes { 10 + rng.below(14) } else { 60 + rng.below(80) };
        let mut ops = vec![Op::Add; one_of(rng, &[0, 0, 1, 3])];
        if rng.below(3) == 0 {
            ops.push(Op::Load { size: setup.ids, alone: true });
        }
        for _ in 0..count {
            let op = Op::any(rng, setup.switches, most);
            ops.push(op);
            if matches!(op, Op::DropNamespace) && rng.below(2) == 0 {
                ops.push(Op::RollBack(1 + rng.below(2)));
            }
        }
        ops
    }

    /// A load, deletes of almost all of it, what becomes small then, and some puts, so that files grow again.
    fn of_shrinking(rng: &mut Rng, setup: &Setup) -> Vec<Op> {
        let mut ops = vec![Op::Load { size: setup.ids, alone: true }];
        ops.extend((0..8).map(|_| Op::commit(rng, Shape::Wipe, setup.ids / 7)));
        for _ in 0..10 {
            ops.push(Op::commit(rng, Shape::Mixed, 3));
            ops.push(Op::any(rng, setup.switches, 20));
        }
        ops.extend((0..3).map(|_| Op::commit(rng, Shape::Fill, setup.ids / 20)));
        ops
    }

    /// Pages are split and merged again and again: keys are filled in and deleted, with a few small commits and time for
    /// the background in between, and anything else at any place.
    fn of_pages(rng: &mut Rng, setup: &Setup) -> Vec<Op> {
        let most = one_of(rng, &[100, 300, 300, 2000]).min(setup.ids);
        let anything = one_of(rng, &[0, 1, 2, 4]);
        let mut ops = vec![Op::Add; one_of(rng, &[0, 0, 0, 2, 6])];
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
            part.push(fill(rng));
            part.extend(settle(rng));
            let wipe = one_of(rng, &[Shape::Wipe, Shape::WipeAll, Shape::Thin, Shape::Thin]);
            let size = 1 + rng.below(most);
            part.push(Op::commit(rng, wipe, size));
            part.extend(settle(rng));
            part.extend(few(rng));
            part.push(fill(rng));
            part.extend(settle(rng));
            part.extend(few(rng));
            for op in part {
                while rng.below(10) < anything {
                    let op = Op::any(rng, setup.switches, most);
                    ops.push(op);
                    if let Op::DropNamespace = op {
                        ops.push(Op::RollBack(1 + rng.below(2)));
                    }
                }
                ops.push(op);
            }
        }
        ops
    }

    /// The plan that a failure was printed as: `KIND SEED`, or `KIND SEED:STEP,STEP=SIZE,STEP`.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, text) = text.split_once(' ')?;
        let switches = ALL.into_iter().find(|switches| switches.name == kind)?;
        let Some((seed, chosen)) = text.split_once(':') else {
            return Some(Self::draw(switches, text.parse().ok()?));
        };
        let mut plan = Self::draw(switches, seed.parse().ok()?);
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
        write!(f, "{} {}", self.setup.switches.name, self.seed)?;
        for (index, step) in self.steps.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { ':' } else { ',' }, step.at)?;
            if let Some(size) = step.size()
                && step.resized
            {
                write!(f, "={size}")?;
            }
        }
        Ok(())
    }
}
