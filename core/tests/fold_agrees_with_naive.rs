//! Pages by the batch folder, regions and root by the merkleizer give the root and the witness, byte by byte,
//! that the slow trie gives.
#![cfg(feature = "naive")]

mod common;
mod fold_support;

use std::collections::{BTreeMap, BTreeSet};

use common::{SPREADS, Spread, cases, rng};
use fold_support::{Case, Value, Write};
use pleach_core::{
    Hasher, Key, Node, NodeKind, Prefix, ValueHash,
    fold::{self, BatchFolder, Change, FoldValue, HashId, NO_HASH, ProofFolder, Sink},
    naive::Naive,
    node,
    proof::{
        Access, Op, Terminal,
        op::{op_encode_placed, op_not_first},
        terminal::terminal_encode,
        wire::Sizes,
        witness,
    },
    tree::{GroupedLines, HiddenLeaf, Merkleizer, Tiling},
};

const BLAKE3: Hasher = Hasher::BLAKE3;

/// What one fold emitted.
#[derive(Clone, Default)]
struct Fragment {
    terminals: Vec<u8>,
    count: u32,
    siblings: Vec<Node>,
}

struct Collect {
    own: Fragment,
}

impl Sink for Collect {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        let terminal = Terminal::Leaf { depth, key: *key, value_hash: *value_hash };
        terminal_encode(&mut self.own.terminals, &terminal);
        self.own.count += 1;
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        let terminal = Terminal::Terminator { prefix: Prefix::new(key, depth) };
        terminal_encode(&mut self.own.terminals, &terminal);
        self.own.count += 1;
    }

    fn sibling(&mut self, node: &Node) {
        self.own.siblings.push(*node);
    }

    fn fragment(&mut self, _: u32) {
        unreachable!("a page has no children")
    }
}

/// A fold's part of the witness; none of its own when its terminal floats.
fn collect(folder: &mut BatchFolder, fold: usize) -> Fragment {
    let mut sink = Collect { own: Fragment::default() };
    if folder.occupancy(fold) == fold::Occupancy::Many {
        folder.emit(fold, &mut sink);
    }
    sink.own
}

/// A page or a region that was accessed.
struct Touched {
    at: Prefix,
    node: Node,
    occupancy: fold::Occupancy,
    fragment: Fragment,
    /// Where its operations start.
    first_op: usize,
}

/// A value as its bytes or as its hash.
fn fold_value(hasher: Hasher, value: &Value) -> FoldValue<'_> {
    if value.len() == 32 {
        FoldValue::Hash(node::value_hash(hasher, value))
    } else {
        FoldValue::Bytes(value)
    }
}

fn naive(hasher: Hasher, pairs: &BTreeMap<Key, Value>) -> Naive {
    pairs.iter().map(|(key, value)| (*key, node::value_hash(hasher, value))).collect()
}

/// All keys below `at`, accessed or not.
fn push_keys(folder: &mut BatchFolder, case: &Case, at: &Prefix, puts: &mut Vec<(Key, HashId)>) {
    let range = *at.first_key()..=at.last_key();
    let keys: BTreeSet<&Key> = case
        .pairs
        .range(range.clone())
        .map(|(key, _)| key)
        .chain(case.accesses.range(range).map(|(key, _)| key))
        .collect();
    for key in keys {
        let old = case.pairs.get(key).map(|value| fold_value(folder.hasher(), value));
        let Some(access) = case.accesses.get(key) else {
            folder.unaccessed(key, old.expect("an old key"));
            continue;
        };
        let change = match &access.writes {
            Write::Nothing => Change::Keep,
            Write::Delete => Change::Delete,
            Write::Put(value) => Change::Put(fold_value(folder.hasher(), value)),
        };
        puts.push((*key, folder.accessed(key, old, change)));
    }
}

/// A page the way it is stored: groups without an access by their node, unless of one key.
fn push_page(folder: &mut BatchFolder, case: &Case, at: &Prefix, puts: &mut Vec<(Key, HashId)>) {
    let levels = if at.len() + case.levels <= 256 { case.levels } else { 0 };
    let mut groups = vec![*at];
    for _ in 0..levels {
        groups = groups.iter().flat_map(|at| [at.child(false), at.child(true)]).collect();
    }
    for group in groups {
        let node = naive(folder.hasher(), &case.pairs_below(&group)).node(folder.hasher(), &group);
        if levels > 0 && !case.is_accessed(&group) && node::kind(&node) != NodeKind::Leaf {
            folder.subtrie(&group, &node);
        } else {
            push_keys(folder, case, &group, puts);
        }
    }
}

