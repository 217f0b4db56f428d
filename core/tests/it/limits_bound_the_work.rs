//! A verifier does no more than its caller's limits allow: what is over is refused before the
//! first hash, by an error that says by how much; what is within is verified as without limits.
//!
//! Verification is linear in the bytes, but a hostile witness of 65 MB took ten seconds: pairs of
//! puts that part in their last bit, each pair with a chain of 256 hashes above it.
use std::cell::Cell;

use crate::common::{SPREADS, below, cases, mutate::mutate, rng, set, some_keys, some_ops};
use pleach_core::{
    Hasher, Key, Node, TERMINATOR,
    naive::NaiveTrie,
    proof::{
        Access, Limit, Limits, Op, VerifyError, block, change, multi, path, range,
        roots::NamespaceRoots, witness,
    },
};

thread_local! {
    static HASHES: Cell<u64> = const { Cell::new(0) };
}

/// BLAKE3 that counts. Calls for many go through the call for one.
const COUNTING: Hasher = Hasher::new("counting", |message| {
    HASHES.set(HASHES.get() + 1);
    Hasher::BLAKE3.hash(message)
});

/// A verification's result and the hashes that it took.
fn counted<T>(run: impl FnOnce() -> T) -> (T, u64) {
    HASHES.set(0);
    let result = run();
    (result, HASHES.get())
}

type Verifier = fn(&[u8], &Node, &Limits) -> Result<(), VerifyError>;

/// The range of the last two kinds.
const FIRST: Key = [0x20; 32];
const LAST: Key = [0xa6; 32];

const VERIFIERS: [Verifier; 5] = [
    |bytes, root, limits| path::verify_with(COUNTING, bytes, root, limits).map(|_| ()),
    |bytes, root, limits| multi::verify_with(COUNTING, bytes, root, limits).map(|_| ()),
    |bytes, root, limits| witness::verify_with(COUNTING, bytes, root, limits).map(|_| ()),
    |bytes, root, limits| {
        range::verify_with(COUNTING, bytes, root, &FIRST, &LAST, limits).map(|_| ())
    },
    // To an empty set: all hashes are of the side before, and all keys of the range changed.
    |bytes, root, limits| {
        change::verify_with(COUNTING, bytes, root, &TERMINATOR, &FIRST, &LAST, limits).map(|_| ())
    },
];

fn hashes(hashes: u64) -> Limits {
    Limits { hashes, ..Limits::UNLIMITED }
}

/// What an encoding needs, asked by a limit of nothing. `None`: no hash at all, or no encoding.
fn needed(verify: Verifier, bytes: &[u8], root: &Node) -> Option<u64> {
    match verify(bytes, root, &hashes(0)) {
        Err(VerifyError::OverLimit { limit: Limit::Hashes, needed, allowed: 0 }) => Some(needed),
        _ => None,
    }
}

/// Refused one below the need, without a hash; at the need, the same as without limits.
fn limits_hold(verify: Verifier, bytes: &[u8], root: &Node) -> u64 {
    let (free, took) = counted(|| verify(bytes, root, &Limits::UNLIMITED));
    let Some(needed) = needed(verify, bytes, root) else {
        assert_eq!(took, 0, "hashes that no limit knew of");
        return 0;
    };
    assert!(took <= needed, "{took} hashes, {needed} announced");
    let (refused, none) = counted(|| verify(bytes, root, &hashes(needed - 1)));
    let error = VerifyError::OverLimit { limit: Limit::Hashes, needed, allowed: needed - 1 };
    assert_eq!((refused, none), (Err(error), 0));
    let (at, same) = counted(|| verify(bytes, root, &hashes(needed)));
    assert_eq!((at, same), (free, took));
    if free.is_ok() {
        // Above an unchanged subtrie only the root before is hashed.
        assert!(needed <= 2 * took, "{needed} announced, {took} hashes");
    }
    needed
}

