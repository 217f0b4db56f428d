//! What commits replaced: reverse overlays for sessions on older states.
//!
//! A session, an overlay or a snapshot pins the commit that it reads; the history window keeps the last
//! ones for whoever comes. A commit's undo is *pushed* before its changes are applied, as the commit's own
//! sorted lists, shared, which costs nothing. Mostly it goes as soon as the commit is published.
//! What stays is *put in* ([`AllMaps`]), so that a lookup costs the same however many commits lie between.
//! Window and pins are of commits, whatever namespaces they change; changes and maps are each namespace's own.
//!
//! Whoever reads consults undo last. The newest commit that was pushed tells a reader of the tip that there
//! is nothing to consult. Undo may be dropped under a reader, when it takes more memory than it may: then
//! [`Undo::check`], asked after the lookup, says so. `dropped` rises before anything is taken out, and what was
//! taken out was under a lock that the lookup took, so that no reader misses both.
//!
//! Locks, none held over I/O: tidying, then the lock of window and pins, or recent commits, or a shard.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use pleach_beatree::Stored;
use pleach_beatree::older::{FoundNodes, OlderSearch};
use pleach_core::{Key, Node, Prefix};
use pleach_io::Runtime;

pub(crate) use super::changes::{ChangeList, Changed, Changes};
use super::node_versions::NodeVersions;
use super::pins::{Holder, Pin, PinId, Pins};
pub(crate) use super::replaced::ReplacedList;
use super::replaced::ReplacedNode;
use super::slabs::Slabs;
use super::undo_maps::{AllMaps, Maps};
use super::window::{Before, Window};
use crate::error::{Error, Result};
use crate::format::position::LogPos;
use crate::options::HistoryLimits;
use crate::roots::Roots;

/// The nodes that a commit replaced, each list in order.
#[derive(Debug, Default)]
pub(crate) struct ReplacedNodes {
    /// Of the pages with a change.
    pub(crate) pages: ReplacedList,
    /// Of the regions with a change.
    pub(crate) regions: ReplacedList,
}

/// What a commit changes in one namespace, and the nodes that it replaces there, where there is a history.
pub(crate) struct Undone {
    pub(crate) namespace: u8,
    pub(crate) changes: Changes,
    pub(crate) nodes: ReplacedNodes,
}

impl Undone {
    /// Bytes that it takes.
    fn bytes(&self) -> u64 {
        let ReplacedNodes { pages, regions } = &self.nodes;
        self.changes.bytes() + (pages.bytes() + regions.bytes()) as u64
    }
}

/// What a commit replaced in one namespace, as its record has it.
pub(crate) struct Restored {
    pub(crate) namespace: u8,
    pub(crate) values: Vec<(Key, Stored)>,
    pub(crate) nodes: ReplacedNodes,
}

/// A commit that was not put in yet.
#[derive(Clone)]
struct Recent {
    number: u64,
    /// Namespaces that it changes, ascending.
    undone: Arc<[Undone]>,
}

impl Recent {
    /// What it has of a namespace.
    fn of(&self, namespace: u8) -> Option<&Undone> {
        let at = self.undone.binary_search_by_key(&namespace, |one| one.namespace).ok()?;
        Some(&self.undone[at])
    }
}

struct Guarded {
    window: Window,
    pins: Pins,
}

/// Commits that stay as they were pushed while there is no history: those of a finish and a commit under
/// way come and go without being put in.
const RECENT: usize = 2;
/// The undo of a commit of at least this many changes is gathered, and put in, by several workers.
pub(crate) const PARALLEL: usize = 512;
/// Pages whose nodes are looked up together.
const PAGES: usize = 32;
/// Turns of tidying up after one another; what is left is the next commit's.
const TURNS: usize = 8;

