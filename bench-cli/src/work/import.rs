//! `import`: a bulk load of a stream under a limit of memory, in an engine's child, which has nothing else in memory.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use pleach::Value;
use pleach_core::Key;
use pleach_core::hexadecimal::from_hex;
use rayon::slice::ParallelSliceMut as _;
use serde::{Deserialize, Serialize};

use super::{WorkPlan, draws};
use crate::draw::account_key;
use crate::engine::buffered::padded;
use crate::engine::{self, EngineKind, Pair, PlainKey, Root, StateAccess};
use crate::error::{Error, Result, wrong};
use crate::flags::{Flags, check, count};
use crate::job_context::JobContext;
use crate::machine::{self, ResourceUsage};
use crate::measure::{Times, Unit, float, grouped, ratio, timed};
use crate::signals;

/// Memory of a load in MiB, where `--load-mib` is not said.
const LOAD_MIB: u64 = 256;
/// Pairs that are read back.
const SAMPLE: u64 = 1000;
/// Up to so many pairs the root is that of commits of the same, too, of so many pairs each.
const COMMITTED: u64 = 1 << 17;
const BATCH: usize = 10_000;

/// In which order pairs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
enum Order {
    /// Keys are hashes.
    Random,
    /// Keys ascend.
    Sorted,
}

/// `nomt-bench import`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct ImportArgs {
    /// Pairs that are made and loaded
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = count::<u64>(1..=1 << 34))]
    leaves: u64,
    /// In which order they come
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "random,sorted")]
    order: Vec<Order>,
    /// Pairs are read from a file, as `pleach dump` prints them, or with - from standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["leaves", "order"])]
    from: Option<PathBuf>,
}

impl ImportArgs {
    pub fn plan(&self, flags: &Flags) -> Result<WorkPlan> {
        if self.from.is_some() {
            check(flags.backend == ["pleach"], "--from is for pleach alone: leave --backend out")?;
            check(flags.rounds(1) == 1, "--from is read once: leave --rounds out")?;
        }
        let loads = flags.rounds(1).saturating_mul(self.order.len() as u64);
        Ok(WorkPlan { alternate: 0, keys: self.leaves.saturating_mul(loads), ..WorkPlan::ROUNDS })
    }

    /// Where pairs come from, each time from the beginning.
    fn pairs(&self, order: Order) -> Result<Box<dyn Iterator<Item = Result<Pair>> + '_>> {
        let Some(path) = &self.from else {
            return Ok(Box::new((0..self.leaves).map(move |id| Ok(pair(id, order, self.leaves)))));
        };
        // A child's own standard input is its line from the parent, whose it is.
        let parent = format!("/proc/{}/fd/0", std::os::unix::process::parent_id());
        let path = if path == Path::new("-") { Path::new(&parent) } else { path };
        let file = std::fs::File::open(path)
            .map_err(|error| Error::Usage(format!("--from {}: {error}", path.display())))?;
        let lines = BufReader::with_capacity(1 << 20, file).lines();
        Ok(Box::new((1_u64..).zip(lines).map(|(number, line)| {
            let parsed = line.map_err(|error| error.to_string()).and_then(|line| {
                parse(&line).ok_or("a key of 64 and a value of hexadecimal digits".to_owned())
            });
            parsed.map_err(|why| Error::Usage(format!("--from, line {number}: {why}")))
        })))
    }
}

/// A pair: the key is a hash, or ascends evenly over all keys; the value has 32 bytes.
fn pair(id: u64, order: Order, leaves: u64) -> Pair {
    let mut key = account_key(id);
    if order == Order::Sorted {
        let at = (u128::from(id) << 64) / u128::from(leaves);
        key[..8].copy_from_slice(&at.to_be_bytes()[8..]);
    }
    let value: [u8; 32] = core::array::from_fn(|at| id.to_be_bytes()[at % 8]);
    (PlainKey::from(key), Value::from(&value))
}

/// A line `KEY VALUE`, in hexadecimal.
fn parse(line: &str) -> Option<Pair> {
    let (key, value) = line.split_once(' ')?;
    let key: [u8; 32] = from_hex(key)?.try_into().ok()?;
    Some((PlainKey::from(key), Value::from(from_hex(value)?)))
}

/// What was loaded, for the checks.
struct Loaded {
    order: Order,
    case: String,
    folder: tempfile::TempDir,
    pairs: u64,
    root: Option<Root>,
}

/// The workload: all loads, and then all checks, whose memory is none of the loads'.
pub fn run(args: &ImportArgs, side: &mut JobContext) -> Result<()> {
    let mib = *side.flags.load_mib.get_or_insert(LOAD_MIB);
    if matches!(side.kind, EngineKind::Pleach | EngineKind::PleachPlain) {
        side.note(format!("a load has {mib} MiB of memory beside the budget"))?;
    } else {
        side.flags.cache_mib += mib;
        side.note(format!(
            "its budget is larger by {mib} MiB, which a load of pleach has beside its own"
        ))?;
    }
    let orders = if args.from.is_some() { &[Order::Random][..] } else { &args.order };
    if orders.iter().any(|order| sorts(side.kind, *order)) {
        side.note("it wants pairs in order: random ones are sorted in memory first, on the clock and beside the budget")?;
    }
    let mut all = Vec::new();
    for &order in orders {
        let mut times = Times::default();
        let mut last = None;
        for _ in 0..side.flags.rounds(1) {
            if !side.turn()? {
                break;
            }
            // The one before is removed first.
            drop(last.take());
            last = Some(load(args, order, side, &mut times)?);
        }
        let Some((loaded, peak, written)) = last else { break };
        let (case, files) = (&loaded.case, machine::folder_bytes(loaded.folder.path()));
        side.figure(times.per_second(case, "pairs loaded", loaded.pairs))?;
        side.value(case, "peak resident memory", Unit::Bytes, float(peak))?;
        side.value(case, "size of the files", Unit::Bytes, float(files))?;
        side.value(case, "bytes written", Unit::Bytes, float(written))?;
        side.value(case, "written / size of the files", Unit::Ratio, ratio(written, files))?;
        all.push(loaded);
    }
    all.iter().try_for_each(|loaded| verify(args, loaded, side))
}

