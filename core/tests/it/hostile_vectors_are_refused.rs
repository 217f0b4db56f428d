//! Hand-made encodings, most of which bring down a published verifier, each refused with its own error.
use pleach_core::{
    Hasher, Node, Prefix, TERMINATOR,
    naive::NaiveTrie,
    proof::{
        Access, DecodeError, Lookup, Op, ProofKind, Terminal, VerifyError,
        multi::{self, MultiProof},
        path::{self, PathProof},
        wire::{self, SectionSizes},
        witness::{self, DecodedWitness},
    },
};

const BLAKE3: Hasher = Hasher::BLAKE3;

const ROOT: Node = Node::new([0x17; 32]);

fn leaf(depth: u16, first: u8) -> Terminal {
    let mut key = [0; 32];
    key[0] = first;
    Terminal::Leaf { depth, key, value_hash: [9; 32].into() }
}

fn empty(depth: u16, first: u8) -> Terminal {
    let mut key = [0; 32];
    key[0] = first;
    Terminal::Terminator { prefix: Prefix::new(&key, depth) }
}

fn refusal(terminals: Vec<Terminal>, siblings: usize) -> VerifyError {
    let proof = MultiProof { terminals, siblings: vec![[3; 32].into(); siblings] };
    let bytes = proof.encode(BLAKE3).unwrap();
    multi::verify(BLAKE3, &bytes, &ROOT).expect_err("refused")
}

fn wrong(error: DecodeError) -> VerifyError {
    VerifyError::Decode(error)
}

/// A multiproof of one terminal section made by hand.
fn raw(count: u32, terminals: &[u8], siblings: u32) -> Vec<u8> {
    let sizes = SectionSizes {
        terminals: count,
        siblings,
        terminal_bytes: u32::try_from(terminals.len()).unwrap(),
        ..SectionSizes::default()
    };
    let mut bytes = wire::header(BLAKE3, ProofKind::Multi, &sizes).to_vec();
    bytes.extend_from_slice(terminals);
    bytes.resize(bytes.len() + 32 * siblings as usize, 3);
    bytes
}

fn raw_refusal(bytes: &[u8]) -> VerifyError {
    multi::verify(BLAKE3, bytes, &ROOT).expect_err("refused")
}

#[test]
fn depth_300() {
    assert_eq!(refusal(vec![leaf(300, 0)], 300), wrong(DecodeError::TooDeep { depth: 300 }));
    assert_eq!(refusal(vec![leaf(257, 0)], 257), wrong(DecodeError::TooDeep { depth: 257 }));
}

#[test]
fn depth_10_without_siblings() {
    let error = wrong(DecodeError::SiblingCount { expected: 10, found: 0 });
    assert_eq!(refusal(vec![leaf(10, 0)], 0), error);
    assert_eq!(refusal(vec![empty(10, 0)], 0), error);
}

#[test]
fn the_largest_depth() {
    let bytes = raw(1, &[0xff; 66], 0);
    assert_eq!(raw_refusal(&bytes), wrong(DecodeError::UnknownFlags));
    let mut terminal = [0; 66];
    terminal[..2].copy_from_slice(&0x81ff_u16.to_le_bytes());
    assert_eq!(raw_refusal(&raw(1, &terminal, 0)), wrong(DecodeError::TooDeep { depth: 511 }));
}

#[test]
fn two_paths_of_depth_0() {
    assert_eq!(refusal(vec![leaf(0, 0), leaf(0, 1)], 0), wrong(DecodeError::TerminalOrder));
    assert_eq!(refusal(vec![empty(0, 0), empty(0, 0)], 0), wrong(DecodeError::TerminalOrder));
}

#[test]
fn seven_shared_bits_without_siblings() {
    let error = wrong(DecodeError::SiblingCount { expected: 7, found: 0 });
    assert_eq!(refusal(vec![leaf(8, 0), leaf(8, 1)], 0), error);
}

#[test]
fn a_terminator_above_a_leaf() {
    assert_eq!(refusal(vec![empty(3, 0), leaf(8, 1)], 6), wrong(DecodeError::TerminalOrder));
    assert_eq!(refusal(vec![leaf(8, 1), empty(3, 0)], 6), wrong(DecodeError::TerminalOrder));
    assert_eq!(refusal(vec![leaf(3, 1), leaf(8, 2)], 6), wrong(DecodeError::TerminalOrder));
}

