//! Values of flags. Each is parsed, printed and serialized the way the user writes it.

use core::fmt;
use core::str::FromStr;

use crate::args::numbers;
use crate::text::as_text;

/// `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

impl FromStr for Switch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self(true)),
            "off" => Ok(Self(false)),
            _ => Err("say on or off".to_owned()),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// A number of batches, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Exactly this many.
    Fixed(u64),
    /// As many as it takes.
    Auto,
}

impl FromStr for Count {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match numbers::whole(text) {
            Some(count) if count <= 10_000_000 => Ok(Self::Fixed(count)),
            _ => Err("say auto or a number up to 10,000,000, such as 40, 1,000 or 2k".to_owned()),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(count) => count.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// A time in minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Minutes(pub(crate) f64);

impl FromStr for Minutes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(minutes) if (0.001..=100_000.0).contains(&minutes) => Ok(Self(minutes)),
            _ => Err("say 0.001 to 100000 minutes".to_owned()),
        }
    }
}

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// When its log record is synced.
    Commit,
    /// At once; the log is synced every this many milliseconds.
    Periodic(u64),
    /// At once; the log is synced only when the engine itself needs that.
    None,
}

impl Durability {
    /// What a commit has when it is acknowledged, as printed beside figures.
    pub(crate) fn level(self) -> String {
        match self {
            Self::Commit => "each commit synced".to_owned(),
            Self::Periodic(millis) => format!("synced every {millis} ms, survives a kill"),
            Self::None => "no commit synced, survives a kill".to_owned(),
        }
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "say commit, none or periodic:MS with 1 to 3600000 ms".to_owned();
        match text.split_once(':') {
            None if text == "commit" => Ok(Self::Commit),
            None if text == "none" => Ok(Self::None),
            Some(("periodic", millis)) => match millis.parse() {
                Ok(millis @ 1..=3_600_000) => Ok(Self::Periodic(millis)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit => f.write_str("commit"),
            Self::Periodic(millis) => write!(f, "periodic:{millis}"),
            Self::None => f.write_str("none"),
        }
    }
}

/// How files are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoChoice {
    /// With io_uring where the kernel has it.
    Auto,
    /// With io_uring, or not at all.
    Uring,
    /// With a pool of blocking threads.
    Blocking,
}

impl FromStr for IoChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "blocking" => Ok(Self::Blocking),
            _ => Err("say auto, uring or blocking".to_owned()),
        }
    }
}

impl fmt::Display for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Blocking => "blocking",
        })
    }
}

as_text!(Switch);
as_text!(Count);
as_text!(Durability);
as_text!(IoChoice);
