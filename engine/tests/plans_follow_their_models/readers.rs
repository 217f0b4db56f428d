//! Opens for reading alone, beside the one that writes: what each of their sessions reads is its commit's state, or the
//! session is told that this is too old.

use pleach::{Db, Error, Session, SessionOptions};

use crate::common::Rng;
use crate::model::{Judged, State, of};
use crate::place::Place;
use crate::plan::{Reader, Shape};
use crate::world::World;

/// Opens, and sessions of theirs, that are kept at a time.
const READERS: usize = 3;
const SESSIONS: usize = 4;

/// Steps of the background in which a checkpoint ends that is in the making.
const STEPS: usize = 10_000;

/// Segments of the log that are kept for readers at least, half of those that may be.
const SEGMENTS: u64 = 64;

/// Opens that read, and their sessions.
#[derive(Default)]
pub struct Readers {
    open: Vec<(Db, Since)>,
    sessions: Vec<Read>,
}

/// What decides how long a reader can follow.
#[derive(Clone, Copy)]
struct Since {
    /// The length of its history, and whether it keeps less where memory has not all undo.
    history: u64,
    limited: bool,
    /// Bytes of the log at its last refresh.
    log_bytes: u64,
    /// Checkpoints before its open, where it may have left regions in the newest image.
    images: Option<u64>,
}

struct Read {
    session: Session,
    state: State,
    since: Since,
}

impl<H: Judged, P: Place> World<H, P> {
    pub fn read_only(&mut self, what: Reader, seed: u64, rng: &mut Rng) {
        let count = self.readers.open.len();
        match what {
            Reader::Open if count < READERS => {
                let images = (!self.place.loads_reader(seed)).then(|| self.images());
                let reader = self.place.open_reader(&self.opening, seed);
                let reader = reader.expect("opens beside the one that writes");
                let (history, limited) = (self.opening.history, self.opening.limited);
                let since = Since { history, limited, log_bytes: self.log_bytes(), images };
                self.readers.open.push((reader, since));
            }
            Reader::Close if count > 0 => {
                let (reader, _) = self.readers.open.swap_remove(rng.index(count));
                // Its sessions go on where it is dropped.
                if rng.below(2) == 0 {
                    reader.close().expect("there is nothing to be written");
                    self.readers.sessions.clear();
                }
            }
            Reader::Refresh if count > 0 => self.refresh(rng.index(count)),
            Reader::Past if count > 0 => self.past_of_reader(rng.index(count), rng),
            Reader::Finish if count > 0 => self.finish_on_reader(rng.index(count), rng),
            _ => {}
        }
        if self.readers.sessions.len() > SESSIONS {
            self.readers.sessions.remove(0);
        }
    }

    fn refresh(&mut self, at: usize) {
        let log_bytes = self.log_bytes();
        let (reader, since) = &mut self.readers.open[at];
        let before = reader.commit_number();
        let number = reader.refresh().expect("goes on");
        since.log_bytes = log_bytes;
        let (session, since) = (reader.snapshot().expect("a snapshot"), *since);
        assert!(number >= before && number == self.number(), "a reader came to {number}");
        let state = self.at(number).clone();
        self.readers.sessions.push(Read { session, state, since });
    }

    fn past_of_reader(&mut self, at: usize, rng: &mut Rng) {
        let (reader, since) = &self.readers.open[at];
        let commits = reader.history();
        let commit = commits.start() + rng.below(commits.end() - commits.start() + 1);
        let (session, since) = (reader.at(commit), *since);
        if let Some(session) = self.or_overtaken(commit, since, session) {
            let state = self.at(commit).clone();
            self.readers.sessions.push(Read { session, state, since });
        }
    }

    /// A block has the roots and the witness that it would have, and cannot be committed.
    fn finish_on_reader(&mut self, at: usize, rng: &mut Rng) {
        let (reader, since) = (&self.readers.open[at].0, self.readers.open[at].1);
        let session = reader.session(SessionOptions::new()).expect("a session");
        let commit = session.commit_number();
        let before = self.at(commit).clone();
        let mut accesses = Vec::new();
        for namespace in before.spaces.keys().copied() {
            let own = self.accesses(rng, Shape::Mixed, 8, &before, namespace);
            accesses.extend(own.into_iter().map(|access| access.in_namespace(namespace)));
        }
        let after = before.after::<H>(&accesses);
        let finished = session.finish(accesses.clone()).map_err(pleach::FinishError::into_error);
        let Some(mut block) = self.or_overtaken(commit, since, finished) else { return };
        after.assert_roots(block.roots(), "a reader's block");
        for (namespace, witness) in block.take_witnesses() {
            before.assert_witness::<H>(&after, namespace, &of(&accesses, namespace), &witness);
        }
        let refused = block.commit().expect_err("another open writes");
        assert!(matches!(refused.error(), Error::ReadOnly), "{refused}");
        self.seen.count("blocks of readers", 1);
    }

    /// What a reader has read of a commit. It may be too old from the oldest commit of the history on, and where the log
    /// does not reach back to the reader's last refresh any more, or the image that it has left regions in is overwritten.
    fn or_overtaken<T>(&self, commit: u64, since: Since, read: Result<T, Error>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(Error::SnapshotTooOld { commit: told, .. }) => {
                assert_eq!(told, commit);
                let is_beyond = commit <= self.from || commit + since.history <= self.number();
                let is_cut =
                    self.log_bytes() - since.log_bytes > SEGMENTS * self.setup.geometry.log_segment;
                let is_overwritten =
                    since.images.is_some_and(|before| self.comes_to_images(before + 2));
                assert!(
                    is_beyond || is_cut || is_overwritten || since.limited,
                    "commit {commit} of a history from {} is too old",
                    self.from
                );
                None
            }
            Err(error) => panic!("commit {commit} of a reader: {error}"),
        }
    }

    /// True when so many checkpoints are made, or one in the making brings it to that.
    fn comes_to_images(&self, count: u64) -> bool {
        (0..STEPS).any(|_| {
            let is_there = self.images() >= count;
            if !is_there {
                self.place.background(1);
            }
            is_there
        })
    }

    /// Some of the readers' sessions are read.
    pub fn look_at_readers(&mut self, rng: &mut Rng) {
        for at in 0..self.readers.sessions.len() {
            if rng.below(3) > 0 {
                continue;
            }
            let Read { session, state, since } = &self.readers.sessions[at];
            let compared = state.compare::<H>(session, &self.setup, rng, false);
            let found = self.or_overtaken(session.commit_number(), *since, compared);
            let what = match found {
                Some(()) => "states of readers",
                None => "states too old for readers",
            };
            self.seen.count(what, 1);
        }
    }

    pub fn end_readers(&mut self) {
        self.readers.sessions.clear();
        for (reader, _) in self.readers.open.drain(..) {
            assert!(reader.open_handles().is_empty(), "a reader has handles that are gone");
            reader.close().expect("there is nothing to be written");
        }
    }
}
