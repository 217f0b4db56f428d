//! The cursor of a folder: the archived commit that its database is at. A small file of the folder, which is replaced
//! as a whole; the engine does not read it.
//!
//! ```text
//! pleach archive cursor 2
//! database 5f0c... number of the archived database, 16 hexadecimal digits
//! at 12            the archived commit that the database is at; `none` while a full is imported
//! next 15          the archived commit that a piece is taking it to; `none` between pieces
//! commit 4         the newest commit of the database itself when it came to `at`
//! ```
//!
//! `next` is written before the database changes, `at` when the change is durable. So a database is at `at`, or on its
//! way to `next`, and the piece between the two can be applied again.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{ArchiveError, Result};

const NAME: &str = "archive-cursor";
const TEMPORARY: &str = "archive-cursor.new";
const FIRST_LINE: &str = "pleach archive cursor 2";

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowCursor {
    pub(crate) database: u64,
    pub(crate) at: Option<u64>,
    pub(crate) next: Option<u64>,
    pub(crate) commit: u64,
}

impl FollowCursor {
    /// The cursor of a folder; `None` when it has none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path)(error)),
        };
        let cursor =
            parse(&text).ok_or_else(|| ArchiveError::Cursor(path.display().to_string()))?;
        Ok(Some(cursor))
    }

    /// Replaces the folder's cursor; the new one is durable when this returns.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let (path, temporary) = (folder.join(NAME), folder.join(TEMPORARY));
        let text = self.text();
        let write = |path: &PathBuf| {
            let mut file = File::create(path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write(&temporary).map_err(failed(&temporary))?;
        std::fs::rename(&temporary, &path).map_err(failed(&path))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))
    }

    fn text(&self) -> String {
        let number = |commit: Option<u64>| commit.map_or("none".to_owned(), |it| it.to_string());
        let Self { database, at, next, commit } = self;
        let (at, next) = (number(*at), number(*next));
        format!("{FIRST_LINE}\ndatabase {database:016x}\nat {at}\nnext {next}\ncommit {commit}\n")
    }
}

fn parse(text: &str) -> Option<FollowCursor> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let number = |field: &str| match field {
        "none" => Some(None),
        digits => digits.parse().ok().map(Some),
    };
    let database = u64::from_str_radix(field("database")?, 16).ok()?;
    let (at, next, commit) = (number(field("at")?)?, number(field("next")?)?, field("commit")?);
    let cursor = FollowCursor { database, at, next, commit: commit.parse().ok()? };
    // Only the exact text that would be written is accepted.
    (cursor.text() == text && (at.is_some() || next.is_some())).then_some(cursor)
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> ArchiveError + '_ {
    move |cause| ArchiveError::File { path: path.display().to_string(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_other_text_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(FollowCursor::read(folder.path()).expect("none"), None);
        for (at, next) in [(None, Some(3)), (Some(3), None), (Some(3), Some(u64::MAX))] {
            let cursor = FollowCursor { database: 0xf00, at, next, commit: 17 };
            cursor.write(folder.path()).expect("written");
            assert_eq!(FollowCursor::read(folder.path()).expect("read"), Some(cursor));
            let text = cursor.text();
            for end in 0..text.len() {
                assert_eq!(parse(&text[..end]), None, "{:?}", &text[..end]);
            }
            assert_eq!(parse(&format!("{text}\n")), None);
        }
        std::fs::write(folder.path().join(NAME), "at 3\n").expect("written");
        let refused = FollowCursor::read(folder.path()).expect_err("no cursor");
        assert!(matches!(refused, ArchiveError::Cursor(_)), "{refused}");
    }
}