fn op_of(hasher: Hasher, case: &Case, key: &Key) -> Op {
    let access = &case.accesses[key];
    let put = match &access.writes {
        Write::Nothing => return Op { key: *key, access: Access::Read },
        Write::Put(value) => Some(node::value_hash(hasher, value)),
        Write::Delete => None,
    };
    let access = if access.reads { Access::ReadWrite(put) } else { Access::Write(put) };
    Op { key: *key, access }
}

fn fold_pages(case: &Case, folder: &mut BatchFolder, ops: &mut Vec<u8>) -> Vec<Touched> {
    folder.clear();
    let mut folds = Vec::new();
    for at in case.pages().into_iter().filter(|at| case.is_accessed(at)) {
        let mut puts = Vec::new();
        folder.begin(at.len());
        push_page(folder, case, &at, &mut puts);
        folds.push((at, folder.end().expect("one key is given by key"), puts));
    }
    folder.run();
    let mut touched = Vec::new();
    for (at, fold, puts) in folds {
        let first_op = ops.len();
        let firsts: Vec<bool> = folder.first_of_terminal(fold).collect();
        assert_eq!(firsts.len(), puts.len());
        for ((key, put), first) in puts.into_iter().zip(firsts) {
            let op = op_of(folder.hasher(), case, &key);
            let hash = (put != NO_HASH).then(|| folder.value_hash(put));
            assert_eq!(op.access.written().flatten(), hash);
            op_encode_placed(ops, &op, case.pairs.contains_key(&key), first);
        }
        let fragment = collect(folder, fold);
        touched.push(Touched {
            at,
            node: folder.node(fold),
            occupancy: folder.occupancy(fold),
            fragment,
            first_op,
        });
    }
    touched
}

/// Goes up from the accessed parts of one level to the prefixes of the next. Some of the other parts have another node in the
/// tiling than in the view, as those that an overlay has changed.
fn tile(
    case: &Case,
    merkleizer: &mut Merkleizer,
    ops: &mut [u8],
    (above, parts, is_root): (&[Prefix], &[Prefix], bool),
    touched: &[Touched],
    exposed: &BTreeSet<Key>,
) -> Result<Vec<Touched>, Key> {
    let hasher = merkleizer.hasher();
    merkleizer.clear();
    let in_view = |at: &Prefix| naive(hasher, &case.pairs_below(at)).node(hasher, at);
    let mut parts = parts.iter().copied().peekable();
    let mut numbers = (0u32..).zip(touched).peekable();
    let mut ends = Vec::new();
    for at in above {
        let own: Vec<Prefix> =
            std::iter::from_fn(|| parts.next_if(|part| at.contains(part))).collect();
        let is_exposed = |part: &Prefix| {
            exposed.iter().any(|key| part.covers(key)) && !case.pairs_below(part).is_empty()
        };
        let differs = |part: &Prefix| part.len() % 3 == 1;
        let nodes =
            own.iter().map(|part| if differs(part) { node::TERMINATOR } else { in_view(part) });
        let tiling = Tiling::new(hasher, own.iter().copied(), &nodes.collect::<Vec<_>>());
        let takes_part =
            |part: &Prefix| case.is_accessed(part) || is_exposed(part) || differs(part);
        let mut coming = own.iter().enumerate().filter(|(_, part)| takes_part(part)).peekable();
        let first = numbers.peek().map_or(0, |(number, _)| *number as usize);
        let (number, mut top, mut count) = (merkleizer.begin_tiling(), None, 0);
        while let Some((child, part)) = coming.next() {
            let subtrie = if let Some((number, child)) =
                numbers.next_if(|(_, child)| child.at == *part)
            {
                count += 1;
                merkleizer.fragment(&child.node, (&child.occupancy, part.first_key()), number)
            } else if is_exposed(part) {
                let pairs = case.pairs_below(part);
                assert_eq!(pairs.len(), 1, "a leaf was asked for");
                let (key, value) = pairs.first_key_value().expect("one");
                merkleizer.unaccessed_leaf(&in_view(part), key, &node::value_hash(hasher, value))
            } else {
                merkleizer.unaccessed(&in_view(part))
            };
            let next = coming.peek().map(|(next, _)| *next);
            let put = merkleizer.child((&tiling, number), child, subtrie, next);
            top = put.map_err(|HiddenLeaf { child }| *own[child].first_key())?;
        }
        let end = top.map(|top| merkleizer.end(top, is_root));
        ends.push((*at, tiling, number, end, first..first + count));
    }
    merkleizer.run();
    let mut grouped = GroupedLines::default();
    merkleizer.group(&mut grouped);
    let mut results = Vec::new();
    for (at, tiling, number, end, children) in ends {
        let Some(end) = end else { continue };
        let new = *merkleizer.end_node(end);
        check_lines(hasher, case, (&at, tiling), grouped.of(number), &new);
        if children.is_empty() {
            assert_eq!(new, in_view(&at), "an untouched node");
            assert_eq!(merkleizer.occupancy(end), None);
            continue;
        }
        let children = &touched[children];
        let firsts: Vec<bool> = merkleizer.firsts(end).collect();
        assert_eq!(firsts.len(), children.len());
        for (child, _) in children.iter().zip(firsts).filter(|(_, first)| !first) {
            op_not_first(&mut ops[child.first_op]);
        }
        let occupancy = merkleizer.occupancy(end).expect("something was accessed");
        let mut fragment = Fragment::default();
        if occupancy == fold::Occupancy::Many || is_root {
            let mut below = 0;
            let own = merkleizer.terminals(end, &mut fragment.terminals, |number, out| {
                below += touched[number as usize].fragment.count;
                out.extend_from_slice(&touched[number as usize].fragment.terminals);
            });
            fragment.count = own + below;
            merkleizer.siblings(end, &mut fragment.siblings, |number, out| {
                out.extend_from_slice(&touched[number as usize].fragment.siblings);
            });
        }
        let first_op = children[0].first_op;
        results.push(Touched { at, node: new, occupancy, fragment, first_op });
    }
    Ok(results)
}

