//! Databases, and a network of servers that are honest or not, in simulated time.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use pleach::{Access, Db, Key, Node, Options, Session, SessionOptions, Value};
use pleach_core::TERMINATOR;
use pleach_sync::{Ask, Error, Fetch, Judgement, Limits, PartAsk, Refusal, Server, Target};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

pub(crate) const LIMITS: Limits =
    Limits { answer: 64 << 10, in_flight: 2, patience: Duration::from_secs(5) };

pub(crate) fn options(folder: &Path) -> Options {
    Options::new(folder).create(true).small().cache_mib(8).history(200)
}

pub(crate) fn key(id: u64) -> Key {
    let mut key = [0; 32];
    ChaCha8Rng::seed_from_u64(id).fill_bytes(&mut key);
    key
}

pub(crate) fn put(namespace: u8, key: Key, value: Vec<u8>) -> Access {
    Access::write(key, Some(Value::from(value))).in_namespace(namespace)
}

pub(crate) fn commit(db: &Db, accesses: Vec<Access>) -> u64 {
    let session = db.session(SessionOptions::new().witness(false)).expect("a session");
    session.finish(accesses).expect("finished").commit().expect("committed")
}

/// Three namespaces: many pairs and long values; none; one pair. And a plain one and a blob, which are not served.
pub(crate) fn state(folder: &Path, pairs: u64) -> Db {
    let db = Db::open(options(folder)).expect("opened");
    db.add_namespace(3).expect("added");
    db.add_namespace(9).expect("added");
    db.add_plain_namespace(11).expect("added");
    let size = |id: u64| match id % 50 {
        0 => 3_000,
        1 if id == 51 => 200_000,
        _ => usize::try_from(id % 90).expect("small"),
    };
    let mut all: Vec<Access> = (0..pairs).map(|id| put(0, key(id), vec![7; size(id)])).collect();
    all.push(put(9, key(1), vec![1]));
    all.push(put(11, key(1), vec![2]));
    let session = db.session(SessionOptions::new()).expect("a session");
    let mut block = session.finish(all).expect("finished");
    block.set_blob(vec![5; 9]).expect("short");
    block.commit().expect("committed");
    db
}

pub(crate) fn server(db: &Db) -> Server {
    let server = Server::new(db.clone(), LIMITS);
    server.refresh().expect("refreshed");
    server
}

pub(crate) fn over_all(db: &Db) -> Node {
    db.roots().over_all(db.hasher().expect("open"))
}

pub(crate) fn target(db: &Db) -> Target {
    Target::over_all(over_all(db), db.hasher().expect("open"))
}

/// All pairs of the Merkle namespaces.
pub(crate) fn pairs(session: &Session) -> Vec<(u8, Key, Vec<u8>)> {
    let namespaces = session.roots().iter().map(|(number, _)| number);
    let of = |number| {
        let namespace = session.namespace(number).expect("there");
        namespace.iter(..).map(move |pair| {
            let (key, value) = pair.expect("read");
            (number, key, value.to_vec())
        })
    };
    namespaces.flat_map(of).collect()
}

/// Loads what was fetched, and compares it with the state.
pub(crate) fn load_and_compare(fetch: Fetch, folder: &Path, db: &Db) {
    let new = fetch.load(folder, |options| options.small().cache_mib(8)).expect("loaded");
    assert_eq!(over_all(&new), over_all(db));
    let [new_pairs, all] = [&new, db].map(|db| pairs(&db.snapshot().expect("a snapshot")));
    assert!(new_pairs == all);
    assert!(new.roots().digests().next().is_none() && new.blob().is_empty());
    new.close().expect("closed");
    // It is a database like any other.
    Db::open(Options::new(folder)).expect("whole").close().expect("closed");
}

/// What a server of the network does with a question: from the honest answer to what it says, or nothing.
type Answer<'a> =
    Box<dyn FnMut(&Ask, Result<Vec<u8>, Refusal>) -> Option<Result<Vec<u8>, Refusal>> + 'a>;

/// A server of the network.
pub(crate) struct Peer<'a> {
    server: &'a Server,
    answer: Answer<'a>,
}

