//! The headline: two tables of values, in README and at the top of the page. Engines are columns, and each commit is
//! synced. Each document with the row's figures has a row, which names the size of its state, what else differs from rows
//! of the same words, and the machine where there are several.

use serde_json::{Value, json};

use super::{of, shown};
use crate::flags::CACHE_MIB;
use crate::machine::Level;
use crate::measure::{Figure, Unit, grouped};
use crate::results::Document;
use crate::work::erc20;

/// Figures of a workload, and the row that shows each.
pub struct Ask {
    workload: &'static str,
    /// The flags that its commands may have, beside [`COMMON`]; one with a value must be there.
    flags: &'static str,
    /// What the case begins with.
    case: &'static str,
    name: &'static str,
    /// `{size}` is the size of the state, `{case}` the first part of the case.
    words: &'static str,
}

/// Flags that no row depends on.
const COMMON: &str = "--seed --cache-mib --backend --durability --rounds --alternate --drop-caches";

const fn ask(
    workload: &'static str,
    flags: &'static str,
    (case, name): (&'static str, &'static str),
    words: &'static str,
) -> Ask {
    Ask { workload, flags, case, name, words }
}

const TRANSFER: &str = "--log2 --batches --warmup";
const BLOCK: &str = "--log2 --blocks --warmup";
const BLOCK_WITHOUT: &str = "--log2 --blocks --warmup --witness=off";
const BANK: &str = "--accounts --transfers --batch --readers";
const ERC20: &str = "--eoa --contracts --blocks";
const HISTORY: &str = "--shards --len --keys";
const RECOVER: &str = "--log2 --batch --kills";

const BLOCKS: (&str, &str) = ("", "blocks, drained");
const LOADED: (&str, &str) = ("random", "pairs loaded");
const AFTER_A_KILL: (&str, &str) = ("", "open after a kill");
const ERC20_WORDS: &str = "blocks of token transfers a second, between 2,000 of {size} accounts";
const ERC20_COLD: Ask = ask(
    "erc20",
    "--eoa --contracts --blocks --cold=",
    BLOCKS,
    "blocks of token transfers a second, to any of {size} accounts",
);

/// Transfers by the size of the state, which are drawn as well.
pub const BY_STATE: Ask = ask(
    "transfer",
    TRANSFER,
    ("", "transfers, drained"),
    "transfers a second, with a witness, 25,000 a commit, {size} accounts",
);

/// Transfers by the size of the batch, which are drawn as well.
pub const BY_BATCH: Ask = ask(
    "bank",
    BANK,
    ("", "transfers, synced and drained"),
    "transfers a second, {case}, {size} accounts",
);

const TRIES: [Ask; 10] = [
    BY_STATE,
    ask(
        "transfer",
        "--log2 --batches --warmup --witness=off",
        ("", "transfers, drained"),
        "transfers a second, without a witness, 25,000 a commit, {size} accounts",
    ),
    BY_BATCH,
    ask("block", BLOCK, BLOCKS, "mainnet blocks a second, with a witness, {size} accounts"),
    ask("erc20", ERC20, BLOCKS, ERC20_WORDS),
    ERC20_COLD,
    ask("overlay", "--accounts --updates", ("warm", "root"), "root of an uncommitted block, ms"),
    ask("import", "--leaves", LOADED, "pairs loaded a second, {size} pairs"),
    ask("transfer", TRANSFER, ("open", "open"), "open after a close, ms, {size} accounts"),
    ask("recover", RECOVER, AFTER_A_KILL, "open after a kill, ms, {size} accounts"),
];

const STORES: [Ask; 9] = [
    BY_BATCH,
    ask("block", BLOCK_WITHOUT, BLOCKS, "mainnet blocks a second, {size} accounts"),
    ask("erc20", ERC20, BLOCKS, ERC20_WORDS),
    ERC20_COLD,
    ask("import", "--leaves", LOADED, "pairs loaded a second, {size} pairs"),
    ask("bank", BANK, ("100 a", "a pair scanned"), "a pair of a scan, ns, {size} accounts"),
    ask(
        "history",
        HISTORY,
        ("shards of 2,000", "point query"),
        "last change of a key before a block, ns",
    ),
    ask(
        "history",
        HISTORY,
        ("shards of 2,000", "append one"),
        "a change added to a key's list, ns",
    ),
    ask("recover", RECOVER, AFTER_A_KILL, "open after a kill, ms, {size} accounts"),
];