/// The new lines make of the tiling that of the nodes after the batch.
fn check_lines(
    hasher: Hasher,
    case: &Case,
    (at, mut tiling): (&Prefix, Tiling),
    lines: &[(u32, [Node; 2])],
    new: &Node,
) {
    for (boundary, pair) in lines {
        tiling.set_line(*boundary as usize, pair);
    }
    tiling.set_own(new);
    let mut set = naive(hasher, &case.pairs_below(at));
    let own = case.accesses.range(*at.first_key()..=at.last_key());
    set.apply(&own.map(|(key, _)| op_of(hasher, case, key)).collect::<Vec<_>>());
    assert_eq!(*tiling.own(), set.node(hasher, at), "the node at {at:?}");
    let mut again = tiling.clone();
    again.renew(hasher);
    assert_eq!(again.own(), tiling.own());
    for boundary in 0..tiling.len() - 1 {
        assert_eq!(tiling.line(boundary), again.line(boundary), "boundary {boundary}");
    }
}

/// The parts of the multiproof lead to the nodes before the batch, and changed parts do not.
fn check_parts(hasher: Hasher, case: &Case, parts: &[Touched]) {
    let old = |at: &Prefix| naive(hasher, &case.pairs_below(at)).node(hasher, at);
    let is_many = |part: &&Touched| part.occupancy == fold::Occupancy::Many;
    let parts: Vec<&Touched> = parts.iter().filter(is_many).collect();
    let fold = |folder: &mut ProofFolder, part: &Touched, siblings: &[Node]| {
        folder.terminals(&part.fragment.terminals);
        folder.end(part.at.len(), siblings)
    };
    let mut folder = ProofFolder::new(hasher);
    let folds: Vec<usize> =
        parts.iter().map(|part| fold(&mut folder, part, &part.fragment.siblings)).collect();
    assert!(folder.run(), "every part leads to a node");
    for (part, number) in parts.iter().zip(folds) {
        assert_eq!(*folder.node(number), old(&part.at), "the node before, at {:?}", part.at);
    }
    for part in parts {
        let (old, count) = (old(&part.at), part.fragment.siblings.len());
        for changed in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|_| count > 0) {
            let mut siblings = part.fragment.siblings.clone();
            siblings[changed] = node::tag_internal([0x5a; 32]);
            folder.clear();
            let number = fold(&mut folder, part, &siblings);
            assert!(!folder.run() || *folder.node(number) != old, "sibling {changed}");
            folder.clear();
            fold(&mut folder, part, &siblings[1..]);
            assert!(!folder.run(), "a sibling is missing");
            siblings.push(siblings[changed]);
            folder.clear();
            fold(&mut folder, part, &siblings);
            assert!(!folder.run(), "a sibling is left over");
        }
    }
}

