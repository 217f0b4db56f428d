//! What steps will take, by what was measured before: the plan's own figures are of one machine.

use crate::compare::plan::Step;

/// Shorter ones say little of longer ones.
const SECONDS: f64 = 5.0;
/// Files grow a little from run to run.
const ROOM: f64 = 1.1;

/// What a step took, by any build, beside what the plan had for it.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) planned_seconds: f64,
    pub(crate) seconds: f64,
    /// The most that its files had; unknown to older records.
    pub(crate) disk_mib: Option<f64>,
}

/// Corrects the estimates of steps. One that was measured with the same arguments takes what it took. Of any other, the
/// time is scaled as that of the same workload at another size was off, or else by the median of all.
pub(crate) fn correct(steps: &mut [Step], measured: &[Measured]) {
    let ratio = |one: &Measured| one.seconds / one.planned_seconds;
    let tells = |one: &&Measured| one.planned_seconds >= SECONDS && one.seconds > 0.0;
    let mut ratios: Vec<f64> = measured.iter().filter(tells).map(ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied();
    for step in steps {
        let own = measured.iter().filter(|one| one.name == step.name);
        if let Some(same) = own.clone().find(|one| one.arguments == step.arguments) {
            step.seconds = whole(same.seconds).max(1);
            if let Some(disk) = same.disk_mib {
                step.disk_mib = whole(disk * ROOM).max(u64::from(step.disk_mib > 0));
            }
            continue;
        }
        if let Some(ratio) = own.clone().find(tells).map(ratio).or(median) {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let scaled = step.seconds as f64 * ratio;
            step.seconds = whole(scaled).max(1);
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
fn whole(of: f64) -> u64 {
    of.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, arguments: &str, seconds: u64) -> Step {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Step { name, arguments, seconds, planned_seconds: seconds, disk_mib: 100, asked_mib: 0 }
    }

    fn measured(name: &str, arguments: &str, planned: f64, seconds: f64) -> Measured {
        Measured {
            name: name.to_owned(),
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            planned_seconds: planned,
            seconds,
            disk_mib: Some(40.0),
        }
    }

    #[test]
    fn what_was_measured_is_believed_and_the_rest_is_scaled() {
        let plan = [step("bank", "--full", 600), step("auth", "", 120), step("erc20", "", 180)];
        let mut steps = plan.clone();
        correct(&mut steps, &[]);
        assert_eq!(steps, plan, "nothing is known");

        correct(
            &mut steps,
            &[
                measured("bank", "--quick", 15.0, 30.0),
                measured("erc20", "", 180.0, 99.5),
                measured("hash", "", 10.0, 40.0),
                measured("proof", "--smallest", 1.0, 90.0),
            ],
        );
        // The same workload at another size; the median of 0.55, 2 and 4; the same arguments.
        assert_eq!(steps.iter().map(|step| step.seconds).collect::<Vec<_>>(), [1200, 240, 100]);
        assert_eq!(steps.iter().map(|step| step.disk_mib).collect::<Vec<_>>(), [100, 100, 44]);
    }
}
