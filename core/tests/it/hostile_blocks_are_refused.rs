//! Hand-made blocks and proofs through the root over all, each refused with its own error; most of
//! them hash to the right root, so that only their form or what they leave out is wrong.
use pleach_core::{
    Hasher, Key, Node, TERMINATOR, ValueHash,
    naive::NaiveTrie,
    proof::{
        Access, BuildError, DecodeError, Op, ProofKind, VerifyError, block, namespace, path,
        roots::{self, NamespaceRoots},
        wire::{self, SectionSizes},
    },
};

const BLAKE3: Hasher = Hasher::BLAKE3;

fn trie(byte: u8) -> NaiveTrie {
    [([byte; 32], [byte; 32].into()), ([byte ^ 0x80; 32], [1; 32].into())].into_iter().collect()
}

/// Namespaces 0, 1 and 7; 7 is empty.
fn state() -> NamespaceRoots {
    let root = |byte| trie(byte).root(BLAKE3);
    NamespaceRoots::from_iter([(0, root(0)), (1, root(1)), (7, TERMINATOR)])
}

/// An encoding of these parts, whatever they are.
fn framed(kind: ProofKind, ns: u32, outer: &[u8], inner: &[&[u8]]) -> Vec<u8> {
    let inner = inner.concat();
    let count = |len: usize| u32::try_from(len).unwrap();
    let sizes = SectionSizes {
        ops: ns,
        terminal_bytes: count(outer.len()),
        op_bytes: count(inner.len()),
        ..SectionSizes::default()
    };
    [&wire::header(BLAKE3, kind, &sizes), outer, &inner].concat()
}

fn outer(accesses: &[(u8, Access)]) -> Vec<u8> {
    state().witness(BLAKE3, accesses).unwrap()
}

fn hash(root: Node) -> ValueHash {
    root.to_bytes().into()
}

/// A witness that puts a pair into a trie, and the root that it leads to.
fn put(trie: &NaiveTrie) -> (Vec<u8>, Node) {
    let ops = [Op { key: [9; 32], access: Access::Write(Some([9; 32].into())) }];
    let mut after = trie.clone();
    after.apply(&ops);
    (trie.witness(BLAKE3, &ops).encode(BLAKE3).unwrap(), after.root(BLAKE3))
}

fn read(trie: &NaiveTrie) -> Vec<u8> {
    let ops = [Op { key: [9; 32], access: Access::Read }];
    trie.witness(BLAKE3, &ops).encode(BLAKE3).unwrap()
}

fn as_block(bytes: &[u8]) -> Option<VerifyError> {
    block::verify(BLAKE3, bytes, &state().over_all(BLAKE3)).err()
}

