//! Reading values: one key ([`point`]), many keys ([`many`]), all keys of a range ([`scan`], which reads [`ahead`]),
//! with pooled readers ([`reader_pool`]) and prefetches of the memory that the lookups of a key batch read
//! ([`key_batch`]).

pub(crate) mod ahead;
pub(crate) mod key_batch;
pub(crate) mod many;
pub(crate) mod point;
pub(crate) mod reader_pool;
pub(crate) mod scan;
