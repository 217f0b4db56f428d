//! Random plans from seeds, of the kinds that `switches` lists: batches, overlays, rollbacks, loads, namespaces that come and
//! go, sessions and iterators that stay, readers beside the writer, restarts with other options and power cuts. After each finish
//! roots are those that `nomt-core` builds of the same pairs, and witnesses and proofs are the naive trie's; reads,
//! iterations and what is opened again say what the model has. A plan that fails is made shorter and printed so that it can
//! be played again (docs/testing.md).

#![allow(unreachable_pub, reason = "modules of a test")]

#[path = "plans_follow_their_models/batches.rs"]
mod batches;
#[path = "it/common/mod.rs"]
mod common;
#[path = "plans_follow_their_models/crashes.rs"]
mod crashes;
#[path = "plans_follow_their_models/model.rs"]
mod model;
#[path = "plans_follow_their_models/namespaces.rs"]
mod namespaces;
#[path = "plans_follow_their_models/place.rs"]
mod place;
#[path = "plans_follow_their_models/plan.rs"]
mod plan;
#[path = "plans_follow_their_models/readers.rs"]
mod readers;
#[path = "plans_follow_their_models/switches.rs"]
mod switches;
#[path = "plans_follow_their_models/world.rs"]
mod world;

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nomt_core::hasher::{Blake3Hasher, Sha2Hasher};

use common::cases;
use model::Judged;
use place::{Folder, Simulated};
use plan::{Plan, Step};
use switches::{ANYTHING, CRASHES, PAGES, Switches};
use world::Seen;

/// Plans that are tried to make a failing one shorter, and how long that may take.
const TRIES: usize = 3000;
const SHORTENING: Duration = Duration::from_secs(180);

fn play<H: Judged>(plan: &Plan, note: &dyn Fn(&Step)) -> Seen {
    if plan.setup.switches.crashes {
        return crashes::play::<H>(plan, note);
    }
    if plan.setup.simulated {
        return world::play::<H>(plan, Simulated::new(plan.seed, false), note);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    world::play::<H>(plan, Folder::new(folder.path()), note)
}

fn play_hashed(plan: &Plan, note: &dyn Fn(&Step)) -> Seen {
    if plan.setup.sha2 { play::<Sha2Hasher>(plan, note) } else { play::<Blake3Hasher>(plan, note) }
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic without a message")
}

/// Plays a plan; when it fails, tells with what, and how many of its steps it took.
fn try_play(plan: &Plan) -> Result<Seen, (String, usize)> {
    let taken = Cell::new(0);
    let note = |_: &plan::Step| taken.set(taken.get() + 1);
    let played = catch_unwind(AssertUnwindSafe(|| play_hashed(plan, &note)));
    played.map_err(|panic| (text_of(&*panic).to_owned(), taken.get()))
}

/// Looks for shorter plans that fail, too.
struct Shortener<'a> {
    plan: &'a Plan,
    tries: usize,
    since: Instant,
}

impl Shortener<'_> {
    fn plan(&self, steps: &[Step]) -> Plan {
        Plan { steps: steps.to_vec(), ..self.plan.clone() }
    }

    fn fails(&mut self, steps: &[Step]) -> bool {
        // Real threads take other turns each time.
        let turns = if self.plan.setup.simulated { 1 } else { 3 };
        (0..turns).any(|_| {
            self.tries += 1;
            self.tries < TRIES
                && self.since.elapsed() < SHORTENING
                && try_play(&self.plan(steps)).is_err()
        })
    }

    /// Leaves out what it can: half of the steps at once, then less.
    fn drop_steps(&mut self, steps: &mut Vec<Step>) {
        let mut part = steps.len().div_ceil(2);
        while part > 0 {
            let mut at = 0;
            while at < steps.len() {
                let mut fewer = steps.clone();
                fewer.drain(at..steps.len().min(at + part));
                if self.fails(&fewer) {
                    *steps = fewer;
                } else {
                    at += part;
                }
            }
            part /= 2;
        }
    }

    /// Makes batches and loads smaller.
    fn shrink_steps(&mut self, steps: &mut Vec<Step>) {
        for at in 0..steps.len() {
            while let Some(size) = steps[at].size() {
                let smaller = [size / 2, size - size / 4, size.saturating_sub(1)].map(|size| {
                    let mut smaller = steps.clone();
                    smaller[at].resize(size);
                    smaller
                });
                let found = smaller.into_iter().find(|steps| size > 0 && self.fails(steps));
                let Some(found) = found else { break };
                *steps = found;
            }
        }
    }
}

