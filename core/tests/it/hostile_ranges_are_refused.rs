//! Hand-made range and change proofs, each refused with its own error; most of them hash to the
//! right root, so that only what they leave out is wrong.
use pleach_core::{
    Hasher, Key, Node, Prefix, TERMINATOR, ValueHash,
    naive::NaiveTrie,
    node::{combine, leaf},
    proof::{
        DecodeError, Lookup, ProofKind, Terminal, VerifyError,
        change::{self, ChangeLookup},
        multi::{self, MultiProof},
        range,
        wire::{self, SectionSizes, terminal_encode},
    },
};

const BLAKE3: Hasher = Hasher::BLAKE3;

const ALL: (Key, Key) = ([0; 32], [0xff; 32]);
const ROOT: Node = Node::new([0x17; 32]);

fn key(first: u8) -> Key {
    let mut key = [0; 32];
    key[0] = first;
    key
}

fn value(first: u8) -> ValueHash {
    [first ^ 0x5a; 32].into()
}

fn set(firsts: &[u8]) -> NaiveTrie {
    firsts.iter().map(|first| (key(*first), value(*first))).collect()
}

fn at(depth: u16, first: u8) -> Terminal {
    Terminal::Leaf { depth, key: key(first), value_hash: value(first) }
}

fn node(first: u8) -> Node {
    leaf(BLAKE3, &key(first), &value(first))
}

fn empty(depth: u16, first: u8) -> Terminal {
    Terminal::Terminator { prefix: Prefix::new(&key(first), depth) }
}

fn wrong(error: DecodeError) -> VerifyError {
    VerifyError::Decode(error)
}

/// A range proof of these parts.
fn range_of(terminals: Vec<Terminal>, siblings: Vec<Node>) -> Vec<u8> {
    let mut bytes = MultiProof { terminals, siblings }.encode(BLAKE3).unwrap();
    bytes[5] = ProofKind::Range as u8;
    bytes
}

fn as_range(bytes: &[u8], root: &Node, (first, last): (Key, Key)) -> Option<VerifyError> {
    range::verify(BLAKE3, bytes, root, &first, &last).err()
}

/// A change proof of these parts.
fn change_of(sides: [&[Terminal]; 2], flags: &[u8], siblings: &[Node]) -> Vec<u8> {
    let [before, after] = sides.map(|terminals| {
        let mut bytes = Vec::new();
        for terminal in terminals {
            terminal_encode(&mut bytes, terminal);
        }
        bytes
    });
    let count = |len: usize| u32::try_from(len).unwrap();
    let sizes = SectionSizes {
        terminals: count(sides[0].len()),
        ops: count(sides[1].len()),
        siblings: count(siblings.len()),
        terminal_bytes: count(before.len()),
        op_bytes: count(after.len() + flags.len()),
    };
    let header = wire::header(BLAKE3, ProofKind::Change, &sizes);
    [&header, &before[..], &after, flags, Node::bytes_of(siblings)].concat()
}

fn as_change(
    bytes: &[u8],
    roots: (&Node, &Node),
    (first, last): (Key, Key),
) -> Option<VerifyError> {
    change::verify(BLAKE3, bytes, roots.0, roots.1, &first, &last).err()
}

#[test]
fn depth_300() {
    let bytes = range_of(vec![at(300, 0)], vec![ROOT; 300]);
    let error = Some(wrong(DecodeError::TooDeep { depth: 300 }));
    assert_eq!(as_range(&bytes, &ROOT, ALL), error);
    for sides in [[at(300, 0), at(0, 0)], [at(0, 0), at(300, 0)]] {
        let bytes = change_of([&sides[..1], &sides[1..]], &[], &[ROOT; 300]);
        assert_eq!(as_change(&bytes, (&ROOT, &ROOT), ALL), error);
    }
}

