//! What a batch computes, independent of any engine ([`transfer`]), and the oracle that recomputes all
//! of a run ([`replay`]).

pub(crate) mod replay;
pub(crate) mod transfer;
