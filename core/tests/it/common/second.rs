//! A second verifier, written from `docs/proofs.md` alone: recursive, over decoded records, and
//! canonical by encoding what it decoded once more.

use pleach_core::{
    Hasher, Key, Node, Prefix,
    naive::NaiveTrie,
    node::{self, Combination},
    prefix::common_len,
    proof::{
        Access, Op, Terminal, multi::MultiProof, wire::terminal_encode, witness::DecodedWitness,
    },
};

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fn hash32(bytes: &mut &[u8]) -> Option<[u8; 32]> {
    take(bytes, 32)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)).ok()
}

fn terminal(bytes: &mut &[u8]) -> Option<Terminal> {
    let word = u16::from_le_bytes(take(bytes, 2)?.try_into().ok()?);
    let depth = word & 0x1ff;
    if depth > 256 {
        return None;
    }
    if word >> 15 == 1 {
        return Some(Terminal::Leaf {
            depth,
            key: hash32(bytes)?,
            value_hash: hash32(bytes)?.into(),
        });
    }
    let mut key = [0; 32];
    let len = usize::from(depth.div_ceil(8));
    key[..len].copy_from_slice(take(bytes, len)?);
    (depth < 256).then_some(())?;
    Some(Terminal::Terminator { prefix: Prefix::from_raw(key, depth)? })
}

fn op(bytes: &mut &[u8], terminals: &[Terminal], used: &mut usize) -> Option<Op> {
    let flags = take(bytes, 1)?[0];
    *used += usize::from(flags >> 4 & 1);
    let current = terminals.get(used.checked_sub(1)?)?;
    let key = match (flags >> 3 & 1, current) {
        (0, _) => hash32(bytes)?,
        (_, Terminal::Leaf { key, .. }) => *key,
        _ => return None,
    };
    let value = if flags >> 2 & 1 == 1 { Some(hash32(bytes)?.into()) } else { None };
    let access = match flags & 3 {
        1 => Access::Read,
        2 => Access::Write(value),
        3 => Access::ReadWrite(value),
        _ => return None,
    };
    Some(Op { key, access })
}

/// The decoded records, before anything is hashed.
pub(crate) fn decode(hasher: Hasher, bytes: &[u8], witness: bool) -> Option<DecodedWitness> {
    let (terminal_count, op_count) = (u32_at(bytes, 8)?, u32_at(bytes, 12)?);
    let (terminal_len, op_len) = (u32_at(bytes, 20)?, u32_at(bytes, 24)?);
    let mut rest = bytes.get(32..)?;
    let mut terminal_bytes = take(&mut rest, terminal_len)?;
    let mut op_bytes = take(&mut rest, op_len)?;
    let siblings = Node::slice_of(rest.as_chunks().0).to_vec();
    let mut terminals = Vec::new();
    for _ in 0..terminal_count {
        terminals.push(terminal(&mut terminal_bytes)?);
    }
    let (mut ops, mut used) = (Vec::new(), 0);
    for _ in 0..op_count {
        ops.push(op(&mut op_bytes, &terminals, &mut used)?);
    }
    if witness && used != terminals.len() {
        return None;
    }
    let decoded = DecodedWitness { proof: MultiProof { terminals, siblings }, ops };
    let again =
        if witness { decoded.encode(hasher).ok()? } else { decoded.proof.encode(hasher).ok()? };
    let sorted = decoded.ops.is_sorted_by(|a, b| a.key < b.key);
    let apart = decoded.proof.terminals.is_sorted_by(|a, b| {
        let (a, b) = (a.prefix(), b.prefix());
        a < b && !a.contains(&b)
    });
    (again == bytes && sorted && apart).then_some(decoded)
}