/// Undo of the newest commits.
pub(crate) struct Undo {
    limits: HistoryLimits,
    /// The newest commit that was pushed.
    newest: AtomicU64,
    /// Undo of the commits through this one is gone, or going.
    dropped: AtomicU64,
    /// Oldest first, all after those that were put in.
    recent: RwLock<VecDeque<Recent>>,
    recents: AtomicUsize,
    maps: AllMaps,
    guarded: Mutex<Guarded>,
    /// Held by whoever puts commits in, or takes them out.
    tidying: Mutex<()>,
    untidy: AtomicBool,
    log_end: AtomicU64,
}

impl Undo {
    /// The undo of a database whose newest commit is `tip`, without past.
    pub(crate) fn new(limits: HistoryLimits, tip: u64) -> Self {
        let guarded = Guarded { window: Window::new(limits, tip), pins: Pins::default() };
        Self {
            limits,
            newest: AtomicU64::new(tip),
            dropped: AtomicU64::new(tip),
            recent: RwLock::default(),
            recents: AtomicUsize::new(0),
            maps: AllMaps::default(),
            guarded: Mutex::new(guarded),
            tidying: Mutex::default(),
            untidy: AtomicBool::new(false),
            log_end: AtomicU64::new(0),
        }
    }

    /// Is there a history, so that commits say what they replace, nodes included?
    pub(crate) fn keeps_history(&self) -> bool {
        self.limits.commits > 0
    }

    /// How many past commits are to be readable.
    pub(crate) fn history(&self) -> u64 {
        self.limits.commits
    }

    /// Keeps what a commit replaces in each namespace that it changes, ascending; before its changes are
    /// applied. With a history it says what was before.
    pub(crate) fn push(&self, number: u64, undone: Vec<Undone>, before: Option<Before>) {
        debug_assert!(undone.is_sorted_by(|a, b| a.namespace < b.namespace), "namespaces ascend");
        let bytes = undone.iter().map(Undone::bytes).sum();
        self.guarded.lock().window.add(number, bytes, before);
        let mut recent = self.recent.write();
        recent.push_back(Recent { number, undone: undone.into() });
        self.recents.store(recent.len(), Ordering::Release);
        drop(recent);
        self.newest.store(number, Ordering::Release);
    }

