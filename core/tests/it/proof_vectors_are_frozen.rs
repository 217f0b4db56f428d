//! Vectors for verifiers in other languages: `golden/proofs.json` has states, roots, proofs and witnesses, with what each proves, and
//! proofs that are to be refused. Every later version reads them. The file is written again with
//! `PLEACH_BLESS=1 cargo test -p pleach-core --test it proof_vectors_are_frozen`, for cases that are added; those that are there stay.
//!
//! All bytes are hexadecimal. `value` is the hash of a value, `null` where the key is absent.

use std::path::Path;

use pleach_core::hexadecimal::hex;
use pleach_core::naive::NaiveTrie;
use pleach_core::node::value_hash;
use pleach_core::proof::roots::NamespaceRoots;
use pleach_core::proof::{
    Access, ChangeProof, KeyProof, KeysProof, Lookup, Op, RangeProof, block, namespace, witness,
};
use pleach_core::{Hasher, Key, Node, TERMINATOR, ValueHash};
use serde_json::{Value, json};

fn value(hash: Option<ValueHash>) -> Value {
    hash.map_or(Value::Null, |hash| hex(<[u8; 32]>::from(hash)).into())
}

fn found(lookup: Lookup) -> Value {
    match lookup {
        Lookup::Present(hash) => value(Some(hash)),
        Lookup::Absent => Value::Null,
        Lookup::OutOfScope => panic!("the proof covers the key"),
    }
}

/// States of 0, 1, 2 and 20 pairs, and one whose keys share 34 bits.
fn states(hasher: Hasher) -> Vec<(&'static str, NaiveTrie)> {
    let hashed = |count: u32| -> NaiveTrie {
        let pair = |id: u32| {
            let id = id.to_be_bytes();
            (hasher.hash(&id), value_hash(hasher, &[&b"value "[..], &id].concat()))
        };
        (0..count).map(pair).collect()
    };
    let close = |low: u8| {
        let mut key = [0x5a; 32];
        key[4] = low;
        (key, value_hash(hasher, &[low]))
    };
    let deep = [0, 1, 2, 0x3f].map(close).into_iter().collect();
    vec![
        ("empty", hashed(0)),
        ("one", hashed(1)),
        ("two", hashed(2)),
        ("twenty", hashed(20)),
        ("deep", deep),
    ]
}

/// Present and absent keys of a state.
fn keys(hasher: Hasher, state: &NaiveTrie) -> Vec<Key> {
    let mut keys: Vec<Key> = state.pairs().keys().copied().take(3).collect();
    keys.extend([[0; 32], hasher.hash(b"absent"), [0xff; 32]]);
    keys.sort_unstable();
    keys
}

fn proofs(hasher: Hasher, state: &NaiveTrie) -> Vec<Value> {
    let (root, keys) = (state.root(hasher), keys(hasher, state));
    let mut cases = Vec::new();
    for key in &keys {
        let bytes = state.path(hasher, key).encode(hasher).expect("encoded");
        let verified = KeyProof::from(bytes.clone()).verify(hasher, &root).expect("holds");
        let claims = json!([{"key": hex(key), "value": found(verified.get(key))}]);
        cases.push(json!({"kind": "key", "proof": hex(bytes), "claims": claims}));
    }
    let bytes = state.multi(hasher, &keys).encode(hasher).expect("encoded");
    let proof = KeysProof::from(bytes);
    let verified = proof.verify(hasher, &root).expect("holds");
    let claims: Value = keys
        .iter()
        .map(|key| json!({"key": hex(key), "value": found(verified.get(key))}))
        .collect();
    cases.push(json!({"kind": "keys", "proof": hex(&*proof), "claims": claims}));
    for (first, last) in [([0; 32], [0xff; 32]), (keys[1], keys[keys.len() - 2])] {
        let proof = RangeProof::from(state.range(hasher, &first, &last));
        let verified = proof.verify(hasher, &root, first..=last).expect("holds");
        let pairs: Value = verified
            .pairs()
            .map(|(key, hash)| json!({"key": hex(key), "value": value(Some(hash))}))
            .collect();
        cases.push(json!({
            "kind": "range", "proof": hex(&*proof), "first": hex(first), "last": hex(last), "pairs": pairs,
        }));
    }
    cases
}

/// The batch of a witness: reads, a new value, a new key, a deletion.
fn batch(hasher: Hasher, state: &NaiveTrie) -> Vec<Op> {
    let put = |id: u8| Some(value_hash(hasher, &[id, 7]));
    let mut ops: Vec<Op> = Vec::new();
    for (at, key) in keys(hasher, state).into_iter().enumerate() {
        let access = match at {
            0 => Access::Read,
            1 => Access::Write(put(1)),
            2 => Access::ReadWrite(None),
            3 => Access::ReadWrite(put(3)),
            _ => Access::Write(None),
        };
        ops.push(Op { key, access });
    }
    ops
}

