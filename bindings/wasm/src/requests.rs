//! Requests and answers as bytes. Only safe code; any bytes give a `Result`.
//!
//! A root, a key and a hash are 32 bytes each. A *found* hash is 33 bytes: 1 and the hash, or 0 and 32 zero bytes where
//! a key has no value. Numbers are little-endian. Each request ends with the proof, which takes all bytes that are
//! left; verification is within `Limits::DEFAULT`.

use alloc::{format, string::String, string::ToString, vec::Vec};
use core::fmt::Display;

use pleach_core::hexadecimal::hex;
use pleach_core::proof::{Access, change, multi, namespace, path, range, witness};
use pleach_core::{Hasher, Key, Node, ValueHash, proof::Lookup};

/// The bytes of an answer, or why there is none.
pub type Answer = Result<Vec<u8>, String>;

/// The remaining bytes of a request.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (first, rest) = self.0.split_first_chunk().ok_or("the request is cut short")?;
        self.0 = rest;
        Ok(*first)
    }

    fn node(&mut self) -> Result<Node, String> {
        self.take().map(Node::new)
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// A found hash.
fn push(answer: &mut Vec<u8>, hash: Option<[u8; 32]>) {
    answer.push(u8::from(hash.is_some()));
    answer.extend(hash.unwrap_or_default());
}

fn push_value(answer: &mut Vec<u8>, hash: Option<ValueHash>) {
    push(answer, hash.map(ValueHash::to_bytes));
}

fn push_lookup(answer: &mut Vec<u8>, key: &Key, lookup: Lookup) -> Result<(), String> {
    match lookup {
        Lookup::Present(hash) => push_value(answer, Some(hash)),
        Lookup::Absent => push(answer, None),
        Lookup::OutOfScope => {
            return Err(format!("the proof says nothing about the key {}", hex(key)));
        }
    }
    Ok(())
}

/// Root, key, proof of a key: the found hash of its value. A proof of another key is an error.
pub fn verify_key(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let (root, key) = (rest.node()?, rest.take()?);
    let verified = path::verify(hasher, rest.0, &root).map_err(text)?;
    let mut answer = Vec::new();
    push_lookup(&mut answer, &key, verified.get(&key))?;
    Ok(answer)
}

/// Root, number of keys (4 bytes), keys, proof of several keys: the found hash of each key's value.
pub fn verify_keys(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let (root, count) = (rest.node()?, u32::from_le_bytes(rest.take()?));
    // Allocated as the keys are read: the number may be any.
    let keys = (0..count).map(|_| rest.take()).collect::<Result<Vec<Key>, _>>()?;
    let verified = multi::verify(hasher, rest.0, &root).map_err(text)?;
    let mut answer = Vec::new();
    for key in &keys {
        push_lookup(&mut answer, key, verified.get(key))?;
    }
    Ok(answer)
}

/// Root, first and last key, proof of a range: key and hash of each pair of the range, in order.
pub fn verify_range(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let (root, first, last) = (rest.node()?, rest.take()?, rest.take()?);
    let verified = range::verify(hasher, rest.0, &root, &first, &last).map_err(text)?;
    Ok(verified.pairs().flat_map(|(key, hash)| [key, hash.to_bytes()]).flatten().collect())
}

/// Root before, root after, first and last key, proof of the changes in a range: key, found hash before and found hash
/// after of each change, in order.
pub fn verify_change(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let (from, to) = (rest.node()?, rest.node()?);
    let (first, last) = (rest.take()?, rest.take()?);
    let verified = change::verify(hasher, rest.0, &from, &to, &first, &last).map_err(text)?;
    let mut answer = Vec::new();
    for (key, before, after) in verified.changes() {
        answer.extend(key);
        push_value(&mut answer, before);
        push_value(&mut answer, after);
    }
    Ok(answer)
}

/// Root before, witness of a batch: the root after, then of each operation the key, the access (1 read, 2 write, 3 read
/// and write), the found hash before and the found hash written (none: it deletes, or only reads).
pub fn verify_witness(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let root = rest.node()?;
    let verified = witness::verify(hasher, rest.0, &root).map_err(text)?;
    let mut answer = verified.new_root().to_bytes().to_vec();
    for op in verified.ops() {
        let (access, written) = match op.access {
            Access::Read => (1, None),
            Access::Write(written) => (2, written),
            Access::ReadWrite(written) => (3, written),
        };
        answer.extend(op.key);
        answer.push(access);
        push_value(&mut answer, op.before);
        push_value(&mut answer, written);
    }
    Ok(answer)
}

/// Root over all namespaces, proof through it: the namespace (a byte), its found root (none: it does not exist), and
/// the inner proof, **not verified**, which is to be checked against that root.
pub fn open_namespace(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let root = rest.node()?;
    let opened = namespace::open(hasher, rest.0, &root).map_err(text)?;
    let mut answer = Vec::from([opened.ns()]);
    push(&mut answer, opened.root().map(|root| root.to_bytes()));
    answer.extend(opened.inner());
    Ok(answer)
}

/// Roots over all namespaces before and after, proof of a namespace's change through them: the namespace (a byte), 1 if
/// its root differs, its found roots before and after (none: it does not exist, or does not differ), and the inner
/// change proof, **not verified**, which is to be checked between those roots, 32 zero bytes for one that does not
/// exist; there is none where no key changed.
pub fn open_namespace_change(hasher: Hasher, request: &[u8]) -> Answer {
    let mut rest = Rest(request);
    let (from, to) = (rest.node()?, rest.node()?);
    let opened = namespace::open_change(hasher, rest.0, &from, &to).map_err(text)?;
    let mut answer = Vec::from([opened.ns(), u8::from(!opened.is_same())]);
    for root in opened.roots().unwrap_or_default() {
        push(&mut answer, root.map(Node::to_bytes));
    }
    answer.extend(opened.inner());
    Ok(answer)
}

/// Any bytes: their hash, which is that of a value with these bytes.
pub fn hash(hasher: Hasher, request: &[u8]) -> Answer {
    Ok(hasher.hash(request).to_vec())
}
