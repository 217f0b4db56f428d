//! The ordering rules as an executable model, explored exhaustively in small scopes.
//!
//! `docs/commit-and-recovery.md` is the text, this is the same in code: what the medium may do (`medium`), the words (`state`, `region`, `table`),
//! the engine's steps (`commit`, `flush`, `checkpoint`, `history`, `reader`, `recovery`), faults (`actions`), what must hold (`oracle`), and the
//! exploration (`explore`). It shares nothing with the engine, so that a mistake cannot be made twice in one place.
//!
//! Each scenario is explored to its end. The wide one, with everything at once, has a depth: `PLEACH_MODEL_DEPTH` makes it deeper.
//! Each rule left out (`mutants`) must be found out in the scenario named for it, by the symptom named for it.

#[path = "protocol_model/actions.rs"]
mod actions;
#[path = "protocol_model/checkpoint.rs"]
mod checkpoint;
#[path = "protocol_model/commit.rs"]
mod commit;
#[path = "protocol_model/explore.rs"]
mod explore;
#[path = "protocol_model/flush.rs"]
mod flush;
#[path = "protocol_model/history.rs"]
mod history;
#[path = "protocol_model/medium.rs"]
mod medium;
#[path = "protocol_model/mutants.rs"]
mod mutants;
#[path = "protocol_model/oracle.rs"]
mod oracle;
#[path = "protocol_model/reader.rs"]
mod reader;
#[path = "protocol_model/recovery.rs"]
mod recovery;
#[path = "protocol_model/region.rs"]
mod region;
#[path = "protocol_model/state.rs"]
mod state;
#[path = "protocol_model/table.rs"]
mod table;

use std::collections::BTreeSet;

use explore::{Report, explore};
use mutants::{Crashes, Durability, MUTANTS, Mutant, Scenario};
use state::{Budget, Changes};

const DURABLE: Durability = Durability::Commit;

const fn budget() -> Budget {
    Budget {
        flushes: 0,
        checkpoints: 0,
        write_outs: 0,
        merges: 0,
        reads: 0,
        rollbacks: 0,
        squeezes: 0,
        joins: 0,
        kills: 0,
        power_failures: 0,
        failed_syncs: 0,
        rots: 0,
    }
}

const ONE: &[Changes] = &[[Some(2), None, Some(2), None, None]];
const TWO: &[Changes] =
    &[[Some(2), None, Some(2), None, None], [Some(3), Some(3), None, None, None]];
const THREE: &[Changes] = &[
    [Some(2), None, Some(2), None, None],
    [Some(3), Some(3), None, None, None],
    [None, Some(4), Some(4), None, None],
];
const DELETE: &[Changes] =
    &[[Some(2), Some(2), None, None, None], [Some(0), None, None, None, None]];
/// Long values.
const LONG: &[Changes] = &[[None, None, Some(2), None, None], [None, None, Some(3), None, None]];
/// Two keys of one page, one after the other.
const APART: &[Changes] = &[[None, Some(2), None, None, None], [Some(3), None, None, None, None]];
/// The namespace of key 2 is changed together with the other one, and dropped together with a change of it.
const CHANGE_DROP: &[Changes] =
    &[[Some(2), None, Some(2), None, None], [Some(3), None, None, None, Some(0)]];
/// It is dropped, and added again, empty.
const DROP_ADD: &[Changes] =
    &[[None, None, None, None, Some(0)], [Some(2), None, None, None, Some(1)]];
/// It is dropped, and the window moves on.
const DROP: &[Changes] = &[[None, None, Some(2), None, Some(0)], [Some(2), None, None, None, None]];

/// Keys of both regions of the namespace, one of them and then both.
const BOTH: &[Changes] =
    &[[Some(2), None, Some(2), None, None], [None, None, Some(3), Some(3), None]];

const fn scenario(
    name: &'static str,
    durability: Durability,
    script: &'static [Changes],
    budget: Budget,
) -> Scenario {
    Scenario {
        name,
        durability,
        script,
        keep_layout: true,
        change_layout: true,
        budget,
        rivals: false,
        first_page: 0,
        apart: false,
        long_values: false,
        crashes: Crashes::Always,
        history: None,
        mutant: Mutant::None,
    }
}

const fn with_history(scenario: Scenario, history: u8) -> Scenario {
    Scenario { history: Some(history), ..scenario }
}

/// Layouts stay as they are.
const fn steady(scenario: Scenario) -> Scenario {
    Scenario { change_layout: false, ..scenario }
}