fn witnessed(hasher: Hasher, state: &NaiveTrie) -> (Value, Value) {
    let ops = batch(hasher, state);
    let bytes = state.witness(hasher, &ops).encode(hasher).expect("encoded");
    let verified = witness::verify(hasher, &bytes, &state.root(hasher)).expect("holds");
    let of = |op: witness::VerifiedOp| {
        let (kind, after) = match op.access {
            Access::Read => ("read", None),
            Access::Write(after) => ("write", Some(after)),
            Access::ReadWrite(after) => ("read and write", Some(after)),
        };
        json!({
            "key": hex(op.key), "access": kind, "before": value(op.before),
            "after": after.map_or(Value::Null, value),
        })
    };
    let ops_of: Value = verified.ops().map(of).collect();
    let new_root = hex(<[u8; 32]>::from(*verified.new_root()));
    let mut after = state.clone();
    after.apply(&ops);
    assert_eq!(after.root(hasher), *verified.new_root());

    let (first, last) = ([0; 32], [0xff; 32]);
    let proof = ChangeProof::from(state.change(hasher, &after, &first, &last));
    let roots = [state.root(hasher), after.root(hasher)];
    let changed = proof.verify(hasher, &roots[0], &roots[1], ..).expect("holds");
    let changes: Value = changed
        .changes()
        .map(|(key, before, after)| json!({"key": hex(key), "before": value(before), "after": value(after)}))
        .collect();
    (
        json!({"witness": hex(bytes), "new_root": new_root, "ops": ops_of}),
        json!({
            "kind": "change", "proof": hex(&*proof), "first": hex(first), "last": hex(last),
            "to_root": new_root, "changes": changes,
        }),
    )
}

/// Proofs through the root over all of namespaces 0, 2 (empty) and 7, and a block that changes 0, drops 2 and makes 5.
fn over_all(hasher: Hasher, state: &NaiveTrie) -> Value {
    let node = |node: Node| hex(node.to_bytes());
    let root = state.root(hasher);
    let before = NamespaceRoots::from_iter([(0, root), (2, TERMINATOR), (7, root)]);
    let ops = batch(hasher, state);
    let inner = state.witness(hasher, &ops).encode(hasher).expect("encoded");
    let mut changed = state.clone();
    changed.apply(&ops);
    let mut after = before.clone();
    for (ns, root) in [(0, Some(changed.root(hasher))), (2, None), (5, Some(TERMINATOR))] {
        after.set(ns, root);
    }
    let [from, to] = [&before, &after].map(|roots| roots.over_all(hasher));

    let claim = |ns, witness| block::NamespaceClaim { ns, after: after.get(ns).copied(), witness };
    let claims = [claim(0, Some(&inner[..])), claim(2, None), claim(5, None)];
    let block = block::build(hasher, &before, &claims).expect("built");
    let verified = block::verify(hasher, &block, &from).expect("holds");
    assert_eq!(*verified.new_root(), to);
    let change = ChangeProof::from(state.change(hasher, &changed, &[0; 32], &[0xff; 32]));
    let empty = NaiveTrie::default().path(hasher, &[0; 32]).encode(hasher).expect("encoded");
    let through: Value = [(0, &inner[..]), (2, &empty), (3, &[])]
        .into_iter()
        .map(|(ns, inner)| {
            let proof = namespace::build(hasher, &before, ns, inner).expect("built");
            let opened = namespace::open(hasher, &proof, &from).expect("holds");
            assert_eq!(opened.root(), before.get(ns));
            json!({"namespace": ns, "proof": hex(proof)})
        })
        .collect();
    let changes: Value = [(0, &*change), (7, &[])]
        .into_iter()
        .map(|(ns, inner)| {
            let proof = namespace::build_change(hasher, &before, &after, ns, inner).expect("built");
            let opened = namespace::open_change(hasher, &proof, &from, &to).expect("holds");
            assert_eq!(opened.is_same(), ns == 7);
            json!({"namespace": ns, "proof": hex(proof)})
        })
        .collect();
    json!({
        "root": node(from), "to_root": node(to), "block": hex(block), "namespaces": through, "changes": changes,
    })
}

/// Key proofs with one flipped bit that are refused for this root.
fn refused(hasher: Hasher, state: &NaiveTrie) -> Vec<String> {
    let root = state.root(hasher);
    let Some(key) = state.pairs().keys().next() else { return Vec::new() };
    let bytes = state.path(hasher, key).encode(hasher).expect("encoded");
    let mut cases = Vec::new();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(KeyProof::from(flipped.clone()).verify(hasher, &root).is_err(), "byte {at}");
        if at % bytes.len().div_ceil(20) == 0 {
            cases.push(hex(flipped));
        }
    }
    cases
}

fn document() -> Value {
    let of = |hasher: Hasher| -> Value {
        let state = |(name, state): &(&str, NaiveTrie)| {
            let (witness, change) = witnessed(hasher, state);
            let mut proofs = proofs(hasher, state);
            proofs.push(change);
            let pairs: Value = state
                .pairs()
                .iter()
                .map(|(key, hash)| json!({"key": hex(key), "value": value(Some(*hash))}))
                .collect();
            json!({
                "state": name, "pairs": pairs, "root": hex(<[u8; 32]>::from(state.root(hasher))),
                "proofs": proofs, "witness": witness, "refused": refused(hasher, state),
            })
        };
        let states = states(hasher);
        let over_all = over_all(hasher, &states[3].1);
        let states: Value = states.iter().map(state).collect();
        json!({"hasher": hasher.name(), "states": states, "over_all": over_all})
    };
    json!({"version": 1, "vectors": [of(Hasher::BLAKE3), of(Hasher::SHA2_256)]})
}

#[test]
fn proofs_and_witnesses_keep_their_bytes() {
    let found = format!("{:#}\n", document());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/proofs.json");
    if std::env::var_os("PLEACH_BLESS").is_some() {
        std::fs::write(&path, &found).expect("written");
    }
    assert!(
        found == std::fs::read_to_string(&path).expect("the vectors"),
        "the vectors have changed"
    );
}
