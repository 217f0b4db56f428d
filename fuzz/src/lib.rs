//! What the fuzz targets share: sets and batches cut from the fuzzer's bytes, and the checks.
//!
//! A target cuts its structures from the front with [`Input`]; when the bytes run out they are zeros, so every input is
//! a valid one. Whole databases are opened by [`sim`] and compared with the oracle in [`model`]; [`api_model`],
//! [`crash_schedule`], [`open_dir`], [`nomt_import`] and [`treelet_fold`] are what the targets of these names do, which
//! `engine/tests/fuzz_models.rs`, `core/tests/it/fuzzed_treelets.rs` do with some inputs, too.

use pleach_core::{
    Hasher, Key, Node, Prefix,
    naive::NaiveTrie,
    proof::{
        Access, Limits, Lookup, Op, ProofKind, Terminal, VerifyError, block, change, multi,
        namespace, path, range, wire, witness,
    },
};

pub mod api_model;
pub mod crash_schedule;
mod input;
pub mod model;
pub mod nomt_import;
pub mod open_dir;
pub mod sim;
pub mod treelet_fold;

pub use input::Input;

#[path = "../../core/tests/it/common/second.rs"]
#[allow(dead_code)]
mod second;

impl Input<'_> {
    /// Few distinct keys of every kind of distance: a byte's worth of bits at a place of choice.
    pub fn key(&mut self) -> Key {
        let (shape, value) = (self.u8(), self.u8());
        let mut key = [if shape & 0x80 == 0 { 0 } else { 0xff }; 32];
        key[usize::from(shape & 31)] ^= value;
        if shape & 0x40 != 0 {
            key[0] = self.u8();
        }
        key
    }

    /// Two keys, the first not after the last unless the input insists; often the ends of all keys.
    pub fn range(&mut self) -> (Key, Key) {
        let choice = self.u8();
        let (first, last) = (self.key(), self.key());
        match choice % 8 {
            0 => ([0; 32], [0xff; 32]),
            1 => ([0; 32], last),
            2 => (first, [0xff; 32]),
            3 => (first, first),
            _ if choice == 0xff => (first, last),
            _ => (first.min(last), first.max(last)),
        }
    }

    /// 32 bytes as they are: a root that a proof may lead to.
    pub fn root(&mut self) -> Node {
        std::array::from_fn(|_| self.u8()).into()
    }

    pub fn hash<T: From<[u8; 32]>>(&mut self) -> T {
        [self.u8(); 32].into()
    }

    pub fn set(&mut self) -> NaiveTrie {
        let count = self.u8() % 24;
        (0..count).map(|_| (self.key(), self.hash())).collect()
    }

    pub fn ops(&mut self) -> Vec<Op> {
        let count = self.u8() % 24;
        let mut ops: Vec<Op> = (0..count)
            .map(|_| {
                let key = self.key();
                let choice = self.u8();
                let value = (choice & 4 != 0).then(|| self.hash());
                let access = match choice % 3 {
                    0 => Access::Read,
                    1 => Access::Write(value),
                    _ => Access::ReadWrite(value),
                };
                Op { key, access }
            })
            .collect();
        ops.sort_unstable_by_key(|op| op.key);
        ops.dedup_by_key(|op| op.key);
        ops
    }

    pub fn terminal(&mut self) -> Terminal {
        let choice = self.u8();
        let depth = match choice & 3 {
            0 => u16::from(self.u8() % 4),
            1 => u16::from(self.u8()),
            2 => 256,
            _ => self.u16() % 512,
        };
        let key = self.key();
        if choice & 4 == 0 {
            Terminal::Leaf { depth, key, value_hash: self.hash() }
        } else {
            Terminal::Terminator { prefix: Prefix::new(&key, depth.min(256)) }
        }
    }

    /// Terminals in key order (if the input does not insist on another), and as many siblings as
    /// they need, or a few more or less.
    pub fn proof(&mut self) -> pleach_core::proof::multi::MultiProof {
        let count = self.u8() % 12;
        let mut terminals: Vec<Terminal> = (0..count).map(|_| self.terminal()).collect();
        let sort = self.u8();
        if sort != 1 {
            terminals.sort_by_key(|terminal| *terminal.bits());
            terminals.dedup_by(|b, a| {
                let fork = pleach_core::prefix::common_len(a.bits(), b.bits());
                fork >= a.depth() || fork >= b.depth()
            });
        }
        let mut need = terminals.first().map_or(0, |first| usize::from(first.depth()));
        for pair in terminals.windows(2) {
            let fork = pleach_core::prefix::common_len(pair[0].bits(), pair[1].bits());
            need = (need + usize::from(pair[1].depth())).saturating_sub(usize::from(fork) + 2);
        }
        if self.u8() == 1 {
            need = (need + usize::from(self.u8() % 4)).saturating_sub(2);
        }
        let siblings = (0..need)
            .map(|_| match self.u8() {
                0 => [0x33; 32].into(),
                1 => [0; 32].into(),
                other => [other; 32].into(),
            })
            .collect();
        pleach_core::proof::multi::MultiProof { terminals, siblings }
    }

    /// Changes an encoding as the rest of the input says.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.u8() % 4 {
            if bytes.is_empty() {
                return;
            }
            let at = usize::from(self.u16()) % bytes.len();
            let len = [1, 2, 32, 33, 66][usize::from(self.u8() % 5)].min(bytes.len() - at);
            match self.u8() % 6 {
                0 => bytes[at] ^= self.u8(),
                1 => bytes.truncate(at),
                2 => drop(bytes.drain(at..at + len)),
                3 => {
                    let copy = bytes[at..at + len].to_vec();
                    let to = usize::from(self.u16()) % bytes.len();
                    bytes.splice(to..to, copy);
                }
                4 => bytes[at..at + len].fill(self.u8()),
                _ => {
                    let to = usize::from(self.u16()) % (bytes.len() - len + 1);
                    (0..len).for_each(|i| bytes.swap(at + i, to + i));
                }
            }
        }
    }
}