/// Both nodes at `depth` over a range of terminals; siblings are taken from the end.
fn climb(
    hasher: Hasher,
    terminals: &[(Terminal, Node)],
    depth: u16,
    siblings: &mut Vec<Node>,
) -> Option<(Node, Node)> {
    let (first, last) = (&terminals.first()?.0, &terminals.last()?.0);
    let alone = terminals.len() == 1;
    let fork = if alone { first.depth() } else { common_len(first.bits(), last.bits()) };
    let above = siblings.split_off(siblings.len().checked_sub(usize::from(fork - depth))?);
    let mut nodes = if alone {
        (first.node(hasher), terminals[0].1)
    } else {
        let middle = terminals.partition_point(|t| !pleach_core::prefix::bit(t.0.bits(), fork));
        let right = climb(hasher, &terminals[middle..], fork + 1, siblings)?;
        let left = climb(hasher, &terminals[..middle], fork + 1, siblings)?;
        join(hasher, left, right, fork + 1)?
    };
    for (above, sibling) in (depth..fork).rev().zip(above) {
        let pair = (sibling, sibling);
        nodes = if pleach_core::prefix::bit(first.bits(), above) {
            join(hasher, pair, nodes, above + 1)?
        } else {
            join(hasher, nodes, pair, above + 1)?
        };
    }
    Some(nodes)
}

fn join(
    hasher: Hasher,
    left: (Node, Node),
    right: (Node, Node),
    depth: u16,
) -> Option<(Node, Node)> {
    if node::combine_kind(&left.0, &right.0) != Combination::Hash {
        return None;
    }
    if depth == 256 && (left.0.as_bytes()[0] < 0x80 || right.0.as_bytes()[0] < 0x80) {
        return None;
    }
    Some((node::combine(hasher, &left.0, &right.0), node::combine(hasher, &left.1, &right.1)))
}

/// The new root, if everything holds.
pub(crate) fn verify(hasher: Hasher, bytes: &[u8], witness: bool, root: &Node) -> Option<Node> {
    let decoded = decode(hasher, bytes, witness)?;
    if decoded.proof.terminals.is_empty() {
        return (decoded.proof.siblings.is_empty()).then_some(*root);
    }
    let mut siblings = decoded.proof.siblings;
    let mut terminals = Vec::new();
    for terminal in decoded.proof.terminals {
        let mut below = NaiveTrie::new();
        if let Terminal::Leaf { key, value_hash, .. } = terminal {
            below.set(key, Some(value_hash));
        }
        let ops: Vec<Op> =
            decoded.ops.iter().filter(|op| terminal.covers(&op.key)).copied().collect();
        below.apply(&ops);
        terminals.push((terminal, below.node(hasher, &terminal.prefix())));
    }
    let (before, after) = climb(hasher, &terminals, 0, &mut siblings)?;
    (before == *root && siblings.is_empty()).then_some(after)
}

/// True when the terminals and siblings lead to the root.
fn leads(hasher: Hasher, proof: &MultiProof, root: &Node) -> bool {
    let node = |terminal: &Terminal| (*terminal, terminal.node(hasher));
    let terminals: Vec<_> = proof.terminals.iter().map(node).collect();
    let mut siblings = proof.siblings.clone();
    let found = climb(hasher, &terminals, 0, &mut siblings);
    found.is_some_and(|(before, _)| before == *root) && siblings.is_empty()
}

/// True when this is the proof of all pairs from `first` to `last`.
pub(crate) fn range(hasher: Hasher, bytes: &[u8], root: &Node, first: &Key, last: &Key) -> bool {
    // But for its kind it is a multiproof.
    let mut multi = bytes.to_vec();
    if first > last || multi.len() < 32 || std::mem::replace(&mut multi[5], 2) != 4 {
        return false;
    }
    let Some(DecodedWitness { proof, .. }) = decode(hasher, &multi, false) else { return false };
    let mut next = Some(*first);
    for terminal in &proof.terminals {
        // The terminal before reached the end, or left a gap.
        let Some(at) = next.filter(|at| terminal.covers(at)) else { return false };
        let end = terminal.prefix().last_key();
        assert!(at <= end);
        next = (end < *last).then(|| plus_one(end));
    }
    next.is_none() && leads(hasher, &proof, root)
}

