//! Sessions: reads, prefetches, proofs, and the finish of a batch.

use pleach::{Key, Session, SessionOptions};

use crate::batch::PleachBatch;
use crate::block::{Made, PleachBlock, PleachOverlay};
use crate::bytes::{Owner, PleachBytes};
use crate::db::{PleachDb, root_of};
use crate::error::{Failed, PleachError, guard};
use crate::handle::{Handle, Out, ask, given, keys, places};

/// A session: it reads one fixed state, whatever is committed meanwhile.
pub type PleachSession = Handle<Session>;

/// Flag of `pleach_session_open`: the finish makes no witness.
pub const PLEACH_WITHOUT_WITNESS: u32 = 1;

/// Begins a session on the overlay, or on the newest commit where `over` is NULL. `flags` is 0 or
/// `PLEACH_WITHOUT_WITNESS`. Errors: 403, the overlay is of another open; 603, the database is closed.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_open(
    db: Option<&PleachDb>,
    over: Option<&PleachOverlay>,
    flags: u32,
    session: Out<Box<PleachSession>>,
) -> Failed {
    guard(|| {
        let session = given(session, "session")?;
        if flags & !PLEACH_WITHOUT_WITNESS != 0 {
            return Err(PleachError::argument(&format!("unknown `flags` {flags:#x}")));
        }
        let mut options = SessionOptions::new().witness(flags & PLEACH_WITHOUT_WITNESS == 0);
        if let Some(over) = over {
            options = over.read(|over| Ok(options.over(over)))?;
        }
        session.write(Box::new(Handle::new(given(db, "db")?.read(|db| Ok(db.session(options)?))?)));
        Ok(())
    })
}

/// Begins a session on a commit of the history. Errors: 401, there is no such commit yet; 502, it is older than the
/// history; 309, it is damaged.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_at(
    db: Option<&PleachDb>,
    commit: u64,
    session: Out<Box<PleachSession>>,
) -> Failed {
    ask(given(db, "db"), given(session, "session"), |db| Ok(Box::new(Handle::new(db.at(commit)?))))
}

/// Frees a session.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_free(session: Option<Box<PleachSession>>) {
    Handle::free(session);
}

/// The number of the commit that the session reads, below overlays where it reads one.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_commit_number(
    session: Option<&PleachSession>,
    number: Out<u64>,
) -> Failed {
    ask(given(session, "session"), given(number, "number"), |session| Ok(session.commit_number()))
}

/// The root of a Merkle namespace in the session's state. Errors as of `pleach_root`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_root(
    session: Option<&PleachSession>,
    namespace: u8,
    root: Out<Key>,
) -> Failed {
    ask(given(session, "session"), given(root, "root"), |session| {
        root_of(session.roots(), namespace)
    })
}

/// Reads the value of a key; no bytes where it has none. Errors: 410, there is no such namespace; 502, the state is older
/// than what is kept; those of the device.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_read(
    session: Option<&PleachSession>,
    namespace: u8,
    key: Option<&Key>,
    value: Out<PleachBytes>,
) -> Failed {
    ask(given(session, "session"), given(value, "value"), |session| {
        let found = session.namespace(namespace)?.read(given(key, "key")?)?;
        Ok(PleachBytes::new(found.map(Owner::Value)))
    })
}

/// Reads the values of `count` keys together, into as many `values`, in the order of the keys; each is freed by itself.
/// Errors as of `pleach_session_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_session_read_many(
    session: Option<&PleachSession>,
    namespace: u8,
    keys: *const u8,
    count: usize,
    values: *mut PleachBytes,
) -> Failed {
    guard(|| {
        // SAFETY: the caller's duty: NULL, or `count` keys.
        let keys = unsafe { self::keys(keys, count, "keys") }?;
        // SAFETY: the caller's duty: NULL, or room for `count` results, where no argument is.
        let values = unsafe { places(values, count, "values") }?;
        let session = given(session, "session")?;
        let found = session.read(|session| Ok(session.namespace(namespace)?.read_many(keys)?))?;
        for (value, found) in values.iter_mut().zip(found) {
            value.write(PleachBytes::new(found.map(Owner::Value)));
        }
        Ok(())
    })
}

/// Announces `count` keys: their pages begin to arrive, and the call returns at once. What could not be prefetched is read
/// when it is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_session_prefetch(
    session: Option<&PleachSession>,
    namespace: u8,
    keys: *const u8,
    count: usize,
) -> Failed {
    guard(|| {
        // SAFETY: the caller's duty: NULL, or `count` keys.
        let keys = unsafe { self::keys(keys, count, "keys") }?;
        given(session, "session")?.read(|session| {
            session.namespace(namespace)?.prefetch(keys);
            Ok(())
        })
    })
}

/// Proves what the state says of a key, present or absent, for `pleach_verify_key`. Errors: 411, the namespace is plain;
/// those of a read.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_prove(
    session: Option<&PleachSession>,
    namespace: u8,
    key: Option<&Key>,
    proof: Out<PleachBytes>,
) -> Failed {
    ask(given(session, "session"), given(proof, "proof"), |session| {
        Ok(PleachBytes::of(session.namespace(namespace)?.prove(given(key, "key")?)?))
    })
}

/// Proves what the state says of `count` keys in one proof, for `pleach_verify_keys`. Errors as of `pleach_session_prove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_session_prove_many(
    session: Option<&PleachSession>,
    namespace: u8,
    keys: *const u8,
    count: usize,
    proof: Out<PleachBytes>,
) -> Failed {
    ask(given(session, "session"), given(proof, "proof"), |session| {
        // SAFETY: the caller's duty: NULL, or `count` keys.
        let keys = unsafe { self::keys(keys, count, "keys") }?;
        Ok(PleachBytes::of(session.namespace(namespace)?.prove_many(keys)?))
    })
}

/// Proves at most `limit` pairs (0 counts as 1) from the key `first` on, and that there is no other up to `end`, for
/// `pleach_verify_range`. `end` becomes `last`, or the key up to which the proof goes because of the limit: the next call
/// begins behind it. Errors: 405, `last` is before `first`; those of `pleach_session_prove`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_prove_range(
    session: Option<&PleachSession>,
    namespace: u8,
    first: Option<&Key>,
    last: Option<&Key>,
    limit: usize,
    end: Out<Key>,
    proof: Out<PleachBytes>,
) -> Failed {
    ask(given(session, "session"), given(proof, "proof"), |session| {
        let (first, last, end) = (given(first, "first")?, given(last, "last")?, given(end, "end")?);
        let part = session.namespace(namespace)?.prove_range_part(*first..=*last, limit)?;
        end.write(*part.1.end());
        Ok(PleachBytes::of(part.0))
    })
}

/// Makes a block of what the batch did. Nothing is written to the device. The session is spent, and the batch is empty and
/// can be filled again; after an error both are as they were. Errors: 408, a value is too large; 410, a namespace is
/// missing; those of a read.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_session_finish(
    session: Option<&PleachSession>,
    batch: Option<&PleachBatch>,
    block: Out<Box<PleachBlock>>,
) -> Failed {
    guard(|| {
        let block = given(block, "block")?;
        let session = given(session, "session")?;
        let made = given(batch, "batch")?.change(|batch| {
            let made = session.spend(|session| {
                session.finish(batch.accesses()).map_err(|failed| {
                    let (session, _, error) = failed.into_parts();
                    Box::new((session, error.into()))
                })
            })?;
            batch.clear();
            Ok(made)
        })?;
        block.write(Box::new(Handle::new(Made::new(made))));
        Ok(())
    })
}
