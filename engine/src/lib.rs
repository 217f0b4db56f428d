//! See docs/.
pub mod creation;
pub mod incarnation;
pub mod log;
pub mod superblock;
