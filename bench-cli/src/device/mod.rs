//! Measures a folder's device through our own I/O crate: what an engine on it can hope for.

pub(crate) mod fio;
pub(crate) mod load;
mod suite;

pub(crate) use suite::{Row, Suite, run};

/// Bytes of a page.
pub(crate) const PAGE: u64 = pleach_io::PAGE as u64;

/// What a measurement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Reads at random offsets.
    Read,
    /// Writes at random offsets.
    Write,
    /// 70 % reads and 30 % writes at random offsets.
    Mixed,
    /// Reads from the start to the end.
    ReadInOrder,
    /// Writes from the start to the end.
    WriteInOrder,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) pattern: Pattern,
    /// Pages per transfer.
    pub(crate) pages: usize,
    /// Transfers in flight.
    pub(crate) depth: usize,
}

impl Case {
    /// Its name in tables, in JSON and to fio.
    pub(crate) fn name(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Read => "random read",
            Pattern::Write => "random write",
            Pattern::Mixed => "random 70/30",
            Pattern::ReadInOrder => "sequential read",
            Pattern::WriteInOrder => "sequential write",
        };
        format!("{pattern} {} KiB, depth {}", self.pages * 4, self.depth)
    }
}

/// All measurements without background writes.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |pattern, pages, depth| cases.push(Case { pattern, pages, depth });
    for depth in [1, 4, 16, 64, 128, 256] {
        add(Pattern::Read, 1, depth);
    }
    for pages in [2, 4, 8, 16] {
        add(Pattern::Read, pages, 64);
    }
    for pages in [1, 2, 4, 8, 16] {
        add(Pattern::Write, pages, 64);
    }
    add(Pattern::Mixed, 1, 64);
    add(Pattern::ReadInOrder, 256, 8);
    add(Pattern::WriteInOrder, 256, 8);
    cases
}