/// Both verifiers on the bytes of a multiproof.
pub fn multi_agrees(bytes: &[u8], root: &Node) -> bool {
    let first = multi::verify(Hasher::BLAKE3, bytes, root);
    limits_hold(|limits| multi::verify_with(Hasher::BLAKE3, bytes, root, limits).map(|_| ()));
    assert_eq!(first.is_ok(), second::verify(Hasher::BLAKE3, bytes, false, root).is_some());
    if let Ok(verified) = &first {
        for terminal in verified.terminals() {
            assert_ne!(verified.get(terminal.bits()), Lookup::OutOfScope);
        }
    }
    first.is_ok()
}

/// Both verifiers on the bytes of a witness; the new root, if they accept.
pub fn witness_agrees(bytes: &[u8], root: &Node) -> Option<Node> {
    let first = witness::verify(Hasher::BLAKE3, bytes, root);
    limits_hold(|limits| {
        witness::verify_with(Hasher::BLAKE3, bytes, root, limits)
            .map(|verified| *verified.new_root())
    });
    let new_root = first.as_ref().ok().map(|verified| *verified.new_root());
    assert_eq!(new_root, second::verify(Hasher::BLAKE3, bytes, true, root));
    if let Ok(verified) = &first {
        assert_eq!(verified.ops().count(), verified.op_count());
        for op in verified.ops() {
            let wanted = op.before.map_or(Lookup::Absent, Lookup::Present);
            assert_eq!(verified.get(&op.key), wanted);
        }
    }
    new_root
}

/// Both verifiers on the bytes of a range proof.
pub fn range_agrees(bytes: &[u8], root: &Node, first: &Key, last: &Key) -> bool {
    let verdict = range::verify(Hasher::BLAKE3, bytes, root, first, last);
    limits_hold(|limits| {
        range::verify_with(Hasher::BLAKE3, bytes, root, first, last, limits).map(|_| ())
    });
    assert_eq!(verdict.is_ok(), second::range(Hasher::BLAKE3, bytes, root, first, last));
    if let Ok(verified) = &verdict {
        assert!(verified.pairs().map(|(key, _)| key).is_sorted());
        for (key, value_hash) in verified.pairs() {
            assert_eq!(verified.get(&key), Lookup::Present(value_hash));
        }
    }
    verdict.is_ok()
}

