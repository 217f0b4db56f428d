//! This project's engine. Blocks that are finished and not committed are overlays, the newest excepted.

use std::borrow::Cow;
use std::collections::VecDeque;

use pleach::{
    Access, Block, Durability, Key, LoadOptions, Options, Overlay, Pleach, Session, SessionOptions,
    Value,
};

use super::tree::{Change, Finished, Pair, See, Tree};
use super::witness::Root;
use crate::error::{BenchError, Result};
use crate::stores::StoreOptions;

fn wrap<E: std::fmt::Display>(error: E) -> BenchError {
    BenchError::backend("pleach")(error)
}

pub(super) struct PleachTree {
    db: Pleach,
    begun: Option<Session>,
    /// The newest block.
    made: Option<Block>,
    /// Those before it, the oldest first.
    overlays: VecDeque<Overlay>,
    durable: bool,
}

impl PleachTree {
    pub(super) fn open(options: &StoreOptions) -> Result<Self> {
        options.peer_args_of("pleach", &[])?;
        let settings = Options::new(&options.folder).create(true).cache_mib(options.cache_mib);
        let durability = if options.durable { Durability::Commit } else { Durability::None };
        let settings = settings.threads(options.threads).durability(durability);
        let db = Pleach::open(settings).map_err(wrap)?;
        Ok(Self {
            db,
            begun: None,
            made: None,
            overlays: VecDeque::new(),
            durable: options.durable,
        })
    }

    fn session(&mut self) -> Result<Session> {
        if let Some(block) = self.made.take() {
            self.overlays.push_back(block.into_overlay());
        }
        let options = SessionOptions::new().witness(false);
        let options = match self.overlays.back() {
            Some(newest) => options.over(newest),
            None => options,
        };
        self.db.session(options).map_err(wrap)
    }

    /// Reads with the session that was begun, or a new one.
    fn reading<T>(&mut self, read: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
        match &self.begun {
            Some(session) => read(session),
            None => read(&self.session()?),
        }
    }
}

fn visit(session: &Session, keys: &[Key], see: &mut See<'_>) -> Result<()> {
    for key in keys {
        see(session.read(key).map_err(wrap)?.as_deref().map(Cow::Borrowed));
    }
    Ok(())
}

impl Tree for PleachTree {
    fn settings(&self) -> Vec<(String, String)> {
        let durability = if self.durable { "each commit" } else { "none" };
        vec![("durability".to_owned(), durability.to_owned())]
    }

    fn root(&self) -> Option<Root> {
        let newest = self.made.as_ref().map(Block::root);
        let newest = newest.or_else(|| self.overlays.back().map(Overlay::root));
        Some(newest.unwrap_or_else(|| self.db.root()).to_bytes())
    }

    fn begin(&mut self) -> Result<()> {
        self.begun = Some(self.session()?);
        Ok(())
    }

    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()> {
        self.reading(|session| visit(session, keys, see))
    }

    fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        let mut see = |value: Option<Cow<'_, [u8]>>| values.push(value.map(Cow::into_owned));
        self.reading(|session| {
            session.prefetch(keys);
            visit(session, keys, &mut see)
        })?;
        Ok(values)
    }

    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished> {
        let session = match self.begun.take() {
            Some(session) => session,
            None => self.session()?,
        };
        let access = |(key, value): Change| Access::write(key, value.map(Value::from));
        let block = session.finish(changes.into_iter().map(access).collect()).map_err(wrap)?;
        let root = Some(block.root().to_bytes());
        self.made = Some(block);
        Ok(Finished { root, witness: None })
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(oldest) = self.overlays.pop_front() {
            return oldest.commit().map(|_| ()).map_err(wrap);
        }
        self.made.take().map_or(Ok(()), |block| block.commit().map(|_| ()).map_err(wrap))
    }

    fn discard(&mut self) -> Result<()> {
        self.begun = None;
        self.made = None;
        self.overlays.clear();
        Ok(())
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let pairs = pairs.map(|(key, value)| (key, Value::from(value)));
        self.db.bulk_load(pairs, &LoadOptions::new()).map(|_| ()).map_err(wrap)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.discard()?;
        self.db.close().map(drop).map_err(wrap)
    }
}