#[test]
fn the_announced_hashes_bound_those_that_are_made() {
    for seed in 0..cases(40) {
        for spread in SPREADS {
            let mut rng = rng(seed);
            let count = below(&mut rng, 80);
            let set = set(spread, &mut rng, count);
            let root = set.root(COUNTING);
            let keys = some_keys(&set, spread, &mut rng, 30);
            let ops = some_ops(&set, spread, &mut rng, 30);
            let mut encodings = vec![
                set.multi(COUNTING, &keys).encode(COUNTING).unwrap(),
                set.witness(COUNTING, &ops).encode(COUNTING).unwrap(),
                set.range(COUNTING, &FIRST, &LAST),
                set.change(COUNTING, &NaiveTrie::new(), &FIRST, &LAST),
            ];
            let path = keys.first().map(|key| set.path(COUNTING, key).encode(COUNTING).unwrap());
            encodings.extend(path);
            for mut bytes in encodings {
                for _ in 0..10 {
                    for verify in VERIFIERS {
                        limits_hold(verify, &bytes, &root);
                    }
                    mutate(&mut rng, &mut bytes);
                }
            }
        }
    }
}

#[test]
fn a_batch_that_changes_everything_takes_what_is_announced() {
    // Puts only, so that the roots before and after differ at every node: the count is exact.
    for spread in SPREADS {
        let mut rng = rng(7);
        let set = set(spread, &mut rng, 60);
        let root = set.root(COUNTING);
        let put = |key| Op { key, access: Access::Write(Some([5; 32].into())) };
        let ops: Vec<Op> = set.pairs().keys().copied().map(put).collect();
        let bytes = set.witness(COUNTING, &ops).encode(COUNTING).unwrap();
        let (verified, took) =
            counted(|| witness::verify_with(COUNTING, &bytes, &root, &Limits::UNLIMITED));
        assert!(verified.is_ok());
        assert_eq!(needed(VERIFIERS[2], &bytes, &root), Some(took), "{spread:?}");
    }
}

#[test]
fn a_range_and_a_change_take_exactly_what_is_announced() {
    for spread in SPREADS {
        let mut rng = rng(8);
        let set = set(spread, &mut rng, 60);
        let root = set.root(COUNTING);
        let range = set.range(COUNTING, &FIRST, &LAST);
        let change = set.change(COUNTING, &NaiveTrie::new(), &FIRST, &LAST);
        for (verify, bytes) in [(VERIFIERS[3], range), (VERIFIERS[4], change)] {
            let (verdict, took) = counted(|| verify(&bytes, &root, &Limits::UNLIMITED));
            assert_eq!(verdict, Ok(()));
            assert_eq!(needed(verify, &bytes, &root).unwrap_or(0), took, "{spread:?}");
        }
    }
}

/// Pairs of fresh keys that part in their last bit, put into an empty set: 130 bytes and about
/// 250 hashes a pair, the most time that a byte can ask for.
fn chains(pairs: u32) -> Vec<u8> {
    let keys = (0..pairs).flat_map(|pair| {
        [0, 1].map(|last| {
            let mut key = [0; 32];
            key[..3].copy_from_slice(&pair.to_be_bytes()[1..]);
            key[31] = last;
            key
        })
    });
    let ops: Vec<Op> =
        keys.map(|key| Op { key, access: Access::Write(Some([1; 32].into())) }).collect();
    NaiveTrie::default().witness(COUNTING, &ops).encode(COUNTING).unwrap()
}

#[test]
fn chains_of_hashes_are_counted_before_the_first() {
    let bytes = chains(300);
    let announced = limits_hold(VERIFIERS[2], &bytes, &TERMINATOR);
    // Each pair has its two leaves and the internal nodes at depths 24 to 255; above them lies
    // what joins 300 numbers of 24 bits.
    let below = 300 * (2 + 232);
    assert!((below + 299..below + 1000).contains(&announced), "{announced}");
    // Few bytes, many hashes: only the second limit sees them.
    let limits = Limits { bytes: 1 << 20, hashes: 50_000 };
    assert!(bytes.len() < 40_000);
    let (refused, none) =
        counted(|| witness::verify_with(COUNTING, &bytes, &TERMINATOR, &limits).map(|_| ()));
    let error = VerifyError::OverLimit { limit: Limit::Hashes, needed: announced, allowed: 50_000 };
    assert_eq!((refused, none), (Err(error), 0));
    let text = error.to_string();
    let excess = announced - 50_000;
    assert!(text.contains("hashes") && text.contains(&excess.to_string()), "{text}");
}

