//! Circles in a graph: Tarjan's strongly connected components.

use std::collections::BTreeSet;

/// All components of more than one node, each in ascending order.
pub(crate) fn circles(nodes: usize, arrows: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let mut search = Search {
        arrows,
        next: 0,
        index: vec![None; nodes],
        low: vec![0; nodes],
        stack: Vec::new(),
        found: Vec::new(),
    };
    for node in 0..nodes {
        if search.index[node].is_none() {
            search.visit(node);
        }
    }
    search.found.retain(|component| component.len() > 1);
    search.found.sort();
    search.found
}

struct Search<'a> {
    arrows: &'a BTreeSet<(usize, usize)>,
    next: usize,
    /// When a node was first visited.
    index: Vec<Option<usize>>,
    /// The earliest node on the stack that it reaches.
    low: Vec<usize>,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        self.index[node] = Some(self.next);
        self.low[node] = self.next;
        self.next += 1;
        self.stack.push(node);
        for &(_, to) in self.arrows.range((node, 0)..=(node, usize::MAX)) {
            match self.index[to] {
                None => {
                    self.visit(to);
                    self.low[node] = self.low[node].min(self.low[to]);
                }
                Some(index) if self.stack.contains(&to) => {
                    self.low[node] = self.low[node].min(index);
                }
                Some(_) => {}
            }
        }
        if Some(self.low[node]) == self.index[node] {
            let start = self.stack.iter().position(|&one| one == node).unwrap_or_default();
            let mut component = self.stack.split_off(start);
            component.sort_unstable();
            self.found.push(component);
        }
    }
}
