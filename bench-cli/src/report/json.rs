//! Results as JSON, schema 1. Fields may be added under the same number; removing one or changing its
//! meaning needs a new number.

use std::path::Path;

use serde_json::{Value, json};

use crate::backend::Kind;
use crate::child::{BatchSample, LoadResult};
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::measure::{rate, ratio};
use crate::outcome::{Compared, Outcome, Recovered};
use crate::report::figures::{Rates, misses, ssd_reads};
use crate::setting::Setting;
use crate::text::hex;

/// Version of the format.
const SCHEMA: u32 = 1;

fn document(machine: &Machine, runs: impl Iterator<Item = Value>) -> Value {
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "runs": runs.collect::<Vec<_>>(),
    })
}

pub(crate) fn write(path: &Path, document: &Value) -> Result<()> {
    let mut text = format!("{document:#}");
    text.push('\n');
    std::fs::write(path, text).map_err(BenchError::file(path))
}

/// Fields that every run has.
fn base(workload: &str, kind: Kind, machine: &Machine, setting: &Setting) -> Value {
    let (common, options) = (&setting.common, &setting.options);
    json!({
        "workload": workload,
        "backend": kind.name(),
        "backend_version": kind.version(),
        "seed": common.seed,
        "log2": common.log2,
        "durability": options.durability,
        "cache_mib": options.cache_mib,
        "threads": options.threads,
        "in_flight": options.in_flight,
        "io": options.io,
        "prefetch": options.prefetch.0,
        "witness": options.witness.0,
        "trie_cache_kib": options.trie_cache_kib,
        "load_mib": options.load_mib,
        "log_limit_mib": options.log_limit_mib,
        "history": options.history,
        "overlay_window": options.overlay_window,
        "ahead": options.ahead,
        "alternate": setting.alternate,
        "peer_args": common.peer_arg,
        "device": machine.file_system,
    })
}

/// Adds the fields of one object to another.
fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

fn stream(setting: &Setting) -> Value {
    let stream = &setting.stream;
    json!({
        "batch": stream.batch,
        "fresh": stream.fresh,
        "distribution": stream.distribution,
        "deletes": stream.closing.map(|closing| closing.deletes),
        "life": stream.closing.map(|closing| closing.life),
    })
}

fn load_fields(load: &LoadResult) -> Value {
    json!({
        "load_accounts": load.accounts,
        "load_seconds": load.seconds,
        "load_accounts_per_second": rate(load.accounts, load.seconds),
        "load_peak_rss_bytes": load.peak_rss_bytes,
        "load_bytes_written": load.disk.written,
        "load_files_bytes": load.files_bytes,
        "load_root": load.root,
        "load_notes": load.notes,
    })
}

/// Writes the results of `transfer` and `soak`; `more` has further fields of each run.
pub(crate) fn write_runs(
    path: &Path,
    machine: &Machine,
    setting: &Setting,
    outcomes: &[Outcome],
    compared: &Compared,
    more: &[Value],
) -> Result<()> {
    let workload = if setting.stream.closing.is_some() { "soak" } else { "transfer" };
    let runs = outcomes.iter().enumerate().map(|(index, one)| {
        let run = with(base(workload, one.kind, machine, setting), stream(setting));
        let run = with(run, more.get(index).cloned().unwrap_or_default());
        let run = with(run, load_fields(&one.load));
        let run = with(run, run_fields(one));
        let run = with(run, disk_fields(one));
        with(run, series_fields(&one.run.series))
    });
    let mut document = document(machine, runs);
    document["states_with_equal_roots"] = json!(compared.states);
    write(path, &document)
}

fn run_fields(one: &Outcome) -> Value {
    let (run, rates) = (&one.run, Rates::of(&one.run));
    // Nothing is known about the balances if a signal came before they were read.
    let check = one.check.as_ref();
    json!({
        "loaded_now": one.loaded_now,
        "first_batch": run.first_batch,
        "warmup": run.warmup,
        "batches": run.batches,
        "interrupted": run.interrupted,
        "transfers": run.transfers,
        "transfers_moved": run.moved,
        "transfers_from_empty": run.empty,
        "accounts_closed": run.closed,
        "accounts": run.accounts,
        "root": run.root,
        "verified": {
            "balances": check.map(|check| check.balances),
            "all_balances": check.map(|check| check.all),
            "sum": check.map(|check| check.sum),
            "batches": check.map(|check| check.batches),
            "witnesses": run.witnesses_verified,
            "of_witnesses": run.witnesses,
            "sessions": run.sessions_ended,
            "session_reads": run.session_reads,
            "session_accounts_changed": run.session_changes,
        },
        "seconds_drained": run.seconds_drained,
        "seconds_acknowledged": run.seconds_acknowledged,
        "transfers_per_second": rates.drained,
        "transfers_per_second_acknowledged": rates.acknowledged,
        "accounts_per_second": rates.accounts,
        "execute_ms": run.execute,
        "finish_ms": run.finish,
        "commit_ms": run.commit,
        "total_ms": run.total,
        "batch_ms": run.series.iter().map(BatchSample::total_ms).collect::<Vec<_>>(),
        "open_seconds": run.open_seconds,
        "close_seconds": run.close_seconds,
        "witness_bytes_per_batch": (run.witnesses > 0).then(|| ratio(run.witness_bytes, run.witnesses)),
        "page_cache_dropped": one.dropped_caches,
        "notes": run.notes,
    })
}

