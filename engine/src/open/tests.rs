//! Several tries between memory and files: flushes, checkpoints, recovery, reclaiming, loads.
//!
//! Commits are made here by hand, record and publication, so that these tests fix what files have to lead to,
//! independently of the commit protocol.

use std::collections::BTreeMap;

use pleach_beatree::Stored;
use pleach_beatree::region::{NewNodes, RegionCommit};
use pleach_core::fold::{FoldValue, Folder};
use pleach_core::{Hasher, Key, Node, Prefix};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};
use pleach_journal::format::commit_body::{
    EntryKind, LoggedValue, NamespacePart, Section, commit_record,
};
use pleach_journal::format::trie_kind::TrieKind;

use crate::load::LoadOptions;
use crate::metrics::Counters;
use crate::roots::{Roots, TrieRoot};
use crate::state::NamespaceDb;
use crate::state::commits::CommitState;
use crate::state::tries::Trie;
use crate::{Db, Geometry, Options, Value};
use pleach_ops::{CheckOptions, CheckReport, check_on, stat_on};

type SimDb = Db;
type SimState = NamespaceDb;
/// The pairs of each namespace.
type Model = BTreeMap<u8, BTreeMap<Key, Vec<u8>>>;

fn id(id: u64) -> Key {
    Hasher::BLAKE3.hash(&id.to_be_bytes())
}

fn fold(at: &Prefix, pairs: &BTreeMap<Key, Vec<u8>>) -> Node {
    let mut folder = Folder::new(Hasher::BLAKE3);
    let mut span = folder.span(at.len());
    for (key, value) in pairs.range(*at.first_key()..=at.last_key()) {
        span.push_unaccessed(key, FoldValue::Bytes(value));
    }
    let fold = span.end_fold();
    folder.run();
    *folder.node(fold)
}

/// The changes of a commit in a namespace.
struct Part {
    namespace: u8,
    kind: EntryKind,
    changes: BTreeMap<Key, Option<Vec<u8>>>,
}

fn changed(namespace: u8, changes: impl IntoIterator<Item = (Key, Option<Vec<u8>>)>) -> Part {
    Part { namespace, kind: EntryKind::Changed, changes: changes.into_iter().collect() }
}

fn put(namespace: u8, ids: std::ops::Range<u64>, byte: u8, len: usize) -> Part {
    changed(namespace, ids.map(|at| (id(at), Some(vec![byte; len]))))
}

fn added(namespace: u8) -> Part {
    Part { kind: EntryKind::Added, ..changed(namespace, []) }
}

fn dropped(namespace: u8) -> Part {
    Part { kind: EntryKind::Dropped, ..changed(namespace, []) }
}

fn restored(namespace: u8) -> Part {
    Part { kind: EntryKind::Restored, ..changed(namespace, []) }
}

/// A database, its pairs, and its pairs after each commit.
struct Tested {
    disk: SimDisk,
    runtime: SimRuntime,
    db: SimDb,
    model: Model,
    /// The pairs of dropped namespaces.
    gone: Model,
    after: BTreeMap<u64, Model>,
}

fn options() -> Options {
    let options = Options::new("sim").create(true).cache_mib(8).threads(1).small();
    options
        .tune(|tuning| tuning.trie_cache = Some(0))
        .log_limit_bytes(256 << 10)
        .tune(|tuning| tuning.flush_at = 6)
}

fn open(disk: &SimDisk, seed: u64) -> (SimDb, SimRuntime) {
    let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
    (SimDb::open_on(disk.clone(), runtime.clone(), options()).expect("opened"), runtime)
}

impl Tested {
    fn new(record: bool) -> Self {
        let disk = SimDisk::new(1, SimOptions { record, ..SimOptions::default() });
        let (db, runtime) = open(&disk, 1);
        let model = Model::from([(0, BTreeMap::new())]);
        let after = BTreeMap::from([(0, model.clone())]);
        Self { disk, runtime, db, model, gone: Model::new(), after }
    }