    /// After a commit's number is published: drops what nobody needs, and puts in what stays. The log ends
    /// at `log_end`.
    pub(crate) fn settle<R: Runtime>(&self, runtime: &R, log_end: LogPos) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let tidying = self.tidying.lock();
        self.trim(&tidying);
        let most = if self.keeps_history() { 0 } else { RECENT };
        // Each turn takes one out, and whoever pushes more settles them.
        while let Some(oldest) = self.oldest_recent(most) {
            let before = self.maps.bytes();
            oldest.undone.iter().for_each(|undone| self.put_in(runtime, oldest.number, undone));
            self.guarded.lock().window.set_bytes(oldest.number, self.maps.bytes() - before);
            let mut recent = self.recent.write();
            recent.pop_front();
            self.recents.store(recent.len(), Ordering::Release);
        }
        self.trim(&tidying);
        drop(tidying);
        self.tidy();
    }

    /// The oldest of more than `most` recent commits.
    fn oldest_recent(&self, most: usize) -> Option<Recent> {
        let recent = self.recent.read();
        if recent.len() > most { recent.front().cloned() } else { None }
    }

    fn put_in<R: Runtime>(&self, runtime: &R, number: u64, undone: &Undone) {
        let Undone { namespace, changes, nodes } = undone;
        let maps = self.maps.make(*namespace);
        let next = AtomicUsize::new(0);
        let put = |_: usize| {
            loop {
                // The nodes first, which take longer than any list of changes.
                match next.fetch_add(1, Ordering::Relaxed).checked_sub(1) {
                    None => {
                        maps.pages.insert(number, &nodes.pages);
                        maps.regions.insert(number, &nodes.regions);
                    }
                    Some(at) => {
                        let Some(list) = changes.get(at) else { return };
                        let values = list.iter().map(|one| (one.key, one.prior.clone()));
                        maps.values.insert(number, values);
                    }
                }
            }
        };
        let most = if changes.len() < PARALLEL { 1 } else { runtime.workers() };
        match most.min(changes.lists() + 1) {
            1 => put(0),
            workers => runtime.fork_join(workers, &put),
        }
    }

    /// Recovery: a commit whose record has what it replaced, in each namespace that it changed, and what was
    /// before.
    pub(crate) fn restore(
        &self,
        number: u64,
        replaced: Vec<Restored>,
        before: Before,
        log_end: LogPos,
    ) {
        self.log_end.store(log_end.get(), Ordering::Relaxed);
        let tidying = self.tidying.lock();
        let bytes_before = self.maps.bytes();
        for Restored { namespace, values, nodes } in replaced {
            let maps = self.maps.make(namespace);
            maps.values.insert(number, values.into_iter());
            maps.pages.insert(number, &nodes.pages);
            maps.regions.insert(number, &nodes.regions);
        }
        let bytes = self.maps.bytes() - bytes_before;
        self.guarded.lock().window.add(number, bytes, Some(before));
        self.newest.store(number, Ordering::Release);
        self.trim(&tidying);
    }

    /// Nothing before this commit, which is the newest, can be read: a load, or a commit without history.
    pub(crate) fn barrier(&self, number: u64) {
        let tidying = self.tidying.lock();
        let mut guarded = self.guarded.lock();
        guarded.window.barrier(number);
        self.dropped.store(number, Ordering::SeqCst);
        drop(guarded);
        self.newest.store(number, Ordering::Release);
        self.sweep(&tidying, true);
    }

    /// Recovery: the history begins at `from`, and the newest record says that it begins at `stated`: all that is
    /// named from there on is kept until a durable record says otherwise. `stated` is 0 when no record was read.
    pub(crate) fn was_from(&self, from: u64, stated: u64) {
        let tidying = self.tidying.lock();
        let mut guarded = self.guarded.lock();
        guarded.window.begin_at(from);
        guarded.window.was_from(stated);
        drop(guarded);
        self.trim(&tidying);
    }

    /// Drops what nobody needs, unless somebody is at it, who then does it.
    fn tidy(&self) {
        self.untidy.store(true, Ordering::SeqCst);
        for _ in 0..TURNS {
            let Some(tidying) = self.tidying.try_lock() else { return };
            if self.untidy.swap(false, Ordering::SeqCst) {
                self.trim(&tidying);
            }
            drop(tidying);
            if !self.untidy.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    fn trim(&self, tidying: &MutexGuard<'_, ()>) {
        let mut guarded = self.guarded.lock();
        let oldest = guarded.pins.oldest();
        let floor = guarded.window.advance(oldest, self.log_end.load(Ordering::Relaxed).into());
        // Before anything goes: a reader that misses it finds this.
        self.dropped.store(floor, Ordering::SeqCst);
        let (empty, sweep) = (guarded.window.is_empty(), guarded.window.wants_sweep());
        drop(guarded);
        let mut recent = self.recent.write();
        while recent.front().is_some_and(|commit| commit.number <= floor) {
            recent.pop_front();
        }
        self.recents.store(recent.len(), Ordering::Release);
        drop(recent);
        if empty || sweep {
            self.sweep(tidying, empty);
        }
    }

    fn sweep(&self, _tidying: &MutexGuard<'_, ()>, empty: bool) {
        if self.maps.bytes() > 0 {
            let floor = self.dropped.load(Ordering::SeqCst);
            if empty {
                self.maps.clear();
            } else {
                self.maps.drop_through(floor);
            }
        }
        let left = self.maps.bytes();
        self.guarded.lock().window.swept(left);
    }

    /// Bytes of what is put in.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> u64 {
        self.maps.bytes()
    }

    /// Bytes of memory that undo takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.guarded.lock().window.bytes()
    }
}

/// Pins and the window.
impl Undo {
    /// Pins a commit: what later ones replace stays, as long as the budget bears it. The commit is the
    /// newest one, or pinned by somebody else.
    pub(super) fn pin(&self, commit: u64, now: Duration) -> PinId {
        self.guarded.lock().pins.add(commit, now)
    }