#[test]
fn a_terminator_shorter_than_its_depth() {
    let bytes = raw(1, &[20, 0, 0, 0], 20);
    assert_eq!(raw_refusal(&bytes), wrong(DecodeError::Truncated));
    let bytes = raw(1, &[20, 0, 0, 0, 0, 0], 20);
    assert_eq!(raw_refusal(&bytes), wrong(DecodeError::Length));
    let bytes = raw(1, &[20, 0, 0, 0, 0x08], 20);
    assert_eq!(raw_refusal(&bytes), wrong(DecodeError::BitsBehindDepth));
}

#[test]
fn more_siblings_than_levels() {
    let error = wrong(DecodeError::SiblingCount { expected: 256, found: 257 });
    assert_eq!(refusal(vec![leaf(256, 0)], 257), error);
    let proof = PathProof { terminal: leaf(256, 0), siblings: vec![[3; 32].into(); 257] };
    let bytes = proof.encode(BLAKE3).unwrap();
    assert_eq!(path::verify(BLAKE3, &bytes, &ROOT).unwrap_err(), error);
}

#[test]
fn a_terminator_at_the_last_level() {
    assert_eq!(refusal(vec![empty(256, 0)], 256), wrong(DecodeError::TooDeep { depth: 256 }));
}

#[test]
fn unsorted_and_repeated_terminals() {
    assert_eq!(refusal(vec![leaf(8, 1), leaf(8, 0)], 7), wrong(DecodeError::TerminalOrder));
    assert_eq!(refusal(vec![leaf(8, 1), leaf(8, 1)], 7), wrong(DecodeError::TerminalOrder));
}

#[test]
fn counts_that_the_input_has_no_room_for() {
    let mut bytes = raw(u32::MAX, &[0, 0], 0);
    assert_eq!(raw_refusal(&bytes), wrong(DecodeError::Length));
    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    assert_eq!(raw_refusal(&bytes), wrong(DecodeError::Length));
    for field in [12, 16, 20, 24] {
        let mut bytes = raw(1, &[0, 0], 0);
        bytes[field..field + 4].fill(0xff);
        assert!(matches!(raw_refusal(&bytes), VerifyError::Decode(_)));
    }
}

#[test]
fn headers_of_other_things() {
    let valid = raw(1, &[0, 0], 0);
    assert!(multi::verify(BLAKE3, &valid, &TERMINATOR).is_ok());
    let with = |at: usize, value: u8| {
        let mut bytes = valid.clone();
        bytes[at] = value;
        multi::verify(BLAKE3, &bytes, &TERMINATOR).expect_err("refused")
    };
    assert_eq!(with(0, 0), wrong(DecodeError::Magic));
    assert_eq!(with(4, 2), wrong(DecodeError::Version(2)));
    assert_eq!(with(5, 4), wrong(DecodeError::Kind { expected: 2, found: 4 }));
    assert_eq!(with(6, 2), wrong(DecodeError::HasherId { expected: 1, found: 2 }));
    assert_eq!(with(7, 1), wrong(DecodeError::Reserved));
    assert_eq!(with(31, 1), wrong(DecodeError::Reserved));
    assert_eq!(with(12, 1), wrong(DecodeError::Count));
    let mut trailing = valid;
    trailing.push(0);
    assert_eq!(raw_refusal(&trailing), wrong(DecodeError::Length));
    assert_eq!(raw_refusal(&[]), wrong(DecodeError::Truncated));
}

#[test]
fn siblings_that_no_trie_has() {
    // Hashes that add up, over a spread that the set would not have.
    for (terminal, sibling) in
        [(leaf(1, 0), TERMINATOR), (empty(1, 0), TERMINATOR), (empty(1, 0), [0x80; 32].into())]
    {
        let node = terminal.node(BLAKE3);
        let preimage = pleach_core::node::node_preimage(&node, &sibling);
        let root = pleach_core::node::tag_internal(*blake3::hash(&preimage).as_bytes());
        let proof = PathProof { terminal, siblings: vec![sibling] };
        let bytes = proof.encode(BLAKE3).unwrap();
        let error = VerifyError::Impossible { depth: 1 };
        assert_eq!(path::verify(BLAKE3, &bytes, &root).unwrap_err(), error);
        let proof = MultiProof { terminals: vec![terminal], siblings: vec![sibling] };
        let bytes = proof.encode(BLAKE3).unwrap();
        assert_eq!(multi::verify(BLAKE3, &bytes, &root).unwrap_err(), error);
    }
    let bottom = PathProof { terminal: leaf(256, 0), siblings: vec![[0x11; 32].into(); 256] };
    let bytes = bottom.encode(BLAKE3).unwrap();
    let error = VerifyError::Impossible { depth: 256 };
    assert_eq!(path::verify(BLAKE3, &bytes, &ROOT).unwrap_err(), error);
}

