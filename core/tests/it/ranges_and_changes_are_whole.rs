//! A range proof says exactly what a map says about the range, and a change proof what differs
//! between two maps: no pair more, none less, in the one encoding that the slow twin writes.
use crate::common::{SPREADS, Spread, below, cases, rng, second, set, some_keys, some_ops};
use pleach_core::{
    Hasher, Key, ValueHash,
    naive::NaiveTrie,
    proof::{
        BuildError, DecodeError, Lookup, VerifyError,
        change::{self, ChangeLookup},
        range, witness,
    },
};
use rand_chacha::ChaCha8Rng;

const BLAKE3: Hasher = Hasher::BLAKE3;

/// Two keys, the smaller one first: of the set, of the spread, or the ends of all keys.
fn bounds(set: &NaiveTrie, spread: Spread, rng: &mut ChaCha8Rng) -> (Key, Key) {
    let keys = some_keys(set, spread, rng, 2);
    match below(rng, 8) {
        0 => ([0; 32], [0xff; 32]),
        1 => ([0; 32], keys[0]),
        2 => (keys[0], [0xff; 32]),
        3 => (keys[0], keys[0]),
        _ => (keys[0], keys[keys.len() - 1]),
    }
}

fn range_build(
    hasher: Hasher,
    set: &NaiveTrie,
    first: &Key,
    last: &Key,
) -> Result<Vec<u8>, BuildError> {
    let bounds = set.multi(hasher, &[*first, *last]).encode(hasher).unwrap();
    let pairs = set.pairs().range(*first..=*last).map(|(key, hash)| (*key, *hash));
    range::build(hasher, &bounds, first, last, pairs)
}

fn change_build(
    hasher: Hasher,
    from: &NaiveTrie,
    to: &NaiveTrie,
    first: &Key,
    last: &Key,
) -> Result<Vec<u8>, BuildError> {
    let mut keys = from.changed(to, first, last);
    keys.extend([first, last]);
    let multi = |set: &NaiveTrie| set.multi(hasher, &keys).encode(hasher).unwrap();
    change::build(hasher, &multi(from), &multi(to), first, last)
}

fn ranges(hasher: Hasher, seed: u64) {
    for spread in SPREADS {
        let mut rng = rng(seed);
        let count = [0, 1, 2, 3, 9, 40, 150][below(&mut rng, 7)];
        let set = set(spread, &mut rng, count);
        let root = set.root(hasher);
        for _ in 0..6 {
            let (first, last) = bounds(&set, spread, &mut rng);
            let bytes = range_build(hasher, &set, &first, &last).unwrap();
            assert_eq!(bytes, set.range(hasher, &first, &last), "{spread:?} {seed}");
            let verified = range::verify(hasher, &bytes, &root, &first, &last).unwrap();
            let wanted: Vec<(Key, ValueHash)> =
                set.pairs().range(first..=last).map(|(key, hash)| (*key, *hash)).collect();
            assert_eq!(verified.pairs().collect::<Vec<_>>(), wanted);
            assert!(second::range(hasher, &bytes, &root, &first, &last));
            assert_eq!(
                (verified.first(), verified.last(), verified.root()),
                (&first, &last, &root)
            );
            for key in some_keys(&set, spread, &mut rng, 10) {
                let wanted = set.get(&key).map_or(Lookup::Absent, |hash| Lookup::Present(*hash));
                let scoped = (first..=last).contains(&key);
                let wanted = if scoped { wanted } else { Lookup::OutOfScope };
                assert_eq!(verified.get(&key), wanted);
            }
            let unverified = range::decode(hasher, &bytes, &first, &last).unwrap();
            assert!(unverified.terminals().eq(verified.terminals()));
            // The same bytes about another range, unless that one has the same terminals.
            let (other_first, other_last) = bounds(&set, spread, &mut rng);
            let other = range::verify(hasher, &bytes, &root, &other_first, &other_last);
            assert_eq!(other.is_ok(), bytes == set.range(hasher, &other_first, &other_last));
        }
    }
}

#[test]
fn a_range_proof_has_all_pairs_of_the_range_and_no_others() {
    for seed in 0..cases(30) {
        ranges(BLAKE3, seed);
    }
    for seed in 0..cases(30) / 6 {
        ranges(Hasher::SHA2_256, seed);
    }
}

/// A set and another one that a few batches have made of it.
fn states(spread: Spread, rng: &mut ChaCha8Rng) -> (NaiveTrie, NaiveTrie) {
    let count = [0, 1, 2, 3, 9, 40, 150][below(rng, 7)];
    let from = set(spread, rng, count);
    let mut to = from.clone();
    for _ in 0..below(rng, 4) {
        let count = [1, 2, 5, 30][below(rng, 4)];
        to.apply(&some_ops(&from, spread, rng, count));
    }
    if below(rng, 10) == 0 {
        to = NaiveTrie::new();
    }
    if below(rng, 2) == 0 { (from, to) } else { (to, from) }
}

