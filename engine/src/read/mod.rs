//! Reading values: one key ([`point`]), many keys ([`many`]), and how the memory that the lookups of a key
//! batch read is asked for in time ([`key_batch`]).

pub(crate) mod key_batch;
pub(crate) mod many;
pub(crate) mod point;