    /// Pins a past commit of the window, and gives its roots.
    pub(super) fn pin_past(&self, commit: u64, now: Duration) -> Result<(PinId, Roots)> {
        let mut guarded = self.guarded.lock();
        let Some(roots) = guarded.window.past(commit).map(|before| before.roots.clone()) else {
            return Err(Error::SnapshotTooOld { commit, oldest: guarded.window.from() });
        };
        Ok((guarded.pins.add(commit, now), roots))
    }

    /// Takes a pin back.
    pub(super) fn unpin(&self, pin: PinId) {
        let mut guarded = self.guarded.lock();
        guarded.pins.remove(pin);
        let idle = guarded.window.is_empty()
            || guarded.pins.oldest() <= pin.0
            || guarded.window.from() <= pin.0;
        drop(guarded);
        if !idle {
            self.tidy();
        }
    }

    /// Says what holds a pin.
    pub(super) fn set_holder(&self, pin: PinId, holder: Holder, label: Option<Arc<str>>) {
        self.guarded.lock().pins.set_holder(pin, holder, label);
    }

    /// The oldest commit that is pinned; the largest number when none is.
    pub(crate) fn oldest_pin(&self) -> u64 {
        self.guarded.lock().pins.oldest()
    }

    /// All pins, the oldest commits first.
    pub(crate) fn pins(&self, now: Duration) -> Vec<Pin> {
        let guarded = self.guarded.lock();
        let pin = |(commit, held): (u64, &super::pins::Held)| Pin {
            holder: held.holder,
            label: held.label.clone(),
            commit,
            age: now.saturating_sub(held.since),
            bytes: guarded.window.bytes_for(commit),
        };
        guarded.pins.iter().map(pin).collect()
    }

    /// The oldest commit that can be asked for.
    pub(crate) fn from(&self) -> u64 {
        self.guarded.lock().window.from()
    }

    /// Roots and blob of a commit that is not the newest one.
    pub(crate) fn past(&self, commit: u64) -> Result<(Roots, Arc<[u8]>)> {
        let guarded = self.guarded.lock();
        match guarded.window.past(commit) {
            Some(before) => Ok((before.roots.clone(), Arc::clone(&before.blob))),
            None => Err(Error::SnapshotTooOld { commit, oldest: guarded.window.from() }),
        }
    }

    /// Where the log begins that the window needs; none when the window has no past.
    pub(crate) fn log_from(&self) -> Option<LogPos> {
        self.guarded.lock().window.log_from()
    }

    /// Where the log begins that the window needs, and the roots before its first record.
    pub(crate) fn begins(&self) -> Option<(LogPos, Roots)> {
        let guarded = self.guarded.lock();
        let before = guarded.window.past(guarded.window.from())?;
        Some((before.start, before.roots.clone()))
    }

    /// Where the window begins once `number` is the newest commit, for its record.
    pub(crate) fn begin_after(&self, number: u64) -> u64 {
        self.guarded.lock().window.begin_after(number)
    }

    /// A record was queued that ends at `end` and says that the window begins at `from`.
    pub(crate) fn state(&self, end: LogPos, from: u64) {
        self.guarded.lock().window.state(end, from);
    }

    /// Overflow runs that commits through this one have replaced are named by nobody: no pin is older, and
    /// a durable record (the log is durable below `durable`) says that no window begins before (rule
    /// `runs-after-window`).
    pub(crate) fn unnamed_through(&self, durable: LogPos) -> u64 {
        let mut guarded = self.guarded.lock();
        let oldest = guarded.pins.oldest();
        let unnamed = guarded.window.durable_from(durable).min(oldest);
        // The window moves on behind a commit's publication: until then its commits can be asked for.
        if self.keeps_history() { unnamed.min(guarded.window.from()) } else { unnamed }
    }
}

