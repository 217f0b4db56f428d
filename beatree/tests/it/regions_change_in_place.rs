//! A region takes few changes one by one and many in one pass; both ways lead to the same region.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use pleach_beatree::children::{ChildRef, ChildTable};
use pleach_beatree::region::{
    BufferedGrowth, NewNodes, Region, RegionCommit, RegionState, Relocation, count_change,
    count_commit,
};
use pleach_beatree::{PageNo, Stored};
use pleach_core::prefix::Prefix;
use pleach_core::{Hasher, Key, Node};
use proptest::prelude::*;

const BITS: u8 = 4;
const CHILDREN: usize = 1 << BITS;

fn child(index: usize) -> Prefix {
    Prefix::ROOT.descendant(BITS, u8::try_from(index).expect("few"))
}

fn region() -> Region {
    let children: Vec<ChildRef> = (0..CHILDREN)
        .map(|index| ChildRef {
            prefix: child(index),
            page: Some(PageNo::new(index as u32)),
            tag: 0,
        })
        .collect();
    let children = ChildTable::new(Prefix::ROOT, &children);
    Region::new(Hasher::BLAKE3, 0, children, vec![[1; 32].into(); CHILDREN], 0)
}

fn key(draw: u16) -> Key {
    let mut key = [0; 32];
    key[..2].copy_from_slice(&draw.to_be_bytes());
    // Some keys share their first 32 bits.
    key[31] = (draw % 7) as u8;
    if draw.is_multiple_of(3) {
        key[1] = 0;
    }
    key
}

/// Applies a commit; `nodes` says how many children it claims to change.
fn apply(state: &mut RegionState, commit: u64, keys: &[Key], nodes: usize) -> BufferedGrowth {
    let nodes: Vec<(u32, Node)> = (0..nodes).map(|at| (at as u32, [2; 32].into())).collect();
    let value = |key: &Key| match key[1] % 4 {
        0 => Stored::Absent,
        _ => Stored::Inline(vec![key[1]; usize::from(key[1] % 40)].into()),
    };
    let mut changes = keys.iter().map(|key| (*key, value(key)));
    let mut applied = RegionCommit {
        commit,
        version: commit,
        log_position: commit * 100,
        changes: &mut changes,
        nodes: NewNodes::Children(&nodes),
    };
    state.apply(&mut applied, &mut Vec::new(), |_, _| {})
}

fn moved(state: &RegionState, index: usize) -> (ChildRef, Node) {
    let child_ref =
        ChildRef { prefix: child(index), page: Some(PageNo::new(1000 + index as u32)), tag: 5 };
    (child_ref, *state.node(index))
}

fn look(state: &RegionState) -> Vec<(Key, Stored, u64)> {
    let pending = state.buffered().iter();
    pending.map(|one| (one.key, one.stored.clone(), one.commit)).collect()
}

fn counts(state: &RegionState) -> Vec<u8> {
    (0..CHILDREN).map(|child| state.changes_since_write(child)).collect()
}

