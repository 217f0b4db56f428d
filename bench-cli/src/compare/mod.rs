//! `nomt-bench compare`: workloads as child processes of this executable, each with its result kept in a
//! folder, so that a run which was stopped goes on.
//!
//! * [`plan`]: which steps, with which arguments, how long and how large;
//! * [`estimate`]: the same by what was measured before; [`folder`]: what was measured already; [`step`]: one step as a process.

mod estimate;
mod folder;
mod plan;
mod step;

pub(crate) use estimate::correct;
pub(crate) use folder::{Done, Folder, Outcome};
pub(crate) use plan::{Plan, plan};
pub(crate) use step::run;