    /// Commits by hand: the record, and the effects of a publication.
    fn commit(&mut self, parts: &[Part]) {
        let db = self.db.state();
        let mut parts: Vec<&Part> = parts.iter().collect();
        parts.sort_by_key(|part| part.namespace);
        let before = db.commits.tip();
        let number = before.number + 1;
        let (mut roots, mut entries, mut tries) = (before.roots.clone(), Vec::new(), Vec::new());
        for Part { namespace, kind, changes } in parts.iter().copied() {
            match kind {
                EntryKind::Added => {
                    self.model.insert(*namespace, BTreeMap::new());
                    let trie = Trie::empty(&db, *namespace, TrieKind::Merkle, number);
                    db.tries.add(trie);
                }
                EntryKind::Restored => {
                    let had = self.gone.remove(namespace).expect("dropped before");
                    self.model.insert(*namespace, had);
                }
                EntryKind::Dropped | EntryKind::Changed | EntryKind::Set => {}
            }
            let pairs = self.model.get_mut(namespace).expect("it exists");
            for (key, value) in changes {
                match value {
                    Some(value) => drop(pairs.insert(*key, value.clone())),
                    None => drop(pairs.remove(key)),
                }
            }
            let previous_root = roots.get(*namespace).unwrap_or_default();
            let mut new_root = fold(&Prefix::ROOT, pairs);
            if *kind == EntryKind::Dropped {
                new_root = Node::default();
                self.gone.insert(*namespace, self.model.remove(namespace).expect("it exists"));
            }
            let root = (*kind != EntryKind::Dropped).then_some(new_root);
            let root = root.map(|node| TrieRoot { kind: TrieKind::Merkle, node });
            roots = roots.with([(*namespace, root)]);
            let mut section = Section::default();
            let trie = db.other_trie(*namespace).expect("it has a trie");
            for (key, value) in changes {
                let value = value.as_deref().map_or(LoggedValue::Absent, LoggedValue::Inline);
                section.push(key, value);
            }
            for (prefix, node) in self.nodes_of(&trie, *namespace, changes) {
                section.push_node(&prefix, &node);
            }
            entries.push(NamespacePart {
                ns: *namespace,
                kind: *kind,
                trie: TrieKind::Merkle,
                previous_root,
                new_root,
                sections: vec![section],
            });
            tries.push(trie);
        }
        let record = commit_record(db.store.database, number, b"", None, entries);
        let len = record.len();
        db.commits.sequencer.make_room(len).expect("there is room");
        let mut sequencer = db.commits.sequencer.lock();
        let end = sequencer.queue(record) + len;
        for (Part { namespace, kind, changes }, trie) in parts.iter().copied().zip(&tries) {
            match kind {
                EntryKind::Dropped => db.tries.set_dropped(*namespace, Some(number)),
                EntryKind::Restored => db.tries.set_dropped(*namespace, None),
                EntryKind::Added | EntryKind::Changed | EntryKind::Set => {}
            }
            self.apply(trie, *namespace, number, end.get(), changes);
        }
        let tip = CommitState { number, roots, blob: before.blob };
        sequencer.newest = tip.clone();
        db.commits.publish(tip);
        db.commits.undo.set_barrier(number);
        drop(sequencer);
        db.commits.sequencer.write_through(end, true).expect("written");
        db.store.cache.set_batch(number + 1);
        self.disk.mark(number);
        self.after.insert(number, self.model.clone());
        db.pace.wake();
        self.runtime.step_some(20);
    }

    fn nodes_of(
        &self,
        trie: &SimState,
        namespace: u8,
        changes: &BTreeMap<Key, Option<Vec<u8>>>,
    ) -> Vec<(Prefix, Node)> {
        let mut prefixes = Vec::new();
        for key in changes.keys() {
            let of = |state: &pleach_beatree::RegionState| {
                state.children().prefix(state.children().find(key))
            };
            prefixes.push(trie.tree.with_region(key, |_, state| of(state)));
        }
        prefixes.dedup();
        // Nobody changes a dropped namespace.
        let Some(pairs) = self.model.get(&namespace) else { return Vec::new() };
        prefixes.into_iter().map(|prefix| (prefix, fold(&prefix, pairs))).collect()
    }