/// Lookups; `base` is a commit that the caller has pinned.
impl Undo {
    /// The newest commit that was pushed. Cheap, for the read path.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Is all there that a view of `base` needs? To be asked after the lookup.
    #[inline]
    pub(crate) fn check(&self, base: u64) -> Result<()> {
        if self.dropped.load(Ordering::SeqCst) <= base {
            return Ok(());
        }
        Err(Error::SnapshotTooOld { commit: base, oldest: self.from() })
    }

    /// Recent commits after `base`, in order. Looked at before the maps: what is put in meanwhile is seen
    /// there or here.
    fn recent_after(&self, base: u64) -> Vec<Recent> {
        if self.recents.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.recent.read().iter().filter(|commit| commit.number > base).cloned().collect()
    }

    /// State of a namespace's key as of commit `base`, when a later commit changed it: what the oldest such
    /// commit replaced.
    pub(crate) fn get(&self, namespace: u8, key: &Key, base: u64) -> Option<Stored> {
        let recent = if self.recents.load(Ordering::Acquire) == 0 {
            None
        } else {
            let commits = self.recent.read();
            let from = commits.partition_point(|commit| commit.number <= base);
            let mut later = commits.iter().skip(from);
            later.find_map(|commit| Some(commit.of(namespace)?.changes.find(key)?.prior.clone()))
        };
        // Commits that were put in are older.
        self.change_after(namespace, key, base).map(|(_, prior)| prior).or(recent)
    }

    /// The oldest commit after `base` that changed a key, and what it replaced; of commits that are put in.
    pub(crate) fn change_after(
        &self,
        namespace: u8,
        key: &Key,
        base: u64,
    ) -> Option<(u64, Stored)> {
        self.maps.get(namespace)?.values.get(key, base)
    }

    /// Adds the states as of `base` of all of a namespace's keys below `prefix` that later commits changed, sorted.
    pub(crate) fn below(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
        found: &mut Vec<(Key, Stored)>,
    ) {
        let recent = self.recent_after(base);
        let from = found.len();
        if let Some(Maps { values, .. }) = self.maps.get(namespace) {
            let keys = *prefix.first_key()..=prefix.last_key();
            values.ranges(&[keys], base, |_, key, _, prior| found.push((*key, prior.clone())));
        }
        if recent.is_empty() {
            return;
        }
        let mut states = BTreeMap::new();
        // Newest first, so that the oldest commit has the last word.
        for undone in recent.iter().rev().filter_map(|commit| commit.of(namespace)) {
            for changed in undone.changes.within(&(*prefix.first_key()..=prefix.last_key())) {
                states.insert(changed.key, changed.prior.clone());
            }
        }
        states.extend(found.drain(from..));
        found.extend(states);
    }

    /// Nodes of pages below, and above, `prefix` that commits after `base` replaced.
    pub(super) fn page_nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> Vec<ReplacedNode> {
        self.nodes(namespace, prefix, base, |maps| &maps.pages, |nodes| &nodes.pages)
    }

