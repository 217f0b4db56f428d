//! The published crate `nomt-core` computes the same roots and accepts our proofs.
#![cfg(feature = "naive")]

mod common;

use bitvec::prelude::{BitSlice, Msb0};
use common::{Oracle, SPREADS, Spread, below, cases, oracle_root, rng, set, some_keys, some_ops};
use nomt_core::{
    proof::{
        self as theirs, MultiPathProof, MultiProof as TheirMulti, PathProof as TheirPath,
        PathProofTerminal,
    },
    trie::{KeyPath, LeafData},
    trie_pos::TriePosition,
};
use pleach_core::{
    Blake3, Hasher, Key, Lookup, Node, Sha2,
    naive::Naive,
    prefix::common_len,
    proof::{MultiProof, PathProof, Terminal, multi, path, witness},
};

fn terminal(ours: &Terminal) -> PathProofTerminal {
    match ours {
        Terminal::Leaf { key, value_hash, .. } => {
            PathProofTerminal::Leaf(LeafData { key_path: *key, value_hash: value_hash.to_bytes() })
        }
        Terminal::Terminator { prefix } => {
            let depth = usize::from(prefix.len());
            PathProofTerminal::Terminator(if depth == 0 {
                TriePosition::new()
            } else {
                TriePosition::from_path_and_depth(*prefix.first_key(), prefix.len())
            })
        }
    }
}

fn terminal_back(theirs: &PathProofTerminal, depth: usize) -> Terminal {
    match theirs {
        PathProofTerminal::Leaf(leaf) => Terminal::Leaf {
            depth: u16::try_from(depth).unwrap(),
            key: leaf.key_path,
            value_hash: leaf.value_hash.into(),
        },
        PathProofTerminal::Terminator(position) => {
            let mut key = [0; 32];
            for (index, bit) in position.path().iter().by_vals().enumerate() {
                key[index / 8] |= u8::from(bit) << (7 - index % 8);
            }
            Terminal::Terminator { prefix: pleach_core::Prefix::new(&key, position.depth()) }
        }
    }
}

/// Nodes as the other crate has them: plain bytes.
fn raw(nodes: &[Node]) -> Vec<[u8; 32]> {
    nodes.iter().map(|node| node.to_bytes()).collect()
}

fn nodes(raw: &[[u8; 32]]) -> Vec<Node> {
    Node::slice_of(raw).to_vec()
}

fn path_out(ours: &PathProof) -> TheirPath {
    TheirPath { terminal: terminal(&ours.terminal), siblings: raw(&ours.siblings) }
}

fn path_back(theirs: &TheirPath) -> PathProof {
    PathProof {
        terminal: terminal_back(&theirs.terminal, theirs.siblings.len()),
        siblings: nodes(&theirs.siblings),
    }
}

/// The siblings of a range of terminals, all below `depth`, in the other crate's order: those of
/// the shared path from the top down, then the left side's, then the right side's. Ours come from
/// the end of the list, in the reverse of post-order.
fn reorder(terminals: &[Terminal], depth: u16, ours: &mut Vec<[u8; 32]>, out: &mut Vec<[u8; 32]>) {
    let (first, last) = (&terminals[0], &terminals[terminals.len() - 1]);
    let fork =
        if terminals.len() == 1 { first.depth() } else { common_len(first.bits(), last.bits()) };
    let above = ours.split_off(ours.len() - usize::from(fork - depth));
    out.extend(above.iter().rev());
    if terminals.len() > 1 {
        let middle = terminals.partition_point(|t| !pleach_core::prefix::bit(t.bits(), fork));
        // Post-order: the right side's siblings come after the left side's.
        let mut right = Vec::new();
        reorder(&terminals[middle..], fork + 1, ours, &mut right);
        reorder(&terminals[..middle], fork + 1, ours, out);
        out.extend(right);
    }
}

fn multi_out(ours: &MultiProof) -> TheirMulti {
    let mut siblings = Vec::new();
    let mut left = raw(&ours.siblings);
    if !ours.terminals.is_empty() {
        reorder(&ours.terminals, 0, &mut left, &mut siblings);
    }
    assert!(left.is_empty());
    let paths = ours
        .terminals
        .iter()
        .map(|t| MultiPathProof { terminal: terminal(t), depth: usize::from(t.depth()) })
        .collect();
    TheirMulti { paths, siblings }
}

