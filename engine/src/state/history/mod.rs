//! The past: what commits replaced ([`undo`]), which of it stays ([`window`]) and who holds it ([`pins`]); what a commit
//! changes and replaces ([`changes`], [`replaced`]), and what that says of a node of then ([`past_node`]). The runs
//! themselves are `pleach_history`'s.

mod changes;
pub(crate) mod past_node;
pub(crate) mod pins;
pub(crate) mod replaced;
pub(crate) mod undo;
#[cfg(test)]
mod undo_tests;
pub(crate) mod window;