    /// The same of regions.
    pub(super) fn region_nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
    ) -> Vec<ReplacedNode> {
        self.nodes(namespace, prefix, base, |maps| &maps.regions, |nodes| &nodes.regions)
    }

    fn nodes(
        &self,
        namespace: u8,
        prefix: &Prefix,
        base: u64,
        versions: fn(&Maps) -> &NodeVersions,
        of: fn(&ReplacedNodes) -> &ReplacedList,
    ) -> Vec<ReplacedNode> {
        let mut found = Vec::with_capacity(PAGES);
        for commit in self.recent_after(base) {
            if let Some(undone) = commit.of(namespace) {
                of(&undone.nodes).below(prefix, commit.number, &mut found);
            }
        }
        if let Some(maps) = self.maps.get(namespace) {
            versions(maps).below(prefix, base, &mut found);
        }
        found
    }

    /// Shows the states as of `base` of all of a namespace's keys in some ranges, which ascend, that later commits
    /// changed: in order, each with the number of its range.
    pub(super) fn ranges(
        &self,
        namespace: u8,
        ranges: &[RangeInclusive<Key>],
        base: u64,
        mut see: impl FnMut(usize, &Key, &Stored),
    ) {
        let recent = self.recent_after(base);
        let maps = self.maps.get(namespace);
        if recent.is_empty() {
            if let Some(Maps { values, .. }) = maps {
                values.ranges(ranges, base, |range, key, _, prior| see(range, key, prior));
            }
            return;
        }
        let mut states = BTreeMap::new();
        // As in `below`.
        for undone in recent.iter().rev().filter_map(|commit| commit.of(namespace)) {
            for (range, keys) in ranges.iter().enumerate() {
                for changed in undone.changes.within(keys) {
                    states.insert((range, changed.key), changed.prior.clone());
                }
            }
        }
        if let Some(Maps { values, .. }) = maps {
            values.ranges(ranges, base, |range, key, _, prior| {
                states.insert((range, *key), prior.clone());
            });
        }
        for ((range, key), prior) in &states {
            see(*range, key, prior);
        }
    }

    /// What commits after `base` say of the nodes that some pages, in order, had inside as of `base`, as far as
    /// folds that access these buckets of them ask for it. The nodes are added to `nodes`.
    pub(super) fn inside(
        &self,
        namespace: u8,
        pages: &[Prefix],
        accessed: &[u32],
        base: u64,
        nodes: &mut Vec<Node>,
    ) -> Vec<FoundNodes> {
        let recent = self.recent_after(base);
        let maps = self.maps.get(namespace);
        let slabs = maps.map(|maps| maps.pages.slabs());
        let maps = maps.zip(slabs.as_deref());
        let recent = recent.iter().filter_map(|commit| commit.of(namespace)).collect();
        let find = Find { base, maps, recent };
        let mut found: Vec<FoundNodes> = Vec::with_capacity(pages.len());
        for (some, accessed) in pages.chunks(PAGES).zip(accessed.chunks(PAGES)) {
            let from = found.len();
            let mut searches: Vec<_> = accessed.iter().map(|one| OlderSearch::new(*one)).collect();
            find.tell(some, &mut searches);
            found.extend(searches.iter().map(|search| search.found(nodes)));
            // Soon after a load or a restart some nodes are unknown.
            let mut unknown: Vec<usize> = (from..found.len()).collect();
            while !unknown.is_empty() {
                let again = |at: usize| Some((at, found[at].again()?));
                (unknown, searches) = unknown.into_iter().filter_map(again).unzip();
                let prefixes: Vec<Prefix> = unknown.iter().map(|at| pages[*at]).collect();
                find.tell(&prefixes, &mut searches);
                for (at, search) in unknown.iter().zip(&searches) {
                    found[*at] = search.found(nodes);
                }
            }
        }
        found
    }
}

impl Undo {
    /// Keeps what a fold as of `base` has found out of the insides of some pages, which nobody knew: prefixes,
    /// each with the last commit that the fold knew of, and the nodes by position.
    pub(super) fn learn<'a>(
        &self,
        namespace: u8,
        base: u64,
        learned: impl Iterator<Item = (&'a Prefix, u64, &'a [(u8, Node)])>,
    ) {
        if let Some(maps) = self.maps.get(namespace) {
            // What is gone by then may have been missing from the fold.
            maps.pages.learn(base, || self.check(base).is_ok(), learned);
        }
    }
}

/// Who says something of the insides of pages.
struct Find<'a> {
    base: u64,
    maps: Option<(&'a Maps, &'a Slabs)>,
    /// Commits after those that were put in.
    recent: Vec<&'a Undone>,
}

impl<'a> Find<'a> {
    /// Tells the searches of some pages, in order.
    fn tell(&self, pages: &[Prefix], searches: &mut [OlderSearch<'a>]) {
        // Commits that were put in are older: what they say stays.
        if let Some((maps, slabs)) = self.maps {
            maps.pages.inside(pages, self.base, slabs, searches);
        }
        for undone in &self.recent {
            for (page, search) in pages.iter().zip(&mut *searches) {
                undone.nodes.pages.inside(page, search);
            }
        }
    }
}
