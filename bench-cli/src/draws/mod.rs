//! The draws: which transfers a batch has. `docs/workloads.md` lists them in order; a change here
//! changes the golden roots and is a new version of the workload.

mod distribution;
mod generator;
mod stream;

pub(crate) use distribution::{Distribution, Sampler};
pub(crate) use generator::Draws;
pub(crate) use stream::{Batch, Closing, Stream};
