//! An open database: open, close, the newest commit, namespaces, rollback.

use std::ffi::c_char;
use std::ops::Bound;
use std::time::SystemTime;

use pleach::{Db, Error, Key, Options, Roots};

use crate::bytes::PleachBytes;
use crate::error::{Failed, Fallible, PleachError, guard};
use crate::handle::{Handle, Out, ask, given, path, places, text};
use crate::histograms;

/// An open database.
pub type PleachDb = Handle<Db>;

/// Kind of a namespace: there is none.
pub const PLEACH_NO_NAMESPACE: u8 = 0;
/// Kind of a namespace: with a Merkle trie, a root and proofs.
pub const PLEACH_MERKLE: u8 = 1;
/// Kind of a namespace: without a trie.
pub const PLEACH_PLAIN: u8 = 2;

/// Opens the database in a folder. Options are `key=value` pairs between white space or commas, such as
/// `create=true cache_mib=64`: `cache_mib`, `create`, `direct`, `durability` (`commit`, `none`, `periodic:MILLISECONDS`),
/// `hasher` (`blake3`, `sha2-256`), `history`, `undo_memory_mib`, `history_disk_mib`, `kept_log_mib`, `in_flight`, `io` (`auto`, `uring`,
/// `blocking`), `log_limit_mib`, `read_only`, `require_history`, `threads`. An empty text takes the defaults. One process opens a
/// database for writing; any number open it with `read_only=true` beside it. Errors: codes 1xx to 3xx of docs/errors.md.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_open(
    folder: *const c_char,
    options: *const c_char,
    db: Out<Box<PleachDb>>,
) -> Failed {
    guard(|| {
        let db = given(db, "db")?;
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let folder = unsafe { path(folder, "folder") }?;
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let options = unsafe { text(options, "options") }?;
        let options = Options::new(folder).set(options).map_err(Error::from)?;
        histograms::keep();
        db.write(Box::new(Handle::new(Db::open(options)?)));
        Ok(())
    })
}

/// Closes the database with a checkpoint, so that the next open reads no log. `open_handles` becomes the number of
/// sessions, blocks, overlays and cursors that live: they go on reading, and keep the folder locked until they are freed.
/// It may be NULL, where nobody wants to know. After an error other than codes 601 to 603 the close can be repeated.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_close(db: Option<&PleachDb>, open_handles: Out<usize>) -> Failed {
    guard(|| {
        let live = given(db, "db")?.read(|db| Ok(db.close()?))?;
        if let Some(open_handles) = open_handles {
            open_handles.write(live.sessions + live.blocks + live.overlays + live.iterators);
        }
        Ok(())
    })
}

/// Frees the handle of a database. Without a `pleach_close` before, the next open reads the log; nothing is lost. This
/// waits for background work.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_db_free(db: Option<Box<PleachDb>>) {
    Handle::free(db);
}

/// The number of the newest commit; 0 in a new database.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_commit_number(db: Option<&PleachDb>, number: Out<u64>) -> Failed {
    ask(given(db, "db"), given(number, "number"), |db| Ok(db.commit_number()))
}

/// The root of a Merkle namespace in the newest commit; 32 zeros when the namespace is empty. Errors: 410, there is no
/// such namespace; 411, it is plain.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_root(db: Option<&PleachDb>, namespace: u8, root: Out<Key>) -> Failed {
    ask(given(db, "db"), given(root, "root"), |db| root_of(&db.roots(), namespace))
}

/// The root of a namespace, or why it has none.
pub(crate) fn root_of(roots: &Roots, namespace: u8) -> Fallible<Key> {
    let Some(root) = roots.get(namespace) else {
        let is_plain = roots.digest(namespace).is_some();
        return Err(
            if is_plain { Error::Plain(namespace) } else { Error::Namespace(namespace) }.into()
        );
    };
    Ok(root.to_bytes())
}

/// The commits that `pleach_session_at` and `pleach_rollback` reach: the oldest and the newest.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_history(
    db: Option<&PleachDb>,
    oldest: Out<u64>,
    newest: Out<u64>,
) -> Failed {
    guard(|| {
        let (oldest, newest) = (given(oldest, "oldest")?, given(newest, "newest")?);
        let commits = given(db, "db")?.read(|db| Ok(db.history()))?;
        oldest.write(*commits.start());
        newest.write(*commits.end());
        Ok(())
    })
}

/// When a commit was made, in seconds since 1970; 0 where that is not known. Errors: 401, there is no such commit yet; 502, the history has no record of it, as of its oldest commit (commit 0 has none of its own, and is no error); 309,
/// it is damaged.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_committed_at(
    db: Option<&PleachDb>,
    commit: u64,
    seconds: Out<u64>,
) -> Failed {
    ask(given(db, "db"), given(seconds, "seconds"), |db| {
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
        let time = db.committed_at(commit)?.and_then(since);
        Ok(time.map_or(0, |time| time.as_secs()))
    })
}

/// The commit that a rollback went back to, whose state it has; the number of the commit itself where it is no rollback.
/// Errors as of `pleach_committed_at`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_rolled_back_to(
    db: Option<&PleachDb>,
    commit: u64,
    number: Out<u64>,
) -> Failed {
    ask(given(db, "db"), given(number, "number"), |db| {
        Ok(db.rolled_back_to(commit)?.unwrap_or(commit))
    })
}

