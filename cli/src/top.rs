//! `top`: the activity of a database, a line at a time, beside the writing process.

use std::io::Write as _;
use std::time::{Duration, Instant};

use pleach::Db;
use serde_json::{Value, json};

use crate::args::TopArgs;
use crate::database::open_reading;
use crate::error::{CliError, Result};
use crate::output;

/// Lines between two heads.
const HEAD: u64 = 20;

/// The figures of one moment.
struct StatusLine {
    commit: u64,
    /// Commits a second since the line before.
    commits_per_second: f64,
    /// Commits before the newest one that can be read.
    history: u64,
    pending_entries: u64,
    pending_bytes: u64,
    leaf_pages: u64,
    root: String,
    /// Whether a process has the database open for writing.
    has_writer: bool,
}

impl StatusLine {
    fn json(&self) -> Value {
        json!({
            "schema": 1, "commit": self.commit, "commits_per_second": self.commits_per_second,
            "history": self.history, "pending_entries": self.pending_entries,
            "pending_bytes": self.pending_bytes, "leaf_pages": self.leaf_pages, "root": self.root,
            "has_writer": self.has_writer,
        })
    }

    fn text(&self) -> String {
        format!(
            "{:>10} {:>9.1} {:>8} {:>11} {:>9.1} {:>10} {}…{}\n",
            self.commit,
            self.commits_per_second,
            self.history,
            self.pending_entries,
            as_mib(self.pending_bytes),
            self.leaf_pages,
            self.root.get(..16).unwrap_or_default(),
            if self.has_writer { "" } else { " nobody writes" },
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "printed with one digit")]
fn as_mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub(crate) fn top(args: &TopArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let db = open_reading(folder)?;
    let mut before = (Instant::now(), db.commit_number());
    let mut lines = 0;
    while args.count.is_none_or(|count| lines < count) {
        std::thread::sleep(Duration::from_secs(args.every));
        let commit = db.refresh().map_err(CliError::engine(folder))?;
        let now = Instant::now();
        let has_writer = pleach_ops::has_writer(folder).map_err(CliError::engine(folder))?;
        let line = line(&db, commit.saturating_sub(before.1), now - before.0, has_writer);
        before = (now, commit);
        let head = "    commit commits/s  history    buffered       MiB leaf pages root\n";
        let text = if args.folder.json {
            format!("{}\n", line.json())
        } else {
            let head = if lines.is_multiple_of(HEAD) { head } else { "" };
            format!("{head}{}", line.text())
        };
        let mut to = std::io::stdout().lock();
        if let Err(error) = to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
            // One who stops reading ends it, too.
            return output::judge(Err(error));
        }
        lines += 1;
    }
    Ok(())
}

fn line(db: &Db, commits: u64, passed: Duration, has_writer: bool) -> StatusLine {
    let (metrics, history) = (db.metrics(), db.history());
    #[expect(clippy::cast_precision_loss, reason = "printed with one digit")]
    let commits_per_second = commits as f64 / passed.as_secs_f64();
    StatusLine {
        commit: *history.end(),
        commits_per_second: (commits_per_second * 10.0).round() / 10.0,
        history: history.end() - history.start(),
        pending_entries: metrics.pending_entries,
        pending_bytes: metrics.pending_bytes,
        leaf_pages: metrics.leaf_pages,
        root: db.root().to_string(),
        has_writer,
    }
}
