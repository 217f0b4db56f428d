//! Reading values: one key ([`point`]), many keys ([`many`]), and how the memory that lookups read is asked
//! for ahead ([`key_batch`]).

pub(crate) mod key_batch;
pub(crate) mod many;
pub(crate) mod point;
