//! The tests of `pleach-bench`, linked once.

mod cli;
mod house;
mod manifests;
mod names;
mod signals;
