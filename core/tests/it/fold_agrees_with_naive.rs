//! Folds of pages and regions, and of the root over them, give the same root and witness, byte by byte, as the naive
//! trie.
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Range;

use crate::common::{SPREADS, Spread, cases, rng};
use crate::fold_support::{Case, Value, Write};
use pleach_core::{
    Hasher, Key, Node, NodeKind, Prefix, ValueHash,
    fold::{
        EmptyPath, FoldSpan, FoldValue, Folder, HashId, NO_HASH, Occupancy, SiblingPath, Subtrie,
        TilingPath, ValueChange,
    },
    naive::NaiveTrie,
    node,
    proof::{
        Access, Op, ProofKind,
        wire::{SectionSizes, header, op_encode_placed, op_not_first, terminal_encode},
        witness,
    },
    tree::Tiling,
};

const BLAKE3: Hasher = Hasher::BLAKE3;

/// What one fold emitted.
#[derive(Clone, Default)]
struct Fragment {
    terminals: Vec<u8>,
    count: u32,
    siblings: Vec<Node>,
}

/// A region that was accessed, or the root.
struct Touched {
    at: Prefix,
    node: Node,
    occupancy: Occupancy,
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

fn naive(hasher: Hasher, pairs: &BTreeMap<Key, Value>) -> NaiveTrie {
    pairs.iter().map(|(key, value)| (*key, node::value_hash(hasher, value))).collect()
}

/// All keys below `at`, accessed or not.
fn push_keys(
    span: &mut FoldSpan<'_, EmptyPath>,
    case: &Case,
    at: &Prefix,
    puts: &mut Vec<(Key, HashId)>,
) {
    let hasher = span.folder().hasher();
    let range = *at.first_key()..=at.last_key();
    let keys: BTreeSet<&Key> = case
        .pairs
        .range(range.clone())
        .map(|(key, _)| key)
        .chain(case.accesses.range(range).map(|(key, _)| key))
        .collect();
    for key in keys {
        let old = case.pairs.get(key).map(|value| fold_value(hasher, value));
        let Some(access) = case.accesses.get(key) else {
            span.push_unaccessed(key, old.expect("an old key"));
            continue;
        };
        let change = match &access.writes {
            Write::Nothing => ValueChange::Keep,
            Write::Delete => ValueChange::Delete,
            Write::Put(value) => ValueChange::Put(fold_value(hasher, value)),
        };
        puts.push((*key, span.push_accessed(key, old, change)));
    }
}

/// A page the way it is stored: groups without an access by their node, unless of one key.
fn push_page(
    span: &mut FoldSpan<'_, EmptyPath>,
    case: &Case,
    at: &Prefix,
    puts: &mut Vec<(Key, HashId)>,
) {
    let hasher = span.folder().hasher();
    let levels = if at.len() + case.levels <= 256 { case.levels } else { 0 };
    let mut groups = vec![*at];
    for _ in 0..levels {
        groups = groups.iter().flat_map(|at| [at.child(false), at.child(true)]).collect();
    }
    for group in groups {
        let node = naive(hasher, &case.pairs_below(&group)).node(hasher, &group);
        if levels > 0 && !case.is_accessed(&group) && node::kind(&node) != NodeKind::Leaf {
            span.push_known(&group, &node);
        } else {
            push_keys(span, case, &group, puts);
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

/// The nodes of the view; some parts, such as those that an overlay has changed, differ from the tiling.
struct Parts<'a> {
    case: &'a Case,
    hasher: Hasher,
    own: Vec<Prefix>,
    tiling: Tiling,
}

impl<'a> Parts<'a> {
    fn new(case: &'a Case, hasher: Hasher, own: Vec<Prefix>) -> Self {
        let nodes = own
            .iter()
            .map(|part| if differs(part) { node::TERMINATOR } else { in_view(hasher, case, part) });
        let tiling = Tiling::new(hasher, own.iter().copied(), &nodes.collect::<Vec<_>>());
        Self { case, hasher, own, tiling }
    }

    /// Folds the parts that are accessed, by `accessed`, and those that differ from the tiling.
    fn fold(
        &self,
        folder: &mut Folder,
        at: &Prefix,
        mut accessed: impl FnMut(&mut Folder, &Prefix) -> Subtrie,
    ) -> Option<usize> {
        let takes_part = |part: &Prefix| self.case.is_accessed(part) || differs(part);
        let mut coming =
            self.own.iter().enumerate().filter(|(_, part)| takes_part(part)).peekable();
        let mut span = folder.span_along(at.len(), TilingPath::new(&self.tiling));
        let mut whole = None;
        while let Some((child, part)) = coming.next() {
            let folder = span.folder();
            let node = in_view(self.hasher, self.case, part);
            let subtrie = if self.case.is_accessed(part) {
                accessed(folder, part)
            } else {
                folder.known_subtrie(&node, part)
            };
            whole = span.push_child(child, part, subtrie, coming.peek().map(|(next, _)| *next));
        }
        whole.map(|whole| folder.end_fold(whole, at.len() == 0))
    }
}

fn differs(part: &Prefix) -> bool {
    part.len() % 3 == 1
}

fn in_view(hasher: Hasher, case: &Case, at: &Prefix) -> Node {
    naive(hasher, &case.pairs_below(at)).node(hasher, at)
}

/// The result of a fold; its operations begin at `first_op`.
fn touched(
    (folder, end): (&Folder, usize),
    at: Prefix,
    first_op: usize,
    fragment_of: impl Fn(u32) -> Fragment,
) -> Touched {
    let occupancy = folder.occupancy(end);
    let mut fragment = Fragment::default();
    if occupancy == Occupancy::Many || at.len() == 0 {
        let mut below = 0;
        let own = folder.terminals(end, &mut fragment.terminals, |number, out| {
            below += fragment_of(number).count;
            out.extend_from_slice(&fragment_of(number).terminals);
        });
        fragment.count = own + below;
        let Range { start: mut from, end: to } = folder.siblings_of(end);
        for (gap, number) in folder.gaps(end) {
            fragment.siblings.extend_from_slice(&folder.siblings()[from..*gap as usize]);
            fragment.siblings.extend(fragment_of(*number).siblings);
            from = *gap as usize;
        }
        fragment.siblings.extend_from_slice(&folder.siblings()[from..to]);
    }
    Touched { at, node: *folder.node(end), occupancy, fragment, first_op }
}

/// Folds the pages of all regions, and these.
fn fold_regions(case: &Case, folder: &mut Folder, ops: &mut Vec<u8>) -> Vec<Touched> {
    let hasher = folder.hasher();
    folder.clear();
    let mut pages = case.pages().into_iter().peekable();
    let (mut puts, mut ends) = (Vec::new(), Vec::new());
    for at in case.regions() {
        let own = std::iter::from_fn(|| pages.next_if(|page| at.contains(page))).collect();
        let parts = Parts::new(case, hasher, own);
        let lines = folder.kept_counts().1;
        let end = parts.fold(folder, &at, |folder, page| {
            let mut span = folder.span(page.len());
            push_page(&mut span, case, page, &mut puts);
            span.into_subtrie()
        });
        ends.push((at, parts.tiling, end, lines..folder.kept_counts().1));
        if puts.len() > 20 {
            folder.hash_so_far();
        }
    }
    name_leaves(case, folder);
    folder.run();
    let mut first_ops = Vec::new();
    for (access, (key, put)) in puts.into_iter().enumerate() {
        let op = op_of(hasher, case, &key);
        let hash = (put != NO_HASH).then(|| folder.value_hash(put));
        assert_eq!(op.access.written().flatten(), hash);
        first_ops.push(ops.len());
        op_encode_placed(ops, &op, case.pairs.contains_key(&key), folder.is_first(access));
    }
    let mut results = Vec::new();
    for (at, tiling, end, lines) in ends {
        let Some(end) = end else { continue };
        check_lines(hasher, case, (&at, tiling), &folder.lines()[lines], folder.node(end));
        let accesses = folder.accesses(end);
        if accesses.is_empty() {
            assert_eq!(*folder.node(end), in_view(hasher, case, &at), "an untouched node");
            continue;
        }
        let none = |_| unreachable!("a page has no children");
        results.push(touched((folder, end), at, first_ops[accesses.start], none));
    }
    results
}

/// Resolves the leaves that were given by their node.
fn name_leaves(case: &Case, folder: &mut Folder) {
    let hasher = folder.hasher();
    let named = folder.name_leaves(|at| {
        let pairs = case.pairs_below(at);
        assert_eq!(pairs.len(), 1, "a leaf is asked for");
        let (key, value) = pairs.first_key_value().expect("one");
        Ok::<_, Infallible>((*key, node::value_hash(hasher, value)))
    });
    let Ok(()) = named;
}

/// Folds the root from the regions.
fn fold_root(
    case: &Case,
    folder: &mut Folder,
    ops: &mut [u8],
    regions: &[Touched],
) -> Option<Touched> {
    let hasher = folder.hasher();
    folder.clear();
    let parts = Parts::new(case, hasher, case.regions());
    let mut numbered = (0..).zip(regions);
    let end = parts.fold(folder, &Prefix::ROOT, |folder, part| {
        let (number, region) = numbered.next().expect("an accessed region");
        assert_eq!(region.at, *part);
        folder.fragment(&region.node, &region.occupancy, part.first_key(), number)
    });
    name_leaves(case, folder);
    folder.run();
    let end = end?;
    check_lines(hasher, case, (&Prefix::ROOT, parts.tiling), folder.lines(), folder.node(end));
    for (access, region) in folder.accesses(end).zip(regions) {
        if !folder.is_first(access) {
            op_not_first(&mut ops[region.first_op]);
        }
    }
    let fragment = |number: u32| regions[number as usize].fragment.clone();
    regions.first().map(|first| touched((folder, end), Prefix::ROOT, first.first_op, fragment))
}

/// The new lines make the tiling that of the nodes after the batch.
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
    tiling.set_own_node(new);
    let mut set = naive(hasher, &case.pairs_below(at));
    let own = case.accesses.range(*at.first_key()..=at.last_key());
    set.apply(&own.map(|(key, _)| op_of(hasher, case, key)).collect::<Vec<_>>());
    assert_eq!(*tiling.own_node(), set.node(hasher, at), "the node at {at:?}");
    let mut again = tiling.clone();
    again.recompute(hasher);
    assert_eq!(again.own_node(), tiling.own_node());
    for boundary in 0..tiling.len() - 1 {
        assert_eq!(tiling.line(boundary), again.line(boundary), "boundary {boundary}");
    }
}

/// The parts of the multiproof lead to the nodes before the batch, and changed parts do not.
fn check_parts(hasher: Hasher, case: &Case, parts: &[Touched]) {
    let old = |at: &Prefix| naive(hasher, &case.pairs_below(at)).node(hasher, at);
    let is_many = |part: &&Touched| part.occupancy == Occupancy::Many;
    let parts: Vec<&Touched> = parts.iter().filter(is_many).collect();
    let fold = |folder: &mut Folder, part: &Touched, siblings: &[Node]| {
        let mut span = folder.span_along(part.at.len(), SiblingPath::new(siblings));
        span.push_terminals(&part.fragment.terminals);
        span.end_proof()
    };
    let mut folder = Folder::new(hasher);
    let folds: Vec<Option<usize>> =
        parts.iter().map(|part| fold(&mut folder, part, &part.fragment.siblings)).collect();
    folder.run();
    for (part, number) in parts.iter().zip(folds) {
        let number = number.expect("every part leads to a node");
        assert_eq!(*folder.node(number), old(&part.at), "the node before, at {:?}", part.at);
    }
    for part in parts {
        let (old, count) = (old(&part.at), part.fragment.siblings.len());
        for changed in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|_| count > 0) {
            let mut siblings = part.fragment.siblings.clone();
            siblings[changed] = node::tag_internal([0x5a; 32]);
            folder.clear();
            let number = fold(&mut folder, part, &siblings);
            folder.run();
            assert!(number.is_none_or(|number| *folder.node(number) != old), "sibling {changed}");
            folder.clear();
            assert_eq!(fold(&mut folder, part, &siblings[1..]), None, "a sibling is missing");
            siblings.push(siblings[changed]);
            folder.clear();
            assert_eq!(fold(&mut folder, part, &siblings), None, "a sibling is left over");
        }
    }
}

/// Root and witness from folds of two levels.
fn fold_all(case: &Case, folder: &mut Folder) -> (Node, Vec<u8>) {
    let hasher = folder.hasher();
    let mut ops = Vec::new();
    let regions = fold_regions(case, folder, &mut ops);
    check_parts(hasher, case, &regions);
    let root = fold_root(case, folder, &mut ops, &regions);
    check_parts(hasher, case, root.as_slice());
    let Some(Touched { node: root, fragment: proof, .. }) = root else {
        let root = naive(hasher, &case.pairs).root(hasher);
        return (root, witness::DecodedWitness::default().encode(hasher).unwrap());
    };
    let sizes = SectionSizes {
        terminals: proof.count,
        ops: u32::try_from(case.accesses.len()).unwrap(),
        siblings: u32::try_from(proof.siblings.len()).unwrap(),
        terminal_bytes: u32::try_from(proof.terminals.len()).unwrap(),
        op_bytes: u32::try_from(ops.len()).unwrap(),
    };
    let mut bytes = header(hasher, ProofKind::Witness, &sizes).to_vec();
    bytes.extend_from_slice(&proof.terminals);
    bytes.extend_from_slice(&ops);
    bytes.extend_from_slice(Node::bytes_of(&proof.siblings));
    (root, bytes)
}

fn check(case: &Case, folder: &mut Folder) {
    let hasher = folder.hasher();
    let (root, bytes) = fold_all(case, folder);
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
    let new = || Folder::new(hasher);
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
    let mut folder = Folder::new(BLAKE3);
    let mut span = folder.span(4);
    span.push_known(&at, &node);
    let fold = span.end_fold();
    folder.run();
    assert_eq!(*folder.node(fold), node);
    assert_eq!(folder.occupancy(fold), Occupancy::Many);
}

#[test]
fn a_leaf_known_by_its_node_is_asked_for_when_a_terminal_needs_it() {
    let trie = naive(BLAKE3, &BTreeMap::from([([0xa5; 32], vec![1])]));
    let node = trie.root(BLAKE3);
    let at = Prefix::new(&[0xa5; 32], 9);
    let mut folder = Folder::new(BLAKE3);
    let mut span = folder.span(0);
    span.push_accessed(&[0x11; 32], None, ValueChange::Keep);
    span.push_known(&at, &node);
    let fold = span.end_fold();
    let failed = folder.name_leaves(|found| Err::<(Key, ValueHash), _>(*found));
    assert_eq!(failed, Err(at));
    let mut asked = 0;
    let named = folder.name_leaves(|_| {
        asked += 1;
        Ok::<_, Infallible>(([0xa5; 32], node::value_hash(BLAKE3, &[1])))
    });
    assert_eq!((named, asked), (Ok(()), 1));
    folder.run();
    let (mut terminals, mut wanted) = (Vec::new(), Vec::new());
    assert_eq!(folder.terminals(fold, &mut terminals, |_, _| unreachable!("no fragment")), 1);
    let proof = trie.multi(BLAKE3, &[[0x11; 32]]);
    proof.terminals.iter().for_each(|terminal| terminal_encode(&mut wanted, terminal));
    assert_eq!((terminals, folder.siblings()), (wanted, &proof.siblings[..]));
}

/// Its terminal would have a key that is none.
#[test]
#[should_panic = "every terminal is known"]
fn a_terminal_whose_leaf_has_no_name_is_not_hashed() {
    let node = naive(BLAKE3, &BTreeMap::from([([0xa5; 32], vec![1])])).root(BLAKE3);
    let mut folder = Folder::new(BLAKE3);
    let mut span = folder.span(0);
    span.push_accessed(&[0x11; 32], None, ValueChange::Keep);
    span.push_known(&Prefix::new(&[0xa5; 32], 9), &node);
    span.end_fold();
    folder.run();
}