/// The other way: our order from the other crate's.
fn reorder_back(
    terminals: &[Terminal],
    depth: u16,
    theirs: &mut &[[u8; 32]],
    out: &mut Vec<[u8; 32]>,
) {
    let (first, last) = (&terminals[0], &terminals[terminals.len() - 1]);
    let fork =
        if terminals.len() == 1 { first.depth() } else { common_len(first.bits(), last.bits()) };
    let (above, rest) = theirs.split_at(usize::from(fork - depth));
    *theirs = rest;
    if terminals.len() > 1 {
        let middle = terminals.partition_point(|t| !pleach_core::prefix::bit(t.bits(), fork));
        reorder_back(&terminals[..middle], fork + 1, theirs, out);
        reorder_back(&terminals[middle..], fork + 1, theirs, out);
    }
    out.extend(above.iter().rev());
}

fn multi_back(theirs: &TheirMulti) -> MultiProof {
    let terminals: Vec<_> =
        theirs.paths.iter().map(|p| terminal_back(&p.terminal, p.depth)).collect();
    let mut siblings = Vec::new();
    let mut left = theirs.siblings.as_slice();
    if !terminals.is_empty() {
        reorder_back(&terminals, 0, &mut left, &mut siblings);
    }
    assert!(left.is_empty());
    MultiProof { terminals, siblings: nodes(&siblings) }
}

fn bits(key: &Key) -> &BitSlice<u8, Msb0> {
    BitSlice::from_slice(key)
}