fn plus_one(mut key: Key) -> Key {
    let at = key.iter().rposition(|byte| *byte < 255).expect("a key after this one");
    key[at] += 1;
    key[at + 1..].fill(0);
    key
}

/// The siblings of a change proof, on their way back to the two multiproofs.
struct Apart<'a> {
    range: (&'a Key, &'a Key),
    flags: Vec<bool>,
    nodes: std::slice::Iter<'a, Node>,
    siblings: [Vec<(Prefix, Node)>; 2],
}

impl Apart<'_> {
    fn inside(&self, prefix: &Prefix) -> bool {
        self.range.0 <= prefix.first_key() && prefix.last_key() <= *self.range.1
    }

    /// All siblings below `prefix`, where these terminals are; a side whose terminal is above has none.
    fn below(&mut self, prefix: &Prefix, mut sides: [Option<Vec<Terminal>>; 2]) -> Option<()> {
        for side in &mut sides {
            side.take_if(|list| list[0].depth() == prefix.len());
        }
        let live = sides.each_ref().map(Option::is_some);
        if live == [false; 2] {
            return Some(());
        }
        let part = |right| {
            let child = prefix.child(right);
            let list = |side: &Option<Vec<Terminal>>| {
                let list = side.iter().flatten().filter(|t| child.contains(&t.prefix()));
                list.copied().collect::<Vec<_>>()
            };
            (child, sides.each_ref().map(list))
        };
        let empty = |part: &(Prefix, [Vec<Terminal>; 2])| part.1.iter().all(Vec::is_empty);
        let mut children = [part(false), part(true)];
        if empty(&children[0]) {
            children.reverse();
        }
        for (child, lists) in children {
            if !lists.iter().all(Vec::is_empty) {
                // The other side opens every part that one side opens here.
                if lists.iter().zip(live).any(|(list, live)| live && list.is_empty()) {
                    return None;
                }
                self.below(&child, lists.map(|list| (!list.is_empty()).then_some(list)))?;
                continue;
            }
            let node = *self.nodes.next()?;
            let mut after = node;
            if live == [true; 2] && !self.inside(&child) {
                if self.flags.is_empty() {
                    return None;
                }
                if self.flags.remove(0) {
                    after = *self.nodes.next()?;
                    (after != node).then_some(())?;
                }
            }
            for ((siblings, live), node) in self.siblings.iter_mut().zip(live).zip([node, after]) {
                if live {
                    siblings.push((child, node));
                }
            }
        }
        Some(())
    }
}

/// True when this is the proof of all that changed from `first` to `last`.
pub(crate) fn change(
    hasher: Hasher,
    bytes: &[u8],
    from: &Node,
    to: &Node,
    first: &Key,
    last: &Key,
) -> bool {
    first <= last && changed(hasher, bytes, [from, to], (first, last)).is_some()
}