    fn apply(
        &self,
        trie: &SimState,
        namespace: u8,
        number: u64,
        end: u64,
        changes: &BTreeMap<Key, Option<Vec<u8>>>,
    ) {
        if changes.is_empty() {
            return;
        }
        let all = self.nodes_of(trie, namespace, changes);
        let index = trie.tree.load_full();
        let mut due = Vec::new();
        for region in index.regions() {
            let own: Vec<(Key, Stored)> = changes
                .range(*region.prefix().first_key()..=region.prefix().last_key())
                .map(|(key, value)| match value {
                    Some(value) => {
                        (*key, Stored::from_value(Hasher::BLAKE3, Value::from(value.clone())))
                    }
                    None => (*key, Stored::Absent),
                })
                .collect();
            if own.is_empty() {
                continue;
            }
            let mut state = region.write();
            let nodes: Vec<(u32, Node)> = all
                .iter()
                .filter(|(prefix, _)| region.prefix().contains(prefix))
                .map(|(prefix, node)| {
                    (u32::try_from(state.children().find(prefix.first_key())).expect("few"), *node)
                })
                .collect();
            let mut applied = RegionCommit {
                commit: number,
                version: number,
                log_position: end,
                changes: &mut own.into_iter(),
                nodes: NewNodes::Children(&nodes),
            };
            let growth = state.apply(&mut applied, &mut Vec::new(), |prefix, commits| {
                if trie.budget.flush_policy().is_due(&prefix, commits) {
                    due.push(prefix);
                }
            });
            state.recompute_own_node(Hasher::BLAKE3);
            Counters::change(&trie.counters.pending_bytes, growth.bytes);
            Counters::change(&trie.counters.pending_entries, growth.entries);
        }
        // A finish reads the pages.
        for at in due.iter().filter_map(|prefix| trie.tree.page_of(prefix.first_key())) {
            trie.store.page(at).expect("read");
        }
        trie.tree.make_due(due);
    }

    /// Runs the background for a while.
    fn work(&self) {
        for _ in 0..50 {
            self.db.state().pace.wake();
            self.runtime.step_some(100);
            self.runtime.clock().advance(std::time::Duration::from_millis(20));
        }
    }

    fn reopen(&mut self, close: bool) {
        if close {
            self.db.close().expect("closed");
        }
        let seed = self.db.commit_number();
        let other = SimDisk::new(1, SimOptions { record: false, ..SimOptions::default() });
        // The old database is dropped first: it has the lock.
        self.db = open(&other, 1).0;
        assert_is(&self.disk, &self.model);
        (self.db, self.runtime) = open(&self.disk, seed);
        assert_eq!(roots(&self.db), expected_roots(&self.model));
    }
}

fn roots(db: &SimDb) -> Roots {
    db.state().commits.tip().roots
}

fn expected_roots(model: &Model) -> Roots {
    Roots::new(model.iter().map(|(namespace, pairs)| {
        let node = fold(&Prefix::ROOT, pairs);
        (*namespace, TrieRoot { kind: TrieKind::Merkle, node })
    }))
}

/// Asserts that nothing is wrong on a disk, and that it has these pairs.
fn assert_is(disk: &SimDisk, model: &Model) -> CheckReport {
    let mut report = check_on(disk, CheckOptions::default()).expect("checked");
    // A torn end is told from remains in a recycled file of the log only where that has headers.
    report.findings.retain(|finding| !finding.what.starts_with("the log ends torn"));
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let options = Options::new("sim").cache_kib(256).geometry(Geometry::least()).read_only(true);
    let reader = SimDb::open_on(disk.clone(), SimRuntime::new(1), options).expect("opens");
    for (namespace, pairs) in model {
        let session = reader.snapshot().expect("a session");
        let there = session.namespace(*namespace).expect("there").iter(..);
        let there = there.map(|pair| pair.map(|(key, value)| (key, value.to_vec())));
        let found: BTreeMap<_, _> = there.collect::<Result<_, _>>().expect("read");
        assert!(found == *pairs, "namespace {namespace}: {} pairs", found.len());
    }
    let stat = stat_on(disk, None).expect("looked into");
    let live: Vec<u8> =
        stat.namespaces.iter().filter(|it| it.root.is_some()).map(|it| it.number).collect();
    assert_eq!(live, model.keys().copied().collect::<Vec<_>>());
    report
}

