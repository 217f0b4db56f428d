//! Looking into the list of one key: its head, and the full nodes below it.

use std::borrow::Cow;
use std::ops::Deref;

use pleach::{Hasher, Key, Value};

use crate::error::{Damaged, Error};
use crate::head::{FANOUT, Head, Place};
use crate::list;
use crate::source::Source;

/// Sets the keys of nodes apart from other hashes: an application's keys are the heads'.
const DOMAIN: &[u8; 32] = b"pleach change index, node     v1";

/// The key of a full node of a key's list.
pub(crate) fn node_key(key: &Key, place: Place) -> Key {
    let mut bytes = [0; 32 + 32 + 1 + 8];
    bytes[..32].copy_from_slice(DOMAIN);
    bytes[32..64].copy_from_slice(key);
    bytes[64] = place.level;
    bytes[65..].copy_from_slice(&place.index.to_be_bytes());
    Hasher::BLAKE3.hash(&bytes)
}

/// The head of a key's list, if it has one.
pub(crate) fn parse<'b>(key: &Key, shard: u32, bytes: &'b [u8]) -> Result<Head<'b>, Error> {
    let head = Head::parse(bytes).map_err(|_| Error::damaged(key))?;
    if head.shard != shard {
        return Err(Error::OtherShards { stored: head.shard, asked: shard });
    }
    Ok(head)
}

/// A node of a list.
pub(crate) enum List<'a> {
    /// In the head.
    Open(&'a [u8]),
    /// A value of its own.
    Full(Value),
}

impl Deref for List<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Open(bytes) => bytes,
            Self::Full(value) => value,
        }
    }
}

/// The list of a key in a state.
pub(crate) struct Tree<'a, S: ?Sized> {
    pub(crate) source: &'a S,
    pub(crate) key: &'a Key,
    pub(crate) head: &'a Head<'a>,
}

impl<S: Source + ?Sized> Tree<'_, S> {
    /// The bytes of a full node.
    pub(crate) fn node(&self, place: Place) -> Result<Value, Error> {
        let key = node_key(self.key, place);
        let value = self.source.read(&key)?;
        value.ok_or(Error::damaged(&key))
    }

    /// The last number that is at most `bound`, and how many are before it. Reads a node a level.
    pub(crate) fn last_at_most(&self, bound: u64) -> Result<Option<(u64, u64)>, Error> {
        let damaged = |_: Damaged| Error::damaged(self.key);
        for (level, list) in (0_u8..).zip(&self.head.open) {
            let Some((at, number)) = list::last_at_most(list, bound).map_err(damaged)? else {
                continue;
            };
            let index = self.head.full(level).saturating_mul(FANOUT).saturating_add(at);
            return match level.checked_sub(1) {
                None => {
                    let full = self.head.full(0) * u64::from(self.head.shard);
                    Ok(Some((full.saturating_add(at), number)))
                }
                Some(below) => self.descend(Place { level: below, index }, bound).map(Some),
            };
        }
        Ok(None)
    }

    /// The same in a full node, whose first number is at most `bound`.
    fn descend(&self, mut place: Place, bound: u64) -> Result<(u64, u64), Error> {
        loop {
            let node = self.node(place)?;
            let found = list::last_at_most(&node, bound).map_err(|_| Error::damaged(self.key))?;
            let (at, number) = found.ok_or(Error::damaged(self.key))?;
            let (index, width) = match place.level {
                0 => (place.index, u64::from(self.head.shard)),
                _ => (place.index, FANOUT),
            };
            let index = index.checked_mul(width).and_then(|first| first.checked_add(at));
            let index = index.ok_or(Error::damaged(self.key))?;
            match place.level.checked_sub(1) {
                None => return Ok((index, number)),
                Some(level) => place = Place { level, index },
            }
        }
    }

    /// How many numbers are at most `bound`.
    pub(crate) fn rank(&self, bound: u64) -> Result<u64, Error> {
        if bound >= self.head.last {
            return Ok(self.head.count);
        }
        let before = self.last_at_most(bound)?.map(|(before, _)| before);
        // More than all of them were in a list that is longer than its head says.
        if before.is_some_and(|before| before >= self.head.count) {
            return Err(Error::damaged(self.key));
        }
        Ok(before.map_or(0, |before| before + 1))
    }

    /// The open node of a level, or a full one.
    fn list(&self, place: Place) -> Result<List<'_>, Error> {
        if place.index == self.head.full(place.level) {
            return Ok(List::Open(&self.head.open[usize::from(place.level)]));
        }
        Ok(List::Full(self.node(place)?))
    }

    /// The shard that the number with `before` ones before it is in, and how many are before it there.
    pub(crate) fn shard_of(&self, before: u64) -> Result<(List<'_>, u64), Error> {
        let width = u64::from(self.head.shard);
        let (index, within) = (before / width, before % width);
        Ok((self.list(Place { level: 0, index })?, within))
    }

    /// The head of the first `count` numbers, of which there is one at least and not all.
    pub(crate) fn cut(&self, count: u64) -> Result<Head<'static>, Error> {
        let damaged = |_: Damaged| Error::damaged(self.key);
        let (bytes, within) = self.shard_of(count - 1)?;
        let last = list::nth(&bytes, within).map_err(damaged)?;
        let mut head = Head {
            shard: self.head.shard,
            count,
            last,
            open: Vec::with_capacity(self.head.open.len()),
        };
        // Of what is on a level: how many are there, and how many make a node.
        let (mut there, mut width) = (count, u64::from(head.shard));
        let mut level = 0_u8;
        while there > 0 {
            let (index, open) = (there / width, there % width);
            // A level that has nothing open may have no such node, either.
            let front = if open == 0 {
                Vec::new()
            } else {
                let list = self.list(Place { level, index })?;
                list::first(&list, open).map_err(damaged)?.0.to_vec()
            };
            head.open.push(Cow::Owned(front));
            (there, width) = (index, FANOUT);
            level += 1;
        }
        Ok(head)
    }
}