fn changed(hasher: Hasher, bytes: &[u8], roots: [&Node; 2], range: (&Key, &Key)) -> Option<()> {
    let (first, last) = range;
    let fixed = [b'P', b'L', b'P', b'F', 1, 5, hasher.id(), 0];
    (bytes.get(..8)? == fixed && bytes.get(28..32)? == [0; 4]).then_some(())?;
    let mut rest = &bytes[32..];
    let sections = [take(&mut rest, u32_at(bytes, 20)?)?, take(&mut rest, u32_at(bytes, 24)?)?];
    (rest.len() == u32_at(bytes, 16)?.checked_mul(32)?).then_some(())?;
    let mut lists = [Vec::new(), Vec::new()];
    let mut flags: &[u8] = &[];
    for (side, section) in sections.iter().enumerate() {
        let mut left = *section;
        for _ in 0..u32_at(bytes, 8 + 4 * side)? {
            lists[side].push(terminal(&mut left)?);
        }
        let mut again = Vec::new();
        lists[side].iter().for_each(|terminal| terminal_encode(&mut again, terminal));
        section.starts_with(&again).then_some(())?;
        let apart = lists[side].is_sorted_by(|a, b| {
            let (a, b) = (a.prefix(), b.prefix());
            a < b && !a.contains(&b)
        });
        (apart && !lists[side].is_empty() && (side == 1 || left.is_empty())).then_some(())?;
        flags = left;
    }
    let all = flags.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
    let nodes = Node::slice_of(rest.as_chunks().0);
    let mut apart =
        Apart { range, flags: all.collect(), nodes: nodes.iter(), siblings: Default::default() };
    apart.below(&Prefix::ROOT, lists.clone().map(Some))?;
    (apart.nodes.next().is_none() && apart.flags.len() < 8).then_some(())?;
    (!apart.flags.contains(&true)).then_some(())?;
    let sides: Vec<MultiProof> = lists
        .iter()
        .zip(&apart.siblings)
        .map(|(terminals, siblings)| MultiProof {
            terminals: terminals.clone(),
            siblings: siblings.iter().map(|(_, node)| *node).collect(),
        })
        .collect();
    sides.iter().zip(roots).all(|(side, root)| leads(hasher, side, root)).then_some(())?;
    // All unopened parts are the same on the other side.
    for side in 0..2 {
        let (own, other) = (&apart.siblings[side], &apart.siblings[1 - side]);
        for (place, node) in own.iter().filter(|(place, _)| apart.inside(place)) {
            let above =
                lists[1 - side].iter().find(|t| t.prefix().contains(place) && t.prefix() != *place);
            let there = match above {
                None => other.contains(&(*place, *node)),
                Some(Terminal::Leaf { key, value_hash, .. }) => {
                    let leaf = NaiveTrie::from_iter([(*key, *value_hash)]);
                    leaf.node(hasher, place) == *node
                }
                Some(Terminal::Terminator { .. }) => *node == Node::default(),
            };
            there.then_some(())?;
        }
    }
    // All opened parts are at an end of the range, or changed.
    let value = |side: usize, key: &Key| {
        let terminal = lists[side].iter().find(|terminal| terminal.covers(key));
        terminal.map(|terminal| terminal.value_of(key))
    };
    let mut wanted: Vec<Key> = lists.iter().flatten().map(|terminal| *terminal.bits()).collect();
    wanted.retain(|key| {
        let (before, after) = (value(0, key), value(1, key));
        first <= key && key <= last && before.is_some() && after.is_some() && before != after
    });
    wanted.extend([first, last]);
    for list in &lists {
        let used = |terminal: &Terminal| wanted.iter().any(|key| terminal.covers(key));
        let ends = [first, last].iter().all(|end| list.iter().any(|terminal| terminal.covers(end)));
        (ends && list.iter().all(used)).then_some(())?;
    }
    Some(())
}

/// The number in the place of operations, the outer proof and the inner ones.
type Frame<'a> = (usize, &'a [u8], Vec<&'a [u8]>);

/// An encoding that holds proofs, cut into these.
fn frame(hasher: Hasher, bytes: &[u8], kind: u8) -> Option<Frame<'_>> {
    let fixed = [b'P', b'L', b'P', b'F', 1, kind, hasher.id(), 0];
    let zeros = [8, 16, 28].iter().all(|at| u32_at(bytes, *at) == Some(0));
    (bytes.get(..8)? == fixed && zeros).then_some(())?;
    let mut rest = &bytes[32..];
    let outer = take(&mut rest, u32_at(bytes, 20)?)?;
    (rest.len() == u32_at(bytes, 24)?).then_some(())?;
    let mut inner = Vec::new();
    while !rest.is_empty() {
        let siblings = u32_at(rest, 16)?.checked_mul(32)?;
        let len = 32 + siblings + u32_at(rest, 20)? + u32_at(rest, 24)?;
        inner.push(take(&mut rest, len)?);
    }
    Some((u32_at(bytes, 12)?, outer, inner))
}

