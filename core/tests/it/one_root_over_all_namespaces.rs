//! The root over all namespaces is that of the naive trie and of the published crate, and what
//! goes through it says what maps say; nothing else is accepted.
use std::collections::BTreeMap;

use crate::common::{
    Blake3Hasher, Oracle, SPREADS, Sha2Hasher, below, bytes32, cases, mutate::mutate, oracle_root,
    rng, second, set, some_keys, some_ops,
};
use pleach_core::{
    Hasher, Key, Node, TERMINATOR,
    naive::NaiveTrie,
    proof::{
        Access, Limit, Limits, Lookup, Op, ProofKind, VerifyError, block, change, multi, namespace,
        path, range,
        roots::{self, NamespaceRoots},
        witness,
    },
};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

const BLAKE3: Hasher = Hasher::BLAKE3;

const ALL: (Key, Key) = ([0; 32], [0xff; 32]);

type Tries = BTreeMap<u8, NaiveTrie>;

fn roots_of(tries: &Tries) -> NamespaceRoots {
    tries.iter().map(|(ns, trie)| (*ns, trie.root(BLAKE3))).collect()
}

/// The trie of roots, by its definition.
fn naive(roots: &NamespaceRoots) -> NaiveTrie {
    let pair = |(ns, root): (u8, &Node)| {
        let mut key = [0; 32];
        key[0] = ns;
        (key, root.to_bytes().into())
    };
    roots.iter().map(pair).collect()
}

/// Namespaces that crowd in places, and some that are empty.
fn ns(rng: &mut ChaCha8Rng) -> u8 {
    let byte = rng.next_u32().to_le_bytes()[0];
    [byte, byte & 3, 0x80 | byte & 7, 0xff - (byte & 1)][below(rng, 4)]
}

fn tries(rng: &mut ChaCha8Rng) -> Tries {
    let count = below(rng, 9);
    let trie = |rng: &mut ChaCha8Rng| {
        let (spread, count) = (SPREADS[below(rng, SPREADS.len())], below(rng, 12));
        set(spread, rng, count)
    };
    (0..count).map(|_| (ns(rng), trie(rng))).collect()
}

fn agrees<H: Oracle>(roots: &NamespaceRoots, to: &NamespaceRoots, accesses: &[(u8, Access)]) {
    let slow = naive(roots);
    assert_eq!(roots.over_all(H::HASHER), slow.root(H::HASHER));
    assert_eq!(roots.over_all(H::HASHER), oracle_root::<H>(&slow));
    assert_eq!(roots::over_all(H::HASHER, roots.iter()), slow.root(H::HASHER));
    for ns in [0, 1, 2, 9, 0x7f, 0x80, 0xff] {
        let key = roots::namespace_key(ns);
        let path = roots.prove(H::HASHER, ns).unwrap();
        assert_eq!(path, slow.path(H::HASHER, &key).encode(H::HASHER).unwrap());
        assert!(path.len() <= 32 + 66 + 8 * 32);
        assert!(path::verify(H::HASHER, &path, &slow.root(H::HASHER)).is_ok());
        let change = roots.prove_change(H::HASHER, to, ns).unwrap();
        assert_eq!(change, slow.change(H::HASHER, &naive(to), &key, &key));
    }
    let ops: Vec<Op> = accesses
        .iter()
        .map(|(ns, access)| Op { key: roots::namespace_key(*ns), access: *access })
        .collect();
    let witness = slow.witness(H::HASHER, &ops).encode(H::HASHER).unwrap();
    assert_eq!(roots.witness(H::HASHER, accesses).unwrap(), witness);
}

fn access() -> impl Strategy<Value = Access> {
    let root = prop::option::of(any::<[u8; 32]>().prop_map(Into::into));
    (0..3, root).prop_map(|(form, root)| match form {
        0 => Access::Read,
        1 => Access::Write(root),
        _ => Access::ReadWrite(root),
    })
}

