//! What a process with a database takes, against the promise: the budget, a tenth of it, and 48 MiB.
//!
//! `cargo run --release -p pleach --example memory [NAME ...]`
//!
//! Each scenario runs in a process of its own, after another one has loaded its accounts. NAME is one of `small`,
//! `held`, `chain`, `large` and `default`; all of them without a name. `PLEACH_MEMORY_DIR` says where databases go.

#![expect(clippy::print_stdout, reason = "an example that measures says so")]

mod scenario;

use std::path::Path;
use std::process::Command;

use pleach::Metrics;
use scenario::{Result, SCENARIOS, Scenario, promise, resident};

fn mib(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}

/// What the engine counts, by part.
fn parts(metrics: &Metrics) -> [(&'static str, u64); 12] {
    [
        ("leaf cache", metrics.leaf_cache_bytes),
        ("value cache", metrics.value_cache_bytes),
        ("index", metrics.index_bytes),
        ("nodes", metrics.node_bytes),
        ("buffered changes", metrics.pending_bytes),
        ("undo", metrics.undo_bytes),
        ("overlays", metrics.overlay_bytes),
        ("arrays of batches", metrics.batch_bytes),
        ("kept arrays", metrics.kept_bytes),
        ("witnesses", metrics.witness_bytes),
        ("buffers", metrics.buffer_bytes),
        ("write buffers", metrics.flush_buffer_bytes),
    ]
}

/// In the process that is measured.
fn measure(scenario: &Scenario, folder: &Path) -> Result<()> {
    let mut most = parts(&Metrics::default());
    let (mut least_cache, mut trims, mut trimmed) = (u64::MAX, 0, 0);
    scenario.run(folder, |commit, metrics| {
        for (most, now) in most.iter_mut().zip(parts(metrics)) {
            most.1 = most.1.max(now.1);
        }
        least_cache = least_cache.min(metrics.leaf_cache_budget);
        (trims, trimmed) = (metrics.trims, metrics.trimmed_bytes);
        if commit % (scenario.commits / 6).max(1) == 0 {
            let counted: u64 = parts(metrics).iter().map(|part| part.1).sum();
            let [now, peak] = ["VmRSS:", "VmHWM:"].map(|field| resident(field).unwrap_or_default());
            let counted = mib(counted);
            println!(
                "  commit {commit:4}: resident {now:7.1}, at most {peak:7.1}; counted {counted:7.1}"
            );
        }
    })?;
    println!(
        "  largest after a commit, MiB (the leaf cache's budget at its least: {:.1}):",
        mib(least_cache)
    );
    for (name, bytes) in most {
        println!("    {name:25} {:7.1}", mib(bytes));
    }
    println!("  {trims} trims gave back {:.1} MiB", mib(trimmed));
    let (peak, promised) = (resident("VmHWM:")?, promise(scenario.budget_mib));
    let kept = if peak <= promised { "kept" } else { "NOT KEPT" };
    println!("  peak {peak:.1} MiB of {promised:.1} promised: {kept}");
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let find = |name: &str| SCENARIOS.iter().find(|scenario| scenario.name == name);
    if let [step, name, folder, commits @ ..] = &args[..]
        && let Some(scenario) = find(name)
        && ["--prepare", "--measure"].contains(&step.as_str())
    {
        let (folder, mut scenario) = (Path::new(folder), *scenario);
        if let [commits] = commits {
            scenario.commits = commits.parse()?;
        }
        return if step == "--prepare" {
            scenario.prepare(folder)
        } else {
            measure(&scenario, folder)
        };
    }
    let chosen =
        |scenario: &&Scenario| args.is_empty() || args.iter().any(|arg| arg == scenario.name);
    for scenario in SCENARIOS.iter().filter(chosen) {
        println!("{scenario:?}");
        let base =
            std::env::var_os("PLEACH_MEMORY_DIR").unwrap_or_else(|| std::env::temp_dir().into());
        let folder = tempfile::tempdir_in(base)?;
        for step in ["--prepare", "--measure"] {
            let mut child = Command::new(std::env::current_exe()?);
            let status = child.args([step, scenario.name]).arg(folder.path()).status()?;
            if !status.success() {
                return Err(format!("{step} {}: {status}", scenario.name).into());
            }
        }
    }
    Ok(())
}
