//! Numbers of entries and boundaries, and which boundary is above which.

/// Gives each of `count` boundaries its parent, by a stack; gives the top one.
pub(super) fn link(
    count: usize,
    shared: impl Fn(usize) -> u16,
    mut set_parent: impl FnMut(usize, usize),
) -> Option<usize> {
    // At most 256 bits can be shared, each by one boundary of the stack.
    let (mut stack, mut len) = ([0usize; 257], 0);
    for at in 0..count {
        let mut last = None;
        while len > 0 && shared(stack[len - 1]) > shared(at) {
            len -= 1;
            let top = stack[len];
            if let Some(last) = last {
                set_parent(last, top);
            }
            last = Some(top);
        }
        if let Some(last) = last {
            set_parent(last, at);
        }
        stack[len] = at;
        len += 1;
    }
    for at in (1..len).rev() {
        set_parent(stack[at], stack[at - 1]);
    }
    (len > 0).then_some(stack[0])
}

/// The boundary directly above an entry, of those on its two sides: the one with more shared bits.
#[inline]
pub(super) fn above(
    boundaries: usize,
    entry: usize,
    shared: impl Fn(usize) -> u16,
) -> Option<usize> {
    match entry {
        0 => (boundaries > 0).then_some(0),
        _ if entry < boundaries && shared(entry) > shared(entry - 1) => Some(entry),
        _ => Some(entry - 1),
    }
}

/// Entries are numbered in 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "2^32 entries would need 400 GB")]
#[inline]
pub(super) fn index32(index: usize) -> u32 {
    index as u32
}