#[test]
fn a_leaf_of_the_range_hidden_as_a_sibling() {
    // Keys 00, 40 and 80: the one in the middle, or at an end, is a leaf node that nobody opens.
    let set = set(&[0, 0x40, 0x80]);
    let root = set.root(BLAKE3);
    let hidden = [
        (vec![at(2, 0), at(1, 0x80)], 0x40, DecodeError::RangeGap),
        (vec![at(2, 0), at(2, 0x40)], 0x80, DecodeError::RangeEnds),
        (vec![at(2, 0x40), at(1, 0x80)], 0, DecodeError::RangeEnds),
    ];
    for (terminals, first, error) in hidden {
        let multi = MultiProof { terminals: terminals.clone(), siblings: vec![node(first)] };
        let bytes = multi.encode(BLAKE3).unwrap();
        assert!(multi::verify(BLAKE3, &bytes, &root).is_ok(), "the hashes add up");
        let bytes = range_of(terminals, vec![node(first)]);
        assert_eq!(as_range(&bytes, &root, ALL), Some(wrong(error)));
    }
    // The only key of the trie, said to lie beside an empty range. Combined they would be its
    // leaf again: a leaf moves up. But no trie has a leaf beside nothing.
    let one = node(0x80);
    assert_eq!(combine(BLAKE3, &TERMINATOR, &one), one);
    for (terminal, range) in [(empty(1, 0), (key(0), [0x7f; 32])), (empty(1, 0), (key(0), key(0)))]
    {
        let error = Some(VerifyError::Impossible { depth: 1 });
        let bytes = range_of(vec![terminal], vec![one]);
        assert_eq!(as_range(&bytes, &one, range), error);
        let bytes = change_of([&[terminal], &[terminal]], &[0], &[one]);
        assert_eq!(as_change(&bytes, (&one, &one), range), error);
    }
}

#[test]
fn repeated_unsorted_and_nested_terminals() {
    for (terminals, siblings) in [
        (vec![at(1, 0x80), at(1, 0)], 0),
        (vec![at(1, 0), at(1, 0)], 0),
        (vec![empty(1, 0), at(2, 0x40)], 1),
        (vec![at(0, 0), at(0, 0x80)], 0),
    ] {
        let error = Some(wrong(DecodeError::TerminalOrder));
        let bytes = range_of(terminals.clone(), vec![ROOT; siblings]);
        assert_eq!(as_range(&bytes, &ROOT, ALL), error);
        for sides in [[&terminals[..], &[at(0, 0)]], [&[at(0, 0)], &terminals[..]]] {
            let bytes = change_of(sides, &[], &vec![ROOT; siblings]);
            assert_eq!(as_change(&bytes, (&ROOT, &ROOT), ALL), error);
        }
    }
}

#[test]
fn terminals_outside_of_the_range() {
    let set = set(&[0, 0x40, 0x80, 0xc0]);
    let root = set.root(BLAKE3);
    let range = (key(0x40), key(0x80));
    let bytes = range_of(vec![at(2, 0x40), at(2, 0x80)], vec![node(0), node(0xc0)]);
    assert_eq!(as_range(&bytes, &root, range), None);
    let ends = Some(wrong(DecodeError::RangeEnds));
    for (terminals, sibling) in [
        (vec![at(2, 0), at(2, 0x40), at(2, 0x80)], 0xc0),
        (vec![at(2, 0x40), at(2, 0x80), at(2, 0xc0)], 0),
    ] {
        let bytes = range_of(terminals.clone(), vec![node(sibling)]);
        assert_eq!(as_range(&bytes, &root, range), ends);
        let bytes = change_of([&terminals, &terminals], &[0], &[node(sibling)]);
        assert_eq!(as_change(&bytes, (&root, &root), range), ends);
    }
    let none: [&[Terminal]; 2] = [&[], &[]];
    assert_eq!(as_range(&range_of(vec![], vec![]), &root, range), Some(wrong(DecodeError::Count)));
    let count = Some(wrong(DecodeError::Count));
    assert_eq!(as_change(&change_of(none, &[], &[]), (&root, &root), range), count);
    let half: [&[Terminal]; 2] = [&[at(0, 0)], &[]];
    assert_eq!(as_change(&change_of(half, &[], &[]), (&root, &root), range), count);
}

#[test]
fn a_range_that_ends_before_it_begins() {
    let set = set(&[1, 2]);
    let root = set.root(BLAKE3);
    let (first, last) = (key(1), key(2));
    let error = Some(wrong(DecodeError::EmptyRange));
    assert_eq!(as_range(&set.range(BLAKE3, &first, &last), &root, (last, first)), error);
    let bytes = set.change(BLAKE3, &set, &first, &last);
    assert_eq!(as_change(&bytes, (&root, &root), (last, first)), error);
    assert!(range::decode(BLAKE3, &[], &last, &first).is_err_and(|e| e == DecodeError::EmptyRange));
}

