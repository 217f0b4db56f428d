//! The tests of the log and of the small files, linked once. Each module is named by the claim that it checks.

mod creation_is_atomic;
mod log_records_encode_and_decode;
mod log_support;
mod log_survives_power_cuts;
mod log_tail_is_cut_or_damaged;
mod superblock_slots_survive_writes;