/// Power cuts at every `nth` moment leave the state after some commit, and none older than what was acknowledged by
/// then.
fn survives_power_cuts(tested: &Tested, nth: usize) {
    let trace = tested.disk.trace();
    let mut looked = 0;
    for (index, point) in trace.crash_points().enumerate().filter(|(at, _)| at % nth == 0) {
        let acknowledged = point.marks().iter().max().copied().unwrap_or(0);
        for outcome in point.outcomes(index as u64, 2) {
            let disk = outcome.disk();
            let runtime = SimRuntime::with_clock(5, disk.clock(), 1);
            let db = match SimDb::open_on(disk.clone(), runtime, options()) {
                Ok(db) => db,
                // The database was not created yet.
                Err(_) if acknowledged == 0 => continue,
                Err(error) => panic!("{error}, after {}", trace.describe(point.boundary())),
            };
            let number = db.commit_number();
            assert!(number >= acknowledged, "{number} after {acknowledged}");
            assert_eq!(roots(&db), expected_roots(&tested.after[&number]));
            drop(db);
            assert_is(&disk, &tested.after[&number]);
            looked += 1;
        }
    }
    assert!(looked > 30, "{looked}");
}

/// All namespaces are recovered as they were: from image and log, after a close and after a kill, with flushes and
/// checkpoints of all of them in between.
#[test]
fn tries_come_back_from_image_and_log() {
    let mut tested = Tested::new(false);
    tested.commit(&[added(3), added(255), put(0, 0..300, 1, 60)]);
    for byte in 2..12 {
        let from = u64::from(byte) * 40;
        let mut parts = vec![put(0, from..from + 200, byte, 60)];
        // A long value, and values that stay in the page.
        parts.push(put(3, from..from + 400, byte, 90));
        if byte % 3 == 0 {
            parts.push(put(255, from..from + 3, byte, 3000));
        }
        tested.commit(&parts);
        if byte == 7 {
            tested.reopen(false);
        }
    }
    tested.work();
    let metrics = tested.db.metrics();
    assert!(metrics.checkpoints > 0 && metrics.pages_written > 50, "{metrics:?}");
    for namespace in [0, 3, 255] {
        let trie = tested.db.state().other_trie(namespace).expect("it exists");
        assert!(!trie.tree.load().is_bare(), "namespace {namespace} was flushed");
    }
    tested.reopen(true);
    tested.reopen(false);
    tested.commit(&[changed(3, (0..900).map(|at| (id(at), None)))]);
    tested.db.drain(0).expect("flushed");
    tested.reopen(false);
}

/// A dropped namespace is reclaimed: its pages, its runs, its trie; and its number can be added again.
#[test]
fn a_dropped_namespace_gives_all_back() {
    let mut tested = Tested::new(false);
    tested.commit(&[added(7), put(0, 0..200, 1, 60)]);
    tested.commit(&[put(7, 0..2000, 2, 100)]);
    tested.commit(&[put(7, 5000..5020, 3, 9000)]);
    tested.db.drain(0).expect("flushed");
    let state = tested.db.state();
    let live = || state.space.overflow_stats().live;
    assert!(live() > 0 && tested.db.metrics().leaf_pages > 50);
    tested.commit(&[dropped(7)]);
    tested.work();
    assert!(state.tries.get(7).is_none(), "it has left");
    assert_eq!(live(), 0);
    let pages = tested.db.metrics().leaf_pages;
    tested.commit(&[added(7), put(0, 0..1, 5, 60)]);
    drop(state);
    tested.reopen(false);
    tested.commit(&[put(7, 0..300, 6, 50)]);
    tested.db.drain(0).expect("flushed");
    assert!(tested.db.metrics().leaf_pages > pages);
    tested.reopen(true);
    let report = assert_is(&SimDisk::from_image(&tested.disk.image(), 1), &tested.model);
    assert_eq!(report.overflow_pages, 0);
}

/// The disk at any moment leads to the state after some commit, none older than what was acknowledged: across adds,
/// drops, reclaiming, flushes and checkpoints.
#[test]
fn power_cuts_leave_whole_states_of_all_tries() {
    let mut tested = Tested::new(true);
    tested.commit(&[added(1), put(0, 0..50, 1, 60)]);
    for round in 0..3 {
        let byte = 2 + 10 * round;
        tested.commit(&[put(0, 0..60, byte, 60), put(1, 0..200, byte, 80)]);
        tested.commit(&[added(2), put(1, 100..260, byte + 1, 80)]);
        tested.commit(&[put(2, 0..250, byte + 2, 80), put(0, 40..50, byte, 4000)]);
        tested.commit(&[put(2, 0..4, byte + 3, 5000)]);
        tested.work();
        tested.commit(&[dropped(2), put(0, 0..10, byte + 4, 60)]);
        if round == 1 {
            // Before it is reclaimed: no background step has run.
            tested.commit(&[put(1, 0..10, byte + 5, 60)]);
        }
        tested.work();
        assert!(tested.db.state().tries.get(2).is_none(), "it is given up");
    }
    let metrics = tested.db.metrics();
    assert!(metrics.checkpoints > 0, "{metrics:?}");
    survives_power_cuts(&tested, 7);
}

