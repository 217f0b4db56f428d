//! The page tree's tests, linked once. Each module is named by the claim that it checks.

mod cache_agrees_with_a_model;
mod cache_finds_keys_by_fingerprint;
mod cache_keeps_what_is_worth_keeping;
mod grace_outlasts_readers;
mod regions_change_in_place;
mod space_agrees_with_a_naive_twin;
mod space_extents_agree_with_a_naive_twin;
mod tree_is_what_was_put_into_it;
mod treelets_agree_with_the_naive_trie;
