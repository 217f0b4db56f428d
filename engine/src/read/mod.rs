//! Reading values: one key ([`point`]), many keys ([`many`]), and how the memory that lookups read is asked
//! for ahead ([`group`]).

pub(crate) mod group;
pub(crate) mod many;
pub(crate) mod point;