#[test]
fn the_smallest_sets_and_the_largest_range() {
    let (none, one) = (NaiveTrie::new(), set(&[0x12]));
    let (first, last) = &ALL;
    let bytes = none.range(BLAKE3, first, last);
    assert_eq!(bytes.len(), wire::HEADER_LEN + 2);
    let verified = range::verify(BLAKE3, &bytes, &TERMINATOR, first, last).unwrap();
    assert_eq!(verified.pairs().count(), 0);
    assert_eq!(verified.get(&key(7)), Lookup::Absent);
    // A proof about nothing says nothing about another root.
    assert_eq!(as_range(&bytes, &one.root(BLAKE3), ALL), Some(VerifyError::RootMismatch));

    let root = one.root(BLAKE3);
    let bytes = one.range(BLAKE3, first, last);
    let verified = range::verify(BLAKE3, &bytes, &root, first, last).unwrap();
    assert_eq!(verified.pairs().collect::<Vec<_>>(), [(key(0x12), value(0x12))]);
    // A range beside the only key has the same bytes, and no pair.
    let (low, high) = (key(0x13), key(0x20));
    let verified = range::verify(BLAKE3, &bytes, &root, &low, &high).unwrap();
    assert_eq!((verified.pairs().count(), verified.get(&low)), (0, Lookup::Absent));
    assert_eq!(verified.get(&key(0x12)), Lookup::OutOfScope);
    assert_eq!(verified.proves(&key(0x12), None), None);

    let bytes = none.change(BLAKE3, &one, first, last);
    let verified = change::verify(BLAKE3, &bytes, &TERMINATOR, &root, first, last).unwrap();
    assert_eq!(verified.changes().collect::<Vec<_>>(), [(key(0x12), None, Some(value(0x12)))]);
    let verified = change::verify(BLAKE3, &bytes, &TERMINATOR, &root, &low, &high).unwrap();
    assert_eq!(verified.changes().count(), 0);
    assert_eq!(
        [verified.get(&low), verified.get(&key(0x12))],
        [ChangeLookup::Same, ChangeLookup::OutOfScope]
    );
    let error = Some(VerifyError::RootMismatch);
    assert_eq!(as_change(&bytes, (&root, &TERMINATOR), ALL), error);
    assert_eq!(as_change(&bytes, (&TERMINATOR, &TERMINATOR), ALL), error);
}

#[test]
fn terminators_at_both_ends() {
    // 00.., 01.. and 10.., 11..: below 001 and below 110 is nothing.
    let set = set(&[0x00, 0x08, 0x48, 0x90, 0xe0, 0xe1]);
    let root = set.root(BLAKE3);
    let (first, last) = (key(0x24), key(0xc3));
    let bytes = set.range(BLAKE3, &first, &last);
    let verified = range::verify(BLAKE3, &bytes, &root, &first, &last).unwrap();
    let terminals: Vec<_> = verified.terminals().collect();
    assert_eq!(terminals, [empty(3, 0x20), at(2, 0x48), at(2, 0x90), empty(3, 0xc0)]);
    assert_eq!(verified.pairs().count(), 2);
    assert_eq!([verified.get(&first), verified.get(&last)], [Lookup::Absent; 2]);
}