const COMMITS: Scenario = scenario(
    "commits",
    DURABLE,
    THREE,
    Budget { kills: 1, power_failures: 2, failed_syncs: 1, ..budget() },
);
const LAZY: Scenario = scenario(
    "lazy commits",
    Durability::None,
    THREE,
    Budget { kills: 1, power_failures: 2, failed_syncs: 1, ..budget() },
);
const FLUSH: Scenario =
    scenario("flush", DURABLE, TWO, Budget { flushes: 2, power_failures: 1, kills: 1, ..budget() });
const LAZY_FLUSH: Scenario = scenario(
    "lazy flush",
    Durability::None,
    TWO,
    Budget { flushes: 2, power_failures: 1, ..budget() },
);
const DELETION: Scenario =
    scenario("deletion", DURABLE, DELETE, Budget { flushes: 2, power_failures: 1, ..budget() });
const CHECKPOINT: Scenario = scenario(
    "checkpoint",
    DURABLE,
    TWO,
    Budget { checkpoints: 2, power_failures: 1, rots: 1, ..budget() },
);
const LAZY_CHECKPOINT: Scenario = scenario(
    "lazy checkpoint",
    Durability::None,
    TWO,
    Budget { checkpoints: 1, power_failures: 1, ..budget() },
);
const FUZZY: Scenario = scenario(
    "fuzzy image",
    DURABLE,
    TWO,
    Budget { checkpoints: 1, flushes: 1, power_failures: 1, ..budget() },
);
const GENERATIONS: Scenario = scenario(
    "generations",
    DURABLE,
    ONE,
    Budget { checkpoints: 3, power_failures: 2, kills: 1, failed_syncs: 1, ..budget() },
);
/// A checkpoint after the newest generation was lost to rot.
const FALLBACK: Scenario = scenario(
    "fallback",
    Durability::None,
    ONE,
    Budget { checkpoints: 2, power_failures: 2, rots: 1, ..budget() },
);
const READERS: Scenario =
    scenario("readers", DURABLE, TWO, Budget { flushes: 2, reads: 1, ..budget() });
const ROT: Scenario =
    scenario("rot", DURABLE, THREE, Budget { power_failures: 1, kills: 1, rots: 1, ..budget() });

/// Checkpoints have no room for runs, and keep the log that the history needs below both replay starts.
const HISTORY: Scenario = with_history(
    scenario(
        "history",
        DURABLE,
        TWO,
        Budget { checkpoints: 2, power_failures: 1, rots: 1, ..budget() },
    ),
    1,
);
const LAZY_HISTORY: Scenario = with_history(
    scenario(
        "lazy history",
        Durability::None,
        APART,
        Budget { checkpoints: 1, write_outs: 1, power_failures: 1, kills: 1, ..budget() },
    ),
    1,
);
/// Runs are merged, and what they had is used again.
const RUNS: Scenario = with_history(
    scenario(
        "runs",
        DURABLE,
        APART,
        Budget { checkpoints: 2, write_outs: 2, merges: 1, power_failures: 1, ..budget() },
    ),
    2,
);
/// The window moves on behind runs that an image names.
const WINDOW: Scenario = Scenario {
    crashes: Crashes::BehindLastCut,
    ..with_history(
        scenario(
            "window",
            Durability::None,
            APART,
            Budget {
                checkpoints: 2,
                write_outs: 2,
                power_failures: 1,
                failed_syncs: 1,
                ..budget()
            },
        ),
        1,
    )
};
/// Undo goes for want of room before it is written, and an open goes by what the run says.
const SHORT_HISTORY: Scenario = with_history(
    scenario(
        "short history",
        DURABLE,
        TWO,
        Budget { checkpoints: 1, write_outs: 1, squeezes: 1, kills: 1, ..budget() },
    ),
    2,
);
/// Runs leave the list under a reader, or had not all that was before them.
const RUN_READERS: Scenario = with_history(
    scenario(
        "run readers",
        DURABLE,
        TWO,
        Budget { write_outs: 2, squeezes: 1, reads: 1, ..budget() },
    ),
    1,
);
const ROLLBACK: Scenario = with_history(
    scenario(
        "rollback",
        DURABLE,
        TWO,
        Budget { flushes: 1, rollbacks: 2, power_failures: 1, kills: 1, ..budget() },
    ),
    2,
);
/// The window moves on under a reader.
const OLD_READERS: Scenario =
    with_history(scenario("old readers", DURABLE, THREE, Budget { reads: 1, ..budget() }), 1);