fn any_roots() -> impl Strategy<Value = NamespaceRoots> {
    let root = prop_oneof![Just([0; 32]), any::<[u8; 32]>()];
    let map = prop::collection::btree_map(any::<u8>(), root, 0..40);
    map.prop_map(|map| map.into_iter().map(|(ns, root)| (ns, root.into())).collect())
}

proptest! {
    #[test]
    fn the_trie_of_roots_is_an_ordinary_one(
        roots in any_roots(),
        to in any_roots(),
        accesses in prop::collection::btree_map(any::<u8>(), access(), 0..12),
    ) {
        let accesses: Vec<_> = accesses.into_iter().collect();
        agrees::<Blake3Hasher>(&roots, &to, &accesses);
        agrees::<Sha2Hasher>(&roots, &to, &accesses);
    }
}

#[test]
fn none_one_and_all_namespaces() {
    let none = NamespaceRoots::new();
    assert_eq!(none.over_all(BLAKE3), TERMINATOR);
    let empty = NamespaceRoots::from_iter([(0, TERMINATOR)]);
    assert_ne!(empty.over_all(BLAKE3), TERMINATOR, "an empty namespace exists");
    let all: NamespaceRoots = (0..=255).map(|ns| (ns, Node::new([ns; 32]))).collect();
    let reads: Vec<_> = (0..=255).map(|ns| (ns, Access::Read)).collect();
    for roots in [&none, &empty, &all] {
        agrees::<Blake3Hasher>(roots, &all, &reads);
        agrees::<Sha2Hasher>(roots, &empty, &[]);
    }
    assert_eq!(roots::namespace_of(&roots::namespace_key(200)), Some(200));
    assert_eq!(roots::namespace_of(&[200; 32]), None);
}

#[test]
fn a_light_client_reads_through_one_root() {
    for seed in 0..cases(60) {
        let mut rng = rng(seed);
        let tries = tries(&mut rng);
        let roots = roots_of(&tries);
        let over_all = roots.over_all(BLAKE3);
        for ns in tries.keys().copied().chain([3, 77, ns(&mut rng)]) {
            let Some(trie) = tries.get(&ns) else {
                let bytes = namespace::build(BLAKE3, &roots, ns, &[]).unwrap();
                let opened = namespace::open(BLAKE3, &bytes, &over_all).unwrap();
                assert_eq!((opened.ns(), opened.root(), opened.kind()), (ns, None, None));
                assert!(opened.inner().is_empty());
                refuses_mutants(&mut rng, &bytes, &tries);
                continue;
            };
            let keys = some_keys(trie, SPREADS[0], &mut rng, 5);
            let ops = some_ops(trie, SPREADS[0], &mut rng, 5);
            let inner = [
                (ProofKind::Path, trie.path(BLAKE3, &[1; 32]).encode(BLAKE3).unwrap()),
                (ProofKind::Multi, trie.multi(BLAKE3, &keys).encode(BLAKE3).unwrap()),
                (ProofKind::Witness, trie.witness(BLAKE3, &ops).encode(BLAKE3).unwrap()),
                (ProofKind::Range, trie.range(BLAKE3, &ALL.0, &ALL.1)),
            ];
            for (kind, inner) in inner {
                let bytes = namespace::build(BLAKE3, &roots, ns, &inner).unwrap();
                let opened = namespace::open(BLAKE3, &bytes, &over_all).unwrap();
                assert_eq!((opened.ns(), opened.kind()), (ns, Some(kind)));
                assert_eq!(opened.root(), Some(&trie.root(BLAKE3)));
                assert_eq!(opened.inner(), inner);
                assert!(verify_inner(kind, opened.inner(), opened.root().unwrap()).is_ok());
                refuses_mutants(&mut rng, &bytes, &tries);
            }
            assert!(namespace::build(BLAKE3, &roots, ns, &[]).is_err(), "nothing is proven");
        }
    }
}