/// Root and witness from folds of three levels.
fn fold_all(
    case: &Case,
    (folder, merkleizer): &mut (BatchFolder, Merkleizer),
    exposed: &BTreeSet<Key>,
) -> Result<(Node, Vec<u8>), Key> {
    let hasher = folder.hasher();
    let (pages, regions) = (case.pages(), case.regions());
    let mut ops = Vec::new();
    let touched_pages = fold_pages(case, folder, &mut ops);
    let touched_regions =
        tile(case, merkleizer, &mut ops, (&regions, &pages, false), &touched_pages, exposed)?;
    check_parts(hasher, case, &touched_pages);
    check_parts(hasher, case, &touched_regions);
    let above = (&[Prefix::ROOT][..], &regions[..], true);
    let root = tile(case, merkleizer, &mut ops, above, &touched_regions, exposed)?;
    check_parts(hasher, case, &root);
    let Some(Touched { node: root, fragment: proof, .. }) = root.into_iter().next() else {
        let root = naive(hasher, &case.pairs).root(hasher);
        return Ok((root, witness::Witness::default().encode(hasher).unwrap()));
    };
    let sizes = Sizes {
        terminals: proof.count,
        ops: u32::try_from(case.accesses.len()).unwrap(),
        siblings: u32::try_from(proof.siblings.len()).unwrap(),
        terminal_bytes: u32::try_from(proof.terminals.len()).unwrap(),
        op_bytes: u32::try_from(ops.len()).unwrap(),
    };
    let mut bytes = witness::header(hasher, &sizes).to_vec();
    bytes.extend_from_slice(&proof.terminals);
    bytes.extend_from_slice(&ops);
    bytes.extend_from_slice(Node::bytes_of(&proof.siblings));
    Ok((root, bytes))
}

fn check(case: &Case, folder: &mut (BatchFolder, Merkleizer)) {
    let hasher = folder.0.hasher();
    let mut exposed = BTreeSet::new();
    let (root, bytes) = loop {
        match fold_all(case, folder, &exposed) {
            Ok(result) => break result,
            Err(key) => assert!(exposed.insert(key), "a leaf was given and is asked for again"),
        }
    };
    let mut set = naive(hasher, &case.pairs);
    let prev = set.root(hasher);
    let ops: Vec<Op> = case.accesses.keys().map(|key| op_of(hasher, case, key)).collect();
    let wanted = set.witness(hasher, &ops).encode(hasher).unwrap();
    set.apply(&ops);
    assert_eq!(root, set.root(hasher), "the root");
    assert_eq!(bytes, wanted, "the witness");
    let verified = witness::verify(hasher, &bytes, &prev).expect("a witness");
    assert_eq!(*verified.new_root(), root);
}

fn agrees(hasher: Hasher, spread: Spread, seed: u64) {
    let new = || (BatchFolder::new(hasher), Merkleizer::new(hasher));
    let folder = std::cell::RefCell::new(new());
    for number in 0..cases(200) {
        let case = Case::draw(spread, &mut rng(seed << 32 | number));
        case.run(&format!("{spread:?} case {number}"), |case| {
            // A failed check may leave a fold open: start again after a panic.
            let mut own = folder.replace(new());
            check(case, &mut own);
            folder.replace(own);
        });
    }
}

#[test]
fn roots_and_witnesses_agree_under_blake3() {
    for (seed, spread) in (1..).zip(SPREADS) {
        agrees(BLAKE3, spread, seed);
    }
}

#[test]
fn roots_and_witnesses_agree_under_sha256() {
    for (seed, spread) in (11..).zip(SPREADS) {
        agrees(Hasher::SHA2_256, spread, seed);
    }
}

#[test]
fn an_untouched_leaf_given_by_its_node_goes_up_by_its_node() {
    let pairs = BTreeMap::from([([0xa5; 32], vec![1])]);
    let node = naive(BLAKE3, &pairs).root(BLAKE3);
    let at = Prefix::new(&[0xa5; 32], 9);
    let mut folder = BatchFolder::new(BLAKE3);
    folder.begin(4);
    folder.subtrie(&at, &node);
    let fold = folder.end().expect("nothing was accessed");
    folder.run();
    assert_eq!(folder.node(fold), node);
    assert_eq!(folder.occupancy(fold), fold::Occupancy::Many);
}

#[test]
fn a_leaf_known_by_its_node_is_asked_for_when_a_terminal_needs_it() {
    let pairs = BTreeMap::from([([0xa5; 32], vec![1])]);
    let node = naive(BLAKE3, &pairs).root(BLAKE3);
    let at = Prefix::new(&[0xa5; 32], 9);
    let mut folder = BatchFolder::new(BLAKE3);
    folder.begin(0);
    folder.accessed(&[0x11; 32], None, Change::Keep);
    folder.subtrie(&at, &node);
    assert_eq!(folder.end(), Err(*at.first_key()));
}
