//! What the documentation of the crate `nomt` promises, and what this crate says of it. Each module is named by a claim.

mod commits_follow_their_state;
mod common;
mod databases_open_again;
mod differential;
mod figures_are_there;
mod folders_are_imported;
mod overlays_keep_their_order;
mod rollbacks_count_commits;
mod sessions_read_and_prove;
