//! The order of commits ([`sequencer`]) and of checkpoints ([`images`]).

pub(crate) mod images;
pub(crate) mod sequencer;
