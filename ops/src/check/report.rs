//! The result of a check.

use pleach_core::Node;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The database opens; the finding may be a loss, or a bad copy of which another one is left.
    Survived,
    /// The database does not open.
    Fatal,
}

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The finding, with its file.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Clean,
    /// There are findings that an open survives.
    Findings,
    /// The database does not open.
    DoesNotOpen,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// All inconsistencies. Empty: all is well.
    pub findings: Vec<Finding>,
    /// What an interrupted open has left, and the next one mends: no findings.
    pub notes: Vec<String>,
    /// Leaf pages read.
    pub pages: u64,
    /// Keys present, of all namespaces, dropped ones included until they are reclaimed.
    pub keys: u64,
    /// Regions of all indexes.
    pub regions: u64,
    /// Namespaces that exist.
    pub namespaces: u64,
    /// Long values.
    pub long_values: u64,
    /// Pages of the overflow file in use.
    pub overflow_pages: u64,
    /// Root of namespace 0 in the newest commit; zero when it cannot be read.
    pub root: Node,
    /// Number of the newest commit.
    pub commit: u64,
    /// Whether the older checkpoint could serve if the newest were damaged; `None` when there is none. No finding:
    /// there is one whole checkpoint while another is written.
    pub older_serves: Option<bool>,
}

impl CheckReport {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None => Verdict::Clean,
            Some(Severity::Survived) => Verdict::Findings,
            Some(Severity::Fatal) => Verdict::DoesNotOpen,
        }
    }

    pub(super) fn add(&mut self, severity: Severity, what: String) {
        self.findings.push(Finding { severity, what });
    }
}

/// The beginning of a finding's text that names its namespace; empty for namespace 0.
pub(super) fn of(namespace: u8) -> String {
    if namespace == 0 { String::new() } else { format!("namespace {namespace}: ") }
}
