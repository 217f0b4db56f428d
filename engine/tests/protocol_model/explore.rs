//! Breadth first over all reachable states, each once. The first violation is therefore one of the shortest.

use std::collections::HashMap;

use crate::actions::{Action, successors};
use crate::mutants::Scenario;
use crate::oracle;
use crate::state::{fingerprint, initial};

/// How an exploration ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    pub(crate) depth: usize,
    /// Whether every reachable state was seen, rather than every state within the depth.
    pub(crate) complete: bool,
    pub(crate) violation: Option<Violation>,
}

/// A counter-example.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) what: String,
    pub(crate) path: Vec<Action>,
}

/// A state's predecessor and the action between them.
type Origins = HashMap<u64, (u64, Action)>;

pub(crate) fn explore(scenario: &Scenario, depth_limit: usize) -> Report {
    let start = initial(scenario);
    let root = fingerprint(&start);
    let mut origins: Origins = HashMap::from([(root, (root, Action::Scan))]);
    let mut layer = vec![(root, start)];
    let mut report = Report { states: 1, steps: 0, depth: 0, complete: false, violation: None };
    while !layer.is_empty() && report.depth < depth_limit {
        let mut below = Vec::new();
        for (from, state) in layer {
            for (action, outcome) in successors(scenario, &state) {
                report.steps += 1;
                let checked = outcome.and_then(|next| {
                    let mark = fingerprint(&next);
                    if origins.contains_key(&mark) {
                        return Ok(());
                    }
                    oracle::holds(&next)?;
                    origins.insert(mark, (from, action));
                    below.push((mark, next));
                    Ok(())
                });
                if let Err(what) = checked {
                    report.violation =
                        Some(Violation { what, path: path(&origins, root, from, action) });
                    report.states = origins.len();
                    return report;
                }
            }
        }
        layer = below;
        report.depth += 1;
    }
    report.complete = layer.is_empty();
    report.states = origins.len();
    report
}

fn path(origins: &Origins, root: u64, mut from: u64, last: Action) -> Vec<Action> {
    let mut path = vec![last];
    while from != root {
        let (before, action) = origins[&from];
        path.push(action);
        from = before;
    }
    path.reverse();
    path
}
