//! A fetch from several servers: for each question that one may have at a time a thread with a connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::client::{Peer, Url};
use crate::error::{Error, Refusal, Result};
use crate::fetch::{Fetch, Progress};
use crate::frames::Target;
use crate::limits::Limits;
use crate::wire::{Ask, Place};

/// How often servers are asked where the target lies in their history.
const PLACES: Duration = Duration::from_secs(5);
/// How long a thread without a question waits, if nobody wakes it.
const WAIT: Duration = Duration::from_millis(100);

/// Why a fetch from servers has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// All is there, and can be loaded.
    Done,
    /// All servers say that they do not have the state.
    Gone,
    /// All servers have lied, or nothing right has come for the time that [`HttpFetch::run`] was given.
    Silent,
    /// [`HttpFetch::stop`] was called.
    Stopped,
}

/// How far a fetch from servers is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// How far the fetch is.
    pub progress: Progress,
    /// What each server said last, in their order; `None` after a right answer.
    pub failures: Vec<Option<Refusal>>,
    /// When the last server forgets the target, by how its history has moved; `None` where it has not, or nobody says.
    pub leaves_in: Option<Duration>,
}

/// A fetch from several servers over HTTP. Calls block, and may not come from a task of tokio.
#[derive(Debug)]
pub struct HttpFetch {
    urls: Vec<Url>,
    limits: Limits,
    root: pleach::Node,
    since: Instant,
    state: Mutex<FetchState>,
    /// Something came, or all is over.
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Debug)]
struct FetchState {
    fetch: Fetch,
    servers: Vec<KnownServer>,
    /// When something right has come last.
    well: Instant,
    error: Option<Error>,
}

#[derive(Clone, Debug)]
struct KnownServer {
    failure: Option<Refusal>,
    /// The first and the last place of the target.
    places: Option<[(Instant, Place); 2]>,
}

impl KnownServer {
    fn leaves_in(&self) -> Option<Duration> {
        let [(before, first), (now, last)] = self.places?;
        let moved = last.oldest.checked_sub(first.oldest).filter(|moved| *moved > 0)?;
        let left = last.commit.saturating_sub(last.oldest);
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let seconds = (now - before).as_secs_f64() * left as f64 / moved as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl HttpFetch {
    /// A fetch that was opened with these limits and this target, and the servers that are asked. A server's number is its
    /// place among them.
    pub fn new(fetch: Fetch, target: &Target, limits: Limits, urls: Vec<Url>) -> Self {
        let silent = Some(Refusal::Failed("silence".to_owned()));
        let servers = vec![KnownServer { failure: silent, places: None }; urls.len()];
        let now = Instant::now();
        Self {
            urls,
            limits,
            root: target.root,
            since: now,
            state: Mutex::new(FetchState { fetch, servers, well: now, error: None }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        }
    }

    /// Asks all servers until the fetch ends. `patience` is for the time without any right answer.
    ///
    /// # Errors
    /// [`Error::Folder`], [`Error::System`]. What was kept stays.
    pub fn run(&self, patience: Duration) -> Result<Ended> {
        self.stop.store(false, Ordering::Relaxed);
        {
            let mut state = self.state.lock();
            state.well = Instant::now();
            for known in &mut state.servers {
                known.places = None;
            }
        }
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, url) in (0..).zip(&self.urls) {
                for _ in 0..self.limits.in_flight.max(1) {
                    threads.push(std::thread::Builder::new().spawn_scoped(scope, move || {
                        self.ask_one(number, url);
                    }));
                }
            }
            threads.push(std::thread::Builder::new().spawn_scoped(scope, || self.ask_places()));
            let refused = threads.into_iter().find_map(std::result::Result::err);
            if let Some(error) = refused {
                self.stop();
                return Err(Error::System(error));
            }
            let mut state = self.state.lock();
            let ended = loop {
                let progress = state.fetch.progress();
                if progress.done {
                    break Ended::Done;
                } else if progress.gone {
                    break Ended::Gone;
                } else if progress.lies.len() >= self.urls.len() || state.well.elapsed() > patience
                {
                    break Ended::Silent;
                } else if self.stop.load(Ordering::Relaxed) {
                    break Ended::Stopped;
                }
                self.changed.wait_for(&mut state, WAIT);
            };
            let error = state.error.take();
            drop(state);
            self.stop();
            error.map_or(Ok(ended), Err)
        })
    }

    /// Ends [`Self::run`], from another thread. Answers that are on their way are lost.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// How far it is.
    pub fn status(&self) -> Status {
        let state = self.state.lock();
        Status {
            progress: state.fetch.progress(),
            failures: state.servers.iter().map(|known| known.failure.clone()).collect(),
            leaves_in: state.servers.iter().filter_map(KnownServer::leaves_in).max(),
        }
    }

    /// The fetch, to be loaded.
    pub fn into_fetch(self) -> Fetch {
        self.state.into_inner().fetch
    }

    /// Keeps the first error, which ends all threads.
    fn fail(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
        self.stop();
    }

    fn ask_one(&self, number: u32, url: &Url) {
        let mut peer = match Peer::new(url.clone()) {
            Ok(peer) => peer,
            Err(error) => return self.fail(error),
        };
        while !self.stop.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            let Some((ticket, ask)) = state.fetch.ask(number, self.since.elapsed()) else {
                self.changed.wait_for(&mut state, WAIT);
                continue;
            };
            drop(state);
            let answer =
                peer.ask_unless(&self.stop, &ask, self.limits.most_bytes(), self.limits.patience);
            let judged = answer.as_ref().ok().map(|answer| ticket.judge(answer));
            if answer.is_err() && self.stop.load(Ordering::Relaxed) {
                return;
            }
            let mut state = self.state.lock();
            let now = self.since.elapsed();
            let taken = match (judged, &answer) {
                (Some(judged), _) => state.fetch.take_judged(judged, now).map(drop),
                (None, Err(refusal)) => {
                    state.fetch.take(ticket, Err(refusal.clone()), now).map(drop)
                }
                (None, Ok(_)) => Ok(()),
            };
            let failure = answer.err();
            if failure.is_none() {
                state.well = Instant::now();
            }
            state.servers[number as usize].failure = failure;
            drop(state);
            if let Err(error) = taken {
                return self.fail(error);
            }
            self.changed.notify_all();
        }
    }

    /// Where the target lies in the histories, for the status alone: what servers say of it is not proven.
    fn ask_places(&self) {
        let mut peers: Vec<Option<Peer>> =
            self.urls.iter().map(|url| Peer::new(url.clone()).ok()).collect();
        while !self.stop.load(Ordering::Relaxed) {
            for (number, peer) in peers.iter_mut().enumerate() {
                let ask = Ask::Place(self.root);
                let asked = peer.as_mut().and_then(|peer| {
                    peer.ask_unless(&self.stop, &ask, Place::BYTES, Duration::from_secs(1)).ok()
                });
                let Some(place) = asked.and_then(|answer| Place::decode(&answer)) else { continue };
                let known = &mut self.state.lock().servers[number];
                let here = (Instant::now(), place);
                known.places = Some([known.places.map_or(here, |[first, _]| first), here]);
            }
            let mut state = self.state.lock();
            let until = Instant::now() + PLACES;
            while !self.stop.load(Ordering::Relaxed) && Instant::now() < until {
                self.changed.wait_until(&mut state, until);
            }
        }
    }
}