/// Both verifiers on the bytes of a change proof.
pub fn change_agrees(bytes: &[u8], (from, to): (Node, Node), (first, last): (Key, Key)) {
    let verdict = change::verify(Hasher::BLAKE3, bytes, &from, &to, &first, &last);
    limits_hold(|limits| {
        change::verify_with(Hasher::BLAKE3, bytes, &from, &to, &first, &last, limits).map(|_| ())
    });
    assert_eq!(verdict.is_ok(), second::change(Hasher::BLAKE3, bytes, &from, &to, &first, &last));
    if let Ok(verified) = &verdict {
        for (key, before, after) in verified.changes() {
            assert_eq!(verified.get(&key), change::ChangeLookup::Changed { before, after });
        }
    }
}

/// Both verifiers on the bytes of a block; the new root over all, if they accept.
pub fn block_agrees(bytes: &[u8], over_all: &Node) -> Option<Node> {
    let first = block::verify(Hasher::BLAKE3, bytes, over_all);
    limits_hold(|limits| {
        block::verify_with(Hasher::BLAKE3, bytes, over_all, limits)
            .map(|verified| *verified.new_root())
    });
    let new_root = first.as_ref().ok().map(|verified| *verified.new_root());
    assert_eq!(new_root, second::block(Hasher::BLAKE3, bytes, over_all));
    if let Ok(verified) = &first {
        assert!(verified.namespaces().is_sorted_by(|one, next| one.ns() < next.ns()));
        for part in verified.namespaces() {
            assert_eq!(
                verified.get(part.ns()).map(block::VerifiedNamespace::after),
                Some(part.after())
            );
        }
    }
    new_root
}

/// Both verifiers on the bytes of a proof through the root over all.
pub fn through_agrees(bytes: &[u8], over_all: &Node) -> bool {
    let opened = namespace::open(Hasher::BLAKE3, bytes, over_all);
    limits_hold(|limits| namespace::open_with(Hasher::BLAKE3, bytes, over_all, limits).map(|_| ()));
    let found = opened.as_ref().ok().map(|opened| {
        let root = opened.root().map(|root| (*root, opened.inner()));
        (opened.ns(), root)
    });
    assert_eq!(found, second::through(Hasher::BLAKE3, bytes, over_all));
    found.is_some()
}

/// An outer proof and inner ones under a header of this kind, whatever they are.
pub fn framed(kind: ProofKind, ns: u8, outer: &[u8], inner: &[&[u8]]) -> Vec<u8> {
    let inner = inner.concat();
    let count = |len: usize| u32::try_from(len).expect("small");
    let sizes = wire::SectionSizes {
        ops: ns.into(),
        terminal_bytes: count(outer.len()),
        op_bytes: count(inner.len()),
        ..wire::SectionSizes::default()
    };
    [&wire::header(Hasher::BLAKE3, kind, &sizes), outer, &inner].concat()
}

/// Under a limit of the hashes that are announced the verdict is that without limits; with one less there is none.
fn limits_hold<T: PartialEq + core::fmt::Debug>(
    verify: impl Fn(&Limits) -> Result<T, VerifyError>,
) {
    let with = |hashes| verify(&Limits { hashes, ..Limits::UNLIMITED });
    let Err(VerifyError::OverLimit { needed, .. }) = with(0) else { return };
    assert!(matches!(with(needed - 1), Err(VerifyError::OverLimit { .. })));
    assert_eq!(with(needed), verify(&Limits::UNLIMITED));
}

/// A path proof: no panic.
pub fn path_holds(bytes: &[u8], root: &Node) -> bool {
    limits_hold(|limits| path::verify_with(Hasher::BLAKE3, bytes, root, limits).map(|_| ()));
    path::verify(Hasher::BLAKE3, bytes, root)
        .inspect(|verified| {
            assert_ne!(verified.get(verified.terminal().bits()), Lookup::OutOfScope);
        })
        .is_ok()
}

/// What a terminal says is true of the set.
pub fn true_of(set: &NaiveTrie, terminal: &Terminal) {
    let position = terminal.prefix();
    let mut below = set.pairs().iter().filter(|(key, _)| position.covers(key));
    match terminal {
        Terminal::Leaf { key, value_hash, .. } => assert_eq!(below.next(), Some((key, value_hash))),
        Terminal::Terminator { .. } => {}
    }
    assert_eq!(below.next(), None);
}