/// A table's title, engines, and rows.
type TablePlan = (&'static str, &'static [&'static str], &'static [Ask]);

pub const TABLES: [TablePlan; 2] = [
    ("with a root, each commit synced", &["pleach", "nomt", "sp-trie", "jmt", "qmdb"], &TRIES),
    (
        "plain stores, each commit synced",
        &["pleach-plain", "redb", "fjall", "sqlite", "mdbx", "rocksdb"],
        &STORES,
    ),
];

/// A document that an [`Ask`] is about, and a case that it has.
pub struct FoundFigure<'a> {
    pub document: &'a Document,
    pub case: &'a str,
    name: &'static str,
}

/// A row of a table: its document, its words, and the engines' values.
struct Row<'a> {
    document: &'a Document,
    words: String,
    unit: Unit,
    values: Vec<Option<f64>>,
}

impl Ask {
    /// The row's figures, in the order of the documents.
    pub fn find<'a>(&'a self, documents: &'a [Document]) -> impl Iterator<Item = FoundFigure<'a>> {
        let fit = documents.iter().filter(|document| self.fits(document));
        fit.flat_map(move |document| {
            let named =
                |figure: &&Figure| figure.name == self.name && figure.case.starts_with(self.case);
            let figures = document.runs.iter().flat_map(|run| &run.figures).filter(named);
            let cases = super::distinct(figures.map(|figure| figure.case.as_str()));
            cases.into_iter().map(move |case| FoundFigure { document, case, name: self.name })
        })
    }

    fn fits(&self, document: &Document) -> bool {
        let given = flags(document);
        let may = |(name, value): &(&str, &str)| {
            let mut known = COMMON.split(' ').chain(self.flags.split(' '));
            known.any(|flag| flag == *name || flag.split_once('=') == Some((name, value)))
        };
        let mut must = self.flags.split(' ').filter_map(|flag| flag.split_once('='));
        document.workload == self.workload
            && document.durability == "commit"
            && !document.interrupted
            && given.iter().all(may)
            && must.all(|flag| given.contains(&flag))
    }
}

impl<'a> FoundFigure<'a> {
    /// An engine's figure, where its commits are synced to a device.
    pub fn figure(&self, engine: &str) -> Option<&Figure> {
        let run = self.document.runs.iter().find(|run| run.backend == engine)?;
        of(run, self.case, self.name).filter(|_| run.survives == Level::PowerCut)
    }

    /// The size of the state, by its flags or their defaults.
    pub fn size(&self) -> String {
        let given = flags(self.document);
        let value = |name| given.iter().find(|flag| flag.0 == name).map(|flag| flag.1);
        match ["--accounts", "--leaves", "--eoa"].into_iter().find_map(value) {
            Some(value) => value.parse().map_or_else(|_| value.to_owned(), grouped),
            None if self.document.workload == "erc20" => grouped(erc20::ACCOUNTS),
            None => format!("2^{}", value("--log2").unwrap_or("20")),
        }
    }

    /// The page cache of the system was emptied before the run.
    pub fn is_cold(&self) -> bool {
        flags(self.document).iter().any(|flag| flag.0 == "--drop-caches")
    }

    /// No batch ran between the load and the clock.
    pub fn is_after_load(&self) -> bool {
        flags(self.document).contains(&("--warmup", "0"))
    }

    fn words(&self, ask: &Ask) -> String {
        let case = self.case.split(", ").next().unwrap_or_default();
        let mut words = ask.words.replace("{size}", &self.size()).replace("{case}", case);
        if self.is_after_load() {
            words += ", right after the load";
        }
        if self.is_cold() {
            words += ", cold";
        }
        match self.document.cache_mib {
            CACHE_MIB => words,
            mib => format!("{words}, a budget of {} MiB", grouped(mib)),
        }
    }

    fn row(&self, ask: &Ask, engines: &[&str]) -> Option<Row<'a>> {
        let figures: Vec<_> = engines.iter().map(|engine| self.figure(engine)).collect();
        let unit = figures.iter().flatten().next()?.unit;
        let values = figures.into_iter().map(|figure| Some(figure?.p50)).collect();
        Some(Row { document: self.document, words: self.words(ask), unit, values })
    }
}

impl Row<'_> {
    /// The best value; none where only one engine has one.
    fn best(&self) -> Option<f64> {
        let values = || self.values.iter().flatten().copied();
        let most = self.unit.more_is_better()?;
        let best = if most { values().reduce(f64::max) } else { values().reduce(f64::min) };
        best.filter(|_| values().count() > 1)
    }
}

