//! The power fails at many moments of a plan. Whatever part of what was not synced is kept, the database opens at a commit
//! between the newest that is durable and the newest of all: with each namespace, with its history, and fit for work.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pleach_io::sim::CrashOutcome;

use crate::common::Rng;
use crate::model::Judged;
use crate::place::{Simulated, unrecorded};
use crate::plan::{Plan, Step};
use crate::world::{Seen, World};
use crate::{text_of, variable};

/// Moments of a plan that are looked at, and what a failure may leave at each of them.
const MOMENTS: usize = 30;
const OUTCOMES: usize = 3;
/// Steps of the work that goes on afterwards.
const STEPS: usize = 3;

/// Plays a plan, and lets the power fail in it.
pub fn play<H: Judged>(plan: &Plan, note: &dyn Fn(&Step)) -> Seen {
    let place = Simulated::new(plan.seed, true);
    let mut world = World::<H, _>::new(plan, place);
    world.steps(plan, note);
    world.count(&world.db().clone());
    let trace = world.place.trace();
    let mut seen = std::mem::take(&mut world.seen);
    let points: Vec<_> = match variable("PLEACH_BOUNDARY") {
        Some(only) => vec![trace.crash_point(usize::try_from(only).expect("a crash point"))],
        None => trace.crash_points().collect(),
    };
    let every = points.len() / MOMENTS + 1;
    let first = Rng::new(plan.seed).index(every);
    for point in points.into_iter().skip(first).step_by(every) {
        // Before there is one, the creation is not through.
        let Some(least) = point.marks().iter().max().copied() else { continue };
        for outcome in point.outcomes(plan.seed, OUTCOMES) {
            let survived =
                catch_unwind(AssertUnwindSafe(|| survives(&world, plan, &outcome, least)));
            match survived {
                Ok(found) => seen.add(&found),
                Err(panic) => panic!("{outcome}: {}", text_of(&*panic)),
            }
        }
    }
    seen
}

/// What is left is one of the states, and work goes on from there.
fn survives<H: Judged>(
    before: &World<H, Simulated>,
    plan: &Plan,
    outcome: &CrashOutcome,
    least: u64,
) -> Seen {
    let place = Simulated::on(outcome.disk_with(unrecorded()), plan.seed);
    let mut world = before.after_crash(place, least, plan.seed);
    let mut rng = Rng::new(plan.seed ^ world.number());
    world.look_at_history(&mut rng);
    // Other steps than those that came then.
    let more = Plan::draw(plan.setup.switches, rng.next());
    more.steps.iter().take(STEPS).for_each(|step| world.step(step));
    world.leave(rng.below(2) == 0);
    world.seen
}
