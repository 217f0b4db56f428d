//! What comes before what: commits ([`sequencer`]), checkpoints ([`images`]).

pub(crate) mod images;
pub(crate) mod sequencer;
