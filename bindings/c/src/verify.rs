//! Verifiers of proofs and witnesses, which need no database, and the hash functions.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use pleach::proof::{KeyProof, KeysProof, Lookup, RangeProof};
use pleach::{Hasher, Key, Node, proof::witness};

use crate::bytes::PleachBytes;
use crate::error::{Failed, Fallible, PleachError, guard};
use crate::handle::{Out, bytes, given, keys, places, text};

/// What a proof says of a key: it has no value.
pub const PLEACH_ABSENT: u8 = 0;
/// What a proof says of a key: it has a value, with this hash.
pub const PLEACH_PRESENT: u8 = 1;
/// What a proof says of a key: nothing.
pub const PLEACH_OUT_OF_SCOPE: u8 = 2;

/// A hash function by its name.
///
/// # Safety
/// As of [`text`].
unsafe fn hasher(name: *const c_char) -> Fallible<Hasher> {
    // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
    let name = unsafe { text(name, "hasher") }?;
    let unknown = || PleachError::argument("`hasher` is neither `blake3` nor `sha2-256`");
    Hasher::of_name(name).ok_or_else(unknown)
}

/// Number and hash of a value; zeros where there is none.
fn answer(lookup: Lookup) -> (u8, Key) {
    match lookup {
        Lookup::Absent => (PLEACH_ABSENT, [0; 32]),
        Lookup::Present(hash) => (PLEACH_PRESENT, hash.to_bytes()),
        Lookup::OutOfScope => (PLEACH_OUT_OF_SCOPE, [0; 32]),
    }
}

/// Places for the answers about several keys.
struct Answers<'a> {
    keys: &'a [Key],
    lookups: &'a mut [MaybeUninit<u8>],
    hashes: &'a mut [MaybeUninit<Key>],
}

impl Answers<'_> {
    /// # Safety
    /// `keys` is NULL, or so many keys are there; the others are NULL, or room for so many results, where nothing else is.
    unsafe fn new(
        keys: *const u8,
        count: usize,
        lookups: *mut u8,
        hashes: *mut Key,
    ) -> Fallible<Self> {
        // SAFETY: the caller's duty.
        let keys = unsafe { self::keys(keys, count, "keys") }?;
        // SAFETY: the caller's duty.
        let lookups = unsafe { places(lookups, count, "lookups") }?;
        // SAFETY: the caller's duty.
        let hashes = unsafe { places(hashes, count, "value_hashes") }?;
        Ok(Self { keys, lookups, hashes })
    }

    fn write(self, get: impl Fn(&Key) -> Lookup) {
        for ((key, lookup), hash) in self.keys.iter().zip(self.lookups).zip(self.hashes) {
            let (found, of_value) = answer(get(key));
            lookup.write(found);
            hash.write(of_value);
        }
    }
}

/// Hashes bytes by "blake3" or "sha2-256": keys of an application, and values for a comparison with a `value_hash`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_hash(
    hasher: *const c_char,
    data: *const u8,
    len: usize,
    hash: Out<Key>,
) -> Failed {
    guard(|| {
        let hash = given(hash, "hash")?;
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let hasher = unsafe { self::hasher(hasher) }?;
        // SAFETY: the caller's duty: NULL, or so many bytes.
        hash.write(hasher.hash(unsafe { bytes(data, len, "data") }?));
        Ok(())
    })
}

/// Verifies a proof of a key against a root. `lookup` becomes `PLEACH_PRESENT`, `PLEACH_ABSENT` or `PLEACH_OUT_OF_SCOPE`,
/// `value_hash` the hash of the value, or zeros. Errors: `PLEACH_REFUSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_verify_key(
    hasher: *const c_char,
    root: Option<&Key>,
    proof: *const u8,
    proof_len: usize,
    key: Option<&Key>,
    lookup: Out<u8>,
    value_hash: Out<Key>,
) -> Failed {
    guard(|| {
        let (root, key) = (Node::new(*given(root, "root")?), given(key, "key")?);
        let (lookup, hash) = (given(lookup, "lookup")?, given(value_hash, "value_hash")?);
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let hasher = unsafe { self::hasher(hasher) }?;
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let proof = KeyProof::from(unsafe { bytes(proof, proof_len, "proof") }?.to_vec());
        let (found, of_value) = answer(proof.verify(hasher, &root)?.get(key));
        lookup.write(found);
        hash.write(of_value);
        Ok(())
    })
}

/// Verifies a proof of several keys against a root, and says of `count` keys what `pleach_verify_key` says of one, in
/// `count` `lookups` and `value_hashes` of 32 bytes each. Errors: `PLEACH_REFUSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_verify_keys(
    hasher: *const c_char,
    root: Option<&Key>,
    proof: *const u8,
    proof_len: usize,
    keys: *const u8,
    count: usize,
    lookups: *mut u8,
    value_hashes: *mut Key,
) -> Failed {
    guard(|| {
        let root = Node::new(*given(root, "root")?);
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let hasher = unsafe { self::hasher(hasher) }?;
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let proof = KeysProof::from(unsafe { bytes(proof, proof_len, "proof") }?.to_vec());
        // SAFETY: the caller's duty: so many keys, and room for as many results.
        let answers = unsafe { Answers::new(keys, count, lookups, value_hashes) }?;
        let verified = proof.verify(hasher, &root)?;
        answers.write(|key| verified.get(key));
        Ok(())
    })
}

/// Verifies a proof of the keys from `first` to `last` against a root. `pairs` become all pairs of the range in order, 64
/// bytes each: the key and the hash of its value. Errors: `PLEACH_REFUSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_verify_range(
    hasher: *const c_char,
    root: Option<&Key>,
    proof: *const u8,
    proof_len: usize,
    first: Option<&Key>,
    last: Option<&Key>,
    pairs: Out<PleachBytes>,
) -> Failed {
    guard(|| {
        let root = Node::new(*given(root, "root")?);
        let (first, last) = (given(first, "first")?, given(last, "last")?);
        let pairs = given(pairs, "pairs")?;
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let hasher = unsafe { self::hasher(hasher) }?;
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let proof = RangeProof::from(unsafe { bytes(proof, proof_len, "proof") }?.to_vec());
        let verified = proof.verify(hasher, &root, *first..=*last)?;
        let found: Vec<[Key; 2]> =
            verified.pairs().map(|(key, hash)| [key, hash.to_bytes()]).collect();
        pairs.write(PleachBytes::of(found.as_flattened().as_flattened()));
        Ok(())
    })
}

/// Verifies a block's witness against the root before the block. `new_root` becomes the root after it; of `count` keys it
/// says what the state before the block has, as `pleach_verify_keys` does. Errors: `PLEACH_REFUSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_verify_witness(
    hasher: *const c_char,
    previous_root: Option<&Key>,
    witness: *const u8,
    witness_len: usize,
    keys: *const u8,
    count: usize,
    lookups: *mut u8,
    value_hashes: *mut Key,
    new_root: Out<Key>,
) -> Failed {
    guard(|| {
        let root = Node::new(*given(previous_root, "previous_root")?);
        let new_root = given(new_root, "new_root")?;
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let hasher = unsafe { self::hasher(hasher) }?;
        // SAFETY: the caller's duty: NULL, or so many bytes.
        let witness = unsafe { bytes(witness, witness_len, "witness") }?;
        // SAFETY: the caller's duty: so many keys, and room for as many results.
        let answers = unsafe { Answers::new(keys, count, lookups, value_hashes) }?;
        let verified = witness::verify(hasher, witness, &root)?;
        answers.write(|key| verified.get(key));
        new_root.write(verified.new_root().to_bytes());
        Ok(())
    })
}
