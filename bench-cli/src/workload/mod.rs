//! What a workload computes, apart from any engine.

pub(crate) mod replay;
pub(crate) mod transfer;
