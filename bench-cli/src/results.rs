//! What was measured: of one engine, and of a command.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job_context::Check;
use crate::machine::{Level, Machine};
use crate::measure::Figure;

/// What one engine has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineRun {
    /// Its name, which is that of the engine but for a second build's.
    pub backend: String,
    pub version: String,
    /// What its commits survive.
    pub survives: Level,
    pub settings: BTreeMap<String, String>,
    pub figures: Vec<Figure>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub series: Value,
    pub notes: Vec<String>,
    /// The last root that it has told.
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

/// All that a command has measured: the JSON document.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    pub schema: u32,
    pub workload: String,
    /// The command line's flags that decide what was run.
    pub arguments: Vec<String>,
    pub version: String,
    /// That the program was built of; `unknown` outside a checkout.
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
