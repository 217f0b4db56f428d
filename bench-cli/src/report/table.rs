//! The tables on standard output: one column per backend, and for each backend after the first a
//! column with the ratio of the first one to it.

use core::fmt::Write as _;

use crate::backend::Kind;
use crate::child::{CheckResult, LoadResult, RunResult};
use crate::machine::Machine;
use crate::measure::{Quantiles, float, rate, ratio};
use crate::outcome::{Compared, Outcome, Recovered};
use crate::report::Grid;
use crate::report::figures::{Better, Judgement, Rates, misses, ssd_reads};
use crate::setting::Setting;
use crate::text::{gib, grouped as whole, hex, number};

/// What was run on what.
fn head(setting: &Setting, machine: &Machine) -> String {
    let (common, options) = (&setting.common, &setting.options);
    format!(
        "kernel {}, {}, {} cores, {} of memory, folder on {}\n\
         seed {}, budget {} MiB, {} threads, {} reads in flight, prefetch {}, durability {}, witness {}, io {}\n",
        machine.kernel,
        machine.cpu,
        machine.cores,
        gib(machine.memory_bytes),
        machine.file_system,
        common.seed,
        options.cache_mib,
        options.threads,
        options.in_flight,
        options.prefetch,
        options.durability,
        options.witness,
        options.io,
    )
}

#[derive(Debug)]
struct Columns<'a> {
    grid: Grid,
    outcomes: &'a [Outcome],
}

impl Columns<'_> {
    /// A row of text.
    fn text(&mut self, name: &str, cell: impl Fn(&Outcome) -> String) {
        let cells = self.outcomes.iter().map(cell);
        self.grid.row(core::iter::once(name.to_owned()).chain(cells));
    }

    /// A row of counts with their ratios; a dash where there is none.
    fn count(&mut self, name: &str, better: Better, cell: impl Fn(&Outcome) -> Option<u64>) {
        let counts: Vec<_> = self.outcomes.iter().map(cell).collect();
        let shown = counts.iter().map(|count| count.map(whole)).collect();
        self.with_ratios(
            (name, better),
            shown,
            &counts.iter().map(|count| count.map(float)).collect::<Vec<_>>(),
        );
    }

    /// A row of measured numbers with their ratios; a dash where there is none.
    fn value(&mut self, name: &str, better: Better, cell: impl Fn(&Outcome) -> Option<f64>) {
        let values: Vec<_> = self.outcomes.iter().map(cell).collect();
        let shown = values.iter().map(|value| value.map(number)).collect();
        self.with_ratios((name, better), shown, &values);
    }

    fn with_ratios(
        &mut self,
        (name, better): (&str, Better),
        shown: Vec<Option<String>>,
        values: &[Option<f64>],
    ) {
        let shown = shown.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        let first = values.first().copied().flatten();
        let ratios = values.iter().skip(1).map(|other| match (first, other) {
            (Some(first), Some(other)) if *other > 0.0 && first > 0.0 => {
                let judged = better.judge(first, *other);
                let word = judged.map(|judged| format!(", {}", judged.word())).unwrap_or_default();
                format!("{:.2} x{word}", first / other)
            }
            (Some(first), Some(other)) if *other > 0.0 => format!("{:.2} x", first / other),
            _ => "-".to_owned(),
        });
        let cells = core::iter::once(name.to_owned()).chain(shown).chain(ratios);
        self.grid.row(cells);
    }

    fn quantiles(&mut self, name: &str, of: impl Fn(&RunResult) -> Quantiles) {
        self.value(&format!("{name} p50, ms"), Better::Low, |one| Some(of(&one.run).p50));
        self.text(&format!("{name} p90 / p99 / max, ms"), |one| {
            let quantiles = of(&one.run);
            let all = [quantiles.p90, quantiles.p99, quantiles.max];
            all.map(number).join(" / ")
        });
    }
}

