//! Batches: how they are drawn, and what a block of one has to be.

use std::collections::BTreeSet;

use pleach::{Access, AccessKind, Block, Error, Key, Session, Value};

use crate::common::{Rng, bytes};
use crate::model::{Judged, State, is_write, of};
use crate::place::Place;
use crate::plan::{NAMESPACES, Shape, Then, is_plain};
use crate::world::{KEPT, Kept, Known, World};

/// How a batch is drawn, and what becomes of it.
#[derive(Clone, Copy)]
pub struct Batch {
    pub shape: Shape,
    pub size: u64,
    pub then: Then,
    pub witness: bool,
}

impl<H: Judged, P: Place> World<H, P> {
    pub fn value(&self, rng: &mut Rng) -> Value {
        let len = match rng.below(24) {
            0 => 0,
            1..=4 => 8,
            5 => 22,
            6 => 23,
            7..=9 => rng.index(130),
            10 => 1000,
            11 => 1023 + rng.index(3),
            12 => 3000 + rng.index(2000),
            13 if rng.below(4) == 0 => 70_000,
            _ => self.setup.typical,
        };
        bytes(rng, len.min(self.setup.longest))
    }

    pub fn accesses(
        &self,
        rng: &mut Rng,
        shape: Shape,
        size: u64,
        state: &State,
        namespace: u8,
    ) -> Vec<Access> {
        let space = &state.spaces[&namespace];
        let count = usize::try_from(size).expect("small");
        let ids = self.setup.ids;
        let first = rng.below(ids);
        let from = self.setup.key(first);
        match shape {
            Shape::Mixed => {
                let mut seen = BTreeSet::new();
                let ids = (0..size).map(|_| rng.below(ids)).filter(|id| seen.insert(*id));
                let ids: Vec<u64> = ids.collect();
                let one = |id| {
                    let key = self.setup.key(id);
                    match rng.below(8) {
                        0 => Access::read(key),
                        1 | 2 => write(rng, key, None),
                        _ => {
                            let value = self.value(rng);
                            write(rng, key, Some(value))
                        }
                    }
                };
                ids.into_iter().map(one).collect()
            }
            Shape::Fill => {
                let one = |id| {
                    let value = self.value(rng);
                    write(rng, self.setup.key((first + id) % ids), Some(value))
                };
                (0..size.min(ids)).map(one).collect()
            }
            Shape::Wipe => {
                let row = space.row(&from, count);
                row.into_iter().map(|key| write(rng, key, None)).collect()
            }
            Shape::WipeAll => {
                let few = rng.index(3).min(space.values.len());
                let row = space.row(&from, space.values.len() - few);
                row.into_iter().map(|key| write(rng, key, None)).collect()
            }
            Shape::Thin => {
                let (every, at) = (2 + rng.index(10), rng.index(2));
                let keys = space.values.keys().enumerate();
                let keys = keys.filter(|(index, _)| index % every != at).map(|(_, key)| *key);
                keys.map(|key| write(rng, key, None)).collect()
            }
            Shape::Prefixes => {
                let mut accesses = self.accesses(rng, Shape::Mixed, size, state, namespace);
                for _ in 0..=rng.below(3) {
                    let bytes = [1, 2, 8, 9, 30, 31, 32, 32][rng.index(8)];
                    let key = self.setup.key(rng.below(ids));
                    accesses.push(Access::delete_prefix(&key[..bytes]));
                }
                accesses
            }
            Shape::Rewrite => {
                let one = |key| {
                    let old = space.get(&key).filter(|_| rng.below(2) == 0).cloned();
                    let value = old.unwrap_or_else(|| self.value(rng));
                    write(rng, key, Some(value))
                };
                space.row(&from, count).into_iter().map(one).collect()
            }
        }
    }

    /// Accesses to some namespaces, in no order: most of them in one.
    pub fn accesses_of_all(
        &self,
        rng: &mut Rng,
        shape: Shape,
        size: u64,
        state: &State,
    ) -> Vec<Access> {
        let others: Vec<u8> = state.spaces.keys().copied().skip(1).collect();
        // Mostly in the first namespace, so that something adds up there.
        let most =
            if others.is_empty() || rng.below(3) > 0 { 0 } else { others[rng.index(others.len())] };
        let mut accesses = Vec::new();
        for namespace in state.spaces.keys().copied() {
            let own = if namespace == most {
                self.accesses(rng, shape, size, state, namespace)
            } else if rng.below(4) == 0 {
                self.accesses(rng, Shape::Mixed, size.min(5), state, namespace)
            } else {
                continue;
            };
            accesses.extend(own.into_iter().map(|access| access.in_namespace(namespace)));
        }
        for at in (1..accesses.len()).rev() {
            accesses.swap(at, rng.index(at + 1));
        }
        accesses
    }

    /// A block on a state that may not be the newest any more, or be it again.
    pub fn batch_behind(&mut self, rng: &mut Rng, size: u64, held: bool) {
        let kept = if held && !self.sessions.is_empty() {
            self.sessions.swap_remove(rng.index(self.sessions.len()))
        } else {
            self.past(rng)
        };
        let then = [Then::Commit, Then::Commit, Then::Overlay, Then::Drop][rng.index(4)];
        let batch = Batch { shape: Shape::Mixed, size, then, witness: true };
        self.batch(rng, kept, batch);
    }