/// Two tries, and one commit for both.
const NAMESPACES: Scenario = steady(scenario(
    "namespaces",
    Durability::None,
    CHANGE_DROP,
    Budget { flushes: 1, power_failures: 1, ..budget() },
));
const DROPPED: Scenario = steady(scenario(
    "dropped",
    DURABLE,
    DROP_ADD,
    Budget { flushes: 1, power_failures: 1, kills: 1, ..budget() },
));
const LAZY_DROPPED: Scenario = steady(scenario(
    "lazy dropped",
    Durability::None,
    DROP_ADD,
    Budget { flushes: 1, power_failures: 1, ..budget() },
));
const TABLES: Scenario = steady(scenario(
    "tables",
    DURABLE,
    DROP_ADD,
    Budget { checkpoints: 1, power_failures: 1, ..budget() },
));
const DROPPED_READERS: Scenario =
    steady(scenario("dropped readers", DURABLE, DROP_ADD, Budget { reads: 1, ..budget() }));
const DROPPED_HISTORY: Scenario = with_history(
    steady(scenario(
        "dropped history",
        DURABLE,
        DROP,
        Budget { rollbacks: 2, squeezes: 1, power_failures: 1, ..budget() },
    )),
    1,
);

/// A dropped trie of two regions is reclaimed beside an image, and another comes in its place.
const PIECES: Scenario = Scenario {
    apart: true,
    ..steady(scenario(
        "pieces",
        DURABLE,
        DROP_ADD,
        Budget { checkpoints: 1, power_failures: 1, ..budget() },
    ))
};
/// Its regions are joined beside commits and a flush.
const JOINS: Scenario = Scenario {
    apart: true,
    ..steady(scenario(
        "joins",
        Durability::None,
        BOTH,
        Budget { joins: 1, flushes: 1, kills: 1, ..budget() },
    ))
};
const IMAGE_OF_JOINS: Scenario = Scenario {
    name: "image of joins",
    budget: Budget { joins: 1, checkpoints: 1, power_failures: 1, ..budget() },
    ..JOINS
};
/// Extents of the overflow file are used again when the window has moved on.
const LONG_VALUES: Scenario = Scenario {
    long_values: true,
    ..with_history(
        scenario(
            "long values",
            Durability::None,
            THREE,
            Budget { squeezes: 1, kills: 1, power_failures: 1, ..budget() },
        ),
        1,
    )
};
/// They are named by runs of the history, too, and used for them.
const RUNS_BESIDE_VALUES: Scenario = Scenario {
    name: "runs beside values",
    script: LONG,
    budget: Budget { checkpoints: 1, write_outs: 2, power_failures: 1, ..budget() },
    ..LONG_VALUES
};
/// The older generation names a run whose extent has a value by now, and the newest is lost to rot.
const OLDER_RUNS: Scenario = Scenario {
    name: "older runs",
    durability: DURABLE,
    crashes: Crashes::BehindLastCheckpoint,
    budget: Budget { checkpoints: 2, write_outs: 1, squeezes: 1, kills: 1, rots: 1, ..budget() },
    ..RUNS_BESIDE_VALUES
};

/// The parent of a block is rolled back, and comes back.
const RIVALS: Scenario = Scenario {
    rivals: true,
    ..with_history(
        scenario("rivals", DURABLE, APART, Budget { rollbacks: 2, power_failures: 1, ..budget() }),
        1,
    )
};
/// The leaf file is cut, and the newest generation is lost to rot.
const SHRINKING: Scenario = Scenario {
    first_page: 4,
    ..steady(scenario(
        "shrinking",
        DURABLE,
        ONE,
        Budget { flushes: 1, checkpoints: 2, kills: 1, rots: 1, ..budget() },
    ))
};

/// Everything at once. It does not end soon, so it has a depth.
const WIDE: Scenario = scenario(
    "wide",
    Durability::None,
    THREE,
    Budget {
        flushes: 2,
        checkpoints: 2,
        write_outs: 1,
        merges: 0,
        reads: 1,
        rollbacks: 1,
        squeezes: 0,
        joins: 0,
        kills: 1,
        power_failures: 2,
        failed_syncs: 1,
        rots: 1,
    },
);
const WIDE_DEPTH: usize = 16;

const SCENARIOS: [Scenario; 34] = [
    COMMITS,
    LAZY,
    FLUSH,
    LAZY_FLUSH,
    DELETION,
    CHECKPOINT,
    LAZY_CHECKPOINT,
    FUZZY,
    GENERATIONS,
    FALLBACK,
    READERS,
    ROT,
    HISTORY,
    LAZY_HISTORY,
    RUNS,
    WINDOW,
    SHORT_HISTORY,
    RUN_READERS,
    ROLLBACK,
    OLD_READERS,
    NAMESPACES,
    DROPPED,
    LAZY_DROPPED,
    TABLES,
    DROPPED_READERS,
    DROPPED_HISTORY,
    PIECES,
    JOINS,
    IMAGE_OF_JOINS,
    LONG_VALUES,
    RUNS_BESIDE_VALUES,
    OLDER_RUNS,
    RIVALS,
    SHRINKING,
];