/// A result in its parts: what was run, the table, what was checked and noted.
#[derive(Debug)]
pub(crate) struct Summary {
    /// The result in a sentence, and beside the other backends where there are some.
    pub(crate) headline: Option<String>,
    pub(crate) head: String,
    pub(crate) grid: Grid,
    pub(crate) verdict: String,
}

impl Summary {
    /// All of it as text.
    pub(crate) fn render(&self) -> String {
        let first = self.headline.as_ref().map(|text| format!("{text}\n\n")).unwrap_or_default();
        format!("{first}{}\n{}\n{}", self.head, self.grid.render(), self.verdict)
    }
}

/// The result of `transfer`.
pub(crate) fn transfer(
    setting: &Setting,
    machine: &Machine,
    outcomes: &[Outcome],
    compared: &Compared,
) -> Summary {
    let mut columns = Columns { grid: Grid::default(), outcomes };
    let names = outcomes.iter().map(|one| format!("{} {}", one.kind.name(), one.kind.version()));
    let ratios = outcomes.iter().skip(1).map(|one| {
        let first = outcomes.first().map_or("", |first| first.kind.name());
        format!("{first} / {}", one.kind.name())
    });
    columns.grid.row(core::iter::once(String::new()).chain(names).chain(ratios));
    rates(&mut columns);
    phases(&mut columns);
    disk(&mut columns);
    ends(&mut columns);
    let stream = &setting.stream;
    let head = format!(
        "{}{}: 2^{} accounts at the start, {} transfers a batch, {} % fresh receivers, {}\n",
        head(setting, machine),
        if stream.closing.is_some() { "soak" } else { "transfer" },
        setting.common.log2,
        stream.batch,
        stream.fresh,
        stream.distribution
    );
    let head = match setting.alternate {
        Some(step) => format!("{head}the backends took turns of {step} batches\n"),
        None => head,
    };
    let head = match stream.closing {
        Some(closing) => format!(
            "{head}closed in a batch: {} % loaded accounts, new ones after {} batches\n",
            closing.deletes, closing.life
        ),
        None => head,
    };
    let mut verdict = verdict(outcomes, compared);
    if machine.file_system == "tmpfs" {
        verdict.push_str("note: the folder lies in memory; --dir names one on a device\n");
    }
    for one in outcomes {
        for note in &one.run.notes {
            let _ = writeln!(verdict, "note: {note}");
        }
        // An engine may load with other settings than it runs with.
        for note in one.load.notes.iter().filter(|note| !one.run.notes.contains(note)) {
            let _ = writeln!(verdict, "note, load: {note}");
        }
    }
    Summary { headline: headline(setting, outcomes), head, grid: columns.grid, verdict }
}

/// The drained rate of the first backend and what it includes, and beside it the rates of the others.
fn headline(setting: &Setting, outcomes: &[Outcome]) -> Option<String> {
    let (first, others) = outcomes.split_first()?;
    let (run, ours) = (&first.run, Rates::of(&first.run).drained);
    let said = others.iter().map(|other| (other, Rates::of(&other.run).drained));
    let said: Vec<String> = said
        .filter(|(_, theirs)| *theirs > 0.0 && ours > 0.0)
        .map(|(other, theirs)| {
            let name = other.kind.name();
            match Better::High.judge(ours, theirs) {
                Some(Judgement::Better) => format!("{:.1} x as many as {name}", ours / theirs),
                Some(Judgement::Worse) => {
                    format!("fewer than {name}, which does {:.1} x as many", theirs / ours)
                }
                _ => format!("level with {name}"),
            }
        })
        .collect();
    let gives = if run.witnesses > 0 { "root and witness" } else { "root" };
    let (name, level) = (first.kind.name(), setting.options.durability.level());
    let batch = whole(setting.stream.batch.into());
    let mut text = String::new();
    if let Some(cut) = outcomes.iter().find(|one| one.run.interrupted) {
        let (name, batches) = (cut.kind.name(), whole(cut.run.batches));
        let _ = write!(text, "INTERRUPTED: {name} after {batches} batches. ");
    }
    if run.moved == 0 {
        text.push_str("NOTHING WAS MOVED: no transfer had a balance to take from. ");
    }
    let _ =
        write!(text, "{name}: {} transfers/s, {gives} for every {batch}, {level}", number(ours));
    for said in said {
        text.push_str("; ");
        text.push_str(&said);
    }
    if others.is_empty() && ssd_reads(run) * 1000 < run.accounts {
        text.push_str(". All pages were in memory: --log2 24 reads from the device");
    }
    Some(text)
}

