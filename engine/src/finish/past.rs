//! What folds of older states find out of the insides of pages, for later ones.

use pleach_core::Hasher;

use super::chunk::{Batch, Chunk};
use super::scratch::{FoldSpace, PageFold};

impl Chunk {
    /// Keeps the nodes inside of pages in an older state that nobody knew before.
    pub(super) fn learn_of_the_past<H: Hasher>(&self, batch: &Batch<'_>, space: &FoldSpace<H>) {
        let (mut learned, mut nodes) = (Vec::new(), Vec::new());
        for region in self.regions.iter().filter(|region| !region.newest) {
            for at in region.pages.clone() {
                let page = &self.pages[at];
                let (Some((_, then)), PageFold::Treelet { number, .. }) =
                    (page.then, space.folds[at])
                else {
                    continue;
                };
                let unknown = self.older.page(then).0.unknown();
                let accesses = &batch.accesses[page.accesses.clone()];
                if unknown == 0 || accesses.iter().any(|access| access.writes.is_some()) {
                    continue;
                }
                let from = nodes.len();
                space.treelets.learned(number, |at, node| {
                    if unknown >> at & 1 == 1 {
                        nodes.push((at, *node));
                    }
                });
                if from < nodes.len() {
                    learned.push((&page.prefix, region.last_commit, from..nodes.len()));
                }
            }
        }
        if !learned.is_empty() {
            let learned = learned.into_iter();
            batch.view.learn(learned.map(|(prefix, last, own)| (prefix, last, &nodes[own])));
        }
    }
}