proptest! {
    #[test]
    fn few_at_a_time_and_many_at_once_are_the_same(
        commits in prop::collection::vec(prop::collection::btree_set(any::<u16>(), 0..40), 1..8),
        last_commit in 0u64..8,
        ranges in prop::collection::btree_set(0usize..CHILDREN, 7..CHILDREN),
    ) {
        let (few, many) = (region(), region());
        let (mut few, mut many) = (few.write(), many.write());
        for (number, draws) in (1..).zip(&commits) {
            let keys: std::collections::BTreeSet<Key> = draws.iter().map(|draw| key(*draw)).collect();
            let keys: Vec<Key> = keys.into_iter().collect();
            let one = apply(&mut few, number, &keys, 0);
            let all = apply(&mut many, number, &keys, CHILDREN);
            prop_assert_eq!(one, all);
            prop_assert_eq!(look(&few), look(&many));
            prop_assert_eq!(counts(&few), counts(&many));
            for key in &keys {
                prop_assert!(few.buffered_change(key).is_some_and(|own| own.commit == number));
            }
        }
        let ranges: Vec<usize> = ranges.into_iter().collect();
        let relocate = |state: &mut RegionState, ranges: &[usize], position: u64| {
            let pages: Vec<_> = ranges.iter().map(|index| [moved(state, *index)]).collect();
            let moves: Vec<Relocation<'_>> = ranges
                .iter()
                .zip(&pages)
                .map(|(index, pages)| Relocation { range: child(*index), pages, last_commit })
                .collect();
            let done = state.relocate(&moves, position);
            (done.bytes, done.entries)
        };
        let all = relocate(&mut many, &ranges, 10_000);
        let mut one = (0, 0);
        for (position, ranges) in (10_000..).zip(ranges.chunks(3)) {
            let (bytes, entries) = relocate(&mut few, ranges, position);
            one = (one.0 + bytes, one.1 + entries);
        }
        prop_assert_eq!(one, all);
        prop_assert_eq!(look(&few), look(&many));
        prop_assert_eq!(counts(&few), counts(&many));
        for index in 0..CHILDREN {
            prop_assert_eq!(few.children().get(index), many.children().get(index));
            let below = few.buffered_below(&child(index));
            prop_assert!(below.iter().all(|one| child(index).covers(&one.key)));
        }
        for (position, one) in few.buffered().iter().enumerate() {
            let page_no = ranges.contains(&few.children().find(&one.key));
            prop_assert!(!page_no || one.commit > last_commit, "entry {position} should have gone");
        }
    }
}

/// As many changes as a large block has, all in one child, of which a flush takes every second: if each were inserted
/// and removed by itself, terabytes would be moved, and the test would take hours.
#[test]
fn a_child_takes_all_changes_of_a_block() {
    const CHANGES: u32 = 400_000;
    let keys = |odd: u32| -> Vec<Key> {
        let key = |at: u32| {
            let mut key = [0; 32];
            key[1..5].copy_from_slice(&(2 * at + odd).to_be_bytes());
            key
        };
        (0..CHANGES).map(key).collect()
    };
    let region = region();
    let mut state = region.write();
    let growth = [(1, 0), (2, 1)].map(|(commit, odd)| apply(&mut state, commit, &keys(odd), 1));
    assert!(growth.iter().all(|growth| usize::try_from(growth.entries) == Ok(CHANGES as usize)));
    let pages = [moved(&state, 0)];
    let moved = Relocation { range: child(0), pages: &pages, last_commit: 1 };
    let done = state.relocate(&[moved], 300);
    assert_eq!(done.entries, CHANGES as usize);
    assert!(state.buffered().iter().map(|one| one.key).eq(keys(1)));
    // Each change that stays counts.
    assert_eq!(counts(&state)[..2], [255, 0]);
}

/// A page that is changed in one key by each commit waits for 24 commits, and one that is changed much for eight.
#[test]
fn a_commit_counts_as_three_changes_at_most() {
    let region = region();
    let mut state = region.write();
    let mut low = [0; 32];
    let keys: Vec<Key> = (0..4)
        .map(|at| {
            (low[1], low[31]) = (1, at);
            low
        })
        .collect();
    for (commit, count) in [(1, 1), (2, 2), (3, 4), (4, 1)] {
        apply(&mut state, commit, &keys[..count], 1);
    }
    assert_eq!(counts(&state)[..2], [1 + 2 + 3 + 1, 0]);
    let long = |bytes: usize| Stored::Inline(vec![7; bytes].into());
    let counted = [8, 300, 600, 5000].map(|bytes| count_change(0, &long(bytes)));
    assert_eq!((counted, count_change(2, &long(300))), ([1, 2, 3, 3], 4));
    assert_eq!(count_change(0, &Stored::Absent), 3);
    assert_eq!([0, 2, 3, 4, 254, 255].map(count_commit), [0, 2, 3, 3, 3, 255]);
    // So many that the page is rewritten into several.
    let many: Vec<Key> = (0..=u8::MAX)
        .map(|at| {
            (low[1], low[31]) = (2, at);
            low
        })
        .collect();
    let before = counts(&state)[0];
    apply(&mut state, 5, &many[..254], 1);
    assert_eq!(counts(&state)[..2], [before + 3, 0]);
    apply(&mut state, 6, &many[..255], 1);
    assert_eq!(counts(&state)[..2], [u8::MAX, 0]);
}