fn rates(columns: &mut Columns<'_>) {
    columns.value("transfers/s, drained", Better::High, |one| Some(Rates::of(&one.run).drained));
    columns.value("transfers/s, acknowledged", Better::High, |one| {
        Some(Rates::of(&one.run).acknowledged)
    });
    columns.value("distinct accounts/s, drained", Better::High, |one| {
        Some(Rates::of(&one.run).accounts)
    });
    columns.text("batches (after warm-up of)", |one| {
        format!("{} ({})", whole(one.run.batches), whole(one.run.warmup))
    });
    columns.text("transfers moved / from empty", |one| {
        format!("{} / {}", whole(one.run.moved), whole(one.run.empty))
    });
}

fn phases(columns: &mut Columns<'_>) {
    columns.quantiles("execute", |run| run.execute);
    columns.quantiles("finish + witness", |run| run.finish);
    columns.quantiles("commit", |run| run.commit);
    columns.quantiles("batch total", |run| run.total);
}

fn disk(columns: &mut Columns<'_>) {
    let each = |count: u64, one: &Outcome| Some(ratio(count, one.run.accounts));
    columns.value("SSD reads an account", Better::Low, |one| each(ssd_reads(&one.run), one));
    columns.value("SSD bytes read an account", Better::Low, |one| each(one.run.disk.read, one));
    columns.value("bytes written an account", Better::Low, |one| each(one.run.disk.written, one));
    columns.count("leaf misses", Better::Neither, |one| one.run.counters.cache_misses);
    columns.count("upper trie pages read", Better::Neither, |one| {
        one.run.counters.upper_trie_pages_read
    });
    columns.count("pages reread", Better::Neither, |one| one.run.counters.page_rereads);
    columns.value("SSD reads a miss", Better::Neither, |one| {
        misses(&one.run)
            .filter(|&misses| misses > 0)
            .map(|misses| ratio(ssd_reads(&one.run), misses))
    });
    columns.value("hashes an account", Better::Low, |one| {
        one.run.counters.hashes.map(|hashes| ratio(hashes, one.run.accounts))
    });
    columns.count("checkpoints", Better::Neither, |one| one.run.counters.checkpoints);
    columns.value("pages a write", Better::High, |one| {
        let counters = &one.run.counters;
        counters
            .pages_written
            .zip(counters.page_runs_written)
            .filter(|(_, runs)| *runs > 0)
            .map(|(pages, runs)| ratio(pages, runs))
    });
    columns.value("serialized, us a batch", Better::Low, |one| {
        one.run.counters.sequencer_nanos.map(|nanos| ratio(nanos / 1000, one.run.batches.max(1)))
    });
    columns.value("commits held up by background writes, ms", Better::Low, |one| {
        one.run.counters.stalled_micros.map(|micros| ratio(micros, 1000))
    });
    columns.value("witness bytes a batch", Better::Low, |one| {
        (one.run.witnesses > 0).then(|| ratio(one.run.witness_bytes, one.run.witnesses))
    });
}

fn ends(columns: &mut Columns<'_>) {
    let mib = |bytes: u64| Some(ratio(bytes, 1 << 20));
    columns.value("peak RSS of the run, MiB", Better::Low, |one| mib(one.run.peak_rss_bytes));
    columns.value("files, MiB", Better::Low, |one| mib(one.run.files_bytes));
    columns.value("load, s", Better::Low, |one| Some(one.load.seconds));
    columns.value("open, s", Better::Low, |one| Some(one.run.open_seconds));
    columns.text("page cache before the run", |one| {
        if one.dropped_caches { "dropped".to_owned() } else { "kept".to_owned() }
    });
}