fn block_of(accesses: &[(u8, Access)], inner: &[&[u8]]) -> Option<VerifyError> {
    as_block(&framed(ProofKind::Block, 0, &outer(accesses), inner))
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with what may be no error")]
fn wrong(error: DecodeError) -> Option<VerifyError> {
    Some(VerifyError::Decode(error))
}

#[test]
fn what_each_row_of_the_table_says_is_accepted() {
    let (to, new) = put(&trie(0));
    let (fresh, first) = put(&NaiveTrie::new());
    let write = |root| Access::ReadWrite(Some(hash(root)));
    let rows: [(u8, Access, Option<&[u8]>); 7] = [
        (0, Access::Read, Some(&read(&trie(0)))),
        (0, write(new), Some(&to)),
        (3, write(first), Some(&fresh)),
        (3, Access::Write(Some(hash(TERMINATOR))), None),
        (1, Access::Write(None), None),
        (1, Access::ReadWrite(None), Some(&read(&trie(1)))),
        (3, Access::Read, None),
    ];
    for (ns, access, inner) in rows {
        assert_eq!(block_of(&[(ns, access)], inner.as_slice()), None, "{ns} {access:?}");
    }
}

#[test]
fn what_no_row_says() {
    let (to, new) = put(&trie(0));
    let same = trie(0).root(BLAKE3);
    let rows: [(u8, Access, &[u8]); 7] = [
        // A new root that nobody looked into.
        (0, Access::Write(Some(hash(new))), &to),
        (0, Access::Write(Some(hash(new))), &[]),
        (3, Access::Write(Some(hash(new))), &to),
        // A write of what was there.
        (0, Access::ReadWrite(Some(hash(same))), &read(&trie(0))),
        (7, Access::ReadWrite(Some(hash(TERMINATOR))), &read(&NaiveTrie::new())),
        // A drop of what is not there.
        (3, Access::Write(None), &[]),
        (3, Access::ReadWrite(None), &read(&NaiveTrie::new())),
    ];
    for (ns, access, inner) in rows {
        let inner: &[&[u8]] = if inner.is_empty() { &[] } else { &[inner] };
        assert_eq!(block_of(&[(ns, access)], inner), wrong(DecodeError::NamespaceAccess));
    }
}

#[test]
fn a_witness_that_leads_elsewhere() {
    let (to, new) = put(&trie(0));
    let (other, elsewhere) = put(&trie(1));
    let write = |root| Access::ReadWrite(Some(hash(root)));
    let error = Some(VerifyError::NamespaceRoot { ns: 0 });
    // Another root after, another root before, a change that is called none, and one before a drop.
    assert_eq!(block_of(&[(0, write(elsewhere))], &[&to]), error);
    assert_eq!(block_of(&[(0, write(elsewhere))], &[&other]), error);
    assert_eq!(block_of(&[(0, Access::Read)], &[&to]), error);
    assert_eq!(block_of(&[(0, Access::ReadWrite(None))], &[&to]), error);
    // Two witnesses in each other's place.
    let accesses = [(0, write(new)), (1, write(elsewhere))];
    assert_eq!(block_of(&accesses, &[&to, &other]), None);
    assert_eq!(block_of(&accesses, &[&other, &to]), error);
    // Another root over all.
    let bytes = framed(ProofKind::Block, 0, &outer(&accesses), &[&to, &other]);
    let verdict = block::verify(BLAKE3, &bytes, &new).err();
    assert_eq!(verdict, Some(VerifyError::RootMismatch));
}

#[test]
fn inner_witnesses_missing_or_too_many() {
    let (to, new) = put(&trie(0));
    let write = [(0, Access::ReadWrite(Some(hash(new))))];
    let nothing = NaiveTrie::new().witness(BLAKE3, &[]).encode(BLAKE3).unwrap();
    assert_eq!(block_of(&write, &[]), wrong(DecodeError::Truncated));
    assert_eq!(block_of(&write, &[&to, &to]), wrong(DecodeError::Inner));
    assert_eq!(block_of(&write, &[&to, &[0]]), wrong(DecodeError::Inner));
    assert_eq!(block_of(&write, &[&to[..to.len() - 1]]), wrong(DecodeError::Truncated));
    assert_eq!(
        block_of(&[(1, Access::Write(None))], &[&read(&trie(1))]),
        wrong(DecodeError::Inner)
    );
    // One without operations leads to the same root from any.
    assert_eq!(block_of(&[(0, Access::Read)], &[&nothing]), wrong(DecodeError::Inner));
    assert_eq!(block_of(&[], &[&nothing]), wrong(DecodeError::Inner));
    assert_eq!(block_of(&[], &[]), None, "a block without anything changes nothing");
    // A multiproof, or a block, is no witness.
    let multi = trie(0).multi(BLAKE3, &[[9; 32]]).encode(BLAKE3).unwrap();
    let kind = |found| wrong(DecodeError::Kind { expected: 3, found });
    assert_eq!(block_of(&[(0, Access::Read)], &[&multi]), kind(2));
    let whole = framed(ProofKind::Block, 0, &outer(&write), &[&to]);
    assert_eq!(block_of(&[(0, Access::Read)], &[&whole]), kind(8));
    // A witness under another hash function.
    let sha = trie(0).witness(Hasher::SHA2_256, &[Op { key: [9; 32], access: Access::Read }]);
    let error =
        wrong(DecodeError::HasherId { expected: BLAKE3.id(), found: Hasher::SHA2_256.id() });
    assert_eq!(block_of(&[(0, Access::Read)], &[&sha.encode(Hasher::SHA2_256).unwrap()]), error);
}

/// A trie of roots that has more than namespaces in it, proven by the ordinary rules.
fn with_a_stranger(stranger: Key) -> NaiveTrie {
    let mut set: NaiveTrie =
        state().iter().map(|(ns, root)| (roots::namespace_key(ns), hash(*root))).collect();
    set.set(stranger, Some([5; 32].into()));
    set
}

#[test]
fn keys_that_are_no_namespace() {
    let mut stranger = roots::namespace_key(1);
    stranger[31] = 1;
    let set = with_a_stranger(stranger);
    let root = set.root(BLAKE3);
    for (keys, error) in [
        (vec![stranger], DecodeError::TooDeep { depth: 256 }),
        (vec![roots::namespace_key(1)], DecodeError::TooDeep { depth: 256 }),
    ] {
        let ops: Vec<Op> = keys.iter().map(|key| Op { key: *key, access: Access::Read }).collect();
        let outer = set.witness(BLAKE3, &ops).encode(BLAKE3).unwrap();
        let bytes = framed(ProofKind::Block, 0, &outer, &[]);
        assert_eq!(block::verify(BLAKE3, &bytes, &root).err(), wrong(error));
        let outer = set.path(BLAKE3, &keys[0]).encode(BLAKE3).unwrap();
        let bytes = framed(ProofKind::Namespace, 1, &outer, &[&read(&trie(1))]);
        assert_eq!(namespace::open(BLAKE3, &bytes, &root).err(), wrong(error));
    }
    // A leaf of no namespace, and an operation on a key of none below a terminator.
    let stranger = [0xee; 32];
    let set = with_a_stranger(stranger);
    let root = set.root(BLAKE3);
    let outer = set.path(BLAKE3, &stranger).encode(BLAKE3).unwrap();
    let bytes = framed(ProofKind::Namespace, 0xee, &outer, &[]);
    assert_eq!(namespace::open(BLAKE3, &bytes, &root).err(), wrong(DecodeError::Namespace));
    let set = naive_state();
    let ops = [Op { key: stranger, access: Access::Read }];
    let outer = set.witness(BLAKE3, &ops).encode(BLAKE3).unwrap();
    assert_eq!(as_block(&framed(ProofKind::Block, 0, &outer, &[])), wrong(DecodeError::Namespace));
}

fn naive_state() -> NaiveTrie {
    state().iter().map(|(ns, root)| (roots::namespace_key(ns), hash(*root))).collect()
}

#[test]
fn a_path_to_another_namespace() {
    let over_all = state().over_all(BLAKE3);
    let inner = trie(1).path(BLAKE3, &[1; 32]).encode(BLAKE3).unwrap();
    let path = |ns| state().prove(BLAKE3, ns).unwrap();
    let open = |ns, outer: &[u8], inner: &[&[u8]]| {
        let bytes = framed(ProofKind::Namespace, ns, outer, inner);
        namespace::open(BLAKE3, &bytes, &over_all).err()
    };
    assert_eq!(open(1, &path(1), &[&inner]), None);
    // The path of 0 says nothing of 1; that of 3 says that there is no 3, and ends at 2 and 3.
    assert_eq!(open(1, &path(0), &[&inner]), wrong(DecodeError::Namespace));
    assert_eq!(open(3, &path(3), &[]), None);
    assert_eq!(open(3, &path(3), &[&inner]), wrong(DecodeError::Inner));
    assert_eq!(open(1, &path(1), &[]), wrong(DecodeError::Inner));
    assert_eq!(open(1, &path(1), &[&inner, &inner]), wrong(DecodeError::Inner));
    assert_eq!(open(257, &path(1), &[&inner]), wrong(DecodeError::Count));
    // What is inside has to be a proof against one root.
    let change = trie(1).change(BLAKE3, &trie(0), &[0; 32], &[0xff; 32]);
    let kind = |found| wrong(DecodeError::Kind { expected: 1, found });
    assert_eq!(open(1, &path(1), &[&change]), kind(5));
    let nested = framed(ProofKind::Namespace, 1, &path(1), &[&inner]);
    assert_eq!(open(1, &path(1), &[&nested]), kind(6));
    // Right bytes, another root over all.
    let bytes = framed(ProofKind::Namespace, 1, &path(1), &[&inner]);
    let elsewhere = namespace::open(BLAKE3, &bytes, &trie(1).root(BLAKE3)).err();
    assert_eq!(elsewhere, Some(VerifyError::RootMismatch));
    // An outer proof of another kind, and one that is cut short.
    let multi = naive_state().multi(BLAKE3, &[roots::namespace_key(1)]).encode(BLAKE3).unwrap();
    assert_eq!(open(1, &multi, &[&inner]), kind(2));
    assert_eq!(open(1, &path(1)[..60], &[&inner]), wrong(DecodeError::Length));
    // The root alone is what a path proof says.
    let verified = path::verify(BLAKE3, &path(1), &over_all).unwrap();
    assert!(verified.get(&roots::namespace_key(1)) != verified.get(&roots::namespace_key(0)));
}

#[test]
fn headers_have_one_form() {
    let (to, new) = put(&trie(0));
    let bytes =
        framed(ProofKind::Block, 0, &outer(&[(0, Access::ReadWrite(Some(hash(new))))]), &[&to]);
    assert_eq!(as_block(&bytes), None);
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        as_block(&bytes)
    };
    assert_eq!(with(0, 0), wrong(DecodeError::Magic));
    assert_eq!(with(4, 2), wrong(DecodeError::Version(2)));
    assert_eq!(with(5, 3), wrong(DecodeError::Kind { expected: 8, found: 3 }));
    assert_eq!(with(6, 99), wrong(DecodeError::HasherId { expected: BLAKE3.id(), found: 99 }));
    assert_eq!(with(7, 1), wrong(DecodeError::Reserved));
    assert_eq!(with(28, 1), wrong(DecodeError::Reserved));
    for at in [8, 12, 16] {
        assert_eq!(with(at, 1), wrong(DecodeError::Count), "{at}");
    }
    for at in [20, 24] {
        assert_eq!(with(at, bytes[at] ^ 1), wrong(DecodeError::Length), "{at}");
    }
    assert_eq!(as_block(&bytes[..31]), wrong(DecodeError::Truncated));
    assert_eq!(as_block(&[&bytes[..], &[0]].concat()), wrong(DecodeError::Length));
}

#[test]
fn what_no_block_does_is_not_built() {
    let state = state();
    let build = |parts: &[block::NamespaceClaim<'_>]| block::build(BLAKE3, &state, parts).err();
    let (to, new) = put(&trie(0));
    let part = |ns, after, witness| block::NamespaceClaim { ns, after, witness };
    let refused = |error| Some(BuildError::Decode(error));
    assert_eq!(build(&[part(0, Some(new), Some(&to))]), None);
    assert_eq!(build(&[part(0, Some(new), None)]), refused(DecodeError::NamespaceAccess));
    assert_eq!(build(&[part(3, None, Some(&to))]), refused(DecodeError::NamespaceAccess));
    assert_eq!(build(&[part(0, Some(new), Some(&to[..9]))]), refused(DecodeError::Truncated));
    let (one, two) = (part(0, None, None), part(1, None, None));
    assert_eq!(build(&[one, two]), None);
    assert_eq!(build(&[two, one]), refused(DecodeError::OpOrder));
    assert_eq!(build(&[one, one]), refused(DecodeError::OpOrder));
}
