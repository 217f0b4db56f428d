//! States of every shape, from servers that lie, die, lack the state or are far behind: the database that is loaded has
//! the root, or the fetch says why there is none.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use pleach::{Db, Hasher};
use pleach_sync::{Ask, Error, Fetch, Head, Judgement, Limits, Refusal, Server, Target};

use crate::common::{
    LIMITS, Peer, commit, key, load_and_compare, no_root, options, over_all, put, run, server,
    state, target,
};

#[test]
fn one_liar_and_one_that_dies_do_not_keep_an_honest_server_from_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 9_000);
    let server = server(&db);
    for seed in 0..4 {
        let at = |name: &str| folder.path().join(format!("{name}-{seed}"));
        let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
        let (mut answers, mut left) = (0, 10 + seed);
        let liar = Peer::with(&server, move |ask, honest| {
            answers += 1;
            let Ok(mut answer) = honest else { return Some(honest) };
            if matches!(ask, Ask::Part(_)) && answers > 3 {
                *answer.last_mut().expect("not empty") ^= 1;
            }
            Some(Ok(answer))
        });
        let mortal = Peer::with(&server, move |_, honest| {
            left = u64::saturating_sub(left, 1);
            Some(honest).filter(|_| left > 0)
        });
        let unsteady = Peer::with(&server, move |ask, honest| match ask {
            Ask::Part(part) if part.first[0] % 3 == 0 => {
                Some(Err(Refusal::Failed("closed".to_owned())))
            }
            Ask::Part(part) if part.first[0] % 3 == 1 => {
                Some(Err(Refusal::Busy(Duration::from_secs(2))))
            }
            _ => Some(honest),
        });
        let mut peers = [liar, mortal, unsteady, Peer::honest(&server)];
        let seen = run(&mut fetch, &mut peers, seed, usize::MAX);
        assert!(fetch.progress().done && seen.failed.is_none(), "{:?}", fetch.progress());
        assert_eq!(seen.lies.len(), 1, "{:?}", seen.lies);
        assert_eq!(seen.lies[0].0, 0);
        assert!(seen.late > 0, "some answers come twice");
        load_and_compare(fetch, &at("new"), &db);
        assert!(!at("new.sync").exists());
    }
}

/// In simulated time. Once the end waited for as long as a question may take: 30 seconds.
#[test]
fn servers_that_fall_silent_delay_the_end_by_a_share_of_the_patience() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 9_000);
    let server = server(&db);
    let limits = Limits { patience: Duration::from_secs(240), ..LIMITS };
    let fetch = |name: &str, peers: &mut [Peer<'_>]| {
        let at = |end: &str| folder.path().join(format!("{name}.{end}"));
        let mut fetch = Fetch::open(&at("sync"), target(&db), limits).expect("opened");
        let seen = run(&mut fetch, peers, 5, usize::MAX);
        assert!(fetch.progress().done && seen.lies.is_empty());
        assert!((fetch.progress().share - 1.0).abs() < 1e-9);
        let parts: BTreeSet<_> =
            seen.kept.iter().map(|(namespace, first, _)| (*namespace, *first)).collect();
        assert_eq!(parts.len(), seen.kept.len(), "no part is kept twice");
        load_and_compare(fetch, &at("new"), &db);
        seen.took
    };
    let alone = fetch("alone", &mut [Peer::honest(&server)]);
    for questions in [1, 2, 5, 20] {
        let silent = || {
            let mut left = questions;
            Peer::with(&server, move |_, honest| {
                left = u32::saturating_sub(left, 1);
                Some(honest).filter(|_| left > 0)
            })
        };
        let mut peers = [silent(), silent(), Peer::honest(&server)];
        let took = fetch(&format!("{questions}"), &mut peers);
        assert!(took <= alone + Duration::from_secs(31), "{took:?}, {alone:?} of one server");
    }
}

