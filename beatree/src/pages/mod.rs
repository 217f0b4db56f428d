//! The pages of a tree on the device: how they are read ([`in_flight`], [`reader`], [`run_reader`], [`reader_pool`]),
//! kept ([`store`]) and quarantined ([`quarantine`]), and which are in use ([`space`]); values too long for a page
//! ([`overflow`], [`long_values`]).
#![expect(missing_debug_implementations, reason = "devices, rings and maps")]

pub mod in_flight;
pub mod long_values;
pub mod overflow;
pub mod quarantine;
pub mod reader;
pub mod reader_pool;
pub mod run_reader;
pub mod space;
pub mod store;