fn verify_inner(kind: ProofKind, inner: &[u8], root: &Node) -> Result<(), VerifyError> {
    match kind {
        ProofKind::Path => path::verify(BLAKE3, inner, root).map(|_| ()),
        ProofKind::Multi => multi::verify(BLAKE3, inner, root).map(|_| ()),
        ProofKind::Witness => witness::verify(BLAKE3, inner, root).map(|_| ()),
        ProofKind::Range => range::verify(BLAKE3, inner, root, &ALL.0, &ALL.1).map(|_| ()),
        kind => panic!("{kind:?} inside"),
    }
}

/// What is accepted after changes to `bytes` is true, and encoded as it would be; the second verifier says the same.
fn refuses_mutants(rng: &mut ChaCha8Rng, bytes: &[u8], tries: &Tries) {
    let roots = roots_of(tries);
    let over_all = roots.over_all(BLAKE3);
    for _ in 0..20 {
        let mut bytes = bytes.to_vec();
        mutate(rng, &mut bytes);
        let opened = namespace::open(BLAKE3, &bytes, &over_all);
        let again = second::through(BLAKE3, &bytes, &over_all);
        assert_eq!(opened.is_ok(), again.is_some(), "{opened:?}");
        let Ok(opened) = opened else { continue };
        let found = opened.root().map(|root| (*root, opened.inner()));
        assert_eq!(again, Some((opened.ns(), found)));
        assert_eq!(opened.root(), roots.get(opened.ns()));
        let whole = namespace::build(BLAKE3, &roots, opened.ns(), opened.inner()).unwrap();
        assert_eq!(bytes, whole);
    }
}

/// The next state: some namespaces with other contents, some added, some dropped.
fn next(rng: &mut ChaCha8Rng, tries: &Tries) -> Tries {
    let mut next = tries.clone();
    for _ in 0..below(rng, 4) {
        let ns = if tries.is_empty() {
            ns(rng)
        } else {
            *tries.keys().nth(below(rng, tries.len())).unwrap()
        };
        match rng.next_u32() % 4 {
            0 => drop(next.remove(&ns)),
            1 => next.entry(ns).or_default().set(bytes32(rng), Some(bytes32(rng))),
            2 => drop(next.entry(self::ns(rng)).or_default()),
            _ => {
                let trie = next.entry(ns).or_default();
                let ops = some_ops(trie, SPREADS[0], rng, 4);
                trie.apply(&ops);
            }
        }
    }
    next
}

#[test]
fn what_changed_in_a_namespace_goes_through_two_roots() {
    for seed in 0..cases(80) {
        let mut rng = rng(1000 + seed);
        let from = tries(&mut rng);
        let to = next(&mut rng, &from);
        let (before, after) = (roots_of(&from), roots_of(&to));
        let (prev, new) = (before.over_all(BLAKE3), after.over_all(BLAKE3));
        for ns in from.keys().chain(to.keys()).copied().chain([5]) {
            let none = NaiveTrie::new();
            let sides = [&from, &to].map(|tries| tries.get(&ns).unwrap_or(&none));
            let differ = sides[0] != sides[1];
            let inner = sides[0].change(BLAKE3, sides[1], &ALL.0, &ALL.1);
            let inner = if differ { &inner[..] } else { &[] };
            let bytes = namespace::build_change(BLAKE3, &before, &after, ns, inner).unwrap();
            let opened = namespace::open_change(BLAKE3, &bytes, &prev, &new).unwrap();
            assert_eq!((opened.ns(), opened.inner()), (ns, inner));
            let roots = [before.get(ns).copied(), after.get(ns).copied()];
            assert_eq!(opened.is_same(), roots[0] == roots[1]);
            assert_eq!(opened.roots(), (roots[0] != roots[1]).then_some(roots));
            assert_eq!(opened.inner_roots().is_some(), differ);
            if let Some([from, to]) = opened.inner_roots() {
                let verified =
                    change::verify(BLAKE3, opened.inner(), &from, &to, &ALL.0, &ALL.1).unwrap();
                let keys: Vec<Key> = verified.changes().map(|(key, ..)| key).collect();
                assert_eq!(keys, sides[0].changed(sides[1], &ALL.0, &ALL.1));
            }
            for _ in 0..10 {
                let mut bytes = bytes.clone();
                mutate(&mut rng, &mut bytes);
                let opened = namespace::open_change(BLAKE3, &bytes, &prev, &new);
                let Ok(opened) = opened else { continue };
                let whole =
                    namespace::build_change(BLAKE3, &before, &after, opened.ns(), opened.inner());
                assert_eq!(Ok(bytes), whole);
            }
            // A lie about whether anything is to be proven.
            let other: &[u8] = if differ { &[] } else { &from_nothing() };
            assert!(namespace::build_change(BLAKE3, &before, &after, ns, other).is_err());
        }
    }
}

