//! The page cache beside `quick_cache` and `foyer`, on the page accesses of the transfer workload.
//!
//! ```text
//! cargo run --release --manifest-path beatree/compare/Cargo.toml [-- --mib 512]
//! ```
//!
//! Reproduces the second table of docs/decisions/0012-eviction.md. Each measurement runs in a
//! process of its own, so that none finds another's heap.

mod caches;
mod cost;
mod trace;

use std::io::Write as _;
use std::process::{Command, ExitCode};

use caches::{Contender, PAGE_BYTES};
use trace::{Accounts, Outcome, Spec};

/// Batches before counting starts, and batches counted.
const WARM: u32 = 25;
const COUNTED: u32 = 25;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [] => all(512),
        ["--mib", mib] => mib.parse().map_err(|_| usage()).and_then(all),
        // What `all` starts.
        ["overhead", name, pages] => one(name, pages, |contender, pages| {
            println!("{}", cost::overhead(contender, pages));
        }),
        ["nanos", name, pages] => one(name, pages, |contender, pages| {
            let cost = cost::nanos(contender, pages);
            println!("{:.0} {:.0} {:.0}", cost.hit, cost.group, cost.insert);
        }),
        ["hits", name, pages, log2, kind] => one(name, pages, |contender, pages| {
            let log2 = log2.parse().expect("a number of bits");
            let accounts = if *kind == "zipf" { Accounts::Zipf } else { Accounts::Uniform };
            let spec = Spec { log2, accounts };
            let mut cache = contender.build(pages, false);
            let Outcome { uses, misses, rereads, flush_reads, batches, nanos, most } =
                trace::run(&mut *cache, spec, WARM, COUNTED);
            println!("{uses} {misses} {rereads} {flush_reads} {batches} {nanos} {most}");
        }),
        _ => Err(usage()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}

fn usage() -> String {
    "usage: pleach-cache-compare [--mib MIB]".to_owned()
}

fn one(name: &str, pages: &str, run: impl FnOnce(Contender, usize)) -> Result<(), String> {
    let contender = Contender::named(name).ok_or_else(usage)?;
    let pages = pages.parse().map_err(|_| usage())?;
    run(contender, pages);
    Ok(())
}

/// The numbers that this program prints when it is started with these words.
fn ask(words: &[&str]) -> Result<Vec<f64>, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(own).args(words).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {error}", words.join(" ")));
    }
    text.split_whitespace()
        .map(|word| word.parse().map_err(|_| format!("{}: {text}", words.join(" "))))
        .collect()
}

/// Contenders with the pages that each may hold within the budget.
fn sized(mib: usize) -> Result<Vec<(Contender, usize)>, String> {
    let bytes = mib << 20;
    println!("budget {mib} MiB, a page with its fingerprints takes {PAGE_BYTES} bytes");
    println!(
        "\n{:32}{:>14}{:>12}{:>10}{:>12}{:>16}",
        "", "bytes beside", "pages", "ns/hit", "of 32", "ns/miss+insert"
    );
    let mut sized = Vec::new();
    for contender in Contender::ALL {
        let name = contender.name();
        let beside = ask(&["overhead", name, &(bytes / (PAGE_BYTES + 100)).to_string()])?[0];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
        let pages = (bytes as f64 / (PAGE_BYTES as f64 + beside)) as usize;
        let pages_text = pages.to_string();
        // The quietest of three: others use this machine.
        let mut least = [f64::INFINITY; 3];
        for _ in 0..3 {
            let nanos = ask(&["nanos", name, &pages_text])?;
            least = [0, 1, 2].map(|at: usize| least[at].min(nanos[at]));
        }
        println!(
            "{name:32}{beside:>14.0}{pages:>12}{:>10.0}{:>12.0}{:>16.0}",
            least[0], least[1], least[2]
        );
        sized.push((contender, pages));
    }
    Ok(sized)
}

fn all(mib: usize) -> Result<(), String> {
    let sized = sized(mib)?;
    for (log2, kind) in [("24", "uniform"), ("24", "zipf"), ("27", "uniform"), ("27", "zipf")] {
        println!("\n2^{log2} accounts, {kind}");
        println!(
            "{:32}{:>8}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "", "hits %", "reads", "rereads", "for flush", "all reads", "ms a batch", "fill %"
        );
        for (contender, pages) in &sized {
            let told = ask(&["hits", contender.name(), &pages.to_string(), log2, kind])?;
            let [uses, misses, rereads, flush, batches, nanos, most] = told[..] else {
                return Err("seven numbers were expected".to_owned());
            };
            let hits = 100.0 * (uses - misses) / uses;
            let each = [misses, rereads, flush, misses + rereads + flush].map(|of| of / batches);
            print!("{:32}{hits:>8.1}", contender.name());
            each.iter().for_each(|each| print!("{each:>12.0}"));
            println!("{:>12.0}{:>12.0}", nanos / 1e6 / batches, 100.0 * most / *pages as f64);
            std::io::stdout().flush().map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