    pub fn batch(&mut self, rng: &mut Rng, on: Kept, batch: Batch) {
        let Batch { shape, size, then, witness } = batch;
        let Kept { session, state: before, over: parent } = on;
        let base = session.commit_number();
        let may_end = self.may_end(base);
        let accesses = self.accesses_of_all(rng, shape, size, &before);
        if rng.below(3) == 0 {
            for access in &accesses {
                let namespace = self.or_too_old(base, session.namespace(access.namespace));
                namespace.inspect(|namespace| namespace.prefetch(&[access.key]));
            }
        }
        self.logged += accesses.iter().map(bytes_of).sum::<usize>();
        let session = if may_end { session } else { refused(session, rng, &before, &accesses) };
        let meant = before.meant(&accesses);
        self.written.extend(meant.iter().map(|access| access.namespace));
        let mut after = before.after::<H>(&meant);
        let finished = session.finish(accesses).map_err(pleach::FinishError::into_error);
        let Some(mut block) = self.or_too_old(base, finished) else { return };
        check_block::<H>(&mut block, (&before, &after), &meant, witness, (rng, may_end));
        if rng.below(3) == 0 {
            let blob = bytes(rng, 5).to_vec();
            block.set_blob(blob.clone()).expect("short");
            after.blob = blob.into();
        }
        match then {
            Then::Commit => {
                let untaken = self.untaken(parent);
                let committed = block.commit().map_err(pleach::CommitError::into_error);
                self.committed_if_fits(committed, (base, &untaken), &before, after);
            }
            Then::Overlay | Then::CommitOverlay => {
                let overlay = block.into_overlay();
                after.assert_roots(overlay.roots(), "an overlay");
                before.assert_roots(overlay.prev_roots(), "what an overlay was made on");
                assert_eq!(overlay.changes().count(), overlay.change_count());
                let below = overlay.parent().map(|below| below.roots().clone());
                assert_eq!(below.is_some(), parent.is_some(), "an overlay's parent");
                below.inspect(|below| before.assert_roots(below, "an overlay's parent"));
                self.overlays.push((overlay, self.known.len()));
                self.known.push(Known { parent, before, after, taken: None });
                if let Then::CommitOverlay = then {
                    self.commit_overlay(self.overlays.len() - 1);
                }
                if self.overlays.len() > KEPT {
                    self.overlays.remove(rng.index(KEPT));
                }
                self.let_go();
            }
            Then::Drop => drop(block),
        }
    }
}

fn write(rng: &mut Rng, key: Key, value: Option<Value>) -> Access {
    if rng.below(3) == 0 { Access::write(key, value) } else { Access::read_write(key, value) }
}

fn bytes_of(access: &Access) -> usize {
    match &access.kind {
        AccessKind::Write(Some(value)) | AccessKind::ReadWrite(Some(value)) => 64 + value.len(),
        _ => 64,
    }
}

/// An access in a namespace that is not there gives everything back.
fn refused(session: Session, rng: &mut Rng, before: &State, accesses: &[Access]) -> Session {
    let missing = NAMESPACES[rng.index(NAMESPACES.len())];
    if before.spaces.contains_key(&missing) || rng.below(4) > 0 {
        return session;
    }
    let mut more = accesses.to_vec();
    more.insert(rng.index(more.len() + 1), Access::read([7; 32]).in_namespace(missing));
    let Err(error) = session.finish(more.clone()) else { panic!("there is no such namespace") };
    assert!(matches!(error.error(), Error::Namespace(found) if *found == missing));
    let (session, back, _) = error.into_parts();
    assert!(back == more, "other accesses came back");
    session
}

fn check_block<H: Judged>(
    block: &mut Block,
    (before, after): (&State, &State),
    accesses: &[Access],
    witness: bool,
    (rng, may_end): (&mut Rng, bool),
) {
    before.assert_roots(block.prev_roots(), "the state before a block");
    after.assert_roots(block.roots(), "a block");
    let first = if rng.below(2) == 0 { block.take_witness() } else { None };
    let mut witnesses = block.take_witnesses();
    if let Some(first) = first {
        witnesses.insert(0, (0, first));
    }
    assert!(block.take_witness().is_none() && block.take_witnesses().is_empty());
    let mut expected: BTreeSet<u8> = accesses.iter().map(|one| one.namespace).collect();
    if expected.is_empty() {
        expected.insert(0);
    }
    expected.retain(|namespace| witness && !is_plain(*namespace));
    for (namespace, witness) in &witnesses {
        before.assert_witness::<H>(after, *namespace, &of(accesses, *namespace), witness);
    }
    assert!(witnesses.iter().map(|one| one.0).eq(expected), "witnesses of other namespaces");
    let writes = accesses.iter().filter(|access| is_write(access)).count();
    assert_eq!((block.change_count(), block.changes().count()), (writes, writes));
    let at = |change: &pleach::Change<'_>| (change.namespace(), *change.key());
    assert!(block.changes().map(|one| at(&one)).is_sorted_by(|a, b| a < b));
    let every = 1 + writes / 40;
    for change in block.changes().step_by(every) {
        let (namespace, key) = at(&change);
        let value = |state: &State| state.spaces[&namespace].get(&key).cloned();
        match change.prior() {
            Err(Error::SnapshotTooOld { .. }) if may_end => {}
            prior => assert!(prior.expect("read") == value(before), "{namespace} {key:02x?}"),
        }
        assert!(change.value().expect("read") == value(after), "{namespace} {key:02x?}: after");
    }
}
