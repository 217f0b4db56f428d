//! The formats on the device: one module for each type, with its picture, its offsets, and the code that reads and
//! writes it. No other module has an offset.
//!
//! | module | what |
//! |---|---|
//! | [`names`] | the files of a database, by name |
//! | [`superblock`], [`superblock_store`], [`incarnation`], [`creation`], [`mod@spare`] | the small files |
//! | [`record`], [`commit_body`], [`location_body`], [`position`] | what is in the log's segments |
//! | [`image`], [`table`], [`buffered`] | what is in an image |
//! | [`trie_kind`] | the kind of a namespace's trie |
//! | [`bytes`] | fields, little-endian |
//!
//! `pleach_core::page` has leaf, branch, overflow and stream pages. The engine's errors wrap the errors here.

pub mod buffered;
pub mod bytes;
pub mod commit_body;
pub mod creation;
pub mod image;
pub mod incarnation;
pub mod location_body;
pub mod names;
pub mod position;
pub mod record;
pub mod recorded_hasher;
pub mod spare;
pub mod superblock;
pub mod superblock_store;
pub mod table;
pub mod trie_kind;