fn changes(hasher: Hasher, seed: u64) {
    for spread in SPREADS {
        let mut rng = rng(seed);
        let (from, to) = states(spread, &mut rng);
        let roots = (from.root(hasher), to.root(hasher));
        for _ in 0..6 {
            let (first, last) = bounds(&from, spread, &mut rng);
            let bytes = change_build(hasher, &from, &to, &first, &last).unwrap();
            assert_eq!(bytes, from.change(hasher, &to, &first, &last), "{spread:?} {seed}");
            let verified =
                change::verify(hasher, &bytes, &roots.0, &roots.1, &first, &last).unwrap();
            let wanted: Vec<_> = from
                .changed(&to, &first, &last)
                .into_iter()
                .map(|key| (key, from.get(&key).copied(), to.get(&key).copied()))
                .collect();
            assert_eq!(verified.changes().collect::<Vec<_>>(), wanted);
            assert!(second::change(hasher, &bytes, &roots.0, &roots.1, &first, &last));
            assert_eq!((verified.from_root(), verified.to_root()), (&roots.0, &roots.1));
            assert_eq!((verified.first(), verified.last()), (&first, &last));
            for key in some_keys(&to, spread, &mut rng, 10) {
                let (before, after) = (from.get(&key).copied(), to.get(&key).copied());
                let wanted = match (first..=last).contains(&key) {
                    false => ChangeLookup::OutOfScope,
                    true if before == after => ChangeLookup::Same,
                    true => ChangeLookup::Changed { before, after },
                };
                assert_eq!(verified.get(&key), wanted);
            }
            // Each side is a multiproof of its own.
            let unverified = change::decode(hasher, &bytes, &first, &last).unwrap();
            let mut keys = from.changed(&to, &first, &last);
            keys.extend([first, last]);
            let (before, after) = (from.multi(hasher, &keys), to.multi(hasher, &keys));
            assert!(unverified.terminals_before().eq(before.terminals));
            assert!(unverified.terminals_after().eq(after.terminals));
            assert_eq!(unverified.siblings_before(), before.siblings);
            assert_eq!(unverified.siblings_after(), after.siblings);
            // The other way round it is another claim.
            let back = change::verify(hasher, &bytes, &roots.1, &roots.0, &first, &last);
            assert_eq!(back.is_ok(), roots.0 == roots.1);
            let (other_first, other_last) = bounds(&to, spread, &mut rng);
            let other =
                change::verify(hasher, &bytes, &roots.0, &roots.1, &other_first, &other_last);
            assert_eq!(other.is_ok(), bytes == from.change(hasher, &to, &other_first, &other_last));
        }
    }
}

#[test]
fn a_change_proof_has_all_changes_of_the_range_and_no_others() {
    for seed in 0..cases(30) {
        changes(BLAKE3, seed);
    }
    for seed in 0..cases(30) / 6 {
        changes(Hasher::SHA2_256, seed);
    }
}

/// All sets of up to three keys in a space of 16, two bits at either end of a key, and some larger
/// ones; each with the one before it.
#[test]
fn all_small_sets_and_ranges_are_proven() {
    let keys: Vec<Key> = (0..16u8)
        .map(|number| {
            let mut key = [0; 32];
            (key[0], key[31]) = (number >> 2 << 6, number & 3);
            key
        })
        .collect();
    let mut previous = NaiveTrie::new();
    for bits in (0u32..1 << 16).filter(|bits| bits.count_ones() <= 3 || bits % 997 == 0) {
        let members = (0..16).filter(|key| bits >> key & 1 == 1);
        let set: NaiveTrie =
            members.map(|key| (keys[key], [u8::try_from(key).unwrap(); 32].into())).collect();
        let (root, previous_root) = (set.root(BLAKE3), previous.root(BLAKE3));
        let ranges = [(0, 15), (3, 3), (1, 6), (4, 7), (7, 12), (10, 15), (5, 13)];
        for (first, last) in ranges.iter().skip((bits % 3) as usize).step_by(3) {
            let (first, last) = (&keys[*first], &keys[*last]);
            let bytes = range_build(BLAKE3, &set, first, last).unwrap();
            assert_eq!(bytes, set.range(BLAKE3, first, last));
            let verified = range::verify(BLAKE3, &bytes, &root, first, last).unwrap();
            assert!(verified.pairs().eq(set.pairs().range(*first..=*last).map(|(k, v)| (*k, *v))));
            let bytes = change_build(BLAKE3, &previous, &set, first, last).unwrap();
            assert_eq!(bytes, previous.change(BLAKE3, &set, first, last));
            let verified =
                change::verify(BLAKE3, &bytes, &previous_root, &root, first, last).unwrap();
            let seen: Vec<Key> = verified.changes().map(|(key, ..)| key).collect();
            assert_eq!(seen, previous.changed(&set, first, last));
        }
        previous = set;
    }
}

