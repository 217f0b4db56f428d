//! The present state by page: where pages lie ([`index`]), how they are read ([`in_flight`], [`reader`],
//! [`run_reader`]), kept ([`store`]) and quarantined ([`quarantine`]), and which are in use ([`space`]); regions that an
//! open has left in the image ([`away`]); values too long for a page ([`overflow`], [`long_values`]).

pub(crate) mod away;
pub(crate) mod in_flight;
pub(crate) mod index;
pub(crate) mod long_values;
pub(crate) mod overflow;
pub(crate) mod quarantine;
pub(crate) mod reader;
pub(crate) mod run_reader;
pub(crate) mod space;
pub(crate) mod store;
