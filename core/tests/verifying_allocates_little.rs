//! Whatever the bytes claim, verifying them holds at most four times their length (and a constant) at any moment.
#![cfg(feature = "naive")]
#![expect(unsafe_code, reason = "an allocator that counts has to be an allocator")]

#[path = "it/common/mod.rs"]
mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use common::{SPREADS, below, cases, mutate::mutate, rng, set, some_keys, some_ops};
use pleach_core::{
    Hasher, Key, Node, TERMINATOR,
    naive::{self, NaiveTrie},
    proof::{
        ProofKind, block, change, multi, namespace, path, range,
        roots::NamespaceRoots,
        wire::{self, SectionSizes},
        witness,
    },
};

const BLAKE3: Hasher = Hasher::BLAKE3;

thread_local! {
    /// Bytes held by this thread, and the most it ever held.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(more: isize) {
    // A thread that is ending has no counter any more, and nothing to count.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + more, most.max(now + more)));
    });
}

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size()).unwrap_or(isize::MAX)
}

// SAFETY: every call is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: as above; the block came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The stack of waiting subtries: at most 256 of them, twice while the vector grows.
const CONSTANT: usize = 64 << 10;

/// The range of range and change proofs.
const FIRST: Key = [0x20; 32];
const LAST: Key = [0xa6; 32];

/// A block's list of namespaces, at most 256.
const NAMESPACES: usize = 64 << 10;

fn bounded(bytes: &[u8], run: impl FnOnce(&[u8])) {
    bounded_with(CONSTANT, bytes, run);
}

fn bounded_with(constant: usize, bytes: &[u8], run: impl FnOnce(&[u8])) {
    HELD.with(|held| held.set((0, 0)));
    run(bytes);
    let (_, most) = HELD.with(Cell::get);
    let most = usize::try_from(most).unwrap();
    assert!(most <= 4 * bytes.len() + constant, "{most} bytes held for {}", bytes.len());
}

fn all_bounded(bytes: &[u8], root: &Node) {
    bounded(bytes, |bytes| _ = path::verify(BLAKE3, bytes, root));
    bounded(bytes, |bytes| {
        _ = multi::verify(BLAKE3, bytes, root).map(|v| v.get(root.as_bytes()));
    });
    bounded(bytes, |bytes| {
        _ = witness::verify(BLAKE3, bytes, root).map(|v| v.get(root.as_bytes()));
    });
    bounded(bytes, |bytes| {
        _ = range::verify(BLAKE3, bytes, root, &FIRST, &LAST).map(|v| v.pairs().count());
    });
    bounded(bytes, |bytes| {
        _ = change::verify(BLAKE3, bytes, root, &TERMINATOR, &FIRST, &LAST)
            .map(|v| v.changes().count());
    });
    bounded(bytes, |bytes| _ = namespace::open(BLAKE3, bytes, root));
    bounded(bytes, |bytes| _ = namespace::open_change(BLAKE3, bytes, root, root));
    bounded_with(CONSTANT + NAMESPACES, bytes, |bytes| {
        _ = block::verify(BLAKE3, bytes, root).map(|v| v.namespaces().len());
    });
}

#[test]
fn memory_is_bounded_for_blocks_over_all_namespaces() {
    let mut rng = rng(2);
    for count in [0, 1, 300] {
        // Reads of what is absent are the shortest witnesses, and namespaces cost the most by them.
        let set = set(common::Spread::Uniform, &mut rng, count);
        let ops = naive::reads(&[[0x55; 32]]);
        let witness = set.witness(BLAKE3, &ops).encode(BLAKE3).unwrap();
        let roots: NamespaceRoots = (0..=255).map(|ns| (ns, set.root(BLAKE3))).collect();
        let part = |ns| block::NamespaceClaim {
            ns,
            after: Some(set.root(BLAKE3)),
            witness: Some(&witness),
        };
        let parts: Vec<_> = (0..=255).map(part).collect();
        let mut bytes = block::build(BLAKE3, &roots, &parts).unwrap();
        let root = roots.over_all(BLAKE3);
        assert_eq!(block::verify(BLAKE3, &bytes, &root).unwrap().namespaces().len(), 256);
        for _ in 0..cases(20) {
            all_bounded(&bytes, &root);
            mutate(&mut rng, &mut bytes);
        }
    }
}

