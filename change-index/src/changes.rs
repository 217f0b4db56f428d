//! All changes of a key, in order.

use std::collections::VecDeque;

use pleach::{Key, Value};

use crate::error::Error;
use crate::head::{Head, Place};
use crate::list::Numbers;
use crate::source::Source;
use crate::tree::node_key;

/// Shards that are read at once, at most.
const AHEAD: u64 = 16;

/// The blocks at which a key has changed, ascending. From [`ChangeIndex::changes`](super::ChangeIndex::changes).
/// After an error it has ended.
#[derive(Debug)]
pub struct Changes<'a, S: ?Sized> {
    source: &'a S,
    key: Key,
    head: Option<Head<'static>>,
    from: u64,
    to: u64,
    /// The next shard. The open one has the number of the full ones; above it there is none.
    next: u64,
    /// Shards that are read at once.
    ahead: u64,
    read: VecDeque<Value>,
    /// Numbers of the shard at hand.
    shard: std::vec::IntoIter<u64>,
}

impl<'a, S: Source + ?Sized> Changes<'a, S> {
    /// From the shard `next` on, numbers from `from` to `to`.
    pub(crate) fn new(
        source: &'a S,
        (key, head): (Key, Option<Head<'static>>),
        next: u64,
        (from, to): (u64, u64),
    ) -> Self {
        let (read, shard) = (VecDeque::new(), Vec::new().into_iter());
        Self { source, key, head, from, to, next, ahead: 1, read, shard }
    }

    /// Brings in the next shard; false when there is none.
    fn refill(&mut self) -> Result<bool, Error> {
        let Some(head) = &self.head else { return Ok(false) };
        let full = head.full(0);
        let place = |index| Place { level: 0, index };
        if self.next > full {
            return Ok(false);
        }
        if self.read.is_empty() && self.next < full {
            let until = full.min(self.next + self.ahead);
            let keys: Vec<Key> =
                (self.next..until).map(|index| node_key(&self.key, place(index))).collect();
            for (key, value) in keys.iter().zip(self.source.read_many(&keys)?) {
                self.read.push_back(value.ok_or(Error::damaged(key))?);
            }
            self.ahead = (self.ahead * 2).min(AHEAD);
        }
        let bytes = self.read.pop_front();
        let bytes = bytes.as_deref().unwrap_or(&head.open[0]);
        let (mut numbers, mut is_last) = (Vec::new(), false);
        for number in Numbers::new(bytes) {
            let number = number.map_err(|_| Error::damaged(&self.key))?;
            is_last = number >= self.to;
            if (self.from..=self.to).contains(&number) {
                numbers.push(number);
            }
            if is_last {
                break;
            }
        }
        self.shard = numbers.into_iter();
        self.next = if is_last { full + 1 } else { self.next + 1 };
        Ok(true)
    }
}

impl<S: Source + ?Sized> Iterator for Changes<'_, S> {
    type Item = Result<u64, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(number) = self.shard.next() {
                return Some(Ok(number));
            }
            match self.refill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.head = None;
                    return Some(Err(error));
                }
            }
        }
    }
}
