//! Past commits: their undo ([`undo`]), how much of it is kept ([`window`]) and which commits are held ([`pins`]); a
//! commit's changes and its undo ([`changes`], [`replaced`]), and the node of a prefix as of an older commit
//! ([`past_node`]). The runs themselves are in `pleach_history`.

mod changes;
pub(crate) mod past_node;
pub(crate) mod pins;
pub(crate) mod replaced;
pub(crate) mod undo;
#[cfg(test)]
mod undo_tests;
pub(crate) mod window;
