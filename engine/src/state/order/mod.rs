//! What comes before what: commits ([`sequencer`]), checkpoints ([`images`]), locks ([`ranks`]).

pub(crate) mod images;
pub(super) mod ranks;
pub(crate) mod sequencer;
