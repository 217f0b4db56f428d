//! What an answer may have, and how long a client waits.

use std::time::Duration;

use pleach::MAX_VALUE;

/// Bytes of pairs that every server gives in an answer, if there are as many.
pub(crate) const LEAST_ANSWER: u32 = 64 << 10;
/// Bytes of pairs that nobody asks for at once.
const MOST_ANSWER: u32 = 4 << 20;
/// A multiproof of two keys has at most 2 x 256 siblings.
pub(crate) const MOST_PROOF: usize = 64 << 10;

/// Limits of a server and of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of pairs in an answer: what a fetch asks for, and most of what a server gives, beside one pair that is longer.
    /// From 64 KiB to 4 MiB: others are taken for the nearest of these.
    pub answer: u32,
    /// Questions of a fetch that one server has at a time.
    pub in_flight: usize,
    /// How long a fetch waits for an answer before it asks another server.
    pub patience: Duration,
}

impl Default for Limits {
    /// A mebibyte, two questions, 30 seconds.
    fn default() -> Self {
        Self { answer: 1 << 20, in_flight: 2, patience: Duration::from_secs(30) }
    }
}

impl Limits {
    /// Bytes that an answer has at most, whatever is asked: a transport reads no more.
    pub fn most_bytes(&self) -> usize {
        MOST_PROOF + self.answer_bytes() as usize + MAX_VALUE + 256
    }

    pub(crate) fn answer_bytes(&self) -> u32 {
        self.answer.clamp(LEAST_ANSWER, MOST_ANSWER)
    }
}
