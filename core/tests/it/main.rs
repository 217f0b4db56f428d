//! The tests of `pleach-core`, linked once. Each module is named by the claim that it checks.

#![cfg(feature = "naive")]

mod application_hashers;
mod common;
mod encodings_round_trip;
mod errors_say_what_is_wrong;
mod fold_agrees_with_naive;
mod fold_support;
mod fuzzed_treelets;
mod hostile_blocks_are_refused;
mod hostile_ranges_are_refused;
mod hostile_vectors_are_refused;
mod limits_bound_the_work;
mod mutants_prove_nothing_false;
mod one_root_over_all_namespaces;
mod oracle_agrees;
mod page_common;
mod page_corruption_is_found;
mod page_format_is_frozen;
mod page_round_trip;
mod proof_vectors_are_frozen;
mod ranges_and_changes_are_whole;
mod roots_of_sorted_pairs;
