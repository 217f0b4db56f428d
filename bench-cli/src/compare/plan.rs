//! Which workloads run, with which arguments.

use crate::args::compare::{CompareArgs, Size};
use crate::args::{named, of_transfer};
use crate::backend::Kind;
use crate::error::{BenchError, Result};
use crate::setting::transfer_disk;
use crate::stores::Engine;
use crate::trees::Ground;

/// A workload of a comparison at one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Of the subcommand, without folder and result file.
    pub(crate) arguments: Vec<String>,
    /// About how long it takes, in seconds.
    pub(crate) seconds: u64,
    /// The same as the plan has it, on two cores.
    pub(crate) planned_seconds: u64,
    /// About what its files need while it runs, in MiB.
    pub(crate) disk_mib: u64,
    /// What it asks for itself before it starts, in MiB, where it does.
    pub(crate) asked_mib: u64,
}

/// Which backends a workload can be run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backends {
    /// It has no such flag.
    None,
    /// Those with a root: [`Kind`].
    Merkle,
    /// Plain stores: [`Engine`].
    Stores,
    /// States with a root: [`Ground`].
    Trees,
    /// All states: [`Ground`].
    States,
}

/// A workload: its arguments, seconds and MiB at each size.
struct Workload {
    name: &'static str,
    backends: Backends,
    /// It takes `--cache-mib`.
    cache: bool,
    /// How many times as long as others the trees that are kept in a store take.
    trees: u64,
    sizes: [(&'static str, u64, u64); 3],
}

/// All of them, in the order in which they run. Seconds and MiB are those of a single backend.
const WORKLOADS: &[Workload] = &[
    Workload {
        name: "transfer",
        backends: Backends::Merkle,
        cache: true,
        trees: 1,
        sizes: [
            ("--log2 10 --batch 100 --batches 3 --warmup 1", 1, 100),
            ("--log2 20", 15, 600),
            ("--log2 24 --warmup auto --batches auto", 300, 8000),
        ],
    },
    Workload {
        name: "hash",
        backends: Backends::None,
        cache: false,
        trees: 1,
        sizes: [("--rounds 1", 1, 0), ("", 3, 0), ("--rounds 101", 5, 0)],
    },
    Workload {
        name: "proof",
        backends: Backends::None,
        cache: true,
        trees: 1,
        sizes: [
            ("--log2 10 --count 1,16 --rounds 1", 1, 50),
            ("--log2 18 --rounds 7", 10, 150),
            ("--log2 22", 70, 1500),
        ],
    },
    Workload {
        name: "auth",
        backends: Backends::States,
        cache: true,
        trees: 1,
        sizes: [
            ("--sizes 100 --rounds 1", 1, 50),
            ("--sizes 100,1000,10000 --rounds 7", 10, 200),
            ("", 70, 1000),
        ],
    },
    Workload {
        name: "grind",
        backends: Backends::None,
        cache: true,
        trees: 1,
        sizes: [("--keys 200", 2, 100), ("--keys 5000", 10, 300), ("", 5, 1000)],
    },
    Workload {
        name: "overlay",
        backends: Backends::Trees,
        cache: true,
        trees: 1,
        sizes: [
            ("--accounts 200 --updates 20 --rounds 1", 1, 50),
            ("--accounts 20000 --updates 1000 --rounds 7", 10, 300),
            ("", 85, 1500),
        ],
    },
    Workload {
        name: "threshold",
        backends: Backends::Trees,
        cache: true,
        trees: 1,
        sizes: [
            ("--window 2,4 --blocks 10 --rounds 1", 2, 100),
            ("--window 2,32,128 --blocks 200 --rounds 1", 20, 600),
            ("--rounds 3", 1000, 3000),
        ],
    },
    Workload {
        name: "flatten",
        backends: Backends::None,
        cache: true,
        trees: 1,
        sizes: [
            ("--layers 4 --keys-per-layer 100 --rounds 1", 2, 100),
            ("--layers 4,16,64 --rounds 3", 15, 500),
            ("", 40, 1500),
        ],
    },
    Workload {
        name: "erc20",
        backends: Backends::States,
        cache: true,
        trees: 1,
        sizes: [
            ("--eoa 1000 --contracts 100 --blocks 2 --transfers 100", 1, 50),
            ("--eoa 200000 --contracts 50000", 20, 800),
            ("", 180, 6000),
        ],
    },
    Workload {
        name: "bank",
        backends: Backends::Stores,
        cache: true,
        trees: 1,
        sizes: [
            ("--accounts 500 --transfers 500 --batch 10", 1, 100),
            ("--accounts 50000 --transfers 20000 --batch 1,100,10000", 15, 400),
            (
                "--accounts 1000000 --transfers 10000000 --batch 100,10000 --sync-every 100",
                600,
                6000,
            ),
        ],
    },
    Workload {
        name: "import",
        backends: Backends::States,
        cache: true,
        trees: 25,
        sizes: [
            ("--leaves 1000 --load-mib 1", 1, 200),
            ("--leaves 500000 --load-mib 16", 10, 300),
            ("--leaves 16777216", 60, 5000),
        ],
    },
    Workload {
        name: "history",
        backends: Backends::Stores,
        cache: true,
        trees: 1,
        sizes: [
            ("--shards 100 --len 200 --keys 10 --rounds 1", 1, 100),
            ("--shards none,100,2000 --len 10000,100000 --keys 1000 --rounds 3", 20, 300),
            (
                "--shards none,100,500,1000,2000,5000,10000,50000 --len 10000,100000,500000,1000000",
                900,
                2000,
            ),
        ],
    },
    Workload {
        name: "device",
        backends: Backends::None,
        cache: false,
        trees: 1,
        sizes: [
            ("--size-mib 16 --millis 10 --no-fio", 1, 16),
            ("--millis 200 --no-fio", 15, 1024),
            ("--millis 5000", 400, 1024),
        ],
    },
];

/// Steps in order, and what they need.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// MiB that must be free: those of the largest step that is not measured yet, as each removes its files.
    pub(crate) fn disk_mib(&self, measured: impl IntoIterator<Item = bool>) -> u64 {
        let left = self.steps.iter().zip(measured).filter(|(_, measured)| !measured);
        left.map(|(step, _)| step.disk_mib.max(step.asked_mib)).max().unwrap_or(0)
    }
}

/// The steps that these flags ask for.
pub(crate) fn plan(args: &CompareArgs) -> Result<Plan> {
    let sides = Sides::new(&args.backend)?;
    let workload = |name: &str| {
        WORKLOADS.iter().find(|one| one.name == name).ok_or_else(|| {
            let all: Vec<_> = WORKLOADS.iter().map(|one| one.name).collect();
            BenchError::Usage(format!("--only {name}: compare has {}", all.join(", ")))
        })
    };
    let mut chosen = named::each_once("--only", &args.only, workload)?;
    if chosen.is_empty() {
        chosen.extend(WORKLOADS);
    }
    let mut steps = Vec::new();
    for workload in chosen {
        let sides = match workload.backends {
            Backends::None => None,
            Backends::Merkle => Some(&sides.merkle),
            Backends::Stores => Some(&sides.stores),
            Backends::Trees => Some(&sides.trees),
            Backends::States => Some(&sides.states),
        };
        // Workloads of this project's engine alone are left out with it.
        let ours = args.backend.is_empty() || args.backend.iter().any(|name| name == "pleach");
        if sides.map_or(!ours, Vec::is_empty) {
            continue;
        }
        steps.push(workload.step(args, sides.map(Vec::as_slice))?);
    }
    if steps.is_empty() {
        let text = "no workload of --only has a backend of --backend: name others".to_owned();
        return Err(BenchError::Usage(text));
    }
    Ok(Plan { steps })
}

/// The backends of each kind that were chosen; all of this build if none is named.
struct Sides {
    merkle: Vec<String>,
    stores: Vec<String>,
    trees: Vec<String>,
    states: Vec<String>,
}

impl Sides {
    /// A name that no kind has is refused.
    fn new(backends: &[String]) -> Result<Self> {
        let states: Vec<_> = Ground::all().map(Ground::name).collect();
        let stores = Engine::ALL.iter().map(|one| one.name());
        let all: Vec<_> =
            stores.filter(|name| !states.contains(name)).chain(states.clone()).collect();
        named::each_once("--backend", backends, |name| {
            named::backend(name, all.iter().copied(), |name| name)
        })?;
        let chosen = |all: Vec<&str>| -> Vec<String> {
            let all = all.into_iter().map(str::to_owned);
            all.filter(|name| backends.is_empty() || backends.contains(name)).collect()
        };
        let built_in = Kind::built_in();
        // A plain map in memory stands beside engines only where it is the oracle.
        let states = Ground::all().filter(|ground| *ground != Ground::Flat(Engine::BTreeMap));
        Ok(Self {
            merkle: chosen(built_in.split(", ").collect()),
            stores: chosen(Engine::ALL.iter().map(|one| one.name()).collect()),
            trees: chosen(Ground::MERKLE.iter().map(|one| one.name()).collect()),
            states: chosen(states.map(Ground::name).collect()),
        })
    }
}

impl Workload {
    fn step(&self, args: &CompareArgs, sides: Option<&[String]>) -> Result<Step> {
        let (text, seconds, disk_mib) = self.sizes[match args.size {
            Size::Smallest => 0,
            Size::Quick => 1,
            Size::Full => 2,
        }];
        let mut arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        arguments.extend(["--seed".to_owned(), args.results.seed.to_string()]);
        if let Some(sides) = sides {
            arguments.extend(["--backend".to_owned(), sides.join(",")]);
        }
        if let Some(mib) = args.cache_mib.filter(|_| self.cache) {
            arguments.extend(["--cache-mib".to_owned(), mib.to_string()]);
        }
        let times = sides.map_or(1, <[String]>::len) as u64;
        let slow = |side: &&String| matches!(side.as_str(), "sp-trie" | "jmt");
        let trees = sides.map_or(0, |sides| sides.iter().filter(slow).count()) as u64;
        let seconds = seconds * (times + trees * (self.trees - 1));
        let disk_mib = disk_mib * times;
        // It refuses a device with less room than its own estimate.
        let asked = match of_transfer(&arguments).filter(|_| self.name == "transfer") {
            Some(transfer) => transfer_disk(&transfer)?,
            None => 0,
        };
        let asked_mib = asked.div_ceil(1 << 20);
        let planned_seconds = seconds;
        Ok(Step { name: self.name, arguments, seconds, planned_seconds, disk_mib, asked_mib })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn planned(words: &[&str]) -> Plan {
        let Flags { args } = Flags::parse_from([&["compare"], words].concat());
        plan(&args).expect("a plan")
    }

    /// It once planned less than `transfer` asked for, so that the step failed.
    #[test]
    fn a_plan_has_the_room_that_transfer_asks_for() {
        for size in ["smallest", "quick", "full"] {
            let plan = planned(&["--size", size, "--only", "hash,transfer"]);
            let step = &plan.steps[1];
            let transfer = of_transfer(&step.arguments).expect("its flags");
            let asked = transfer_disk(&transfer).expect("it fits");
            assert!(asked > 0 && asked.div_ceil(1 << 20) == step.asked_mib, "{size}");
            assert!(plan.disk_mib([false, false]) >= step.asked_mib, "{size}");
            assert!(plan.disk_mib([false, false]) >= step.disk_mib, "{size}");
        }
    }

    /// Stores that are no states, such as a plain namespace, were refused.
    #[test]
    fn each_backend_can_be_chosen_once() {
        for engine in Engine::ALL {
            let plan = planned(&["--only", "bank", "--backend", engine.name()]);
            let arguments = &plan.steps[0].arguments;
            let at = arguments.iter().position(|one| one == "--backend").expect("it is named");
            assert_eq!(arguments[at + 1], engine.name());
        }
        let refused = |backends: &str| {
            let words = ["compare", "--only", "bank", "--backend", backends];
            plan(&Flags::parse_from(words).args).expect_err("refused").to_string()
        };
        assert!(
            refused("pleach,oracle").contains("no backend oracle: this build has pleach-plain")
        );
        assert!(refused("pleach,btreemap,pleach").contains("names pleach twice"));
    }

    #[test]
    fn what_is_measured_needs_no_room() {
        let plan = planned(&["--size", "full", "--only", "bank,grind,hash"]);
        let each: Vec<u64> = plan.steps.iter().map(|step| step.disk_mib).collect();
        assert!(each[0] > each[1] && each[1] > each[2], "{each:?}");
        assert_eq!(plan.disk_mib([false, false, false]), each[0]);
        assert_eq!(plan.disk_mib([true, false, false]), each[1]);
        assert_eq!(plan.disk_mib([true, true, true]), 0);
    }
}