#[test]
fn the_hashes_of_a_block_are_counted_together_before_the_first() {
    let verify: Verifier =
        |bytes, root, limits| block::verify_with(COUNTING, bytes, root, limits).map(|_| ());
    let mut built = 0;
    for seed in 0..cases(40) {
        let mut rng = rng(seed);
        let tries: Vec<NaiveTrie> =
            SPREADS.iter().map(|spread| set(*spread, &mut rng, 30)).collect();
        let roots: NamespaceRoots =
            (0..).zip(&tries).map(|(ns, set)| (ns, set.root(COUNTING))).collect();
        let batches = tries.iter().zip(SPREADS).map(|(set, spread)| {
            let mut after = set.clone();
            let ops = some_ops(set, spread, &mut rng, 20);
            after.apply(&ops);
            (set.witness(COUNTING, &ops).encode(COUNTING).unwrap(), after.root(COUNTING))
        });
        let batches: Vec<_> = batches.collect();
        let parts = (0..).zip(&batches).map(|(ns, (witness, after))| block::NamespaceClaim {
            ns,
            after: Some(*after),
            witness: Some(witness),
        });
        let parts: Vec<_> = parts.collect();
        let Ok(bytes) = block::build(COUNTING, &roots, &parts) else { continue };
        let needed = limits_hold(verify, &bytes, &roots.over_all(COUNTING));
        // The outer witness, and those inside as each for itself.
        let inner: u64 = batches
            .iter()
            .zip(roots.iter())
            .filter_map(|((witness, _), (_, root))| self::needed(VERIFIERS[2], witness, root))
            .sum();
        built += 1;
        assert!(needed > inner && needed <= inner + 5 + 2 * 2 * 8 * 5, "{needed} {inner}");
    }
    assert!(built > 20, "{built} blocks");
}

#[test]
fn too_many_bytes_are_not_looked_at() {
    // Nothing of it is an encoding: the length is all that was read.
    let bytes = [0xff; 1000];
    for verify in VERIFIERS {
        let limits = Limits { bytes: 999, ..Limits::UNLIMITED };
        let error = VerifyError::OverLimit { limit: Limit::Bytes, needed: 1000, allowed: 999 };
        assert_eq!(verify(&bytes, &TERMINATOR, &limits), Err(error));
        assert!(error.to_string().contains("1 too many"), "{error}");
        let limits = Limits { bytes: 1000, ..Limits::UNLIMITED };
        let other = verify(&bytes, &TERMINATOR, &limits);
        assert!(matches!(other, Err(VerifyError::Decode(_))), "{other:?}");
    }
}

#[test]
fn functions_without_limits_have_the_default_ones() {
    assert_eq!(Limits::default(), Limits::DEFAULT);
    // One byte more than the default; the pages are never read.
    let len = usize::try_from(Limits::DEFAULT.bytes).unwrap() + 1;
    let bytes = vec![0; len];
    let over = |error| matches!(error, VerifyError::OverLimit { limit: Limit::Bytes, .. });
    assert!(path::verify(COUNTING, &bytes, &TERMINATOR).is_err_and(over));
    assert!(multi::verify(COUNTING, &bytes, &TERMINATOR).is_err_and(over));
    assert!(witness::verify(COUNTING, &bytes, &TERMINATOR).is_err_and(over));
    assert!(range::verify(COUNTING, &bytes, &TERMINATOR, &FIRST, &LAST).is_err_and(over));
    let change = change::verify(COUNTING, &bytes, &TERMINATOR, &TERMINATOR, &FIRST, &LAST);
    assert!(change.is_err_and(over));
    let over = |error| matches!(error, VerifyError::OverLimit { limit: Limit::Hashes, .. });
    // 80,000 chains of more than 232 hashes, in 10 MB.
    let bytes = chains(80_000);
    assert!(bytes.len() < 11_000_000);
    assert!(witness::verify(COUNTING, &bytes, &TERMINATOR).is_err_and(over));
}