/// One value per batch, in order.
fn series_fields(series: &[BatchSample]) -> Value {
    fn each<T: serde::Serialize>(series: &[BatchSample], of: fn(&BatchSample) -> T) -> Value {
        series.iter().map(|batch| json!(of(batch))).collect()
    }
    json!({
        "batch_wall_seconds": each(series, |batch| batch.wall_seconds),
        "batch_execute_ms": each(series, |batch| batch.execute_ms),
        "batch_finish_ms": each(series, |batch| batch.finish_ms),
        "batch_commit_ms": each(series, |batch| batch.commit_ms),
        "batch_read_bytes": each(series, |batch| batch.read),
        "batch_written_bytes": each(series, |batch| batch.written),
        "batch_rss_bytes": each(series, |batch| batch.rss),
        "batch_files_bytes": each(series, |batch| batch.files),
    })
}

fn disk_fields(one: &Outcome) -> Value {
    let (run, counters) = (&one.run, &one.run.counters);
    let missed = misses(run).filter(|&misses| misses > 0);
    json!({
        "ssd_reads": ssd_reads(run),
        "ssd_read_bytes": run.disk.read,
        "ssd_reads_per_account": ratio(ssd_reads(run), run.accounts),
        "ssd_reads_per_miss": missed.map(|misses| ratio(ssd_reads(run), misses)),
        "bytes_written": run.disk.written,
        "bytes_written_per_account": ratio(run.disk.written, run.accounts),
        "device_read_bytes": run.disk.device_read,
        "device_written_bytes": run.disk.device_written,
        "cache_hits": counters.cache_hits,
        "cache_misses": counters.cache_misses,
        "page_rereads": counters.page_rereads,
        "upper_trie_pages_read": counters.upper_trie_pages_read,
        "checkpoints": counters.checkpoints,
        "pending_entries": counters.pending_entries,
        "pending_bytes": counters.pending_bytes,
        "leaf_pages": counters.leaf_pages,
        "pages_written": counters.pages_written,
        "page_runs_written": counters.page_runs_written,
        "bytes_written_log": counters.bytes_written_log,
        "sequencer_nanos": counters.sequencer_nanos,
        "stalled_micros": counters.stalled_micros,
        "hashes": counters.hashes,
        "hashes_per_account": counters.hashes.map(|hashes| ratio(hashes, run.accounts)),
        "peak_rss_bytes": run.peak_rss_bytes,
        "files_bytes": run.files_bytes,
    })
}

/// Writes the results of `init`.
pub(crate) fn write_loads(
    path: &Path,
    machine: &Machine,
    setting: &Setting,
    loads: &[(Kind, LoadResult, bool)],
) -> Result<()> {
    let runs = loads.iter().map(|(kind, load, loaded_now)| {
        let run = with(base("init", *kind, machine, setting), load_fields(load));
        with(run, json!({"loaded_now": loaded_now, "root": load.root, "notes": load.notes}))
    });
    write(path, &document(machine, runs))
}

/// Writes the results of `recover`.
pub(crate) fn write_recover(
    path: &Path,
    machine: &Machine,
    setting: &Setting,
    results: &[Recovered],
) -> Result<()> {
    let runs = results.iter().map(|one| {
        let run = with(base("recover", one.kind, machine, setting), stream(setting));
        let check = one.check.as_ref();
        with(
            run,
            json!({
                "kills": one.kills,
                "reopened_at_acknowledged": one.at_acknowledged,
                "reopened_at_interrupted": one.at_interrupted,
                "clean_checks": one.clean_checks,
                "open_after_kill_ms": one.open_after_kill.quantiles(),
                "open_after_close_ms": one.open_after_close.quantiles(),
                "batches": check.map(|check| check.batches),
                "verified": {
                    "balances": check.map(|check| check.balances),
                    "all_balances": check.map(|check| check.all),
                    "sum": check.map(|check| check.sum),
                },
                "root": hex(&one.root),
                "seconds": one.seconds,
            }),
        )
    });
    write(path, &document(machine, runs))
}
