//! The table of namespaces. The one of region 0 always exists, so it has one entry: that of regions 1 and 2, whose trie is
//! absent, there, or dropped and still kept.

/// The namespace of regions 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Table {
    /// True when there is a trie, dropped or not.
    pub(crate) kept: bool,
    /// The commit that added it.
    pub(crate) born: u8,
    /// The commit that dropped it.
    pub(crate) dropped: Option<u8>,
}

impl Table {
    /// There from the beginning.
    pub(crate) const FIRST: Self = Self { kept: true, born: 0, dropped: None };

    pub(crate) fn exists(self) -> bool {
        self.kept && self.dropped.is_none()
    }

    /// What this commit does to it. `false` if it cannot be done.
    pub(crate) fn apply(&mut self, fate: Fate, number: u8) -> bool {
        match fate {
            Fate::Added => {
                let fits = !self.kept;
                *self = Self { kept: true, born: number, dropped: None };
                fits
            }
            Fate::Dropped => {
                let fits = self.exists();
                self.dropped = Some(number);
                fits
            }
            Fate::Restored => self.kept && self.dropped.take().is_some(),
        }
    }

    /// Removes a dropped trie that has nothing left.
    pub(crate) fn leave(&mut self) {
        *self = Self { kept: false, born: 0, dropped: None };
    }
}

/// What a commit does to the namespace of regions 1 and 2, other than changing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Added,
    Dropped,
    Restored,
}
