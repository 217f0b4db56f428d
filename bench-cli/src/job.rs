//! The child process of one engine: this executable again, which gets a [`Job`] as a line of JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::job_context::{ChildMessage, JobContext, JobStage, line};
use crate::work::{self, Workload};
use crate::{machine, signals};

/// The job of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub work: Workload,
    pub flags: Flags,
    pub stage: JobStage,
    pub kind: EngineKind,
    /// The child's folder: empty, or with the database of a stage or a run before.
    pub folder: PathBuf,
    /// True for the first engine, which decides for all.
    pub first: bool,
    /// Numbers that the first engine has decided, such as that of batches until memory is steady.
    pub decided: BTreeMap<String, u64>,
}

/// The hidden subcommand: does the job that standard input describes.
pub fn main() -> Result<()> {
    signals::note_in_child()?;
    let internal = || Error::Usage("this subcommand is internal".to_owned());
    let job: Job = line()?.ok_or_else(internal)?;
    let Job { work, flags, stage, kind, folder, first, decided } = job;
    let mut side = JobContext::new((kind, stage, first), flags, folder, decided);
    machine::reset_peak_rss();
    match work::run(&work, &mut side) {
        Ok(()) => side.say(&ChildMessage::Done),
        Err(error) => {
            let (code, message) = (error.code(), error.to_string());
            side.say(&ChildMessage::Failed { code, message })
        }
    }
}
