//! A plain store as a state without a root: the flat part only. A finished block is kept as it is, and written
//! in one batch by its commit.

use std::borrow::Cow;

use pleach_core::Key;

use super::tree::{Change, Finished, Pair, See, Tree};
use super::witness::Root;
use crate::error::{BenchError, Result};
use crate::stores::Store;

pub(super) struct FlatTree {
    store: Box<dyn Store>,
    made: Option<Vec<Change>>,
    durable: bool,
}

impl FlatTree {
    pub(super) fn new(store: Box<dyn Store>, durable: bool) -> Self {
        Self { store, made: None, durable }
    }
}

impl Tree for FlatTree {
    fn settings(&self) -> Vec<(String, String)> {
        let mut settings = self.store.settings();
        settings.push(("merkle trie".to_owned(), "none: the flat part only".to_owned()));
        settings
    }

    fn root(&self) -> Option<Root> {
        None
    }

    fn begin(&mut self) -> Result<()> {
        match self.made {
            None => Ok(()),
            Some(_) => Err(BenchError::Usage("a plain store has no blocks in memory".to_owned())),
        }
    }

    fn visit(&mut self, keys: &[Key], see: &mut See<'_>) -> Result<()> {
        let mut value = Vec::new();
        for key in keys {
            let found = self.store.get(key, &mut value)?;
            see(found.then_some(Cow::Borrowed(value.as_slice())));
        }
        Ok(())
    }

    fn finish(&mut self, changes: Vec<Change>) -> Result<Finished> {
        self.made = Some(changes);
        Ok(Finished::default())
    }

    fn commit(&mut self) -> Result<()> {
        let Some(changes) = self.made.take() else { return Ok(()) };
        let changes: Vec<(&[u8], Option<&[u8]>)> =
            changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
        self.store.write(&changes, self.durable)
    }

    fn discard(&mut self) -> Result<()> {
        self.made = None;
        Ok(())
    }

    fn load(&mut self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        // Stores are loaded in the order of keys.
        let mut sorted: Vec<(Vec<u8>, Vec<u8>)> =
            pairs.map(|(key, value)| (key.to_vec(), value)).collect();
        sorted.sort_unstable();
        self.store.load(&mut sorted.into_iter())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.store.close()
    }
}
