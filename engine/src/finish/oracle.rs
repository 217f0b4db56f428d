//! The oracle of debug builds: each page that was folded as a treelet, or in parts, is folded in the general way,
//! too.

use pleach_beatree::leaf_fold::{PageState, fold_leaf};

use super::captured::BY_KEY;
use super::chunk::{Batch, Chunk};
use super::emit::Emit;
use super::scratch::{FoldSpace, OracleSpace, PageFold};

impl Chunk {
    /// Folds what was folded as treelets or in parts in the general way, from page and pending changes alone: the same
    /// comes of it.
    pub(super) fn check_folds(&self, batch: &Batch<'_>, space: &mut FoldSpace) {
        let FoldSpace { treelets, cuts, joins, folds, oracle, .. } = space;
        let OracleSpace { folder, results, terminals, siblings } = oracle;
        for (page, fold) in self.pages.iter().zip(folds) {
            let node = match *fold {
                PageFold::Treelet { number, .. } => *treelets.node(number),
                PageFold::Cut { number, .. } => joins.node(cuts[number].joined()),
                PageFold::Known | PageFold::Whole(_) => continue,
            };
            let leaf = page.page.as_ref().map(|page| page.view());
            let pending = &self.pending[page.pending.clone()];
            let (at, accesses) = (&page.prefix, &batch.accesses[page.accesses.clone()]);
            let state = PageState { at, leaf: leaf.as_ref(), pending, treelet: None };
            folder.clear();
            folder.begin(at.len());
            results.clear();
            fold_leaf(folder, &state, 0, accesses, results);
            let whole = folder.end().expect(BY_KEY);
            folder.run();
            assert_eq!(node, folder.node(whole), "{at:?}: its node");
            if let PageFold::Treelet { number, .. } = *fold {
                terminals.clear();
                siblings.clear();
                let mut emit = Emit::new(terminals, siblings, &[], &[], &[]);
                folder.emit(whole, &mut emit);
                let (own, part) = (emit.done(), treelets.proof_part(number));
                let proof = treelets.proof();
                assert_eq!(own.count(), part.count, "{at:?}: terminals");
                assert_eq!(**terminals, proof.terminals[part.terminals], "{at:?}: terminals");
                assert_eq!(**siblings, proof.siblings[part.siblings], "{at:?}: siblings");
                let firsts = treelets.first_of_terminal(number).iter().copied();
                assert!(firsts.eq(folder.first_of_terminal(whole)), "{at:?}: first operations");
            }
        }
    }
}