/// Both answers to a question that two servers have: the first one is kept, whoever gives it.
#[test]
fn the_first_answer_to_a_question_that_was_asked_twice_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let db = state(&at("state"), 10);
    let server = server(&db);
    let target = Target::namespace(9, db.roots().get(9).expect("there"), Hasher::BLAKE3);
    let answer = |ask: &Ask| {
        let mut answer = Vec::new();
        server.answer(ask, &mut answer).expect("answered");
        answer
    };
    let limits = Limits { in_flight: 64, ..LIMITS };
    for first in 0..3 {
        let at = |name: &str| folder.path().join(format!("{name}-{first}"));
        let mut fetch = Fetch::open(&at("sync"), target, limits).expect("opened");
        let mut slow = Vec::new();
        while let Some(asked) = fetch.ask(0, Duration::ZERO) {
            slow.push(asked);
        }
        let late = Duration::from_secs(1);
        let mut fast = Vec::new();
        while let Some(asked) = fetch.ask(1, late) {
            fast.push(asked);
        }
        assert_eq!((slow.len(), fast.len()), (64, 64));
        assert!((fetch.progress().share).abs() < 1e-9, "nothing counts twice");
        assert!(slow.iter().all(|(_, ask)| fast.iter().any(|(_, other)| other == ask)));
        if first == 2 {
            // The second server refuses: nobody has the questions but the first one.
            for (ticket, _) in std::mem::take(&mut fast) {
                let taken = fetch.take(ticket, Err(Refusal::Unknown), late).expect("taken");
                assert_eq!(taken, Judgement::Refused);
            }
        }
        let in_turn = if first == 1 { [fast, slow] } else { [slow, fast] };
        let mut judged = Vec::new();
        for (ticket, ask) in in_turn.into_iter().flatten() {
            judged.push(fetch.take(ticket, Ok(&answer(&ask)), late).expect("taken"));
            assert_eq!(fetch.progress().done, judged.len() >= 64);
        }
        assert!(judged[..64].iter().all(|one| *one == Judgement::Kept));
        assert!(judged[64..].iter().all(|one| *one == Judgement::Late));
        let bytes = fetch.progress().bytes;
        assert_eq!(fetch.progress().pairs, 1, "{bytes}");
        fetch.load(&at("new"), pleach::Options::small).expect("loaded").close().expect("closed");
    }
}

#[test]
fn states_of_every_shape_are_fetched() {
    let folder = tempfile::tempdir().expect("a folder");
    let below_one_prefix = |id: u64| {
        let mut key = [0xa7; 32];
        key[24..].copy_from_slice(&(id * 3).to_be_bytes());
        key
    };
    let none = Vec::new();
    let one = vec![put(0, [0; 32], vec![1])];
    let ends = vec![put(0, [0; 32], vec![1]), put(0, [0xff; 32], vec![])];
    let skewed: Vec<_> = (0..20_000).map(|id| put(0, below_one_prefix(id), vec![9; 4])).collect();
    let long = vec![
        put(0, key(1), vec![1; 3 << 20]),
        put(0, key(2), vec![2; 1 << 20]),
        put(0, key(3), vec![]),
    ];
    for (number, pairs) in [none, one, ends, skewed, long].into_iter().enumerate() {
        let at = |name: &str| folder.path().join(format!("{name}-{number}"));
        let db = Db::open(options(&at("state"))).expect("opened");
        commit(&db, pairs);
        let server = server(&db);
        let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
        let mut peers = [Peer::honest(&server), Peer::honest(&server)];
        let seen = run(&mut fetch, &mut peers, 1, usize::MAX);
        assert!(seen.lies.is_empty(), "{:?}", seen.lies);
        assert!((fetch.progress().share - 1.0).abs() < 1e-9);
        // Skew costs some questions, not one for each pair.
        assert!(seen.asked.len() < 1_000, "{} questions for state {number}", seen.asked.len());
        load_and_compare(fetch, &at("new"), &db);
    }
}

/// The tickets judge: what takes long needs no lock.
#[test]
fn answers_are_judged_by_many_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let db = state(&at("state"), 2_000);
    let server = server(&db);
    let fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
    let fetch = Mutex::new(fetch);
    let work = &|number| {
        let lock = || fetch.lock().expect("no panic");
        for _ in 0..1_000_000 {
            let Some((ticket, ask)) = lock().ask(number, Duration::ZERO) else {
                if lock().progress().done {
                    return;
                }
                std::thread::yield_now();
                continue;
            };
            let mut answer = Vec::new();
            server.answer(&ask, &mut answer).expect("answered");
            let judged = ticket.judge(&answer);
            let taken = lock().take_judged(judged, Duration::ZERO).expect("taken");
            assert_eq!(taken, Judgement::Kept);
        }
    };
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || work(number));
        }
    });
    load_and_compare(fetch.into_inner().expect("no panic"), &at("new"), &db);
}

