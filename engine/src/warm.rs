//! Looking up many keys: the memory that one lookup waits for is asked for while others go on.
//!
//! A lookup reads cold memory five times in a row: region, cuts, the cache's table, its entry, the
//! page. One after the other that takes longer than all else. Here each step is taken for a whole
//! group before the next one, so that the waits of a group overlap. Nothing is taken from these
//! looks: whoever comes after them looks again, and finds its memory near.

use pleach_beatree::cache::Step;
use pleach_core::{Hasher, Key};
use pleach_io::{Device, Runtime};

use crate::shared::Shared;

/// Keys that are looked up together.
pub(crate) const GROUP: usize = 32;

/// How far a lookup goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To the place of its page, and whether that is cached.
    Place,
    /// To its cell in a cached page.
    Cell,
    /// To what a fold of its page reads of its region, and no further.
    Region,
    /// To all that a fold of its page and its region reads.
    Fold,
}

impl<H: Hasher, D: Device, R: Runtime> Shared<H, D, R> {
    /// Asks for the memory that lookups of up to [`GROUP`] keys read. The caller holds a grace guard.
    pub(crate) fn warm<'a>(&self, keys: impl Iterator<Item = &'a Key> + Clone, reach: Reach) {
        let top = self.top.load();
        for key in keys.clone() {
            top.region(key).prefetch();
        }
        for key in keys.clone() {
            top.region(key).read().prefetch(key);
        }
        let mut places = [None; GROUP];
        for (key, place) in keys.clone().zip(&mut places) {
            let state = top.region(key).read();
            *place = state.children().place(state.children().find(key));
            if matches!(reach, Reach::Fold | Reach::Region) {
                state.prefetch_fold(key);
            }
            if let Some(place) = place.filter(|_| reach != Reach::Region) {
                self.cache.ask_ahead(place, Step::Table);
            }
        }
        if matches!(reach, Reach::Place | Reach::Region) {
            return;
        }
        for place in places.into_iter().flatten() {
            self.cache.ask_ahead(place, Step::Entry);
        }
        for (key, place) in keys.zip(places) {
            if let Some(place) = place {
                self.cache.ask_ahead(place, Step::Page(key));
            }
        }
    }
}
