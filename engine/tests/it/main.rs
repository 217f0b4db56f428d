//! The engine's tests, linked once. Each module is named by the claim that it checks.

mod a_batch_reads_each_page_once;
mod a_panicking_hasher_harms_nobody;
mod a_region_keeps_its_inner_nodes;
mod announced_keys_read_as_others;
mod bulk_load_equals_commits;
mod bulk_load_survives_crashes;
mod check_finds_damage;
mod close_tells_what_is_open;
mod common;
mod crash;
mod crash_during_recovery;
mod crash_every_boundary;
mod creation_is_atomic;
mod errors_are_never_acknowledged;
mod errors_give_back_what_they_refuse;
mod log_records_encode_and_decode;
mod log_support;
mod log_survives_power_cuts;
mod log_tail_is_cut_or_damaged;
mod long_values_are_given_up_once;
mod overlays_stack_and_commit_merged;
mod overlays_stay_with_their_database;
mod roots_and_witnesses_equal_the_naive_trie;
mod superblock_slots_survive_writes;
mod the_log_is_made_ahead;