/// The commits from `first` to `last` that changed a key, ascending, or from the newest on with `newest_first`: at most
/// `capacity` of them, at least 1. `count` becomes how many are in `commits`; 0 says that there are no more, otherwise the
/// next call begins behind the last one found. With `first` 0, or the oldest commit of the history, the range begins
/// with the commit after that: what the oldest one changed is not recorded. Errors: 502, the range begins before the
/// history; 309, the history is damaged; those of a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_changes_of(
    db: Option<&PleachDb>,
    namespace: u8,
    key: Option<&Key>,
    first: u64,
    last: u64,
    newest_first: bool,
    commits: *mut u64,
    capacity: usize,
    count: Out<usize>,
) -> Failed {
    ask(given(db, "db"), given(count, "count"), |db| {
        // SAFETY: the caller's duty: NULL, or room for `capacity` numbers, where no argument is.
        let commits = unsafe { places(commits, capacity, "commits") }?;
        if commits.is_empty() {
            return Err(PleachError::argument("`capacity` is 0"));
        }
        let from = if first == 0 { Bound::Unbounded } else { Bound::Included(first) };
        let mut changes =
            db.changes_of(namespace, given(key, "key")?, (from, Bound::Included(last)));
        for (found, place) in commits.iter_mut().enumerate() {
            match if newest_first { changes.next_back() } else { changes.next() } {
                Some(Ok(commit)) => _ = place.write(commit),
                // The next call meets it again.
                Some(Err(error)) if found == 0 => return Err(error.into()),
                Some(Err(_)) | None => return Ok(found),
            }
        }
        Ok(commits.len())
    })
}

/// What the open warns of, as text without a NUL, a line each: a budget that is larger than the memory of the process,
/// another way of I/O than was wanted, files and commits that are damaged or missing. The text is empty where all is well.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_notes(db: Option<&PleachDb>, notes: Out<PleachBytes>) -> Failed {
    ask(given(db, "db"), given(notes, "notes"), |db| {
        let (opening, device) = (db.opened(), db.device_info());
        let mut notes: Vec<String> = opening.notes.iter().map(ToString::to_string).collect();
        notes.extend(opening.fell_back.as_ref().map(|error| {
            format!("the newest checkpoint cannot be used, the one before it is: {error}")
        }));
        notes.extend(opening.cut.as_ref().map(|cut| {
            let position = cut.position;
            format!(
                "the log ended in a torn record at byte {position}: a commit that was under way"
            )
        }));
        notes.extend(Some(device.note).filter(|note| !note.is_empty()));
        Ok(PleachBytes::of(notes.join("\n")))
    })
}

/// The options that the database was opened with, as text without a NUL that `pleach_open` understands.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_options(db: Option<&PleachDb>, options: Out<PleachBytes>) -> Failed {
    ask(given(db, "db"), given(options, "options"), |db| {
        Ok(PleachBytes::of(db.options()?.to_string()))
    })
}

/// The name of the database's hash function, without a NUL: what the functions `pleach_verify_` want.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_hasher(db: Option<&PleachDb>, name: Out<PleachBytes>) -> Failed {
    ask(given(db, "db"), given(name, "name"), |db| Ok(PleachBytes::of(db.hasher()?.name())))
}

/// Makes all commits durable that were acknowledged before, for `durability=none` and `periodic`. Errors: 601 and 602
/// after a failed write or sync.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_sync(db: Option<&PleachDb>) -> Failed {
    guard(|| given(db, "db")?.read(|db| Ok(db.sync()?)))
}

/// Goes on to the newest commit of a database that was opened with `read_only=true`, and gives its number. Sessions stay
/// where they are.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_refresh(db: Option<&PleachDb>, number: Out<u64>) -> Failed {
    ask(given(db, "db"), given(number, "number"), |db| Ok(db.refresh()?))
}

/// Undoes the newest `commits` commits by a new one, whose number it gives. Errors: 402, there are fewer; 501, another
/// commit came between; 502, they are not in the history; and those of a commit.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_rollback(db: Option<&PleachDb>, commits: u64, number: Out<u64>) -> Failed {
    ask(given(db, "db"), given(number, "number"), |db| Ok(db.rollback(commits)?))
}

/// Adds an empty namespace, a plain one if `plain`, and gives the number of the commit that does so. Blocks and overlays
/// on the newest commit become stale. Errors: 412, it exists; 503, a dropped one of this number can still be read; and
/// those of a commit.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_namespace_add(
    db: Option<&PleachDb>,
    namespace: u8,
    plain: bool,
    number: Out<u64>,
) -> Failed {
    ask(given(db, "db"), given(number, "number"), |db| {
        Ok(if plain { db.add_plain_namespace(namespace)? } else { db.add_namespace(namespace)? })
    })
}

/// Drops a namespace with all that is in it, and gives the number of the commit that does so. Blocks and overlays on the
/// newest commit become stale. Errors: 410, there is none; 412, namespace 0 always exists; and those of a commit.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_namespace_drop(
    db: Option<&PleachDb>,
    namespace: u8,
    number: Out<u64>,
) -> Failed {
    ask(given(db, "db"), given(number, "number"), |db| Ok(db.drop_namespace(namespace)?))
}

/// Lists the namespaces of the newest commit: `kinds[n]` becomes `PLEACH_NO_NAMESPACE`, `PLEACH_MERKLE` or `PLEACH_PLAIN`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_namespaces(db: Option<&PleachDb>, kinds: Out<[u8; 256]>) -> Failed {
    ask(given(db, "db"), given(kinds, "kinds"), |db| {
        let roots = db.roots();
        let mut found = [PLEACH_NO_NAMESPACE; 256];
        for (namespace, _) in roots.iter() {
            found[usize::from(namespace)] = PLEACH_MERKLE;
        }
        for (namespace, _) in roots.digests() {
            found[usize::from(namespace)] = PLEACH_PLAIN;
        }
        Ok(found)
    })
}
