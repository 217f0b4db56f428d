//! The head of a key's list: what of the list is not full yet.
//!
//! The list is a tree that grows at its right edge alone. Its leaves are *shards* of as many numbers as the
//! index says; a node of level *k* has the first numbers of [`FANOUT`] nodes of the level below. Full nodes are
//! stored under keys of their own and never change. The nodes that are not full, one a level, are the head. How
//! many nodes each level has follows from the count of numbers alone.

use std::borrow::Cow;

use crate::error::Damaged;
use crate::list::{self, Numbers, push_number, take_number};

/// Children of a full node.
pub(crate) const FANOUT: u64 = 256;
/// The only format there is.
const VERSION: u8 = 1;

/// A node: level 0 is of the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) level: u8,
    /// Nodes of the level before it.
    pub(crate) index: u64,
}

/// The open nodes of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// Numbers of a full shard.
    pub(crate) shard: u32,
    /// Numbers of the list; 1 at least.
    pub(crate) count: u64,
    /// The last of them.
    pub(crate) last: u64,
    /// A list a level, from that of the open shard on. Any of them may be empty.
    pub(crate) open: Vec<Cow<'a, [u8]>>,
}

/// Full nodes of each level, from the shards on, as long as there are any.
fn full_nodes(shard: u32, count: u64) -> impl Iterator<Item = u64> {
    let shards = count.checked_div(u64::from(shard));
    std::iter::successors(shards, |full| Some(full / FANOUT)).take_while(|full| *full > 0)
}

impl Head<'static> {
    /// The list of one number.
    pub(crate) fn new(shard: u32, number: u64) -> Self {
        let mut open = Vec::new();
        list::push(&mut open, None, number);
        Self { shard, count: 1, last: number, open: vec![Cow::Owned(open)] }
    }
}

impl<'a> Head<'a> {
    /// What a head's bytes say. Numbers within its lists are looked at when they are needed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Damaged> {
        let (version, rest) = bytes.split_first().ok_or(Damaged)?;
        let (shard, rest) = take_number(rest)?;
        let (count, rest) = take_number(rest)?;
        let (last, mut rest) = take_number(rest)?;
        let shard = u32::try_from(shard).ok().filter(|shard| *shard >= 2).ok_or(Damaged)?;
        // That many numbers cannot ascend to the last one.
        let too_many = count.checked_sub(1).is_none_or(|before| before > last);
        if *version != VERSION || too_many {
            return Err(Damaged);
        }
        let mut open = vec![Cow::default()];
        for _ in full_nodes(shard, count) {
            let (len, after) = take_number(rest)?;
            let len = usize::try_from(len).map_err(|_| Damaged)?;
            let (list, after) = after.split_at_checked(len).ok_or(Damaged)?;
            open.push(Cow::Borrowed(list));
            rest = after;
        }
        open[0] = Cow::Borrowed(rest);
        Ok(Self { shard, count, last, open })
    }

    /// The head alone, without the bytes that it came from.
    pub(crate) fn into_owned(self) -> Head<'static> {
        let Self { shard, count, last, open } = self;
        let open = open.into_iter().map(|list| Cow::Owned(list.into_owned())).collect();
        Head { shard, count, last, open }
    }

    /// Its bytes; the open shard is last, so that it has no length.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let lists: usize = self.open.iter().map(|list| list.len()).sum();
        let mut bytes = Vec::with_capacity(26 + 5 * self.open.len() + lists);
        bytes.push(VERSION);
        push_number(&mut bytes, u64::from(self.shard));
        push_number(&mut bytes, self.count);
        push_number(&mut bytes, self.last);
        for list in &self.open[1..] {
            push_number(&mut bytes, list.len() as u64);
            bytes.extend_from_slice(list);
        }
        bytes.extend_from_slice(&self.open[0]);
        bytes
    }

    /// Full nodes of a level.
    pub(crate) fn full(&self, level: u8) -> u64 {
        full_nodes(self.shard, self.count).nth(usize::from(level)).unwrap_or(0)
    }

    /// Adds a number above the last one; `store` gets the nodes that are full by that.
    pub(crate) fn append(
        &mut self,
        number: u64,
        mut store: impl FnMut(Place, Vec<u8>),
    ) -> Result<(), Damaged> {
        let count = self.count.checked_add(1).ok_or(Damaged)?;
        let first_of_open = self.count.is_multiple_of(u64::from(self.shard));
        let last = (!first_of_open).then_some(self.last);
        list::push(self.open[0].to_mut(), last, number);
        (self.count, self.last) = (count, number);
        let mut level = 0_u8;
        let mut full = self.count / u64::from(self.shard);
        let mut is_full = self.count.is_multiple_of(u64::from(self.shard));
        while is_full {
            let node = std::mem::take(&mut self.open[usize::from(level)]);
            let first = list::nth(&node, 0)?;
            store(Place { level, index: full - 1 }, node.into_owned());
            level += 1;
            let above = usize::from(level);
            if self.open.len() == above {
                self.open.push(Cow::default());
            }
            let before = Numbers::new(&self.open[above]).last().transpose()?;
            if before.is_some_and(|before| before >= first) {
                return Err(Damaged);
            }
            list::push(self.open[above].to_mut(), before, first);
            is_full = full.is_multiple_of(FANOUT);
            full /= FANOUT;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_follow_from_the_count_and_heads_come_back_from_their_bytes() {
        let mut stored = Vec::new();
        let mut head = Head::new(2, 3);
        for count in 1..=2 * FANOUT * FANOUT + 700 {
            assert_eq!(head.count, count);
            let full: Vec<u64> = full_nodes(2, count).collect();
            assert_eq!(full.len() + 1, head.open.len(), "{count}");
            for (level, list) in head.open.iter().enumerate() {
                let expected = match level {
                    0 => count % 2,
                    _ => full[level - 1] % FANOUT,
                };
                assert_eq!(Numbers::new(list).count() as u64, expected, "{count}, level {level}");
            }
            if count % 97 == 0 {
                assert_eq!(Head::parse(&head.encode()), Ok(head.clone()));
            }
            head.append(3 + 5 * count, |place, _| stored.push(place)).expect("sound");
        }
        for level in 0..3 {
            let of_it: Vec<u64> = stored
                .iter()
                .filter(|place| place.level == level)
                .map(|place| place.index)
                .collect();
            assert_eq!(of_it, (0..head.full(level)).collect::<Vec<_>>(), "in order, each once");
        }
        assert_eq!((head.full(2), head.full(3)), (1, 0));
    }

    #[test]
    fn bytes_that_are_no_head_are_refused() {
        let sound = Head::new(100, 7).encode();
        assert_eq!(sound, [1, 100, 1, 7, 7]);
        let bad: [&[u8]; 7] = [
            &[],
            &[2, 100, 1, 7, 7],  // another version
            &[1, 1, 1, 7, 7],    // shards of one number
            &[1, 100, 0, 7],     // no number
            &[1, 100, 9, 7, 7],  // more numbers than can ascend to the last
            &[1, 2, 4, 7, 9, 1], // a level that is longer than the value
            &[1, 2, 4, 7],       // a level that is missing
        ];
        for bytes in bad {
            assert_eq!(Head::parse(bytes), Err(Damaged), "{bytes:?}");
        }
        // As many numbers as there are, though nobody has written them.
        let open = vec![Cow::default(); 9];
        let full = Head { shard: 2, count: u64::MAX, last: u64::MAX - 1, open };
        let bytes = full.encode();
        let mut full = Head::parse(&bytes).expect("its lists are not looked at");
        assert_eq!(full.append(u64::MAX, |_, _| ()), Err(Damaged));
    }
}
