//! Commits that are lost with a damaged log, or would be by a repair.

use std::fmt;
use std::ops::Range;

use pleach::Error;

/// Commits that are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostCommits {
    /// Known lost commits: numbers have no gaps, so these are all from the first lost one to the newest that a
    /// superblock or a whole record of the log names.
    pub numbers: Range<u64>,
    /// True when later commits may be lost, too: the log was longer than its whole part, or its length is unknown.
    pub maybe_more: bool,
}

impl LostCommits {
    /// Adds what another log of the same database tells of the commits behind the same one.
    pub(crate) fn add(&mut self, other: &Self) {
        self.numbers.end = self.numbers.end.max(other.numbers.end);
        self.maybe_more |= other.maybe_more;
    }

    /// True when nothing is lost, as far as the files can tell.
    pub fn is_none(&self) -> bool {
        self.numbers.is_empty() && !self.maybe_more
    }
}

impl fmt::Display for LostCommits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.numbers;
        match end.saturating_sub(start) {
            0 if self.maybe_more => {
                return write!(
                    f,
                    "those from {start} on, if there were any: the files do not tell"
                );
            }
            0 => return f.write_str("none"),
            1 => write!(f, "{start}")?,
            count => write!(f, "{start} to {} ({count})", end - 1)?,
        }
        if self.maybe_more {
            f.write_str(", and perhaps later ones, of which the files have no trace")?;
        }
        Ok(())
    }
}

/// What a repair in place would lose. It has changed nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairLoss {
    /// The newest commit that would be left.
    pub commit: u64,
    /// The damage.
    pub error: Error,
    /// The commits behind the damage.
    pub lost: LostCommits,
    /// Older states that would be given up: all before this commit at most, and none with `None`.
    pub history: Option<u64>,
}

impl fmt::Display for RepairLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commit, error, lost, history } = self;
        write!(f, "{error}; a repair in place would leave commit {commit} as the newest")?;
        if !lost.is_none() {
            write!(f, " and lose commits {lost}")?;
        }
        if let Some(before) = history {
            write!(f, " and give up the states before commit {before}")?;
        }
        Ok(())
    }
}
