//! The table of namespaces. The one of region 0 always exists, so it has one entry: that of region 1, whose trie is
//! absent, there, or dropped and still kept.

/// The namespace of region 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Table {
    /// Is there a trie, dropped or not?
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

    /// `false` if there is nothing to give up.
    pub(crate) fn give_up(&mut self) -> bool {
        let fits = self.kept && self.dropped.is_some();
        *self = Self { kept: false, born: 0, dropped: None };
        fits
    }
}

/// What a commit does to the namespace of region 1, other than changing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Added,
    Dropped,
    Restored,
}
