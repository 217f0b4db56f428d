//! Results: of one engine, and of a command.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job_context::Check;
use crate::machine::{Level, Machine};
use crate::measure::Figure;

/// The results of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineRun {
    /// The engine's name, or that of a second build.
    pub backend: String,
    pub version: String,
    /// What the engine's commits survive.
    pub survives: Level,
    pub settings: BTreeMap<String, String>,
    pub figures: Vec<Figure>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub series: Value,
    pub notes: Vec<String>,
    /// The last root reported.
    pub root: Option<String>,
    #[serde(skip)]
    pub checks: Vec<Check>,
}

impl EngineRun {
    /// Of one that has done nothing yet.
    pub fn new(backend: &str, version: String, survives: Level) -> Self {
        Self {
            backend: backend.to_owned(),
            version,
            survives,
            settings: BTreeMap::new(),
            figures: Vec::new(),
            series: Value::Null,
            notes: Vec::new(),
            root: None,
            checks: Vec::new(),
        }
    }
}

/// The version of [`Document`] that is written, and read.
pub const SCHEMA: u32 = 2;
/// The commit of a build outside a checkout. It says nothing of what was built: two of them may be different.
pub const UNKNOWN: &str = "unknown";

/// The results of a command: the JSON document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    pub schema: u32,
    pub workload: String,
    /// The command line's flags that decide what is run.
    pub arguments: Vec<String>,
    pub version: String,
    /// The commit that the program was built of; [`UNKNOWN`] outside a checkout.
    pub commit: String,
    pub date: String,
    pub machine: Machine,
    pub seed: u64,
    pub cache_mib: u64,
    pub durability: String,
    /// True when a signal has cut the run short.
    pub interrupted: bool,
    pub runs: Vec<EngineRun>,
    pub notes: Vec<String>,
}