#[test]
fn trailing_bytes_and_counts_that_the_input_has_no_room_for() {
    let (from, to) = (set(&[0, 0x40, 0x80, 0xc0]), set(&[0, 0x41, 0x80, 0xc0]));
    let roots = (&from.root(BLAKE3), &to.root(BLAKE3));
    let span = (key(0x40), key(0x81));
    let valid_range = from.range(BLAKE3, &span.0, &span.1);
    let valid_change = from.change(BLAKE3, &to, &span.0, &span.1);
    assert_eq!(as_range(&valid_range, roots.0, span), None);
    assert_eq!(as_change(&valid_change, roots, span), None);
    let length = Some(wrong(DecodeError::Length));
    for more in [1, 32, 33] {
        let mut bytes = valid_range.clone();
        bytes.resize(bytes.len() + more, 0);
        assert_eq!(as_range(&bytes, roots.0, span), length);
        let mut bytes = valid_change.clone();
        bytes.resize(bytes.len() + more, 0);
        assert_eq!(as_change(&bytes, roots, span), length);
    }
    // A sibling more, announced.
    let more_siblings = |valid: &[u8]| {
        let mut bytes = valid.to_vec();
        bytes[16] += 1;
        bytes.resize(bytes.len() + 32, 1);
        bytes
    };
    let error = as_range(&more_siblings(&valid_range), roots.0, span);
    assert!(matches!(error, Some(VerifyError::Decode(DecodeError::SiblingCount { .. }))));
    let error = as_change(&more_siblings(&valid_change), roots, span);
    assert!(matches!(error, Some(VerifyError::Decode(DecodeError::SiblingCount { .. }))));
    for field in [8, 12, 16, 20, 24, 28] {
        let mut bytes = valid_range.clone();
        bytes[field..field + 4].fill(0xff);
        assert!(matches!(as_range(&bytes, roots.0, span), Some(VerifyError::Decode(_))));
        let mut bytes = valid_change.clone();
        bytes[field..field + 4].fill(0xff);
        assert!(matches!(as_change(&bytes, roots, span), Some(VerifyError::Decode(_))));
    }
    // Each kind is its own.
    for (found, bytes) in
        [(2, from.multi(BLAKE3, &[span.0, span.1]).encode(BLAKE3).unwrap()), (5, valid_change)]
    {
        let error = Some(wrong(DecodeError::Kind { expected: 4, found }));
        assert_eq!(as_range(&bytes, roots.0, span), error);
    }
    let error = Some(wrong(DecodeError::Kind { expected: 5, found: 4 }));
    assert_eq!(as_change(&valid_range, roots, span), error);
}

#[test]
fn changes_that_are_not_opened() {
    // Everything hashes to both roots; a key that came, went or changed is behind a sibling.
    let cases: [(&[u8], &[u8], &[u8]); 4] = [
        // 48 came beside 40: its leaf is a sibling after, below what was the leaf of 40.
        (&[0x00, 0x40, 0x80], &[0x00, 0x40, 0x48, 0x80], &[0x00, 0x40, 0x80]),
        // 48 went.
        (&[0x00, 0x40, 0x48, 0x80], &[0x00, 0x40, 0x80], &[0x00, 0x40, 0x80]),
        // Two came: the sibling is an internal node.
        (&[0x00, 0x40, 0x80], &[0x00, 0x40, 0x48, 0x49, 0x80], &[0x00, 0x40, 0x80]),
        // 40 went, and below what was its leaf a sibling has nothing.
        (&[0x00, 0x40, 0x80], &[0x00, 0x60, 0x70, 0x80], &[0x00, 0x60, 0x80]),
    ];
    for (from, to, opened) in cases {
        let (from, to) = (set(from), set(to));
        let roots = (&from.root(BLAKE3), &to.root(BLAKE3));
        let mut opened: Vec<Key> = opened.iter().map(|first| key(*first)).collect();
        opened.extend([ALL.0, ALL.1]);
        let bytes = from.change_of(BLAKE3, &to, &opened, &ALL.0, &ALL.1);
        let decoded = change::decode(BLAKE3, &bytes, &ALL.0, &ALL.1);
        match as_change(&bytes, roots, ALL) {
            // What is opened without a change is found before anything is hashed.
            Some(VerifyError::Decode(DecodeError::UnusedTerminal)) => assert!(decoded.is_err()),
            Some(VerifyError::Unopened { .. }) => assert!(decoded.is_ok()),
            other => panic!("{other:?}"),
        }
    }
    // An end of the range opens what was the leaf of 40, and only the sibling tells: it has two keys, or another one.
    let cases: [(&[u8], u8, u16); 2] =
        [(&[0x00, 0x40, 0x48], 0x50, 4), (&[0x00, 0x48, 0x60], 0x70, 3)];
    for (to, end, depth) in cases {
        let (from, to) = (set(&[0x00, 0x40]), set(to));
        let roots = (&from.root(BLAKE3), &to.root(BLAKE3));
        let range = (key(0x00), key(end));
        let lie = from.change_of(BLAKE3, &to, &[range.0, range.1], &range.0, &range.1);
        assert_eq!(as_change(&lie, roots, range), Some(VerifyError::Unopened { depth }));
        assert_eq!(as_change(&from.change(BLAKE3, &to, &range.0, &range.1), roots, range), None);
    }
    // The leaf itself, further down: that is no change.
    let (from, to) = (set(&[0x00, 0x40]), set(&[0x00, 0x40, 0x60]));
    let roots = (&from.root(BLAKE3), &to.root(BLAKE3));
    let bytes = from.change_of(BLAKE3, &to, &[key(0x60), key(0x70)], &key(0x10), &key(0x70));
    assert!(as_change(&bytes, roots, (key(0x10), key(0x70))).is_some());
    let bytes =
        from.change_of(BLAKE3, &to, &[key(0x60), key(0x10), key(0x70)], &key(0x10), &key(0x70));
    assert_eq!(as_change(&bytes, roots, (key(0x10), key(0x70))), None);
    assert_eq!(bytes, from.change(BLAKE3, &to, &key(0x10), &key(0x70)));
    let nodes = change::decode(BLAKE3, &bytes, &key(0x10), &key(0x70)).unwrap();
    assert_eq!(nodes.siblings_after(), [node(0x40), TERMINATOR]);
}