fn check_paths<H: Oracle>(set: &Naive, keys: &[Key]) {
    let root = set.root::<H>();
    for key in keys {
        let ours = set.path::<H>(key);
        let foreign = path_out(&ours);
        let accepted = foreign.verify::<H::Published>(bits(key), root.into()).expect("accepted");
        assert_eq!(path_back(&foreign), ours);
        let bytes = ours.encode::<H>().unwrap();
        let verified = path::verify::<H>(&bytes, &root).expect("our own");
        match (verified.get(key), set.get(key)) {
            (Lookup::Present(found), Some(wanted)) => {
                assert_eq!(found, *wanted);
                let leaf = LeafData { key_path: *key, value_hash: found.into() };
                assert!(accepted.confirm_value(&leaf).unwrap());
            }
            (Lookup::Absent, None) => assert!(accepted.confirm_nonexistence(key).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

fn check_multi<H: Oracle>(set: &Naive, keys: &[Key]) {
    let root = set.root::<H>();
    let ours = set.multi::<H>(keys);
    let foreign = multi_out(&ours);
    assert_eq!(multi_back(&foreign), ours);
    let bytes = ours.encode::<H>().unwrap();
    let verified = multi::verify::<H>(&bytes, &root).expect("our own");
    assert_eq!(verified.terminals().collect::<Vec<_>>(), ours.terminals);
    if keys.is_empty() {
        return;
    }
    let accepted =
        theirs::verify_multi_proof::<H::Published>(&foreign, root.into()).expect("accepted");
    let mut paths: Vec<_> = keys.iter().map(|key| path_out(&set.path::<H>(key))).collect();
    paths.dedup_by(|a, b| a.terminal == b.terminal);
    assert_eq!(TheirMulti::from_path_proofs(paths), foreign, "built from separate paths");
    for key in keys {
        match (verified.get(key), set.get(key)) {
            (Lookup::Present(found), Some(wanted)) => {
                assert_eq!(found, *wanted);
                let leaf = LeafData { key_path: *key, value_hash: found.into() };
                assert!(accepted.confirm_value(&leaf).unwrap());
            }
            (Lookup::Absent, None) => assert!(accepted.confirm_nonexistence(key).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

fn check_update<H: Oracle>(set: &mut Naive, ops: &[pleach_core::proof::Op]) {
    let prev = set.root::<H>();
    let ours = set.witness::<H>(ops);
    let bytes = ours.encode::<H>().unwrap();
    let verified = witness::verify::<H>(&bytes, &prev).expect("our own");
    let before = set.clone();
    set.apply(ops);
    let next = oracle_root::<H>(set);
    assert_eq!(*verified.new_root(), next);
    assert_eq!(verified.op_count(), ops.len());
    let seen: Vec<_> = verified.ops().map(|op| (op.key, op.access, op.before)).collect();
    let wanted: Vec<_> =
        ops.iter().map(|op| (op.key, op.access, before.get(&op.key).copied())).collect();
    assert_eq!(seen, wanted);
    if ops.is_empty() {
        assert_eq!(*verified.new_root(), prev);
        return;
    }
    let writes: Vec<(KeyPath, Option<[u8; 32]>)> = ops
        .iter()
        .filter_map(|op| {
            op.access.written().map(|value| (op.key, value.map(|hash| hash.to_bytes())))
        })
        .collect();
    let foreign = multi_out(&ours.proof);
    let accepted =
        theirs::verify_multi_proof::<H::Published>(&foreign, prev.into()).expect("accepted");
    let updated = theirs::verify_multi_proof_update::<H::Published>(&accepted, writes.clone());
    assert_eq!(updated.expect("updates"), next.to_bytes());
    check_path_update::<H>(&before, &writes, next);
}

/// The other crate's update from separate paths.
fn check_path_update<H: Oracle>(
    before: &Naive,
    writes: &[(KeyPath, Option<[u8; 32]>)],
    next: Node,
) {
    let prev = before.root::<H>();
    let mut updates: Vec<theirs::PathUpdate> = Vec::new();
    for (key, value) in writes {
        let inner = path_out(&before.path::<H>(key)).verify::<H::Published>(bits(key), prev.into());
        let inner = inner.expect("accepted");
        match updates.last_mut() {
            Some(last) if last.inner.path() == inner.path() => last.ops.push((*key, *value)),
            _ => updates.push(theirs::PathUpdate { inner, ops: vec![(*key, *value)] }),
        }
    }
    assert_eq!(
        theirs::verify_update::<H::Published>(prev.into(), &updates).expect("updates"),
        next.to_bytes()
    );
}

fn random_sets<H: Oracle>(seed: u64) {
    for case in 0..cases(60) {
        for spread in SPREADS {
            let mut rng = rng(seed ^ case);
            let size = [0, 1, 2, 3, 9, 40, 150][below(&mut rng, 7)];
            let set = set(spread, &mut rng, size);
            assert_eq!(set.root::<H>(), oracle_root::<H>(&set), "{spread:?} {size} seed {case}");
            let count = below(&mut rng, 12);
            let keys = some_keys(&set, spread, &mut rng, count);
            check_paths::<H>(&set, &keys);
            check_multi::<H>(&set, &keys);
        }
    }
}

fn random_batches<H: Oracle>(seed: u64) {
    for case in 0..cases(12) {
        for spread in SPREADS {
            let mut rng = rng(seed ^ (case << 8));
            let size = below(&mut rng, 60);
            let mut set = set(spread, &mut rng, size);
            for _ in 0..8 {
                let count = below(&mut rng, 40);
                let ops = some_ops(&set, spread, &mut rng, count);
                check_update::<H>(&mut set, &ops);
            }
            let rest: Vec<_> = set
                .pairs()
                .keys()
                .map(|key| pleach_core::proof::Op {
                    key: *key,
                    access: pleach_core::proof::Access::Write(None),
                })
                .collect();
            check_update::<H>(&mut set, &rest);
            assert_eq!(set.root::<H>(), pleach_core::TERMINATOR);
        }
    }
}

#[test]
fn roots_and_proofs_of_random_sets_agree_under_blake3() {
    random_sets::<Blake3>(1);
}

#[test]
fn roots_and_proofs_of_random_sets_agree_under_sha256() {
    random_sets::<Sha2>(2);
}

#[test]
fn new_roots_of_random_batches_agree_under_blake3() {
    random_batches::<Blake3>(3);
}

#[test]
fn new_roots_of_random_batches_agree_under_sha256() {
    random_batches::<Sha2>(4);
}

#[test]
fn roots_of_thousands_of_small_sets_agree() {
    for case in 0..cases(500) {
        for spread in SPREADS {
            let mut rng = rng(0x5e75 ^ case);
            let size = below(&mut rng, 24);
            let set = set(spread, &mut rng, size);
            assert_eq!(set.root::<Blake3>(), oracle_root::<Blake3>(&set), "{spread:?} {case}");
        }
    }
}

#[test]
fn a_node_at_a_position_is_what_the_root_is_made_of() {
    let set = set(Spread::Uniform, &mut rng(7), 300);
    let root = pleach_core::Prefix::ROOT;
    let node = |p: &pleach_core::Prefix| set.node::<Blake3>(p);
    let halves = [node(&root.child(false)), node(&root.child(true))];
    assert_eq!(pleach_core::node::combine::<Blake3>(&halves[0], &halves[1]), set.root::<Blake3>());
    assert_eq!(Blake3::hash64(&[7; 64]), Blake3::hash(&[7; 64]));
}