fn from_nothing() -> Vec<u8> {
    NaiveTrie::new().change(
        BLAKE3,
        &NaiveTrie::from_iter([([1; 32], [1; 32].into())]),
        &ALL.0,
        &ALL.1,
    )
}

/// A block with each form of effects on a namespace, and the state after it.
fn a_block(rng: &mut ChaCha8Rng, tries: &Tries) -> (Vec<u8>, Tries) {
    let mut after = tries.clone();
    let mut parts: BTreeMap<u8, Option<Vec<u8>>> = BTreeMap::new();
    for _ in 0..below(rng, 5) {
        let known = (!tries.is_empty() && below(rng, 3) > 0)
            .then(|| *tries.keys().nth(below(rng, tries.len())).unwrap());
        let ns = known.unwrap_or_else(|| ns(rng));
        let trie = tries.get(&ns).cloned().unwrap_or_default();
        let mut ops = some_ops(&trie, SPREADS[below(rng, SPREADS.len())], rng, 6);
        if below(rng, 4) == 0 {
            for op in &mut ops {
                op.access = Access::Read;
            }
        }
        let exists = tries.contains_key(&ns);
        after.remove(&ns);
        let opened = !ops.is_empty() && below(rng, 4) > 0;
        let reads_only = ops.iter().all(|op| op.access == Access::Read);
        let stays = below(rng, 3) > 0;
        match (exists, opened) {
            // Dropped, unseen; found not to exist; added empty.
            (true, false) => {}
            (false, false) if stays => {}
            (false, false) => drop(after.insert(ns, NaiveTrie::new())),
            (true, true) if reads_only && !stays => {}
            (_, true) => {
                let mut changed = trie.clone();
                changed.apply(&ops);
                after.insert(ns, changed);
            }
        }
        let witness = trie.witness(BLAKE3, &ops).encode(BLAKE3).unwrap();
        parts.insert(ns, opened.then_some(witness));
    }
    let roots = roots_of(&after);
    let parts: Vec<_> = parts
        .iter()
        .map(|(ns, witness)| block::NamespaceClaim {
            ns: *ns,
            after: roots.get(*ns).copied(),
            witness: witness.as_deref(),
        })
        .collect();
    (block::build(BLAKE3, &roots_of(tries), &parts).unwrap(), after)
}

/// Makes the block once more from what was verified, and the state that it leads to.
fn again(tries: &Tries, verified: &block::VerifiedBlock<'_>) -> (Vec<u8>, Tries) {
    let mut after = tries.clone();
    let mut witnesses = Vec::new();
    for part in verified.namespaces() {
        let trie = tries.get(&part.ns()).cloned().unwrap_or_default();
        assert_eq!(part.before(), roots_of(tries).get(part.ns()));
        let ops: Option<Vec<Op>> = part
            .witness()
            .map(|ops| ops.ops().map(|op| Op { key: op.key, access: op.access }).collect());
        let mut changed = trie.clone();
        changed.apply(ops.as_deref().unwrap_or_default());
        match part.after() {
            Some(root) => {
                assert_eq!(*root, changed.root(BLAKE3));
                after.insert(part.ns(), changed);
            }
            None => drop(after.remove(&part.ns())),
        }
        let encoded = |ops: &Vec<Op>| trie.witness(BLAKE3, ops).encode(BLAKE3).unwrap();
        witnesses.push((part.ns(), part.after().copied(), ops.as_ref().map(encoded)));
    }
    let parts: Vec<_> = witnesses
        .iter()
        .map(|(ns, after, witness)| block::NamespaceClaim {
            ns: *ns,
            after: *after,
            witness: witness.as_deref(),
        })
        .collect();
    (block::build(BLAKE3, &roots_of(tries), &parts).unwrap(), after)
}