#[test]
fn memory_is_bounded_by_the_input_for_valid_and_changed_encodings() {
    for seed in 0..cases(30) {
        for spread in SPREADS {
            let mut rng = rng(seed);
            let count = below(&mut rng, 80);
            let set = set(spread, &mut rng, count);
            let root = set.root(BLAKE3);
            let keys = some_keys(&set, spread, &mut rng, 30);
            let ops = some_ops(&set, spread, &mut rng, 30);
            for mut bytes in [
                set.multi(BLAKE3, &keys).encode(BLAKE3).unwrap(),
                set.witness(BLAKE3, &ops).encode(BLAKE3).unwrap(),
                set.range(BLAKE3, &FIRST, &LAST),
                set.change(BLAKE3, &NaiveTrie::new(), &FIRST, &LAST),
            ] {
                for _ in 0..20 {
                    all_bounded(&bytes, &root);
                    mutate(&mut rng, &mut bytes);
                }
            }
        }
    }
}

#[test]
fn memory_is_bounded_for_large_witnesses_and_long_lists_of_tiny_terminals() {
    let mut rng = rng(1);
    let set = set(common::Spread::Uniform, &mut rng, 3000);
    let ops = some_ops(&set, common::Spread::Uniform, &mut rng, 3000);
    let bytes = set.witness(BLAKE3, &ops).encode(BLAKE3).unwrap();
    let root = set.root(BLAKE3);
    bounded(&bytes, |bytes| assert!(witness::verify(BLAKE3, bytes, &root).is_ok()));
    let bytes = set.range(BLAKE3, &FIRST, &LAST);
    bounded(&bytes, |bytes| {
        assert!(range::verify(BLAKE3, bytes, &root, &FIRST, &LAST).is_ok());
    });
    // Twice the leaves, and nearly all siblings on both sides; then few siblings and many leaves.
    for fraction in [10, 1] {
        let mut to = set.clone();
        let changed = set.pairs().keys().step_by(fraction);
        changed.for_each(|key| to.set(*key, Some([7; 32].into())));
        let (from, to_root) = (&set, to.root(BLAKE3));
        let bytes = from.change(BLAKE3, &to, &FIRST, &LAST);
        bounded(&bytes, |bytes| {
            assert!(change::verify(BLAKE3, bytes, &root, &to_root, &FIRST, &LAST).is_ok());
        });
    }
    // 2^15 empty subtries with prefixes of two bytes each: well-formed, and never hashed.
    let mut section = Vec::new();
    for first in 0..1u16 << 15 {
        section.extend_from_slice(&[15, 0]);
        section.extend_from_slice(&(first << 1).to_be_bytes());
    }
    for claimed in [1 << 15, u32::MAX, 1 << 16] {
        let sizes = SectionSizes {
            terminals: claimed,
            terminal_bytes: u32::try_from(section.len()).unwrap(),
            ..SectionSizes::default()
        };
        let mut bytes = wire::header(BLAKE3, ProofKind::Multi, &sizes).to_vec();
        bytes.extend_from_slice(&section);
        bounded(&bytes, |bytes| assert!(multi::verify(BLAKE3, bytes, &root).is_err()));
        bytes[5] = ProofKind::Range as u8;
        bounded(&bytes, |bytes| {
            let verdict = range::verify(BLAKE3, bytes, &root, &[0; 32], &[0xff; 32]);
            assert!(verdict.is_err());
        });
        let sizes = SectionSizes { ops: claimed, op_bytes: sizes.terminal_bytes, ..sizes };
        let mut bytes = wire::header(BLAKE3, ProofKind::Change, &sizes).to_vec();
        (0..2).for_each(|_| bytes.extend_from_slice(&section));
        bounded(&bytes, |bytes| {
            let verdict = change::verify(BLAKE3, bytes, &root, &root, &[0; 32], &[0xff; 32]);
            assert!(verdict.is_err());
        });
    }
}