/// Where a rule left out must show, and as what.
fn exposed_by(mutant: Mutant) -> (Scenario, &'static str) {
    const LOST: &str = "was durable, recovery found";
    const REVIVED: &str = "is of no history";
    const NODE: &str = "a node is not";
    const READER: &str = "a reader saw";
    const ROOT: &str = "the recomputed root";
    const MISFIT: &str = "a record does not fit its region";
    const UNNAMED: &str = "the index names a page";
    const HALF: &str = "is half of one";
    const SHORTENED: &str = "the history begins at";
    const NO_GENERATION: &str = "no complete generation";
    const DAMAGE: &str = "the log is broken below what was durable";
    match mutant {
        Mutant::None => (COMMITS, ""),
        Mutant::AckBeforeSync
        | Mutant::RetryFailedSync
        | Mutant::AckAfterFailedSync
        | Mutant::RecoveryTrustsReads
        | Mutant::RecoverySyncsOnly => (COMMITS, LOST),
        Mutant::ChildOutlivesParent | Mutant::ChildBeforeParent => (COMMITS, NODE),
        Mutant::NoIncarnation | Mutant::IncarnationNotSynced => (COMMITS, REVIVED),
        Mutant::IncarnationInPlace => (COMMITS, "no incarnation"),
        Mutant::SuperblockConfirmedInPlace => (COMMITS, NO_GENERATION),
        Mutant::EndNamedUnconfirmed => (COMMITS, DAMAGE),
        Mutant::BufferedBeforeUndo
        | Mutant::NumberBeforeBuffered
        | Mutant::RemoveBeforeIndex
        | Mutant::ReaderUndoFirst
        | Mutant::ReaderIndexFirst => (READERS, READER),
        Mutant::FreeIgnoresReaders => (READERS, "a reader met another page"),
        Mutant::RefoldSkipped => (LAZY_FLUSH, MISFIT),
        Mutant::LocationNodesAtFold => (LAZY_FLUSH, ROOT),
        Mutant::FlushAheadOfLog => (LAZY_FLUSH, "a page has a commit that the log has not"),
        Mutant::ThroughIsTip => (DELETION, "a page has a commit that the log has not"),
        Mutant::PagesNotSynced | Mutant::FreeBeforeDurable => (LAZY_FLUSH, UNNAMED),
        Mutant::PublishBeforeAppend => (LAZY_FLUSH, NODE),
        Mutant::DeletionUncovers => (DELETION, "uncovers"),
        Mutant::CutAtTicket | Mutant::SuperblockBeforeLog => (LAZY_CHECKPOINT, ROOT),
        Mutant::ImageOverNewest | Mutant::SuperblockOverNewest => (LAZY_CHECKPOINT, NO_GENERATION),
        Mutant::SuperblockBeforeImage => (CHECKPOINT, NO_GENERATION),
        Mutant::LogDroppedByNewest => (CHECKPOINT, LOST),
        Mutant::DurableThroughIgnored => (ROT, "cut in silence"),
        Mutant::RegionPositionIgnored => (FUZZY, MISFIT),
        Mutant::GenerationReused => (FALLBACK, ROOT),
        Mutant::SuperblockNotConfirmed => (GENERATIONS, NO_GENERATION),
        Mutant::HistoryDroppedByCheckpoint => (HISTORY, SHORTENED),
        Mutant::UndoNotInRecord => (HISTORY, "the history has"),
        Mutant::TooOldUnnoticed => (OLD_READERS, READER),
        Mutant::RollbackByParts => (ROLLBACK, HALF),
        Mutant::RecordByNamespace => (NAMESPACES, HALF),
        Mutant::LocationWithoutNamespace => (NAMESPACES, MISFIT),
        Mutant::TableFromLate => (TABLES, MISFIT),
        Mutant::ExistenceNotInUndo => (DROPPED, "the history has a namespace"),
        Mutant::GivenUpInWindow | Mutant::GivenUpByMemory => (DROPPED_HISTORY, "the history has"),
        Mutant::GivenUpUnderReaders => (DROPPED_READERS, READER),
        Mutant::GivenUpWithoutRecord => (NAMESPACES, UNNAMED),
        Mutant::GivenUpInImage => (TABLES, "is not there to be copied"),
        Mutant::AddOverDropped => (DROPPED, ROOT),
        Mutant::ParentUnchecked => (RIVALS, ROOT),
        Mutant::ParentByNumber => (RIVALS, "a commit was refused"),
        Mutant::ShrinkBehindNewest => (SHRINKING, "not in the leaf file"),
        Mutant::LeftWithPieces => (PIECES, MISFIT),
        Mutant::JoinedInImage => (IMAGE_OF_JOINS, MISFIT),
        Mutant::JoinedBesideBatch => (JOINS, NODE),
        Mutant::ValueAfterRecord | Mutant::RunsByMemory => (LONG_VALUES, "is not in extent"),
        Mutant::HistoryFromLate
        | Mutant::RunsNotSynced
        | Mutant::RunNamedUnfinished
        | Mutant::LogDroppedByRun
        | Mutant::RecordsBehindCut => (LAZY_HISTORY, SHORTENED),
        Mutant::RunFreedWithList | Mutant::RunFreedAtCut => (WINDOW, SHORTENED),
        Mutant::RunFreedUnderReader => (RUN_READERS, "where its run was"),
        Mutant::MergeLeavesOut => (RUNS, "the history has"),
        Mutant::RunBeginsEarly => (RUN_READERS, READER),
        Mutant::RunsBeforePresent => (OLDER_RUNS, "an extent is taken twice"),
        Mutant::RunValuesUnread => (RUNS_BESIDE_VALUES, "is not in extent"),
    }
}

