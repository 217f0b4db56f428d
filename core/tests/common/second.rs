//! A second verifier, written from `docs/proofs.md` alone: recursive, over decoded records, and
//! canonical by encoding what it decoded once more.

use pleach_core::{
    Hasher, Node, Prefix,
    naive::Naive,
    node::{self, Combined},
    prefix::common_len,
    proof::{Access, MultiProof, Op, Terminal, Witness},
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

/// What the bytes say, before anything is hashed.
pub(crate) fn decode<H: Hasher>(bytes: &[u8], witness: bool) -> Option<Witness> {
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
    let decoded = Witness { proof: MultiProof { terminals, siblings }, ops };
    let again =
        if witness { decoded.encode::<H>().ok()? } else { decoded.proof.encode::<H>().ok()? };
    let sorted = decoded.ops.is_sorted_by(|a, b| a.key < b.key);
    let apart = decoded.proof.terminals.is_sorted_by(|a, b| {
        let (a, b) = (a.prefix(), b.prefix());
        a < b && !a.contains(&b)
    });
    (again == bytes && sorted && apart).then_some(decoded)
}

/// Both nodes at `depth` over a range of terminals; siblings are taken from the end.
fn range<H: Hasher>(
    terminals: &[(Terminal, Node)],
    depth: u16,
    siblings: &mut Vec<Node>,
) -> Option<(Node, Node)> {
    let (first, last) = (&terminals.first()?.0, &terminals.last()?.0);
    let alone = terminals.len() == 1;
    let fork = if alone { first.depth() } else { common_len(first.bits(), last.bits()) };
    let above = siblings.split_off(siblings.len().checked_sub(usize::from(fork - depth))?);
    let mut nodes = if alone {
        (first.node::<H>(), terminals[0].1)
    } else {
        let middle = terminals.partition_point(|t| !pleach_core::prefix::bit(t.0.bits(), fork));
        let right = range::<H>(&terminals[middle..], fork + 1, siblings)?;
        let left = range::<H>(&terminals[..middle], fork + 1, siblings)?;
        join::<H>(left, right, fork + 1)?
    };
    for (above, sibling) in (depth..fork).rev().zip(above) {
        let pair = (sibling, sibling);
        nodes = if pleach_core::prefix::bit(first.bits(), above) {
            join::<H>(pair, nodes, above + 1)?
        } else {
            join::<H>(nodes, pair, above + 1)?
        };
    }
    Some(nodes)
}

fn join<H: Hasher>(left: (Node, Node), right: (Node, Node), depth: u16) -> Option<(Node, Node)> {
    if node::combine_kind(&left.0, &right.0) != Combined::Hash {
        return None;
    }
    if depth == 256 && (left.0.as_bytes()[0] < 0x80 || right.0.as_bytes()[0] < 0x80) {
        return None;
    }
    Some((node::combine::<H>(&left.0, &right.0), node::combine::<H>(&left.1, &right.1)))
}

/// The new root, if everything holds.
pub(crate) fn verify<H: Hasher>(bytes: &[u8], witness: bool, root: &Node) -> Option<Node> {
    let decoded = decode::<H>(bytes, witness)?;
    if decoded.proof.terminals.is_empty() {
        return (decoded.proof.siblings.is_empty()).then_some(*root);
    }
    let mut siblings = decoded.proof.siblings;
    let mut terminals = Vec::new();
    for terminal in decoded.proof.terminals {
        let mut below = Naive::new();
        if let Terminal::Leaf { key, value_hash, .. } = terminal {
            below.set(key, Some(value_hash));
        }
        let ops: Vec<Op> =
            decoded.ops.iter().filter(|op| terminal.covers(&op.key)).copied().collect();
        below.apply(&ops);
        terminals.push((terminal, below.node::<H>(&terminal.prefix())));
    }
    let (before, after) = range::<H>(&terminals, 0, &mut siblings)?;
    (before == *root && siblings.is_empty()).then_some(after)
}
