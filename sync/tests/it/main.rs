//! Servers, fetches and catch-ups over a simulated network.

mod common;

mod answers_of_strangers_are_judged;
mod catch_up_goes_to_the_root;
mod fetches_end_at_the_root;
mod fetches_go_on;
#[cfg(feature = "http")]
mod http_servers_are_asked;
mod questions_are_read;
#[cfg(feature = "http")]
mod strangers;
