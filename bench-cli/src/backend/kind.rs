//! The engines that `--backend` can name.

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// This project's engine.
    Pleach,
    /// The crate nomt.
    Nomt,
    /// Sorted map and naive root: the oracle for small sizes.
    Model,
}

impl Kind {
    /// The backend with this name, if this build has it.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "model" => Ok(Self::Model),
            "pleach" => Ok(Self::Pleach),
            "nomt" if cfg!(feature = "peer-nomt") => Ok(Self::Nomt),
            "nomt" => Err(Self::Nomt.missing("peer-nomt")),
            _ => {
                let text = format!("no backend {name}: this build has {}", Self::built_in());
                Err(BenchError::Usage(text))
            }
        }
    }

    /// The names of the backends in this build, without the oracle.
    pub(crate) fn built_in() -> String {
        let all = [("pleach", true), ("nomt", cfg!(feature = "peer-nomt"))];
        let present: Vec<_> = all.iter().filter(|one| one.1).map(|one| one.0).collect();
        if present.is_empty() { "none".to_owned() } else { present.join(", ") }
    }

    /// Its name on the command line, in folders and in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pleach => "pleach",
            Self::Nomt => "nomt",
            Self::Model => "model",
        }
    }

    /// Version of the engine.
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::Pleach | Self::Model => env!("CARGO_PKG_VERSION"),
            Self::Nomt => "1.0.5",
        }
    }

    /// The error when this build was made without the backend.
    pub(crate) fn missing(self, feature: &str) -> BenchError {
        let name = self.name();
        let text = format!("this build has no backend {name}: build with --features {feature}");
        BenchError::Usage(text)
    }
}
