//! What a page and a comparison say of themselves: when, by which command and build, on which disk.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::machine::Machine;
use crate::text::gib;
use crate::versions::{PEERS, Peer};

/// Where a result is from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    pub(crate) date: String,
    pub(crate) command: String,
    /// Of the checkout that the executable lies in.
    pub(crate) commit: Option<String>,
    pub(crate) disk: Option<String>,
    pub(crate) features: Vec<&'static str>,
    /// Crates of others in this build, with their versions.
    pub(crate) peers: Vec<String>,
}

impl About {
    /// Of this moment and this process; `folder`: where the databases are.
    pub(crate) fn now(folder: &Path) -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let words = std::env::args().skip(1).map(|word| quoted(&word));
        let command: Vec<_> = core::iter::once("nomt-bench".to_owned()).chain(words).collect();
        Self {
            date: date(seconds),
            command: command.join(" "),
            commit: commit(),
            disk: disk(folder),
            features: peers(|peer| peer.present).map(|peer| peer.feature).collect(),
            peers: peers(|peer| peer.linked)
                .map(|peer| format!("{} {}", peer.name, peer.version))
                .collect(),
        }
    }

    /// Names and values, as a page shows them.
    pub(crate) fn rows(&self, machine: &Machine) -> Vec<(&'static str, String)> {
        let unknown = || "unknown".to_owned();
        let none = "no engine of others in this build".to_owned();
        let Machine { kernel, cpu, cores, memory_bytes, file_system } = machine;
        let memory = gib(*memory_bytes);
        vec![
            ("date", self.date.clone()),
            ("command", self.command.clone()),
            ("machine", format!("{cpu}, {cores} cores, {memory} of memory, Linux {kernel}")),
            ("disk", format!("{}, {file_system}", self.disk.clone().unwrap_or_else(unknown))),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("beside it", if self.peers.is_empty() { none } else { self.peers.join(", ") }),
            ("commit", self.commit.clone().unwrap_or_else(unknown)),
        ]
    }
}

/// The peers that are something.
fn peers(are: impl Fn(&Peer) -> bool) -> impl Iterator<Item = Peer> {
    PEERS.into_iter().filter(are)
}

/// A word of a command line, so that it can be copied.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./,:=^%+@".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The commit of the checkout that this executable lies in, if it does in one.
fn commit() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(folder).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|text| !text.is_empty())?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { format!("{commit} and changes") })
}

/// Name and model of the block device below a folder.
fn disk(folder: &Path) -> Option<String> {
    let stat = rustix::fs::stat(folder).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let link = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = link.file_name()?.to_string_lossy().into_owned();
    // A partition has no model, the disk above it does.
    let model = [link.join("device/model"), link.parent()?.join("device/model")];
    let model = model.iter().find_map(|path| std::fs::read_to_string(path).ok());
    Some(match model {
        Some(model) => format!("{name} ({})", model.trim()),
        None => name,
    })
}

/// Seconds since 1970 as date and time, UTC.
fn date(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last of a year; an era has 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (time / 3600, time % 3600 / 60);
    format!("{year}-{month:02}-{of_month:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn words_can_be_copied_into_a_shell() {
        assert_eq!(quoted("--count=2^20"), "--count=2^20");
        assert_eq!(quoted("it's here"), "'it'\\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
