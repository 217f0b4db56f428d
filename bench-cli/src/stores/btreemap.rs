//! A sorted map in memory behind a lock: the oracle, and what an engine costs more than that.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::engine::{Engine, StoreOptions};
use super::store::{Change, Pair, Store, StoreView};
use crate::error::{BenchError, Result};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// All pairs, in memory alone: nothing is ever durable.
#[derive(Debug, Default)]
pub(super) struct MapStore(RwLock<Arc<Map>>);

impl MapStore {
    pub(super) fn open(options: &StoreOptions) -> Result<Self> {
        options.peer_args_of(Engine::BTreeMap.name(), &[])?;
        Ok(Self::default())
    }

    // A panic of another thread ends the run; what is here is whole all the same.
    fn read(&self) -> RwLockReadGuard<'_, Arc<Map>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Arc<Map>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MapStore {
    fn settings(&self) -> Vec<(String, String)> {
        vec![("durability".to_owned(), "none: in memory".to_owned())]
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let map = self.read();
        let found = map.get(key);
        value.extend_from_slice(found.map_or(&[], Vec::as_slice));
        Ok(found.is_some())
    }

    fn write(&self, changes: &[Change<'_>], _sync: bool) -> Result<()> {
        let mut shared = self.write();
        let map = Arc::make_mut(&mut shared);
        for (key, value) in changes {
            match value {
                // A key that is there keeps its allocations.
                Some(value) => match map.get_mut(*key) {
                    Some(old) => {
                        old.clear();
                        old.extend_from_slice(value);
                    }
                    None => {
                        map.insert(key.to_vec(), value.to_vec());
                    }
                },
                None => {
                    map.remove(*key);
                }
            }
        }
        Ok(())
    }

    /// The first write beside it copies everything.
    fn view(&self) -> Result<Option<Box<dyn StoreView + '_>>> {
        Ok(Some(Box::new(MapView(Arc::clone(&self.read())))))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn load(&self, pairs: &mut dyn Iterator<Item = Pair>) -> Result<()> {
        let mut shared = self.write();
        let map = Arc::make_mut(&mut shared);
        if !map.is_empty() {
            return Err(BenchError::backend("btreemap")("a load is for an empty store"));
        }
        map.extend(pairs);
        Ok(())
    }

    fn root(&self) -> Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct MapView(Arc<Map>);

impl StoreView for MapView {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.0.get(key);
        value.extend_from_slice(found.map_or(&[], Vec::as_slice));
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for (key, value) in self.0.range(from.to_vec()..) {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }
}
