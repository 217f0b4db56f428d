//! Names of the objects of an archive. No other module formats or parses them.

use std::fmt;

/// An object that states can be restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// All pairs of a commit.
    Full {
        /// The commit.
        commit: u64,
    },
    /// The changes between two commits.
    Changes {
        /// The commit before the changes.
        from: u64,
        /// The commit after them.
        to: u64,
    },
}

impl Piece {
    /// The commit that the piece leads to.
    pub fn to(self) -> u64 {
        match self {
            Self::Full { commit: to } | Self::Changes { to, .. } => to,
        }
    }

    /// Name of the piece's object.
    pub fn name(self) -> String {
        match self {
            Self::Full { commit } => format!("full-{commit:016x}.plx"),
            Self::Changes { from, to } => format!("changes-{from:016x}-{to:016x}.plx"),
        }
    }

    /// The piece of an object's name; `None` when it is not one.
    pub fn parse(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".plx")?;
        if let Some(commit) = stem.strip_prefix("full-") {
            return Some(Self::Full { commit: number(commit)? });
        }
        let (from, to) = stem.strip_prefix("changes-")?.split_once('-')?;
        let (from, to) = (number(from)?, number(to)?);
        (from < to).then_some(Self::Changes { from, to })
    }
}

/// The name of the object, and its commits in decimal, as all messages have them.
impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { commit } => write!(f, "{} (commit {commit})", self.name()),
            Self::Changes { from, to } => write!(f, "{} (commits {from} to {to})", self.name()),
        }
    }
}

/// Name of the object that names the archive's database.
pub(crate) fn owner_name(database: u64) -> String {
    format!("database-{database:016x}")
}

/// The database in such a name.
pub(crate) fn parse_owner(name: &str) -> Option<u64> {
    number(name.strip_prefix("database-")?)
}

/// 16 small hexadecimal digits.
fn number(digits: &str) -> Option<u64> {
    let plain =
        digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}