impl<'a> Peer<'a> {
    pub(crate) fn honest(server: &'a Server) -> Self {
        Self::with(server, |_, honest| Some(honest))
    }

    pub(crate) fn with(
        server: &'a Server,
        answer: impl FnMut(&Ask, Result<Vec<u8>, Refusal>) -> Option<Result<Vec<u8>, Refusal>> + 'a,
    ) -> Self {
        Self { server, answer: Box::new(answer) }
    }
}

/// What a run of the network has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) asked: Vec<PartAsk>,
    /// Namespace, first key and end of parts that were kept.
    pub(crate) kept: Vec<(u8, Key, Key)>,
    pub(crate) lies: Vec<(u32, &'static str)>,
    /// Answers that came after their question was given up, or twice.
    pub(crate) late: u64,
    pub(crate) failed: Option<Error>,
    /// Simulated time.
    pub(crate) took: Duration,
}

/// Carries questions and answers, late, twice or not at all, until the fetch is done, has no way on, or has kept so many
/// parts.
pub(crate) fn run(fetch: &mut Fetch, peers: &mut [Peer<'_>], seed: u64, most: usize) -> Seen {
    let (mut rng, mut now) = (ChaCha8Rng::seed_from_u64(seed), Duration::ZERO);
    let (mut seen, mut on_the_way) = (Seen::default(), VecDeque::new());
    let earlier = fetch.progress().lies.len();
    for _ in 0..200_000 {
        now += Duration::from_millis(10);
        seen.took = now;
        for (number, peer) in (0..).zip(&mut *peers) {
            while let Some((ticket, ask)) = fetch.ask(number, now) {
                let ask: Ask = ask.to_string().parse().expect("a path is read");
                if let Ask::Part(part) = &ask {
                    seen.asked.push(*part);
                }
                let mut answer = Vec::new();
                let honest = peer.server.answer(&ask, &mut answer).map(|()| answer);
                let Some(answer) = (peer.answer)(&ask, honest) else { continue };
                let times = if rng.next_u32() % 8 == 0 { 2 } else { 1 };
                for _ in 0..times {
                    let delay = Duration::from_millis(u64::from(rng.next_u32() % 400));
                    on_the_way.push_back((
                        now + delay,
                        number,
                        ticket,
                        ask.clone(),
                        answer.clone(),
                    ));
                }
            }
        }
        for _ in 0..on_the_way.len() {
            let (at, number, ticket, ask, answer) = on_the_way.pop_front().expect("some");
            if at > now {
                on_the_way.push_back((at, number, ticket, ask, answer));
                continue;
            }
            let judged = fetch.take(ticket, answer.as_deref().map_err(Clone::clone), now);
            match (judged, &ask, &answer) {
                (Ok(Judgement::Kept), Ask::Part(part), Ok(answer)) => {
                    let proof = u32::from_le_bytes(*answer.first_chunk().expect("a length"));
                    let end = &answer[4 + proof as usize..][..32];
                    seen.kept.push((part.namespace, part.first, end.try_into().expect("a key")));
                }
                (Ok(Judgement::Lie(what)), ..) => seen.lies.push((number, what)),
                (Ok(Judgement::Late), ..) => seen.late += 1,
                (Ok(_), ..) => {}
                (Err(error), ..) => {
                    seen.failed = Some(error);
                    return seen;
                }
            }
            if seen.kept.len() >= most {
                return seen;
            }
        }
        let progress = fetch.progress();
        assert!((-1e-9..=1.0 + 1e-9).contains(&progress.share), "{progress:?}");
        assert_eq!(progress.lies[earlier..], seen.lies);
        if progress.done || progress.gone {
            return seen;
        }
        // Nobody is left to be asked.
        if on_the_way.is_empty() && progress.lies.len() >= peers.len() {
            return seen;
        }
    }
    panic!("no end: {:?}", fetch.progress());
}

/// A root that no state has.
pub(crate) fn no_root() -> Node {
    assert_ne!(Node::new([0x77; 32]), TERMINATOR);
    Node::new([0x77; 32])
}
