//! Namespaces come, are loaded and go.

use std::collections::BTreeMap;

use pleach::load::LoadOptions;
use pleach::{Error, Key, Value};

use crate::common::{Rng, bytes};
use crate::model::Judged;
use crate::place::Place;
use crate::plan::{NAMESPACES, is_plain};
use crate::world::World;

/// A namespace: mostly one of those that are there, or are not, as wanted.
fn namespace(rng: &mut Rng, wanted: impl Fn(u8) -> bool) -> u8 {
    let those: Vec<u8> = NAMESPACES.into_iter().filter(|number| wanted(*number)).collect();
    let any = those.is_empty() || rng.below(3) == 0;
    let from = if any { &NAMESPACES[..] } else { &those };
    from[rng.index(from.len())]
}

impl<H: Judged, P: Place> World<H, P> {
    pub fn add(&mut self, rng: &mut Rng) {
        let namespace = namespace(rng, |number| !self.tip().spaces.contains_key(&number));
        let db = self.db();
        let added = if is_plain(namespace) {
            db.add_plain_namespace(namespace)
        } else {
            db.add_namespace(namespace)
        };
        let mut after = self.tip().clone();
        match added {
            Ok(number) => {
                let before = after.spaces.insert(namespace, std::sync::Arc::default());
                assert!(before.is_none(), "namespace {namespace} was there");
                let again = u64::from(self.dropped.contains(&namespace));
                self.seen.count("namespaces added again", again);
                self.committed(number, after);
            }
            Err(Error::NamespaceExists(found)) => {
                assert!(found == namespace && after.spaces.contains_key(&namespace));
            }
            Err(Error::NamespaceInUse { namespace: found, dropped }) => {
                assert!(found == namespace && self.dropped.contains(&namespace));
                assert!(dropped <= self.number());
                self.seen.count("namespaces in use", 1);
            }
            Err(error) => panic!("an add: {error}"),
        }
    }

    pub fn drop_namespace(&mut self, rng: &mut Rng) {
        let is_there = |number| number > 0 && self.tip().spaces.contains_key(&number);
        let namespace = namespace(rng, is_there);
        let mut after = self.tip().clone();
        match self.db().drop_namespace(namespace) {
            Ok(number) => {
                assert!(namespace > 0 && after.spaces.remove(&namespace).is_some());
                self.dropped.insert(namespace);
                self.committed(number, after);
            }
            Err(Error::NamespaceExists(0)) => assert_eq!(namespace, 0),
            Err(Error::Namespace(found)) => {
                assert!(found == namespace && !after.spaces.contains_key(&namespace));
            }
            Err(error) => panic!("a drop: {error}"),
        }
    }

    pub fn load(&mut self, rng: &mut Rng, size: u64, alone: bool) {
        if alone {
            self.let_all_go();
        }
        let is_new =
            |number| self.tip().spaces.contains_key(&number) && !self.written.contains(&number);
        let (namespace, ids) = (namespace(rng, is_new), self.setup.ids);
        let (first, large) = (rng.below(ids), rng.below(3) == 0);
        let ids = (0..=size.min(ids - 1)).map(|id| (first + id) % ids);
        let pair = |id| {
            let value = if large { bytes(rng, 1000) } else { self.value(rng) };
            (self.setup.key(id), value)
        };
        let pairs: Vec<(Key, Value)> = ids.map(pair).collect();
        let sorted: BTreeMap<Key, Value> = pairs.iter().cloned().collect();
        let options = LoadOptions::new().memory_mib(1).namespace(namespace);
        let loaded = if rng.below(2) == 0 {
            self.db().bulk_load(pairs, &options)
        } else {
            self.db().bulk_load(sorted.clone(), &options)
        };
        match loaded {
            Ok(report) => {
                let after = self.tip().loaded::<H>(namespace, &sorted);
                assert_eq!(report.root, after.spaces[&namespace].root, "a load's root");
                assert_eq!(report.accounts, sorted.len() as u64);
                self.seen.count("loads", 1);
                self.seen.count("loads that spilled", u64::from(report.spilled_bytes > 0));
                self.written.insert(namespace);
                // The history begins here.
                self.from = self.number() + 1;
                self.committed(self.from, after);
                self.is_durable(self.from);
            }
            Err(Error::Namespace(found)) => {
                assert!(found == namespace && !self.tip().spaces.contains_key(&namespace));
            }
            // Deleted keys may have pages still, or be buffered.
            Err(Error::NotEmpty(_)) => assert!(self.written.contains(&namespace)),
            Err(Error::InUse(_)) => {
                let is_held = self.sessions.is_empty() && self.overlays.is_empty();
                assert!(!is_held || !self.resting.is_empty(), "nothing is open");
            }
            Err(error) => panic!("a load: {error}"),
        }
    }
}
