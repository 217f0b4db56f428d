//! This project's engine as a plain store.
//!
//! Its keys have 32 bytes: a key of 1 to 31 bytes gets zeros behind it and its length as the last byte, which
//! keeps the order of bytes and can be undone. They are not hashed, so that a scan comes in order; roots are those of
//! the padded keys. A batch is a session's finish without a witness, and a commit. In namespace 0 the root is always
//! made; in the plain one there is none.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pleach::{
    Access, Durability, Key, LoadOptions, Namespace, Options, Pleach, Session, SessionOptions,
    Value,
};

use super::engine::{Engine, StoreOptions};
use super::store::{Change, Pair, Store, StoreView};
use crate::error::{BenchError, Result};
use crate::measure::{Phase, Quantiles};

/// The plain namespace.
const PLAIN: u8 = 1;

/// Most bytes of a key.
const LONGEST: usize = 31;

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("pleach")(error)
}

/// A key as the engine has it.
fn padded(key: &[u8]) -> Result<Key> {
    let length = u8::try_from(key.len()).ok().filter(|length| (1..=31).contains(length));
    let Some(length) = length else {
        return Err(wrap(format!("a key has 1 to {LONGEST} bytes, this one has {}", key.len())));
    };
    let mut padded = [0; 32];
    padded[..key.len()].copy_from_slice(key);
    padded[LONGEST] = length;
    Ok(padded)
}

/// The key that a padded one stands for.
fn bare(key: &Key) -> Result<&[u8]> {
    match usize::from(key[LONGEST]) {
        length @ 1..=LONGEST => Ok(&key[..length]),
        length => Err(BenchError::Wrong(format!("a padded key has the length {length}"))),
    }
}

/// A database, opened so that commits sync nothing: [`Store::write`] syncs what is to be durable.
#[derive(Debug)]
pub(super) struct PleachStore {
    db: Pleach,
    /// Which one it uses.
    namespace: u8,
    /// What the newest state is read with, and the next batch finished: none after a commit.
    current: Mutex<Option<Session>>,
    /// Held for a batch. It has the latencies of finishes and commits.
    writer: Mutex<[Phase; 2]>,
}

// A panic of another thread ends the run.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PleachStore {
    pub(super) fn open(options: &StoreOptions, is_plain: bool) -> Result<Self> {
        let engine = if is_plain { Engine::PleachPlain } else { Engine::Pleach };
        options.peer_args_of(engine.name(), &[])?;
        let settings = Options::new(&options.folder).create(true).cache_mib(options.cache_mib);
        let settings = settings.threads(options.threads).durability(Durability::None);
        let db = Pleach::open(settings).map_err(wrap)?;
        let namespace = if is_plain { PLAIN } else { 0 };
        if is_plain && db.roots().digest(PLAIN).is_none() {
            db.add_plain_namespace(PLAIN).map_err(wrap)?;
        }
        let writer = Mutex::new([Phase::new(), Phase::new()]);
        Ok(Self { db, namespace, current: Mutex::new(None), writer })
    }

    fn session(&self) -> Result<Session> {
        self.db.session(SessionOptions::new().witness(false)).map_err(wrap)
    }

    /// Does something with the namespace in the newest state.
    fn now<T>(&self, work: impl FnOnce(&Namespace<'_>) -> Result<T>) -> Result<T> {
        let mut current = lock(&self.current);
        let session = match current.take() {
            Some(session) => session,
            None => self.session()?,
        };
        work(&current.insert(session).namespace(self.namespace).map_err(wrap)?)
    }
}

fn get(namespace: &Namespace<'_>, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let found = namespace.read(&padded(key)?).map_err(wrap)?;
    value.extend_from_slice(found.as_deref().unwrap_or_default());
    Ok(found.is_some())
}

impl Store for PleachStore {
    fn settings(&self) -> Vec<(String, String)> {
        let text = "sync when asked (Db::sync)".to_owned();
        let trie = if self.namespace == PLAIN { "none" } else { "always" };
        vec![("merkle trie".to_owned(), trie.to_owned()), ("durability".to_owned(), text)]
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.now(|namespace| get(namespace, key, value))
    }

    fn announce(&self, keys: &mut dyn Iterator<Item = &[u8]>) -> Result<bool> {
        let keys = keys.map(padded).collect::<Result<Vec<Key>>>()?;
        self.now(|namespace| {
            namespace.prefetch(&keys);
            Ok(true)
        })
    }

    fn write(&self, changes: &[Change<'_>], sync: bool) -> Result<()> {
        let access = |(key, value): &Change<'_>| {
            let write = Access::write(padded(key)?, value.map(Value::from));
            Ok(write.in_namespace(self.namespace))
        };
        let accesses = changes.iter().map(access).collect::<Result<_>>()?;
        let mut phases = lock(&self.writer);
        let session = lock(&self.current).take().map_or_else(|| self.session(), Ok)?;
        let from = Instant::now();
        let block = session.finish(accesses).map_err(wrap)?;
        let finished = Instant::now();
        block.commit().map_err(wrap)?;
        phases[0].record(finished - from);
        phases[1].record(finished.elapsed());
        // A read that came meanwhile has taken the state before.
        lock(&self.current).take();
        drop(phases);
        if sync { self.sync() } else { Ok(()) }
    }

    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        Ok(Some(Box::new(PleachView(self.session()?, self.namespace))))
    }

    fn sync(&self) -> Result<()> {
        self.db.sync().map_err(wrap)
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let mut wrong = None;
        let padded = pairs.map_while(|(key, value)| match padded(&key) {
            Ok(key) => Some((key, Value::from(value))),
            Err(error) => {
                wrong = Some(error);
                None
            }
        });
        let options = LoadOptions::new().namespace(self.namespace);
        let loaded = self.db.bulk_load(padded, &options).map(drop).map_err(wrap);
        wrong.map_or(loaded, Err)
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok((self.namespace == 0).then(|| self.db.root().to_bytes()))
    }

    fn parts_of_writes(&self) -> Vec<(&'static str, Quantiles)> {
        let mut phases = lock(&self.writer);
        let [finish, commit] = std::mem::replace(&mut *phases, [Phase::new(), Phase::new()]);
        vec![("a finish", finish.quantiles()), ("a commit", commit.quantiles())]
    }

    fn close(self: Box<Self>) -> Result<()> {
        lock(&self.current).take();
        self.db.close().map(drop).map_err(wrap)
    }
}

/// A session.
struct PleachView(Session, u8);

impl StoreView for PleachView {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(&self.0.namespace(self.1).map_err(wrap)?, key, value)
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let from = if from.is_empty() { [0; 32] } else { padded(from)? };
        for pair in self.0.namespace(self.1).map_err(wrap)?.iter(from..) {
            let (key, value) = pair.map_err(wrap)?;
            if !each(bare(&key)?, &value) {
                break;
            }
        }
        Ok(())
    }
}
