//! Blocks over a few namespaces, and proofs through the root over all, changed: what is accepted is
//! true of the tries, and encoded in the one way.
#![no_main]

use std::collections::BTreeMap;

use pleach_core::{
    Hasher, TERMINATOR,
    naive::NaiveTrie,
    proof::{
        Op, block, change, namespace, path,
        roots::{self, NamespaceRoots},
    },
};
use pleach_fuzz::{Input, block_agrees, through_agrees};

type Tries = BTreeMap<u8, NaiveTrie>;

fn roots_of(tries: &Tries) -> NamespaceRoots {
    tries.iter().map(|(ns, trie)| (*ns, trie.root(Hasher::BLAKE3))).collect()
}

/// The state of each namespace after a block, and its operations where it was accessed.
type Done = BTreeMap<u8, (Option<NaiveTrie>, Option<Vec<Op>>)>;

fn encode(before: &Tries, done: &Done) -> Option<Vec<u8>> {
    let witness = |ns: u8, ops: &Vec<Op>| {
        let trie = before.get(&ns).cloned().unwrap_or_default();
        trie.witness(Hasher::BLAKE3, ops).encode(Hasher::BLAKE3).expect("small")
    };
    let witnesses: Vec<Option<Vec<u8>>> =
        done.iter().map(|(ns, (_, ops))| ops.as_ref().map(|ops| witness(*ns, ops))).collect();
    let mut parts = Vec::new();
    for ((ns, (after, _)), witness) in done.iter().zip(&witnesses) {
        let after = after.as_ref().map(|trie| trie.root(Hasher::BLAKE3));
        parts.push(block::NamespaceClaim { ns: *ns, after, witness: witness.as_deref() });
    }
    block::build(Hasher::BLAKE3, &roots_of(before), &parts).ok()
}

fn after(before: &Tries, done: &Done) -> Tries {
    let mut tries = before.clone();
    for (ns, (trie, _)) in done {
        match trie {
            Some(trie) => drop(tries.insert(*ns, trie.clone())),
            None => drop(tries.remove(ns)),
        }
    }
    tries
}

/// Makes the block again from what was verified.
fn redone(before: &Tries, verified: &block::VerifiedBlock<'_>) -> Done {
    let one = |part: &block::VerifiedNamespace<'_>| {
        let ops: Option<Vec<Op>> = part
            .witness()
            .map(|ops| ops.ops().map(|op| Op { key: op.key, access: op.access }).collect());
        let mut trie = before.get(&part.ns()).cloned().unwrap_or_default();
        trie.apply(ops.as_deref().unwrap_or_default());
        (part.ns(), (part.after().map(|_| trie), ops))
    };
    verified.namespaces().iter().map(one).collect()
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let before: Tries = (0..input.u8() % 6).map(|_| (input.u8(), input.set())).collect();
    let mut done = Done::new();
    for _ in 0..input.u8() % 5 {
        let (choice, ns) = (input.u8(), input.u8());
        let known = before.keys().nth(usize::from(ns) % before.len().max(1)).copied();
        let ns = known.filter(|_| choice & 1 == 0).unwrap_or(ns);
        let mut trie = before.get(&ns).cloned().unwrap_or_default();
        let ops = (choice & 2 == 0).then(|| input.ops());
        trie.apply(ops.as_deref().unwrap_or_default());
        done.insert(ns, ((choice & 12 != 0).then_some(trie), ops));
    }
    let over_all = roots_of(&before).over_all(Hasher::BLAKE3);
    if let Some(valid) = encode(&before, &done) {
        let new_root = block_agrees(&valid, &over_all);
        // A drop of what its operations have changed is built, and is false.
        if let Some(new_root) = new_root {
            assert_eq!(new_root, roots_of(&after(&before, &done)).over_all(Hasher::BLAKE3));
        }
        let mut bytes = valid;
        input.mutate(&mut bytes);
        if let Ok(verified) = block::verify(Hasher::BLAKE3, &bytes, &over_all) {
            let done = redone(&before, &verified);
            assert_eq!(encode(&before, &done), Some(bytes.clone()));
            let new_root = roots_of(&after(&before, &done)).over_all(Hasher::BLAKE3);
            assert_eq!(*verified.new_root(), new_root);
        }
        block_agrees(&bytes, &over_all);
    }

    let (ns, key, roots) = (input.u8(), input.key(), roots_of(&before));
    let inner = before.get(&ns).map(|trie| trie.path(Hasher::BLAKE3, &key).encode(Hasher::BLAKE3));
    let inner = inner.map_or(Vec::new(), |inner| inner.expect("small"));
    let valid = namespace::build(Hasher::BLAKE3, &roots, ns, &inner).expect("its parts");
    assert!(through_agrees(&valid, &over_all));
    let mut bytes = valid;
    input.mutate(&mut bytes);
    if let Ok(opened) = namespace::open(Hasher::BLAKE3, &bytes, &over_all) {
        assert_eq!(opened.root(), roots.get(opened.ns()));
        let again = namespace::build(Hasher::BLAKE3, &roots, opened.ns(), opened.inner());
        assert_eq!(again, Ok(bytes.clone()));
        if let Some(Ok(verified)) =
            opened.root().map(|root| path::verify(Hasher::BLAKE3, opened.inner(), root))
        {
            let trie = &before[&opened.ns()];
            pleach_fuzz::true_of(trie, verified.terminal());
        }
    }
    through_agrees(&bytes, &over_all);

    let to = roots_of(&after(&before, &done));
    let (first, last) = ([0; 32], [0xff; 32]);
    let none = NaiveTrie::new();
    let later = after(&before, &done);
    let sides = [&before, &later].map(|tries| tries.get(&ns).unwrap_or(&none));
    let inner = if sides[0] == sides[1] {
        Vec::new()
    } else {
        sides[0].change(Hasher::BLAKE3, sides[1], &first, &last)
    };
    let valid =
        namespace::build_change(Hasher::BLAKE3, &roots, &to, ns, &inner).expect("its parts");
    let ends = [over_all, to.over_all(Hasher::BLAKE3)];
    let opened = namespace::open_change(Hasher::BLAKE3, &valid, &ends[0], &ends[1]).expect("valid");
    if let Some([from, to]) = opened.inner_roots() {
        assert!(change::verify(Hasher::BLAKE3, opened.inner(), &from, &to, &first, &last).is_ok());
    }
    let mut bytes = valid;
    input.mutate(&mut bytes);
    if let Ok(opened) = namespace::open_change(Hasher::BLAKE3, &bytes, &ends[0], &ends[1]) {
        let [from, to_root] = [&roots, &to].map(|roots| roots.get(opened.ns()).copied());
        assert_eq!(opened.is_same(), from == to_root);
        let counted = [from, to_root].map(|root| root.unwrap_or(TERMINATOR));
        assert_eq!(opened.inner_roots().is_some(), counted[0] != counted[1]);
        let again =
            namespace::build_change(Hasher::BLAKE3, &roots, &to, opened.ns(), opened.inner());
        assert_eq!(again, Ok(bytes));
    }
    assert_eq!(roots::namespace_of(&roots::namespace_key(ns)), Some(ns));
});