fn told(scenario: &Scenario, depth_limit: usize) -> Report {
    let report = explore(scenario, depth_limit);
    println!(
        "{:>15} {:22} {:>8} states {:>8} steps, depth {}{}",
        scenario.name,
        format!("{:?}", scenario.mutant),
        report.states,
        report.steps,
        report.depth,
        if report.complete { ", complete" } else { "" },
    );
    report
}

#[test]
fn the_protocol_keeps_its_promises() {
    std::thread::scope(|scope| {
        for half in [0, 1] {
            scope.spawn(move || {
                for scenario in SCENARIOS.iter().skip(half).step_by(2) {
                    let report = told(scenario, usize::MAX);
                    assert!(report.violation.is_none(), "{}: {report:#?}", scenario.name);
                    assert!(report.complete);
                }
            });
        }
    });
}

#[test]
fn the_protocol_keeps_its_promises_with_everything_at_once() {
    let depth = std::env::var("PLEACH_MODEL_DEPTH").ok().and_then(|depth| depth.parse().ok());
    for durability in [Durability::Commit, Durability::None] {
        for history in [None, Some(1)] {
            let wide = Scenario { durability, history, ..WIDE };
            let report = told(&wide, depth.unwrap_or(WIDE_DEPTH));
            assert!(report.violation.is_none(), "{:#?}", report.violation);
        }
    }
}

#[test]
fn each_rule_left_out_is_found_out() {
    for &mutant in MUTANTS {
        let (scenario, symptom) = exposed_by(mutant);
        let report = told(&Scenario { mutant, ..scenario }, usize::MAX);
        let Some(violation) = report.violation else {
            panic!("{mutant:?} goes unnoticed in {}: rule {}", scenario.name, mutant.rule())
        };
        assert!(violation.what.contains(symptom), "{mutant:?}: {violation:#?}");
        println!("{:>15} {} after {:?}", "", violation.what, violation.path.last());
    }
}

/// The mutants of the table in `docs/commit-and-recovery.md`, each with its rule.
fn documented() -> BTreeSet<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/commit-and-recovery.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let rules = text.split("\n## ").find(|section| section.starts_with("Rules\n")).expect("rules");
    let quoted = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let mut documented = BTreeSet::new();
    let (mut rows, mut names) = (0, BTreeSet::new());
    for line in rules.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        // Headings have no number.
        let (Ok(number), Some(name)) = (cells[0].parse::<usize>(), quoted(cells[1])) else {
            continue;
        };
        rows += 1;
        assert_eq!(number, rows, "rules are numbered in order");
        assert!(names.insert(name.clone()), "two rules are named {name}");
        if ["", "not in the model"].contains(&cells[4]) {
            continue;
        }
        for mutant in cells[4].split(", ") {
            let mutant = quoted(mutant).unwrap_or_else(|| panic!("{name}: {mutant}"));
            documented.insert((mutant, name.clone()));
        }
    }
    documented
}

#[test]
fn the_document_and_the_model_name_the_same_rules() {
    let mutants: BTreeSet<(String, String)> =
        MUTANTS.iter().map(|mutant| (format!("{mutant:?}"), mutant.rule().to_owned())).collect();
    assert_eq!(mutants.len(), MUTANTS.len(), "each mutant once");
    assert_eq!(documented(), mutants);
}
