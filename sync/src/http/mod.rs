//! Questions and answers over HTTP/1.1: [`serve()`] answers them, [`Peer`] asks one server, [`HttpFetch`] fetches from
//! several. docs/sync.md has the paths and headers.

mod client;
mod counters;
mod fetch;
mod serve;
mod timed;

pub use client::{FedCommit, FeedReader, Peer, Stream, Url};
pub use fetch::{Ended, HttpFetch, Status};
pub use serve::{ServeLimits, serve};

/// Begins every path.
const PREFIX: &str = "/v1/";
/// The header that all answers of these servers have: `answer`, or the name of a refusal. What has none comes from
/// another program.
const KIND: &str = "pleach-sync";