/// Flags of a command, with their values.
fn flags(document: &Document) -> Vec<(&str, &str)> {
    let words = &document.arguments;
    let next = |at: usize| words.get(at + 1).filter(|word| !word.starts_with("--"));
    let parts = |(at, word)| {
        let word: &String = word;
        let value = || (word.as_str(), next(at).map_or("", String::as_str));
        word.starts_with("--").then(|| word.split_once('=').unwrap_or_else(value))
    };
    words.iter().enumerate().filter_map(parts).collect()
}

/// As an engine is called.
fn named(engine: &str) -> &str {
    match engine {
        "pleach" | "pleach-plain" => "Pleach",
        "nomt" => "NOMT",
        "qmdb" => "QMDB",
        "sqlite" => "SQLite",
        "mdbx" => "MDBX",
        "rocksdb" => "RocksDB",
        other => other,
    }
}

/// A table: its engines, and its rows.
struct Table<'a> {
    title: &'static str,
    engines: Vec<&'static str>,
    rows: Vec<Row<'a>>,
}

impl<'a> Table<'a> {
    /// With the engines that have any of it. A row that a single engine has says nothing, unless it is a rate.
    fn new((title, engines, asks): &TablePlan, documents: &'a [Document]) -> Self {
        let ran = |engine: &&str| {
            let mut all = asks.iter().flat_map(|ask| ask.find(documents));
            all.any(|found| found.figure(engine).is_some())
        };
        let engines: Vec<&str> = engines.iter().copied().filter(ran).collect();
        let mut rows: Vec<Row> = Vec::new();
        for ask in *asks {
            let found = ask.find(documents).filter_map(|found| found.row(ask, &engines));
            rows.extend(found.filter(|row| row.best().is_some() || row.unit == Unit::PerSecond));
        }
        let further: Vec<String> = rows.iter().map(|row| differing(row, &rows)).collect();
        for (row, further) in rows.iter_mut().zip(further) {
            let machine = super::machine_name(documents, row.document);
            let machine = machine.map(|name| format!(" ({name})")).unwrap_or_default();
            row.words = [&row.words[..], &further, &machine].concat();
        }
        Self { title, engines, rows }
    }
}

/// Flags of a row that not all rows of the same words have.
fn differing(row: &Row, rows: &[Row]) -> String {
    let alike = || rows.iter().filter(|other| other.words == row.words);
    let is_common = |flag: &(&str, &str)| alike().all(|other| flags(other.document).contains(flag));
    let own = flags(row.document).into_iter();
    // Those that no row depends on have words of their own, or none.
    let own = own.filter(|flag| !COMMON.split(' ').any(|name| name == flag.0) && !is_common(flag));
    own.map(|(name, value)| [", ", name, " ", value].concat()).collect::<Vec<_>>().concat()
}

/// The tables in Markdown: the best of each row is bold.
pub fn markdown(documents: &[Document]) -> String {
    let table = |plan| {
        let Table { title, engines, rows } = Table::new(plan, documents);
        let head = [title].into_iter().chain(engines.into_iter().map(named));
        let mut cells = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for row in rows {
            let cell = |value: &Option<f64>| match value {
                None => String::new(),
                Some(value) if Some(*value) == row.best() => {
                    format!("**{}**", shown(*value, row.unit))
                }
                Some(value) => shown(*value, row.unit),
            };
            let values = row.values.iter().map(cell);
            cells.push([row.words.clone()].into_iter().chain(values).collect());
        }
        super::markdown(&cells)
    };
    TABLES.each_ref().map(table).join("\n")
}

/// The tables for the page.
pub fn json(documents: &[Document]) -> Value {
    let table = |plan| {
        let Table { title, engines, rows } = Table::new(plan, documents);
        let row = |row: &Row| {
            let cell = |value: &Option<f64>| value.map(|value| shown(value, row.unit));
            let cells: Vec<_> = row.values.iter().map(cell).collect();
            let best = row.values.iter().position(|value| value.is_some() && *value == row.best());
            json!({ "words": row.words, "cells": cells, "best": best })
        };
        json!({ "title": title, "engines": engines, "rows": rows.iter().map(row).collect::<Vec<_>>() })
    };
    TABLES.each_ref().map(table).into_iter().collect()
}
