//! Collecting the multiproof: fragments that lower folds have emitted are copied where the fold above
//! them asks for them, so that the whole is in order.

use std::ops::Range;

use pleach_core::fold::Sink;
use pleach_core::fold::treelets::ProofPart;
use pleach_core::proof::Terminal;
use pleach_core::proof::terminal::terminal_encode;
use pleach_core::{Key, Node, Prefix, ValueHash};

/// What one fold emitted: ranges of its collector's buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fragment {
    terminals: Range<usize>,
    count: u32,
    siblings: Range<usize>,
}

impl Fragment {
    /// What a treelet emitted.
    pub(crate) fn of_treelet(part: ProofPart) -> Self {
        let ProofPart { terminals, count, siblings } = part;
        Self { terminals, count, siblings }
    }

    /// Number of terminals.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Its terminals, in the buffer that it was emitted to.
    pub(crate) fn terminals<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        &buffer[self.terminals.clone()]
    }

    /// Its siblings, in the buffer that it was emitted to.
    pub(crate) fn siblings<'a>(&self, buffer: &'a [Node]) -> &'a [Node] {
        &buffer[self.siblings.clone()]
    }
}

/// Appends to its buffers; fragments are copied from the buffers of the level below.
pub(crate) struct Emit<'a> {
    terminals: &'a mut Vec<u8>,
    siblings: &'a mut Vec<Node>,
    fragments: &'a [Fragment],
    from_terminals: &'a [u8],
    from_siblings: &'a [Node],
    own: Fragment,
}

impl<'a> Emit<'a> {
    pub(crate) fn new(
        terminals: &'a mut Vec<u8>,
        siblings: &'a mut Vec<Node>,
        fragments: &'a [Fragment],
        from_terminals: &'a [u8],
        from_siblings: &'a [Node],
    ) -> Self {
        let own = Fragment {
            terminals: terminals.len()..terminals.len(),
            count: 0,
            siblings: siblings.len()..siblings.len(),
        };
        Self { terminals, siblings, fragments, from_terminals, from_siblings, own }
    }

    /// What was emitted since the start.
    pub(crate) fn done(mut self) -> Fragment {
        self.own.terminals.end = self.terminals.len();
        self.own.siblings.end = self.siblings.len();
        self.own
    }

    /// Where terminals (in bytes) and siblings end by now.
    pub(crate) fn ends(&self) -> (usize, usize) {
        (self.terminals.len(), self.siblings.len())
    }
}

impl Sink for Emit<'_> {
    fn leaf(&mut self, key: &Key, value_hash: &ValueHash, depth: u16) {
        terminal_encode(
            self.terminals,
            &Terminal::Leaf { key: *key, value_hash: *value_hash, depth },
        );
        self.own.count += 1;
    }

    fn terminator(&mut self, key: &Key, depth: u16) {
        terminal_encode(self.terminals, &Terminal::Terminator { prefix: Prefix::new(key, depth) });
        self.own.count += 1;
    }

    fn sibling(&mut self, node: &Node) {
        self.siblings.push(*node);
    }

    fn fragment(&mut self, number: u32) {
        let fragment = &self.fragments[number as usize];
        let (terminals, siblings) = (self.from_terminals, self.from_siblings);
        self.terminals.extend_from_slice(&terminals[fragment.terminals.clone()]);
        self.siblings.extend_from_slice(&siblings[fragment.siblings.clone()]);
        self.own.count += fragment.count;
    }
}
