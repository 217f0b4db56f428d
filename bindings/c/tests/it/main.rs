//! The tests of `pleach-c`, linked once.

mod header;
mod program;
