//! The subcommands of `nomt-bench`, in the parent process, and the steps that they share.

pub(crate) mod compare;
pub(crate) mod device;
mod in_turns;
pub(crate) mod init;
mod one_by_one;
pub(crate) mod parts;
mod prepare;
pub(crate) mod recover;
pub(crate) mod soak;
pub(crate) mod transfer;
mod verify;