#[test]
fn a_pair_too_many_or_too_few_is_refused_or_proves_nothing() {
    for seed in 0..cases(8) {
        for spread in SPREADS {
            let mut rng = rng(seed);
            let count = 1 + below(&mut rng, 40);
            let set = set(spread, &mut rng, count);
            let root = set.root(BLAKE3);
            let (first, last) = bounds(&set, spread, &mut rng);
            let bounds = set.multi(BLAKE3, &[first, last]).encode(BLAKE3).unwrap();
            let refused = |pairs: &[(Key, ValueHash)]| {
                let built = range::build(BLAKE3, &bounds, &first, &last, pairs.iter().copied());
                if let Ok(bytes) = built {
                    let verdict = range::verify(BLAKE3, &bytes, &root, &first, &last);
                    assert!(verdict.is_err(), "{spread:?} {seed}");
                }
            };
            let pairs: Vec<_> =
                set.pairs().range(first..=last).map(|(key, hash)| (*key, *hash)).collect();
            for index in 0..pairs.len() {
                let mut fewer = pairs.clone();
                let (key, hash) = fewer.remove(index);
                refused(&fewer);
                let mut other = pairs.clone();
                other[index].1 = crate::common::bytes32(&mut rng);
                refused(&other);
                fewer.insert(index, (crate::common::key(spread, &mut rng), hash));
                if fewer != pairs {
                    refused(&fewer);
                }
                let mut twice = pairs.clone();
                twice.insert(index, (key, hash));
                let built = range::build(BLAKE3, &bounds, &first, &last, twice);
                assert_eq!(built, Err(BuildError::Pair { index: index + 1 }));
            }
            let mut more = pairs.clone();
            let key = crate::common::key(spread, &mut rng);
            if let Err(at) = more.binary_search_by_key(&key, |(key, _)| *key) {
                more.insert(at, (key, crate::common::bytes32(&mut rng)));
                refused(&more);
            }
        }
    }
}

#[test]
fn a_change_that_is_left_out_is_found() {
    let mut left_out = [0u32; 2];
    for seed in 0..cases(40) {
        for spread in SPREADS {
            let mut rng = rng(seed);
            let (from, to) = states(spread, &mut rng);
            let roots = (from.root(BLAKE3), to.root(BLAKE3));
            let (first, last) = bounds(&from, spread, &mut rng);
            let honest = from.change(BLAKE3, &to, &first, &last);
            let changed = from.changed(&to, &first, &last);
            for omitted in changed.iter().filter(|key| ![first, last].contains(key)).take(8) {
                let mut keys: Vec<Key> =
                    changed.iter().filter(|key| *key != omitted).copied().collect();
                keys.extend([first, last]);
                let lie = from.change_of(BLAKE3, &to, &keys, &first, &last);
                if lie == honest {
                    // Another key opens the same terminals on both sides.
                    left_out[0] += 1;
                    continue;
                }
                left_out[1] += 1;
                let verify = |bytes: &[u8]| {
                    let verdict = change::verify(BLAKE3, bytes, &roots.0, &roots.1, &first, &last);
                    verdict.map(|verified| verified.changes().count())
                };
                assert!(verify(&lie).is_err(), "{spread:?} {seed}");
                // The same with any of its siblings left out.
                let count = u32::from_le_bytes(lie[16..20].try_into().unwrap());
                for sibling in 0..count as usize {
                    let mut less = lie.clone();
                    less[16..20].copy_from_slice(&(count - 1).to_le_bytes());
                    let at = lie.len() - 32 * (sibling + 1);
                    less.drain(at..at + 32);
                    assert!(verify(&less).is_err(), "{spread:?} {seed}");
                }
                let multi = |set: &NaiveTrie| set.multi(BLAKE3, &keys).encode(BLAKE3).unwrap();
                let built = change::build(BLAKE3, &multi(&from), &multi(&to), &first, &last);
                assert!(built.is_err());
            }
            // A key too many.
            let keys = some_keys(&from, spread, &mut rng, 3);
            let keys: Vec<Key> = [&keys[..], &changed, &[first, last]].concat();
            let more = from.change_of(BLAKE3, &to, &keys, &first, &last);
            let verdict = change::verify(BLAKE3, &more, &roots.0, &roots.1, &first, &last);
            assert_eq!(verdict.is_ok(), more == honest, "{spread:?} {seed}");
        }
    }
    assert!(left_out[1] > 10 * left_out[0].max(1), "{left_out:?}");
}