fn of_roots(terminal: &Terminal) -> bool {
    let own = matches!(terminal, Terminal::Leaf { key, .. } if key[1..] != [0; 31]);
    terminal.depth() <= 8 && !own
}

/// The new root over all, if the block holds.
pub(crate) fn block(hasher: Hasher, bytes: &[u8], over_all: &Node) -> Option<Node> {
    let (0, outer, inner) = frame(hasher, bytes, 8)? else { return None };
    let DecodedWitness { proof, ops } = decode(hasher, outer, true)?;
    proof.terminals.iter().all(of_roots).then_some(())?;
    let mut inner = inner.into_iter();
    let mut leads = |from: Node, to: Node| {
        let bytes = inner.next()?;
        let found = verify(hasher, bytes, true, &from)?;
        (found == to && !decode(hasher, bytes, true)?.ops.is_empty()).then_some(())
    };
    for Op { key, access } in ops {
        (key[1..] == [0; 31]).then_some(())?;
        let terminal = proof.terminals.iter().find(|terminal| terminal.covers(&key))?;
        let before = terminal.value_of(&key).map(|root| Node::new(root.to_bytes()));
        match (before, access.written().map(|root| root.map(|root| Node::new(root.to_bytes())))) {
            (None, None) if access.reads() => {}
            (None, Some(Some(root))) if !access.reads() && root == Node::default() => {}
            (Some(_), Some(None)) if !access.reads() => {}
            (Some(before), None | Some(None)) if access.reads() => leads(before, before)?,
            (Some(before), Some(Some(after))) if access.reads() && before != after => {
                leads(before, after)?;
            }
            (None, Some(Some(after))) if access.reads() => leads(Node::default(), after)?,
            _ => return None,
        }
    }
    inner.next().is_none().then_some(())?;
    verify(hasher, outer, true, over_all)
}

/// A namespace, and its root with the inner proof if it exists.
type Through<'a> = (u8, Option<(Node, &'a [u8])>);

/// What is proven, if the path holds.
pub(crate) fn through<'a>(hasher: Hasher, bytes: &'a [u8], over_all: &Node) -> Option<Through<'a>> {
    let (ns, outer, inner) = frame(hasher, bytes, 6)?;
    let ns = u8::try_from(ns).ok()?;
    // But for its kind and the order of its siblings it is a multiproof.
    let mut multi = outer.to_vec();
    (multi.len() >= 32 && std::mem::replace(&mut multi[5], 2) == 1).then_some(())?;
    let DecodedWitness { mut proof, .. } = decode(hasher, &multi, false)?;
    proof.siblings.reverse();
    let mut key = [0; 32];
    key[0] = ns;
    let [terminal] = proof.terminals[..] else { return None };
    (of_roots(&terminal) && terminal.covers(&key) && leads(hasher, &proof, over_all))
        .then_some(())?;
    let root = terminal.value_of(&key).map(|root| Node::new(root.to_bytes()));
    match (root, &inner[..]) {
        (None, []) => Some((ns, None)),
        (Some(root), [inner]) => {
            let head = [b'P', b'L', b'P', b'F', 1, inner[5], hasher.id(), 0];
            (inner[..8] == head && inner[28..32] == [0; 4]).then_some(())?;
            let [terminals, ops] = [8, 12].map(|at| u32_at(inner, at).is_some_and(|n| n > 0));
            let fits = match inner[5] {
                1 => u32_at(inner, 8) == Some(1) && !ops,
                2 => !ops,
                3 => terminals == ops,
                4 => terminals && !ops,
                _ => false,
            };
            fits.then_some((ns, Some((root, *inner))))
        }
        _ => None,
    }
}
