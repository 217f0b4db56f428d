//! The tests of `pleach-cli`, linked once.

mod a_node_joins;
mod cli;
mod common;
mod first_week;
mod os_signals;
mod readers_beside_a_process;
mod units;