#[test]
fn operations_out_of_order_scope_or_form() {
    let set = NaiveTrie::from_iter([([0; 32], [1; 32].into()), ([0x80; 32], [2; 32].into())]);
    let root = set.root(BLAKE3);
    let op = |first: u8, last: u8| {
        let mut key = [0; 32];
        (key[0], key[31]) = (first, last);
        Op { key, access: Access::Read }
    };
    let terminals = set.multi(BLAKE3, &[[0; 32], [0x80; 32]]).terminals;
    let verdict = |ops: &[(Op, usize, bool)], encoded_as: usize| {
        let mut bytes = Vec::new();
        for (op, terminal, first) in ops {
            pleach_core::proof::wire::op_encode(&mut bytes, op, &terminals[*terminal], *first);
        }
        let mut section = Vec::new();
        for terminal in &terminals {
            pleach_core::proof::wire::terminal_encode(&mut section, terminal);
        }
        let sizes = SectionSizes {
            terminals: 2,
            ops: u32::try_from(encoded_as).unwrap(),
            siblings: 0,
            terminal_bytes: u32::try_from(section.len()).unwrap(),
            op_bytes: u32::try_from(bytes.len()).unwrap(),
        };
        let mut all = wire::header(BLAKE3, ProofKind::Witness, &sizes).to_vec();
        all.extend(section);
        all.extend(bytes);
        witness::verify(BLAKE3, &all, &root).map(|v| *v.new_root())
    };
    let (a, b, c) = (op(0, 0), op(0, 1), op(0x80, 1));
    assert_eq!(verdict(&[(a, 0, true), (b, 0, false), (c, 1, true)], 3), Ok(root));
    let no = |error| Err(wrong(error));
    assert_eq!(verdict(&[(b, 0, true), (a, 0, false), (c, 1, true)], 3), no(DecodeError::OpOrder));
    assert_eq!(verdict(&[(b, 0, true), (b, 0, false), (c, 1, true)], 3), no(DecodeError::OpOrder));
    assert_eq!(verdict(&[(a, 0, true), (b, 0, false)], 2), no(DecodeError::UnusedTerminal));
    assert_eq!(verdict(&[(a, 0, true), (c, 1, false)], 2), no(DecodeError::OpOutOfScope));
    assert_eq!(verdict(&[(a, 0, false), (c, 1, true)], 2), no(DecodeError::OpOutOfScope));
    // The key of the leaf in full, where it has to be left out.
    assert_eq!(verdict(&[(a, 1, true), (c, 1, true)], 2), no(DecodeError::OpKeyForm));
    assert_eq!(verdict(&[(a, 0, true), (c, 1, true)], 3), no(DecodeError::Truncated));
    assert_eq!(verdict(&[(a, 0, true), (c, 1, true)], 1), no(DecodeError::Length));
}

#[test]
fn an_empty_batch_changes_nothing_and_says_nothing() {
    let bytes = DecodedWitness::default().encode(BLAKE3).unwrap();
    assert_eq!(bytes.len(), wire::HEADER_LEN);
    let verified = witness::verify(BLAKE3, &bytes, &ROOT).unwrap();
    assert_eq!((verified.prev_root(), verified.new_root()), (&ROOT, &ROOT));
    assert_eq!(verified.get(&[0; 32]), Lookup::OutOfScope);
    assert_eq!(verified.ops().count(), 0);
    let bytes = MultiProof::default().encode(BLAKE3).unwrap();
    let verified = multi::verify(BLAKE3, &bytes, &ROOT).unwrap();
    assert_eq!(verified.get(&[0; 32]), Lookup::OutOfScope);
}