/// A load fills an empty namespace beside others, as the next commit, and survives a power cut or leaves nothing.
#[test]
fn a_namespace_is_loaded_beside_others() {
    let mut tested = Tested::new(true);
    tested.commit(&[added(9), put(0, 0..300, 1, 60)]);
    tested.commit(&[put(0, 100..400, 2, 60)]);
    let items = || (0..2000).map(|at| (id(at), Value::from(vec![7; 120])));
    let repeated = items().chain(items());
    let options = LoadOptions::new().memory_mib(8).namespace(9);
    let pages = || tested.db.state().space.file_lengths().expect("looked at");
    let before = pages();
    tested.db.bulk_load(repeated, &options).expect_err("a key comes twice");
    assert!(pages() == before, "the room is given back");
    let wrong = |namespace| {
        let options = LoadOptions::new().memory_mib(8).namespace(namespace);
        tested.db.bulk_load(items(), &options).expect_err("it cannot be loaded")
    };
    assert!(matches!(wrong(0), crate::Error::NotEmpty(2)));
    assert!(matches!(wrong(4), crate::Error::Namespace(4)));
    let report = tested.db.bulk_load(items(), &options).expect("loaded");
    tested.disk.mark(3);
    tested.model.insert(9, items().map(|(key, value)| (key, value.to_vec())).collect());
    tested.after.insert(3, tested.model.clone());
    assert_eq!((report.accounts, report.root), (2000, fold(&Prefix::ROOT, &tested.model[&9])));
    assert_eq!(tested.db.commit_number(), 3);
    tested.commit(&[put(9, 0..20, 8, 30), put(0, 0..20, 8, 30)]);
    tested.work();
    survives_power_cuts(&tested, 5);
    tested.reopen(false);
}

/// A dropped namespace that somebody holds stays, in images, too, and can be restored.
#[test]
fn a_dropped_namespace_that_is_held_stays() {
    let mut tested = Tested::new(false);
    tested.commit(&[added(5), put(0, 0..100, 1, 60)]);
    tested.commit(&[put(5, 0..500, 2, 100)]);
    // The pin is an operation's: commits by hand have no undo, so that a session could not be read, and would hold
    // nothing.
    let held = tested.db.state().commits.tip_view();
    tested.commit(&[dropped(5), put(0, 0..100, 2, 60)]);
    for byte in 3..12 {
        tested.commit(&[put(0, 0..400, byte, 60)]);
    }
    tested.work();
    assert!(tested.db.metrics().checkpoints > 0);
    assert_eq!(tested.db.state().tries.get(5).expect("held").dropped, Some(3));
    tested.commit(&[restored(5), changed(0, [])]);
    drop(held);
    tested.work();
    tested.reopen(false);
    tested.commit(&[put(5, 100..200, 9, 100)]);
    tested.reopen(true);
}

/// 256 namespaces: those without work are left alone.
#[test]
fn all_namespaces_take_turns() {
    let mut tested = Tested::new(false);
    tested.commit(&(1..=255).map(added).collect::<Vec<_>>());
    for byte in 1..4 {
        tested.commit(&(0..=255).map(|at| put(at, 0..20, byte, 40)).collect::<Vec<_>>());
    }
    tested.work();
    tested.db.drain(0).expect("flushed");
    assert_eq!(tested.db.metrics().leaf_pages, 256);
    tested.reopen(true);
    assert_eq!(tested.db.metrics().pages_written, 0);
    tested.commit(&[put(77, 0..20, 9, 40)]);
    tested.commit(&[put(77, 0..20, 10, 40)]);
    tested.work();
    assert_eq!(tested.db.metrics().pages_written, 1);
    tested.reopen(false);
}