#[test]
fn a_range_proof_takes_little_more_than_its_pairs() {
    let mut rng = rng(3);
    let set = set(Spread::Uniform, &mut rng, 20_000);
    let (first, last) = ([0x40; 32], [0xbf; 32]);
    let bytes = range_build(BLAKE3, &set, &first, &last).unwrap();
    let verified = range::decode(BLAKE3, &bytes, &first, &last).unwrap();
    let pairs = set.pairs().range(first..=last).count();
    let empty = verified.terminal_count() - pairs;
    println!("{pairs} pairs, {empty} empty subtries, {} bytes", bytes.len());
    // 64 bytes for a pair, 2 for the leaf's depth, and 0.44 empty subtries with 4 bytes each.
    assert!((pairs * 40..pairs * 48).contains(&(empty * 100)));
    assert!(bytes.len() <= pairs * 68);
}

#[test]
fn a_builder_says_what_is_wrong_with_its_parts() {
    let set: NaiveTrie = (0..8).map(|byte| ([byte << 5; 32], [byte; 32].into())).collect();
    let multi = |keys: &[Key]| set.multi(BLAKE3, keys).encode(BLAKE3).unwrap();
    let (first, last) = ([0x20; 32], [0x80; 32]);
    let pairs = || set.pairs().range(first..=last).map(|(key, hash)| (*key, *hash));
    let build = |bounds: &[u8]| range::build(BLAKE3, bounds, &first, &last, pairs());
    assert!(build(&multi(&[first, last])).is_ok());
    assert_eq!(build(&multi(&[first, [0x40; 32], last])), Err(BuildError::Keys));
    assert_eq!(build(&multi(&[first])), Err(DecodeError::RangeEnds.into()));
    assert_eq!(build(&multi(&[])), Err(DecodeError::RangeEnds.into()));
    let path = set.path(BLAKE3, &first).encode(BLAKE3).unwrap();
    assert_eq!(build(&path), Err(DecodeError::Kind { expected: 2, found: 1 }.into()));
    let bounds = multi(&[first, last]);
    let reversed = range::build(BLAKE3, &bounds, &last, &first, pairs());
    assert_eq!(reversed, Err(DecodeError::EmptyRange.into()));
    let none = range::build(BLAKE3, &bounds, &first, &last, pairs().skip(1));
    assert_eq!(none, Err(BuildError::MissingPair));
    let none = range::build(BLAKE3, &bounds, &first, &last, pairs().take(3));
    assert_eq!(none, Err(BuildError::MissingPair));
    let outside = pairs().chain([([0x81; 32], [1; 32].into())]);
    let outside = range::build(BLAKE3, &bounds, &first, &last, outside);
    assert_eq!(outside, Err(BuildError::Pair { index: 4 }));

    let mut to = set.clone();
    to.set([0x40; 32], None);
    let other = |keys: &[Key]| to.multi(BLAKE3, keys).encode(BLAKE3).unwrap();
    let build = |keys: &[Key]| change::build(BLAKE3, &multi(keys), &other(keys), &first, &last);
    assert!(build(&[first, [0x40; 32], last]).is_ok());
    assert_eq!(build(&[first, last]), Err(BuildError::Unopened { depth: 2 }));
    assert_eq!(build(&[first, [0x40; 32], [0x60; 32], last]), Err(BuildError::Keys));
    assert_eq!(build(&[first, [0x40; 32]]), Err(DecodeError::RangeEnds.into()));
    let reversed = change::build(BLAKE3, &bounds, &bounds, &last, &first);
    assert_eq!(reversed, Err(DecodeError::EmptyRange.into()));
}

#[test]
fn a_witness_of_writes_leads_where_the_change_proof_of_all_keys_does() {
    for spread in SPREADS {
        let mut rng = rng(11);
        let from = set(spread, &mut rng, 60);
        let ops = some_ops(&from, spread, &mut rng, 30);
        let mut to = from.clone();
        to.apply(&ops);
        let bytes = from.witness(BLAKE3, &ops).encode(BLAKE3).unwrap();
        let root = from.root(BLAKE3);
        let new_root = *witness::verify(BLAKE3, &bytes, &root).unwrap().new_root();
        let (first, last) = ([0; 32], [0xff; 32]);
        let bytes = change_build(BLAKE3, &from, &to, &first, &last).unwrap();
        let verified = change::verify(BLAKE3, &bytes, &root, &new_root, &first, &last).unwrap();
        let mut again = from.clone();
        for (key, before, after) in verified.changes() {
            assert_eq!(again.get(&key).copied(), before);
            again.set(key, after);
        }
        assert_eq!(again, to);
        let wrong = change::verify(BLAKE3, &bytes, &root, &root, &first, &last);
        assert_eq!(wrong.err(), (root != new_root).then_some(VerifyError::RootMismatch));
    }
}
