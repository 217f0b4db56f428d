//! The roots of the namespaces of one state.

use std::fmt;
use std::sync::Arc;

use pleach_core::{Node, TERMINATOR};

use crate::error::Hex;

/// The roots of all namespaces of one state, in the order of their numbers. A namespace that exists and is
/// empty has [`TERMINATOR`] for its root; one that does not exist has none. Namespace 0 always exists.
#[derive(Clone, PartialEq, Eq)]
pub struct Roots(Arc<[(u8, Node)]>);

impl Roots {
    /// Roots by namespace, ascending; namespace 0 is the first.
    pub(crate) fn new(roots: impl IntoIterator<Item = (u8, Node)>) -> Self {
        let roots: Arc<[(u8, Node)]> = roots.into_iter().collect();
        debug_assert!(roots.is_sorted_by(|a, b| a.0 < b.0), "namespaces ascend");
        debug_assert!(roots.first().is_some_and(|first| first.0 == 0), "namespace 0 exists");
        Self(roots)
    }

    /// Those of a state that has namespace 0 alone.
    pub(crate) fn of_first(root: Node) -> Self {
        Self::new([(0, root)])
    }

    /// The root of namespace 0.
    pub(crate) fn first(&self) -> Node {
        self.0.first().map_or(TERMINATOR, |first| first.1)
    }

    /// The root of a namespace; none when it does not exist.
    pub fn get(&self, namespace: u8) -> Option<Node> {
        let at = self.0.binary_search_by_key(&namespace, |entry| entry.0).ok()?;
        Some(self.0[at].1)
    }

    /// Namespaces and their roots, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u8, Node)> + DoubleEndedIterator + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (namespace, root) in self.iter() {
            map.entry(&namespace, &Hex(root.as_ref()));
        }
        map.finish()
    }
}
