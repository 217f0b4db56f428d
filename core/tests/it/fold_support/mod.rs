//! A case of the fold tests: pairs, accesses and cuts of the key space into pages and regions,
//! how to draw one, and how to make a failing one smaller.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pleach_core::{Key, Prefix};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use crate::common::{Spread, below, key};

/// Value bytes.
pub(crate) type Value = Vec<u8>;

/// What is written to a key.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Nothing,
    Put(Value),
    Delete,
}

/// One accessed key.
#[derive(Clone, Debug)]
pub(crate) struct Accessed {
    pub(crate) reads: bool,
    pub(crate) writes: Write,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    pub(crate) pairs: BTreeMap<Key, Value>,
    pub(crate) accesses: BTreeMap<Key, Accessed>,
    /// Positions that are cut in two; those above them are in the set as well. What remains
    /// uncut below them are the pages.
    pub(crate) page_cuts: BTreeSet<Prefix>,
    /// The same for regions, a subset.
    pub(crate) region_cuts: BTreeSet<Prefix>,
    /// Levels below a page's prefix at which untouched subtries are given by their node.
    pub(crate) levels: u16,
}

impl Case {
    pub(crate) fn draw(spread: Spread, rng: &mut ChaCha8Rng) -> Self {
        let mut case = Self { levels: [0, 3, 3][below(rng, 3)], ..Self::default() };
        let size = [0, 1, 2, 3, 4, 5, 9, 30, 80][below(rng, 9)];
        for _ in 0..size {
            case.pairs.insert(key(spread, rng), value(rng));
        }
        let accesses = [0, 1, 1, 2, 3, 6, 20][below(rng, 7)];
        let style = (below(rng, 5), [0, 30, 100][below(rng, 3)]);
        for _ in 0..accesses {
            let key = case.accessed_key(spread, rng, style.0);
            case.accesses.insert(key, access(rng, style.1));
        }
        let limit = [0, 3, 20, 300][below(rng, 4)];
        let page_size = [0, 1, 2, 8][below(rng, 4)];
        case.cut(rng, limit, page_size);
        case
    }

    /// A key of the set, one of the same spread, or one that parts from a key of the set at any bit.
    fn accessed_key(&self, spread: Spread, rng: &mut ChaCha8Rng, style: usize) -> Key {
        let own = self.pairs.keys().nth(below(rng, self.pairs.len().max(1)));
        match (own, (style + below(rng, 3)) % 5) {
            (Some(own), 0 | 1) => *own,
            (Some(own), 2) => {
                let mut key = *own;
                let bound = [12, 256][below(rng, 2)];
                let bit = below(rng, bound);
                key[bit / 8] ^= 0x80 >> (bit % 8);
                key
            }
            _ => key(spread, rng),
        }
    }

    fn cut(&mut self, rng: &mut ChaCha8Rng, limit: usize, page_size: usize) {
        let mut todo = vec![Prefix::ROOT];
        while !todo.is_empty() && self.page_cuts.len() < limit {
            let at = todo.swap_remove(below(rng, todo.len()));
            let keys = self.pairs.keys().chain(self.accesses.keys());
            let count = keys.filter(|key| at.covers(key)).count();
            let split = if count > page_size { below(rng, 12) > 0 } else { below(rng, 5) == 0 };
            if !split || at.len() == 256 {
                continue;
            }
            self.page_cuts.insert(at);
            if at.parent().is_none_or(|up| self.region_cuts.contains(&up)) && below(rng, 4) > 0 {
                self.region_cuts.insert(at);
            }
            todo.extend([at.child(false), at.child(true)]);
        }
    }

    pub(crate) fn pages(&self) -> Vec<Prefix> {
        tiles(&self.page_cuts)
    }

    pub(crate) fn regions(&self) -> Vec<Prefix> {
        tiles(&self.region_cuts)
    }

    pub(crate) fn pairs_below(&self, at: &Prefix) -> BTreeMap<Key, Value> {
        let pairs = self.pairs.range(*at.first_key()..=at.last_key());
        pairs.map(|(key, value)| (*key, value.clone())).collect()
    }

    pub(crate) fn is_accessed(&self, at: &Prefix) -> bool {
        self.accesses.range(*at.first_key()..=at.last_key()).next().is_some()
    }

    /// All cases with one thing less.
    fn smaller(&self) -> impl Iterator<Item = Self> + '_ {
        let pairs = self.pairs.keys().map(|key| {
            let mut case = self.clone();
            case.pairs.remove(key);
            case
        });
        let accesses = self.accesses.keys().map(|key| {
            let mut case = self.clone();
            case.accesses.remove(key);
            case
        });
        let pages = self.page_cuts.iter().map(|cut| {
            let mut case = self.clone();
            case.page_cuts.retain(|other| !cut.contains(other));
            case.region_cuts.retain(|other| !cut.contains(other));
            case
        });
        let regions = self.region_cuts.iter().map(|cut| {
            let mut case = self.clone();
            case.region_cuts.retain(|other| !cut.contains(other));
            case
        });
        let levels = (self.levels > 0).then(|| Self { levels: 0, ..self.clone() });
        pages.chain(regions).chain(accesses).chain(pairs).chain(levels)
    }

    /// Runs `check`; when it panics, panics with the smallest case that makes it panic.
    pub(crate) fn run(self, name: &str, check: impl Fn(&Self)) {
        let fails = |case: &Self| catch_unwind(AssertUnwindSafe(|| check(case))).is_err();
        if !fails(&self) {
            return;
        }
        let mut case = self;
        loop {
            let Some(smaller) = case.smaller().find(&fails) else { break };
            case = smaller;
        }
        eprintln!("{name}: smallest failing case {case:#02x?}");
        check(&case);
        panic!("{name}: fails now and then");
    }
}

fn tiles(cuts: &BTreeSet<Prefix>) -> Vec<Prefix> {
    let mut tiles = Vec::new();
    let mut todo = vec![Prefix::ROOT];
    while let Some(at) = todo.pop() {
        if cuts.contains(&at) {
            todo.extend([at.child(true), at.child(false)]);
        } else {
            tiles.push(at);
        }
    }
    tiles
}

fn value(rng: &mut ChaCha8Rng) -> Value {
    let mut value = vec![0; [0, 1, 8, 32, 63, 64, 65, 100, 300][below(rng, 9)]];
    rng.fill_bytes(&mut value);
    value
}

fn access(rng: &mut ChaCha8Rng, deletes: usize) -> Accessed {
    let written = if below(rng, 100) >= deletes { Write::Put(value(rng)) } else { Write::Delete };
    match below(rng, 3) {
        0 => Accessed { reads: true, writes: Write::Nothing },
        1 => Accessed { reads: false, writes: written },
        _ => Accessed { reads: true, writes: written },
    }
}
