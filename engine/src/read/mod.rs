//! Reading values: one key ([`point`]), many keys ([`many`]), all keys of a range ([`scan`], which reads
//! [`ahead`]), with readers that are kept ([`reader_pool`]), and how the memory that the lookups of a key batch read
//! is asked for in time ([`key_batch`]).

pub(crate) mod ahead;
pub(crate) mod key_batch;
pub(crate) mod many;
pub(crate) mod point;
pub(crate) mod reader_pool;
pub(crate) mod scan;