#[test]
fn one_namespace_is_fetched_by_its_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 500);
    let server = server(&db);
    let root = db.roots().get(9).expect("there");
    let target = Target::namespace(9, root, Hasher::BLAKE3);
    let mut fetch = Fetch::open(&folder.path().join("sync"), target, LIMITS).expect("opened");
    run(&mut fetch, &mut [Peer::honest(&server)], 1, usize::MAX);
    let new = fetch.load(&folder.path().join("new"), pleach::Options::small).expect("loaded");
    assert_eq!((new.roots().get(9), new.roots().iter().count()), (Some(root), 2));
}

#[test]
fn servers_without_the_state_are_no_liars_and_all_of_them_together_are_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let db = state(&at("state"), 400);
    let [older, foreign] =
        ["older", "foreign"].map(|name| Db::open(options(&at(name))).expect("opened"));
    commit(&foreign, vec![put(0, key(1), vec![1])]);
    let [older, foreign, newest] = [&older, &foreign, &db].map(server);
    let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
    let seen = run(&mut fetch, &mut [Peer::honest(&older), Peer::honest(&foreign)], 1, usize::MAX);
    let progress = fetch.progress();
    assert!(progress.gone && !progress.done && seen.lies.is_empty(), "{progress:?}");
    let refused = fetch.load(&at("new"), |options| options).expect_err("nothing is there");
    assert!(matches!(refused, Error::Incomplete { namespace: 0 }), "{refused}");
    assert!(!at("new").exists());
    // With one that has it, all is well.
    let mut fetch = Fetch::open(&at("new.sync"), target(&db), LIMITS).expect("opened");
    let mut peers = [Peer::honest(&older), Peer::honest(&foreign), Peer::honest(&newest)];
    assert!(run(&mut fetch, &mut peers, 1, usize::MAX).lies.is_empty());
    load_and_compare(fetch, &at("new"), &db);
}

#[test]
fn a_state_is_served_while_commits_go_on_as_long_as_the_history_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let db = state(&at("state"), 6_000);
    let (target, root) = (target(&db), over_all(&db));
    let before = crate::common::pairs(&db.snapshot().expect("a snapshot"));
    // Another process, as it were: it reads what the writer writes.
    let server = Server::open(options(&at("state")).create(false), LIMITS).expect("opened");
    let mut fetch = Fetch::open(&at("new.sync"), target, LIMITS).expect("opened");
    let mut round = 0;
    let mut moving = Peer::with(&server, |_, honest| {
        round += 1;
        if round < 100 {
            commit(&db, (0..40).map(|id| put(0, key(round * 40 + id), vec![3; 5])).collect());
            server.refresh().expect("refreshed");
        }
        Some(honest)
    });
    let seen = run(&mut fetch, std::slice::from_mut(&mut moving), 3, usize::MAX);
    assert!(fetch.progress().done && seen.lies.is_empty());
    drop(moving);
    assert!(db.commit_number() > 40, "the state is an old one by now");
    let new = fetch.load(&at("new"), pleach::Options::small).expect("loaded");
    assert!(crate::common::pairs(&new.snapshot().expect("a snapshot")) == before);
    // When the history has moved on, the server says so, and has the newest state.
    for id in 0..300 {
        commit(&db, vec![put(0, key(id), vec![4])]);
    }
    // A session that nobody asks is dropped after some time.
    for _ in 0..300 {
        server.refresh().expect("refreshed");
    }
    let mut answer = vec![1];
    let gone = server.answer(&Ask::Roots(root), &mut answer).expect_err("too old");
    assert!(matches!(gone, Refusal::Gone { oldest } if oldest == *db.history().start()), "{gone}");
    assert!(answer.is_empty());
    assert_eq!(server.answer(&Ask::Roots(no_root()), &mut answer), Err(Refusal::Unknown));
    server.answer(&Ask::Head, &mut answer).expect("a head");
    let head = Head::decode(&answer).expect("a head");
    assert_eq!((head.newest, head.commit), (over_all(&db), db.commit_number()));
    assert_eq!(head.newest, server.newest_root().expect("open"));
}
