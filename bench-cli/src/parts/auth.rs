//! `nomt-bench auth`: what it costs that a state is authenticated, beside maps that are not, and beside a
//! digest of everything that was written.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::path::Path;

use pleach::Key;

use super::engine::root_of_load;
use super::sheet::{Subject, Turn};
use super::states::States;
use super::{Sheet, draws};
use crate::account;
use crate::args::parts::AuthArgs;
use crate::error::{BenchError, Result};
use crate::progress::Progress;
use crate::stores::Engine;
use crate::text::grouped;
use crate::trees::{Change, Ground, Tree};

type Pair = (Key, u64);

/// Blocks one after the other.
const BLOCKS: usize = 3;

/// Measures all cases; databases are made in a folder.
pub(crate) fn run(args: &AuthArgs, at: &Path, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
    let runs = |ground| match ground {
        Ground::Flat(Engine::BTreeMap) => Err("a plain map stands beside in each case"),
        _ => Ok(()),
    };
    // Every second pair of a block is new.
    let keys = args.sizes.iter().copied().max().unwrap_or(0) * 2;
    let states = States::new(&args.states, (args.storage.cache_mib(), keys), runs, sheet)?;
    states.fit()?;
    for &ground in &states.grounds {
        let folder = tempfile::tempdir_in(at).map_err(BenchError::file(at))?;
        let tree = states.open(ground, folder.path())?;
        states.note(ground, &*tree, sheet);
        tree.close()?;
        if !ground.is_merkle() {
            sheet.notes.push(format!("{}: no commitment to be measured", ground.name()));
        }
    }
    for &size in &args.sizes {
        let size = usize::try_from(size).expect("checked by the flag");
        let bench = Bench::new(args, &states, at, size)?;
        bench.get(bar, sheet)?;
        bench.set(bar, sheet)?;
        bench.commitment(bar, sheet)?;
        bench.sequential(bar, sheet)?;
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a AuthArgs,
    states: &'a States,
    at: &'a Path,
    /// Blocks of pairs; the first is that of all cases but one.
    blocks: Vec<Vec<Pair>>,
    /// The root after each block.
    roots: Vec<pleach::Node>,
    /// The state after the last block.
    state: Vec<Pair>,
}

/// A state as a subject. A plain store is the flat part only: it stands in a case of its own, and no claim is made.
fn subject(ground: Ground) -> String {
    format!("{}{}", ground.part(), ground.name())
}

fn wrong(what: &str, size: usize) -> BenchError {
    BenchError::Wrong(format!("{what} of {} pairs", grouped(size as u64)))
}

/// Pairs as a block of blind writes.
fn of_pairs(pairs: &[Pair]) -> Vec<Change> {
    pairs.iter().map(|(key, value)| (*key, Some(value.to_le_bytes().to_vec()))).collect()
}

/// The values of these pairs are there.
fn check_tree(tree: &mut dyn Tree, ground: Ground, pairs: &[Pair]) -> Result<()> {
    let keys: Vec<Key> = pairs.iter().map(|pair| pair.0).collect();
    let found = tree.read(&keys)?;
    let expected = of_pairs(pairs).into_iter().map(|change| change.1);
    if found.into_iter().eq(expected) {
        return Ok(());
    }
    Err(wrong(&format!("{}: the values", ground.name()), pairs.len()))
}

/// Hashes pairs as they come.
fn roll(hasher: &mut blake3::Hasher, pairs: &[Pair]) -> blake3::Hash {
    for (key, value) in pairs {
        hasher.update(key);
        hasher.update(&value.to_le_bytes());
    }
    hasher.finalize()
}

impl<'a> Bench<'a> {
    fn new(args: &'a AuthArgs, states: &'a States, at: &'a Path, size: usize) -> Result<Self> {
        let mut random = draws(args.parts.results.seed, size as u64);
        let mut next = 0_u64;
        let mut blocks: Vec<Vec<Pair>> = Vec::new();
        let (mut state, mut roots) = (BTreeMap::new(), Vec::new());
        for block in 0..BLOCKS {
            let old = if block == 0 { 0 } else { size / 2 };
            let mut pairs: Vec<Pair> = Vec::with_capacity(size);
            if let Some(before) = blocks.last() {
                // Every second one of the block before, so that no key comes twice.
                pairs.extend(
                    before.iter().step_by(2).take(old).map(|(key, _)| (*key, random.bits())),
                );
            }
            while pairs.len() < size {
                pairs.push((account::key(next), random.bits()));
                next += 1;
            }
            // In no order, as blocks have them.
            for at in (1..pairs.len()).rev() {
                pairs.swap(at, usize::try_from(random.below(at as u64 + 1)).expect("an index"));
            }
            state.extend(pairs.iter().copied());
            let all: Vec<Pair> = state.iter().map(|(key, value)| (*key, *value)).collect();
            roots.push(root_of_load(at, &all)?);
            blocks.push(pairs);
        }
        Ok(Self { args, states, at, blocks, roots, state: state.into_iter().collect() })
    }

    /// The states of a case, this project's engine first if it was named.
    fn grounds(&self) -> Vec<Ground> {
        let mut grounds = self.states.grounds.clone();
        grounds.sort_by_key(|ground| *ground != Ground::Pleach);
        grounds
    }

    /// Those of them with a root.
    fn merkle(&self) -> impl Iterator<Item = Ground> {
        self.grounds().into_iter().filter(|ground| ground.is_merkle())
    }

    /// A subject: some blocks, one after the other, on an empty state. With `commits` they are committed, each with a
    /// sync, else they stay in memory, over each other, and are forgotten. Of each state the clock has the same: a block is begun, finished and committed;
    /// its changes are there before, as bytes.
    fn turns<'b>(&'b self, ground: Ground, blocks: &'b [Vec<Pair>], commits: bool) -> Subject<'b> {
        let turn = move |_| {
            let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            let mut tree = self.states.open(ground, folder.path())?;
            let changes: Vec<Vec<Change>> = blocks.iter().map(|pairs| of_pairs(pairs)).collect();
            let (turn, roots) = Turn::of(|| {
                let one = |changes| {
                    tree.begin()?;
                    let root = tree.finish(changes)?.root;
                    if commits { tree.commit().map(|()| root) } else { Ok(root) }
                };
                changes.into_iter().map(one).collect::<Result<Vec<_>>>()
            });
            let roots = roots?;
            let expected = self.roots.iter().map(|root| Some(root.to_bytes()));
            if ground.has_our_roots() && !roots.iter().copied().eq(expected.take(roots.len())) {
                return Err(wrong(&format!("{}: a root", ground.name()), blocks[0].len()));
            }
            if commits {
                let state: BTreeMap<Key, u64> = blocks.iter().flatten().copied().collect();
                check_tree(&mut *tree, ground, &state.into_iter().collect::<Vec<_>>())?;
            } else {
                tree.discard()?;
            }
            tree.close()?;
            Ok(turn)
        };
        (subject(ground), Box::new(turn))
    }

    fn name(&self, what: &str) -> (String, u64) {
        let size = self.blocks[0].len() as u64;
        (format!("{what}, {}", grouped(size)), size)
    }

    fn get(&self, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let pairs = &self.blocks[0];
        let hashed: HashMap<Key, u64> = pairs.iter().copied().collect();
        let ordered: BTreeMap<Key, u64> = pairs.iter().copied().collect();
        let sum: u64 = pairs.iter().fold(0, |sum, pair| sum.wrapping_add(pair.1));
        let judge =
            |found: u64| if found == sum { Ok(()) } else { Err(wrong("values", pairs.len())) };
        let plain = |get: &dyn Fn(&Key) -> u64| {
            let (turn, found) =
                Turn::of(|| pairs.iter().fold(0_u64, |sum, (key, _)| sum.wrapping_add(get(key))));
            judge(found)?;
            Ok(turn)
        };
        let (name, operations) = self.name("get");
        let maps: [Subject<'_>; 2] = [
            ("hashmap".to_owned(), Box::new(|_| plain(&|key| hashed[key]))),
            ("btreemap".to_owned(), Box::new(|_| plain(&|key| ordered[key]))),
        ];
        let keys: Vec<Key> = pairs.iter().map(|pair| pair.0).collect();
        let mut folders = Vec::new();
        let mut subjects: Vec<Subject<'_>> = Vec::new();
        for ground in self.grounds() {
            let folder = tempfile::tempdir_in(self.at).map_err(BenchError::file(self.at))?;
            let mut tree = self.states.open(ground, folder.path())?;
            folders.push(folder);
            tree.begin()?;
            tree.finish(of_pairs(pairs))?;
            tree.commit()?;
            check_tree(&mut *tree, ground, pairs)?;
            // One block for all rounds: a turn reads, and begins nothing.
            tree.begin()?;
            let (keys, judge) = (&keys, &judge);
            let turn = move |_| {
                let (turn, found) = Turn::of(|| {
                    let mut sum = 0_u64;
                    tree.visit(keys, &mut |value| {
                        let bytes = value.as_deref().and_then(|bytes| bytes.try_into().ok());
                        sum = sum.wrapping_add(u64::from_le_bytes(bytes.unwrap_or_default()));
                    })?;
                    Ok::<_, BenchError>(sum)
                });
                judge(found?)?;
                Ok(turn)
            };
            subjects.push((subject(ground), Box::new(turn)));
        }
        subjects.extend(maps);
        sheet.case(bar, (&name, operations), self.args.parts.rounds(), subjects)
    }

    /// A block that is committed. Plain maps stand beside what is not.
    fn set(&self, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let (name, operations) = self.name("set, synced");
        let first = &self.blocks[..1];
        let states = self.grounds().into_iter().map(|ground| self.turns(ground, first, true));
        sheet.case(bar, (&name, operations), self.args.parts.rounds(), states.collect())
    }

    /// A block that stays in memory, beside a digest and maps of the same.
    fn commitment(&self, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let pairs = &self.blocks[0];
        let digest = Cell::new(None);
        let rolling = |_| {
            let (turn, found) = Turn::of(|| roll(&mut blake3::Hasher::new(), pairs));
            if digest.replace(Some(found)).is_some_and(|before| before != found) {
                return Err(wrong("the digest", pairs.len()));
            }
            Ok(turn)
        };
        let hashed = |_| {
            let (turn, map) = Turn::of(|| pairs.iter().copied().collect::<HashMap<Key, u64>>());
            black_box(map);
            Ok(turn)
        };
        let ordered = |_| {
            let (turn, map) = Turn::of(|| {
                let mut map = BTreeMap::new();
                // One by one: collecting would sort first.
                for (key, value) in pairs {
                    map.insert(*key, *value);
                }
                map
            });
            black_box(map);
            Ok(turn)
        };
        let (name, operations) = self.name("commitment");
        let plain: [Subject<'_>; 3] = [
            ("rolling".to_owned(), Box::new(rolling)),
            ("hashmap".to_owned(), Box::new(hashed)),
            ("btreemap".to_owned(), Box::new(ordered)),
        ];
        let first = &self.blocks[..1];
        let states = self.merkle().map(|ground| self.turns(ground, first, false));
        let subjects = states.chain(plain).collect();
        sheet.case(bar, (&name, operations), self.args.parts.rounds(), subjects)
    }

    /// Blocks one after the other: over each other in memory, and committed.
    fn sequential(&self, bar: &Progress, sheet: &mut Sheet) -> Result<()> {
        let map = RefCell::new(HashMap::new());
        let rolling = |_| {
            map.replace(HashMap::new());
            let (turn, digests) = Turn::of(|| {
                let mut hasher = blake3::Hasher::new();
                let mut map = map.borrow_mut();
                let block = |pairs: &Vec<Pair>| {
                    map.extend(pairs.iter().copied());
                    roll(&mut hasher, pairs)
                };
                self.blocks.iter().map(block).collect::<Vec<_>>()
            });
            black_box(digests);
            let map = map.borrow();
            let same = |pair: &Pair| map.get(&pair.0) == Some(&pair.1);
            if map.len() != self.state.len() || !self.state.iter().all(same) {
                return Err(wrong("the map", self.blocks[0].len()));
            }
            Ok(turn)
        };
        let (name, operations) = self.name("sequential");
        let operations = operations * BLOCKS as u64;
        let rolling: Subject<'_> = ("rolling".to_owned(), Box::new(rolling));
        let states = self.merkle().map(|ground| self.turns(ground, &self.blocks, false));
        let subjects: Vec<_> = states.chain([rolling]).collect();
        sheet.case(bar, (&name, operations), self.args.parts.rounds(), subjects)?;
        let (name, _) = self.name("sequential, synced");
        let states = self.grounds().into_iter();
        let states = states.map(|ground| self.turns(ground, &self.blocks, true));
        sheet.case(bar, (&name, operations), self.args.parts.rounds(), states.collect())
    }
}