/// True when input of this order has to be sorted for an engine: ordered stores load by appending.
fn sorts(kind: EngineKind, order: Order) -> bool {
    order == Order::Random && !kind.caps().merkle && kind != EngineKind::PleachPlain
}

/// Loads into a new database: it, the peak of memory, and the bytes written.
fn load(
    args: &ImportArgs,
    order: Order,
    side: &mut JobContext,
    times: &mut Times,
) -> Result<(Loaded, u64, u64)> {
    let (folder, mut engine) = side.open_new(args.leaves)?;
    let mut from = args.pairs(order)?;
    let (mut pairs, mut failed, sorts_first) = (0, Ok(()), sorts(side.kind, order));
    let works_on = side.kind.caps().works_on;
    let mut stream = core::iter::from_fn(|| {
        let next = from.next()?.and_then(|pair| {
            pairs += 1;
            if signals::is_stop_requested() {
                return Err(Error::Interrupted(rustix::process::Signal::INT.as_raw()));
            }
            side.progress(pairs, if args.from.is_some() { 0 } else { args.leaves })?;
            Ok(pair)
        });
        next.map_err(|error| failed = Err(error)).ok()
    });
    machine::reset_peak_rss();
    let before = ResourceUsage::now();
    let (took, done) = timed(|| {
        if sorts_first {
            let mut sorted: Vec<Pair> = stream.collect();
            sorted.par_sort_unstable_by(|one, other| one.0.cmp(&other.0));
            engine.load(&mut sorted.into_iter())
        } else {
            engine.load(&mut stream)
        }
        .and_then(|()| if works_on { engine.drain(0) } else { Ok(()) })
    });
    failed.and(done)?;
    let (peak, root) = (machine::peak_rss(), engine.root());
    engine.close()?;
    let written = ResourceUsage::now().since(&before).written;
    times.record(took);
    let name = match (&args.from, order) {
        (Some(_), _) => "a file",
        (None, Order::Random) => "random",
        (None, Order::Sorted) => "sorted",
    };
    let case = format!("{name}, {} pairs", grouped(pairs));
    Ok((Loaded { order, case, folder, pairs, root }, peak, written))
}

/// Opens it again: the root, a sample of the pairs, and of few pairs the root of commits of the same.
fn verify(args: &ImportArgs, loaded: &Loaded, side: &JobContext) -> Result<()> {
    let case = &loaded.case;
    let mut engine = side.open_in(loaded.folder.path().to_owned(), loaded.pairs)?;
    if engine.root() != loaded.root {
        return wrong(format!("{case}: the root after an open is not that of the load"));
    }
    side.check_root(format!("root of {case}"), loaded.root.as_ref())?;
    if args.from.is_none() {
        let step = usize::try_from((args.leaves / SAMPLE).max(1)).unwrap_or(usize::MAX);
        let sample = (0..args.leaves).step_by(step).map(|id| pair(id, loaded.order, args.leaves));
        let (names, values): (Vec<PlainKey>, Vec<Value>) = sample.unzip();
        let keys = names.iter().map(|name| padded(name)).collect::<Result<Vec<Key>>>()?;
        if !engine::values(&mut *engine, &keys)?.into_iter().eq(values.into_iter().map(Some)) {
            return wrong(format!("{case}: a pair is not there"));
        }
    }
    if side.kind.has_root_of_pairs() && loaded.pairs <= COMMITTED {
        let mut pairs: Vec<Pair> = Vec::new();
        if args.from.is_none() {
            pairs.extend((0..args.leaves).map(|id| pair(id, loaded.order, args.leaves)));
        } else {
            engine.reader()?.view(&mut |view| {
                view.scan(&[], &mut |key, value| {
                    pairs.push((key.iter().copied().collect(), value.into()));
                    true
                })
            })?;
        }
        draws(side.flags.seed, 0).shuffle(&mut pairs);
        let folder = side.scratch()?;
        let mut other = side.open_in(folder.path().to_owned(), loaded.pairs)?;
        for batch in pairs.chunks(BATCH) {
            let write = |(name, value): &Pair| Ok(StateAccess::write(padded(name)?, value.clone()));
            let writes = batch.iter().map(write).collect::<Result<Vec<_>>>()?;
            other.begin(false)?;
            other.finish(writes)?;
            other.commit()?;
        }
        if other.root() != loaded.root {
            return wrong(format!("{case}: the root is not that of commits of the same pairs"));
        }
        other.close()?;
        side.note(format!(
            "{case}: the root is that of commits of the same pairs in another order"
        ))?;
    }
    engine.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_that_dump_prints() {
        let key = "ab".repeat(32);
        let parsed = parse(&format!("{key} 00ff10")).expect("a pair");
        assert_eq!(parsed, (PlainKey::from([0xab; 32]), Value::from(&[0, 0xff, 0x10])));
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
    }
}
