//! Archives as callers see them, with real folders.

mod common;

mod a_follower_keeps_a_deep_history;
#[cfg(feature = "aws")]
mod a_store_of_objects_fails_by_a_rule;
mod change_streams_are_applied_or_refused;
mod damage_is_named;
mod every_archived_commit_is_restored;
mod places_are_opened_or_refused;
mod the_golden_archive_is_read;
mod what_is_cut_off_goes_on;
mod what_was_seen_is_missed;
