//! The past: what commits replaced ([`undo`]), which of it stays ([`window`]) and who holds it ([`pins`]); what a commit
//! changes and replaces ([`changes`], [`replaced`]), and what that says of a node of then ([`node_then`]). The runs
//! themselves are `pleach_history`'s.

mod changes;
pub(crate) mod node_then;
pub(crate) mod pins;
pub(crate) mod replaced;
pub(crate) mod undo;
#[cfg(test)]
mod undo_tests;
pub(crate) mod window;