/// A failing plan made shorter; `taken` of its steps are known to be enough.
fn shortest(plan: &Plan, taken: usize) -> Plan {
    let mut shortener = Shortener { plan, tries: 0, since: Instant::now() };
    let mut steps = plan.steps[..taken].to_vec();
    if !shortener.fails(&steps) {
        steps.clone_from(&plan.steps);
    }
    loop {
        let before = format!("{}", shortener.plan(&steps));
        shortener.drop_steps(&mut steps);
        shortener.shrink_steps(&mut steps);
        let after = shortener.plan(&steps);
        if before == format!("{after}") {
            return after;
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Makes a failing plan shorter, and says how it is played again.
fn report(plan: &Plan, message: String, taken: usize) -> String {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let plan = shortest(plan, taken);
    let again: Vec<_> = (0..5).filter_map(|_| try_play(&plan).err()).collect();
    std::panic::set_hook(hook);
    let message = again.first().map_or(message, |(message, _)| message.clone());
    let steps: Vec<String> = plan.steps.iter().map(|step| format!("  {step:?}\n")).collect();
    let (setup, times, steps) = (&plan.setup, again.len(), steps.concat());
    format!("{message}\n{setup:?}\n{steps}fails {times} of 5 times with PLEACH_PLAN='{plan}'")
}

/// Plays plans of a kind, or the one that the environment names.
fn play_all(switches: &'static Switches) {
    if let Ok(text) = std::env::var("PLEACH_PLAN") {
        let plan = Plan::parse(&text).expect("a plan, as a failure prints it");
        if plan.setup.switches.name == switches.name {
            println!("{:?}", plan.setup);
            println!("{:?}", play_hashed(&plan, &|step| println!("{step:?}")));
        }
        return;
    }
    let (first, since) = (variable("PLEACH_SEED").unwrap_or(0), Instant::now());
    let seconds = variable("PLEACH_SECONDS").map(Duration::from_secs);
    let (mut seed, mut told, mut all) = (first, since, Seen::default());
    let goes_on = |seed| {
        seconds.map_or(seed < first + cases(switches.cases), |seconds| since.elapsed() < seconds)
    };
    while goes_on(seed) {
        let plan = Plan::draw(switches, seed);
        match try_play(&plan) {
            Ok(seen) => all.add(&seen),
            Err((message, taken)) => {
                println!("seed {seed} failed after {} s", since.elapsed().as_secs());
                panic!("seed {seed}: {}", report(&plan, message, taken));
            }
        }
        seed += 1;
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!(
                "{}: {} plans in {} s",
                switches.name,
                seed - first,
                since.elapsed().as_secs()
            );
        }
    }
    let (count, time) = (seed - first, since.elapsed().as_secs_f64());
    println!("{}: {count} plans in {time:.1} s: {all:?}", switches.name);
    let is_seen = count < switches.cases || all.is_all_of(switches.sees);
    assert!(is_seen, "something of {:?} never came: {all:?}", switches.sees);
}

#[test]
fn pages_that_split_and_merge() {
    play_all(&PAGES);
}

#[test]
fn anything_beside_anything() {
    play_all(&ANYTHING);
}

#[test]
fn a_power_failure_at_any_moment() {
    play_all(&CRASHES);
}

/// With real threads, a flush splits and merges pages while commits bring their chunks to another layout. A page that came between
/// two looks at the layout had changes of a new page and of a known one, and the commit failed, two times of three.
#[test]
fn layouts_change_while_commits_follow_them() {
    let plan = Plan::draw(&PAGES, 770_416);
    for _ in 0..6 {
        if let Err((message, taken)) = try_play(&plan) {
            panic!("{}", report(&plan, message, taken));
        }
    }
}
