//! A bulk load: pairs that C gives part by part, taken by a thread that loads them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use pleach::load::{LoadOptions, LoadReport};
use pleach::{Db, Error, Key, Result, Value};

use crate::db::PleachDb;
use crate::error::{Failed, Fallible, PleachError, guard};
use crate::handle::{Handle, Out, ask, given, keys, values};

/// Parts that wait for the loading thread.
const WAITING: usize = 4;

/// A bulk load that is under way.
pub type PleachLoad = Handle<Load>;

/// Some pairs; none at the end of all.
type LoadPart = Option<Vec<(Key, Value)>>;

/// The load's thread, and the way to it. Without an end of all pairs it loads nothing.
pub struct Load(Option<(SyncSender<LoadPart>, JoinHandle<Result<LoadReport>>)>);

impl Load {
    fn begin(db: &Db, namespace: u8) -> Fallible<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let db = db.clone();
        let load = move || {
            let options = LoadOptions::new().namespace(namespace);
            db.try_bulk_load(pairs(&receiver), &options)
        };
        let thread = std::thread::Builder::new().name("pleach-load".to_owned()).spawn(load);
        let thread = thread.map_err(|error| PleachError::no_thread(&error))?;
        Ok(Self(Some((sender, thread))))
    }

    /// Gives a part to the thread. Where it has failed, its error ends the load.
    fn send(&mut self, part: LoadPart) -> Fallible<()> {
        let (sender, _) = self.0.as_ref().ok_or_else(PleachError::spent)?;
        if sender.send(part).is_ok() { Ok(()) } else { self.end().map(drop) }
    }

    /// Waits for the thread.
    fn end(&mut self) -> Fallible<LoadReport> {
        let (sender, thread) = self.0.take().ok_or_else(PleachError::spent)?;
        drop(sender);
        match thread.join() {
            Ok(loaded) => Ok(loaded?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // What was not finished is given up, and nobody is left who uses the database.
        drop(self.end());
    }
}

/// What the parts have in them. Where they end without an end of all, the load fails.
fn pairs(parts: &Receiver<LoadPart>) -> impl Iterator<Item = Result<(Key, Value)>> {
    let part = || match parts.recv() {
        Ok(Some(part)) => Some(part.into_iter().map(Ok).collect()),
        Ok(None) => None,
        Err(_) => Some(vec![Err(Error::Closed)]),
    };
    std::iter::from_fn(part).flat_map(|part: Vec<_>| part)
}

/// Begins a bulk load into an empty namespace: pairs in any order, each key once, become one commit, far faster than by
/// batches. Nothing else can be committed until the load is finished or freed, and no earlier commit can be read
/// afterwards. Sessions and overlays have to be freed before. Most errors come from the first `pleach_load_put` after
/// they happened, or from `pleach_load_finish`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_load_begin(
    db: Option<&PleachDb>,
    namespace: u8,
    load: Out<Box<PleachLoad>>,
) -> Failed {
    ask(given(db, "db"), given(load, "load"), |db| {
        Ok(Box::new(Handle::new(Load::begin(db, namespace)?)))
    })
}

/// Gives `count` pairs to a load: their keys one after the other, their values one after the other, and the length of
/// each value. It waits while the load has enough to do. An error ends the load, which then changes nothing. Errors: 410,
/// there is no such namespace; 413, it has pairs; 504, sessions or overlays are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_load_put(
    load: Option<&PleachLoad>,
    keys_of_pairs: *const u8,
    values_of_pairs: *const u8,
    lengths: *const usize,
    count: usize,
) -> Failed {
    guard(|| {
        let load = given(load, "load")?;
        // SAFETY: the caller's duty: NULL, or `count` keys.
        let keys = unsafe { keys(keys_of_pairs, count, "keys_of_pairs") }?;
        // SAFETY: the caller's duty: NULL, or `count` lengths and as many bytes as they say.
        let values = unsafe { values(values_of_pairs, lengths, count) }?;
        let part = keys.iter().copied().zip(values.map(Value::from)).collect();
        load.change(|load| load.send(Some(part)))
    })
}

/// Ends a load: all pairs become the next commit, durable when the call returns. Gives the number of pairs. The load is
/// over afterwards, whatever came of it, and is still to be freed. Errors: 406, a key came twice; and those of
/// `pleach_load_put`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_load_finish(load: Option<&PleachLoad>, pairs: Out<u64>) -> Failed {
    guard(|| {
        let pairs = given(pairs, "pairs")?;
        pairs.write(given(load, "load")?.change(|load| {
            load.send(None)?;
            Ok(load.end()?.accounts)
        })?);
        Ok(())
    })
}

/// Frees a load. One that was not finished is given up: it changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_load_free(load: Option<Box<PleachLoad>>) {
    Handle::free(load);
}