#[test]
fn flags_and_siblings_that_say_less_than_they_could() {
    // 00 is outside of the range and unchanged, 80 and c0 are outside and changed.
    let mut to = set(&[0x00, 0x40, 0x80, 0xc0]);
    let from = to.clone();
    to.set(key(0x80), Some([1; 32].into()));
    let roots = (&from.root(BLAKE3), &to.root(BLAKE3));
    let range = (key(0x40), key(0x7f));
    let right = |set: &NaiveTrie| set.node(BLAKE3, &Prefix::new(&key(0x80), 1));
    let halves = (right(&from), right(&to));
    let terminal: &[Terminal] = &[at(2, 0x40)];
    let make = |flags: &[u8], nodes: &[Node]| change_of([terminal, terminal], flags, nodes);
    let valid = make(&[0b10], &[node(0), halves.0, halves.1]);
    assert_eq!(from.change(BLAKE3, &to, &range.0, &range.1), valid);
    assert_eq!(as_change(&valid, roots, range), None);
    let refused = |bytes: &[u8], error| assert_eq!(as_change(bytes, roots, range), Some(error));
    let twice = make(&[0b11], &[node(0), node(0), halves.0, halves.1]);
    refused(&twice, wrong(DecodeError::RepeatedSibling));
    let swapped = make(&[0b10], &[node(0), halves.1, halves.0]);
    refused(&swapped, VerifyError::RootMismatch);
    let same = make(&[0], &[node(0), halves.0]);
    refused(&same, VerifyError::RootMismatch);
    let nodes = [node(0), halves.0, halves.1];
    refused(&make(&[0b110], &nodes), wrong(DecodeError::UnknownFlags));
    refused(&make(&[0b10, 0], &nodes), wrong(DecodeError::Length));
    refused(&make(&[], &nodes), wrong(DecodeError::Length));
    let counts = wrong(DecodeError::SiblingCount { expected: 2, found: 3 });
    refused(&make(&[0], &nodes), counts);
}

#[test]
fn a_space_of_siblings_that_no_input_has() {
    // Leaves at depth 256 need 256 siblings each, which are not there: refused before their places are walked.
    let bottom: Vec<Terminal> = (0..100).map(|first| at(256, first)).collect();
    let bytes = range_of(bottom.clone(), vec![]);
    let error = as_range(&bytes, &ROOT, ALL);
    assert!(matches!(error, Some(VerifyError::Decode(DecodeError::SiblingCount { .. }))));
    let whole = [Terminal::Terminator { prefix: Prefix::ROOT }];
    for sides in [[&bottom[..], &whole], [&whole, &bottom[..]], [&bottom, &bottom]] {
        let bytes = change_of(sides, &[], &[]);
        let range = (key(0), key(99));
        let error = as_change(&bytes, (&ROOT, &ROOT), range);
        assert!(matches!(error, Some(VerifyError::Decode(DecodeError::SiblingCount { .. }))));
    }
}
