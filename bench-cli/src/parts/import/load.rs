//! The child of `import`, which has nothing else in memory: loads, and says how it goes.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;
use std::time::Instant;

use pleach::{Key, LoadOptions, Value};
use serde::{Deserialize, Serialize};

use super::super::engine::{open_durable, wrap};
use crate::args::stores::{LoadJob, Order};
use crate::error::{BenchError, Result};
use crate::stores::StoreOptions;
use crate::text::{from_hex, hex};
use crate::trees::{self, Ground};
use crate::{account, interrupt, machine, output};

/// Pairs between two words of how far a load is.
const STEP: u64 = 1 << 14;

/// What a child says, a line each: progress, then its result.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    Progress { done: u64 },
    Loaded(Loaded),
    Failed { code: u8, message: String },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Loaded {
    pub(super) pairs: u64,
    pub(super) seconds: f64,
    pub(super) written: u64,
    pub(super) spilled: u64,
    pub(super) peak_rss: u64,
    pub(super) root: String,
}

/// A pair: the key is a hash, or ascends evenly over all keys; the value has 32 bytes.
pub(super) fn pair(id: u64, order: Order, leaves: u64) -> (Key, Value) {
    let mut key = account::key(id);
    if order == Order::Sorted {
        let at = (u128::from(id) << 64) / u128::from(leaves);
        let front = u64::try_from(at).expect("below 2^64");
        key[..8].copy_from_slice(&front.to_be_bytes());
    }
    let value: [u8; 32] = core::array::from_fn(|at| id.to_be_bytes()[at % 8]);
    (key, Value::from(&value))
}

/// The child: loads, and says how it goes on standard output.
pub(crate) fn load(job: &LoadJob) -> Result<()> {
    interrupt::note_in_child()?;
    say(&match loaded(job) {
        Ok(loaded) => Said::Loaded(loaded),
        Err(error) => Said::Failed { code: error.code(), message: error.to_string() },
    })
}

fn say(said: &Said) -> Result<()> {
    let text = serde_json::to_string(said);
    let text = text.map_err(|error| BenchError::Child(format!("the load: {error}")))?;
    output::print(&(text + "\n"))
}

/// A load by another state.
fn loaded_elsewhere(ground: Ground, job: &LoadJob) -> Result<Loaded> {
    // The parent knows that each is one of a backend that is there.
    let args = job.peer_arg.iter().filter_map(|arg| arg.split_once('='));
    let peer_args = args.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let new = StoreOptions::new(&job.folder, job.cache_mib);
    let options = StoreOptions { keys: job.leaves, peer_args, ..new };
    let mut tree = trees::open(ground, &options)?;
    machine::reset_peak_rss();
    let mut pairs = (0..job.leaves).map(|id| {
        if id % STEP == 0 {
            // A parent that is gone does not listen.
            let _ = say(&Said::Progress { done: id });
        }
        let (key, value) = pair(id, job.order, job.leaves);
        (key, value.to_vec())
    });
    let start = Instant::now();
    tree.load(&mut pairs)?;
    let seconds = start.elapsed().as_secs_f64();
    let peak_rss = machine::peak_rss();
    let root = tree.root().map(|root| hex(&root)).unwrap_or_default();
    tree.close()?;
    Ok(Loaded { pairs: job.leaves, seconds, written: 0, spilled: 0, peak_rss, root })
}

fn loaded(job: &LoadJob) -> Result<Loaded> {
    match Ground::chosen(std::slice::from_ref(&job.backend))?[..] {
        [Ground::Pleach] => {}
        [other] => return loaded_elsewhere(other, job),
        _ => return Err(BenchError::Usage("this subcommand is internal".to_owned())),
    }
    let db = open_durable(&job.folder, job.cache_mib)?;
    let told = Box::new(|done| {
        // A parent that is gone does not listen.
        let _ = say(&Said::Progress { done });
    });
    let options = LoadOptions::new().memory_mib(job.load_mib).progress(Some(told));
    machine::reset_peak_rss();
    let mut failed = None;
    let report = match &job.from {
        None => {
            let pairs = (0..job.leaves).map(|id| pair(id, job.order, job.leaves));
            db.bulk_load(pairs, &options)
        }
        Some(path) => {
            let lines: Box<dyn BufRead> = if path == Path::new("-") {
                Box::new(stdin().lock())
            } else {
                Box::new(BufReader::with_capacity(
                    1 << 20,
                    File::open(path).map_err(|error| {
                        BenchError::Usage(format!("{}: {error}", path.display()))
                    })?,
                ))
            };
            let parsed = (1_u64..).zip(lines.lines()).map_while(|(number, line)| {
                let parsed = line.map_err(|error| error.to_string()).and_then(|line| {
                    parse(&line)
                        .ok_or_else(|| "a key of 64 and a value of hexadecimal digits".into())
                });
                parsed.map_err(|error| failed = Some(format!("line {number}: {error}"))).ok()
            });
            db.bulk_load(parsed, &options)
        }
    };
    if let Some(text) = failed {
        return Err(BenchError::Usage(format!("--from, {text}")));
    }
    let report = report.map_err(wrap)?;
    let peak_rss = machine::peak_rss();
    db.close().map_err(wrap)?;
    Ok(Loaded {
        pairs: report.accounts,
        seconds: report.seconds,
        written: report.bytes_written,
        spilled: report.spilled_bytes,
        peak_rss,
        root: hex(report.root.as_bytes()),
    })
}

/// A line `KEY VALUE`, in hexadecimal.
fn parse(line: &str) -> Option<(Key, Value)> {
    let (key, value) = line.split_once(' ')?;
    let key = from_hex(key)?;
    let digit = |at: usize| char::from(value.as_bytes()[at]).to_digit(16);
    if !value.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::try_from(digit(2 * at)? * 16 + digit(2 * at + 1)?).ok();
    let bytes = (0..value.len() / 2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some((key, Value::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_that_dump_prints() {
        let key = "ab".repeat(32);
        let parsed = parse(&format!("{key} 00ff10")).expect("a pair");
        assert_eq!(parsed, ([0xab; 32], Value::from(&[0, 0xff, 0x10])));
        assert_eq!(parse(&format!("{key} ")).expect("an empty value").1.len(), 0);
        for bad in [key.as_str(), "ab 00", &format!("{key} 0"), &format!("{key} 0g")] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sorted_pairs_ascend_and_random_ones_do_not() {
        let keys = |order| (0..1000).map(move |id| pair(id, order, 1000).0);
        assert!(keys(Order::Sorted).is_sorted_by(|a, b| a < b));
        assert!(!keys(Order::Random).is_sorted());
        assert_eq!(pair(7, Order::Sorted, 10).1.len(), 32);
    }
}