#[test]
fn a_block_leads_from_one_root_over_all_to_the_next() {
    for seed in 0..cases(150) {
        let mut rng = rng(2000 + seed);
        let tries = tries(&mut rng);
        let before = roots_of(&tries).over_all(BLAKE3);
        let (bytes, after) = a_block(&mut rng, &tries);
        let verified = block::verify(BLAKE3, &bytes, &before).unwrap();
        assert_eq!(*verified.prev_root(), before);
        assert_eq!(*verified.new_root(), roots_of(&after).over_all(BLAKE3));
        assert_eq!(second::block(BLAKE3, &bytes, &before), Some(*verified.new_root()));
        assert_eq!(again(&tries, &verified), (bytes.clone(), after.clone()));
        for part in verified.namespaces() {
            assert_eq!(
                verified.get(part.ns()).map(block::VerifiedNamespace::after),
                Some(part.after())
            );
            let Some(ops) = part.witness() else { continue };
            for op in ops.ops() {
                let was = tries.get(&part.ns()).and_then(|trie| trie.get(&op.key));
                assert_eq!(
                    ops.get(&op.key),
                    was.map_or(Lookup::Absent, |was| Lookup::Present(*was))
                );
            }
        }
        for _ in 0..40 {
            let mut mutant = bytes.clone();
            for _ in 0..=below(&mut rng, 2) {
                mutate(&mut rng, &mut mutant);
            }
            let verdict = block::verify(BLAKE3, &mutant, &before);
            let new_root = verdict.as_ref().ok().map(|verified| *verified.new_root());
            assert_eq!(new_root, second::block(BLAKE3, &mutant, &before), "{verdict:?}");
            let Ok(verified) = verdict else { continue };
            // Another batch, perhaps, and then it is encoded as that batch is.
            let (whole, after) = again(&tries, &verified);
            assert_eq!(whole, mutant);
            assert_eq!(*verified.new_root(), roots_of(&after).over_all(BLAKE3));
        }
    }
}

#[test]
fn limits_are_for_the_whole_block() {
    for seed in 0..cases(60) {
        let mut rng = rng(3000 + seed);
        let tries = tries(&mut rng);
        let before = roots_of(&tries).over_all(BLAKE3);
        let (bytes, _) = a_block(&mut rng, &tries);
        let with = |limits: Limits| {
            block::verify_with(BLAKE3, &bytes, &before, &limits).map(|v| *v.new_root())
        };
        let free = with(Limits::UNLIMITED);
        assert!(free.is_ok());
        let hashes = |hashes| Limits { hashes, ..Limits::UNLIMITED };
        if let Err(error) = with(hashes(0)) {
            let VerifyError::OverLimit { limit: Limit::Hashes, needed, .. } = error else {
                panic!("{error}")
            };
            let verified = block::verify(BLAKE3, &bytes, &before).unwrap();
            assert!(!verified.namespaces().is_empty());
            assert_eq!(with(hashes(needed)), free);
            let error =
                VerifyError::OverLimit { limit: Limit::Hashes, needed, allowed: needed - 1 };
            assert_eq!(with(hashes(needed - 1)), Err(error));
        }
        let len = u64::try_from(bytes.len()).unwrap();
        let limit = |bytes| Limits { bytes, ..Limits::UNLIMITED };
        assert_eq!(with(limit(len)), free);
        let error = VerifyError::OverLimit { limit: Limit::Bytes, needed: len, allowed: len - 1 };
        assert_eq!(with(limit(len - 1)), Err(error));
    }
}