fn verdict(outcomes: &[Outcome], compared: &Compared) -> String {
    let mut text = String::new();
    for Outcome { kind, run, check, .. } in outcomes {
        let name = kind.name();
        let _ = match check {
            Some(check) => {
                let which = if check.all { "all" } else { "a sample of" };
                write!(
                    text,
                    "{name}: sum {} conserved, {which} {} balances right after {} batches",
                    check.sum,
                    whole(check.balances),
                    whole(check.batches)
                )
            }
            None => write!(text, "{name}: balances NOT checked"),
        };
        let _ = writeln!(
            text,
            ", {} of {} witnesses verified\n  root {}",
            run.witnesses_verified,
            run.witnesses,
            hex(&run.root.0),
        );
        if run.interrupted {
            let _ = writeln!(text, "  INTERRUPTED after {} batches", run.batches);
        }
    }
    if outcomes.len() > 1 {
        let _ = match compared.states {
            _ if compared.backends < 2 => {
                writeln!(text, "roots: no two of these backends make the same of the same accounts")
            }
            0 => writeln!(text, "roots: the backends have no number of batches in common"),
            states => writeln!(
                text,
                "roots equal in all {states} states (load and batches) that all have"
            ),
        };
    }
    text
}

/// The table of `init`.
pub(crate) fn loads(loads: &[(Kind, LoadResult, bool)]) -> String {
    let mut grid = Grid::default();
    let head = ["", "accounts", "seconds", "accounts/s", "peak RSS", "written", "files", "root"];
    grid.row(head.map(str::to_owned));
    for (kind, load, loaded_now) in loads {
        let name = if *loaded_now {
            kind.name().to_owned()
        } else {
            format!("{} (was there)", kind.name())
        };
        grid.row([
            name,
            whole(load.accounts),
            number(load.seconds),
            number(rate(load.accounts, load.seconds)),
            gib(load.peak_rss_bytes),
            gib(load.disk.written),
            gib(load.files_bytes),
            hex(&load.root.0),
        ]);
    }
    grid.render()
}

/// The table of `recover`.
pub(crate) fn recover(setting: &Setting, results: &[Recovered]) -> String {
    let mut grid = Grid::default();
    grid.row(
        core::iter::once(String::new()).chain(results.iter().map(|one| one.kind.name().to_owned())),
    );
    let mut row = |name: &str, cell: &dyn Fn(&Recovered) -> String| {
        grid.row(core::iter::once(name.to_owned()).chain(results.iter().map(cell)));
    };
    row("kills", &|one| one.kills.to_string());
    row("reopened at the acknowledged batch", &|one| one.at_acknowledged.to_string());
    row("reopened at the interrupted batch", &|one| one.at_interrupted.to_string());
    row("any other root", &|_| "0".to_owned());
    row("clean offline checks", &|one| {
        if crate::backend::has_checker(one.kind) {
            one.clean_checks.to_string()
        } else {
            "-".to_owned()
        }
    });
    let times =
        |quantiles: Quantiles| format!("{} / {}", number(quantiles.p50), number(quantiles.max));
    row("open after a kill, p50 / max, ms", &|one| times(one.open_after_kill.quantiles()));
    row("open after a close, p50 / max, ms", &|one| times(one.open_after_close.quantiles()));
    let checked = |one: &Recovered, of: fn(&CheckResult) -> u64| {
        one.check.as_ref().map_or_else(|| "-".to_owned(), |check| whole(of(check)))
    };
    row("batches at the end", &|one| checked(one, |check| check.batches));
    row("balances right", &|one| checked(one, |check| check.balances));
    row("seconds", &|one| number(one.seconds));
    let stream = &setting.stream;
    format!(
        "recover: 2^{} accounts, {} transfers a batch, seed {}\n\n{}",
        setting.common.log2,
        stream.batch,
        stream.seed,
        grid.render()
    )
}
