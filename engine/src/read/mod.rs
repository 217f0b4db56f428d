//! Reading values: one key ([`point`]), many keys ([`many`]), all keys of a range ([`scan`]).

pub(crate) mod many;
pub(crate) mod point;
pub(crate) mod scan;
