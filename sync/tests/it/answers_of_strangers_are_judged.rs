//! Every kind of lie is found before a byte of it is kept; the liar is asked no more, and others give what it has not.

use std::ops::Range;

use pleach::{Db, Hasher, Key};
use pleach_sync::internals::{encode_part, verify_part};
use pleach_sync::{Ask, Fetch, Judgement, Limits, PartAsk, Refusal, Server};

use crate::common::{
    LIMITS, Peer, commit, key, load_and_compare, options, put, run, server, state, target,
};

/// Proof, end and pairs of a part.
fn cut(answer: &[u8]) -> (Vec<u8>, Key, Vec<u8>) {
    let length = u32::from_le_bytes(*answer.first_chunk().expect("a length")) as usize;
    let (proof, rest) = answer[4..].split_at(length);
    let (end, pairs) = rest.split_first_chunk::<32>().expect("an end");
    (proof.to_vec(), *end, pairs.to_vec())
}

fn joined((proof, end, pairs): (Vec<u8>, Key, Vec<u8>)) -> Vec<u8> {
    let mut answer = Vec::new();
    encode_part(&proof, &end, &pairs, &mut answer);
    answer
}

/// The places of the pairs.
fn places(pairs: &[u8]) -> Vec<Range<usize>> {
    let (mut places, mut at) = (Vec::new(), 0);
    while at < pairs.len() {
        let length =
            u32::from_le_bytes(*pairs[at + 32..].first_chunk().expect("a length")) as usize;
        places.push(at..at + 36 + length);
        at += 36 + length;
    }
    places
}

type Lie = fn(&PartAsk, &[u8]) -> Vec<u8>;

/// The part without one of its pairs.
fn without(answer: &[u8], which: impl Fn(usize) -> usize) -> Vec<u8> {
    let (proof, end, mut pairs) = cut(answer);
    let places = places(&pairs);
    pairs.drain(places[which(places.len())].clone());
    joined((proof, end, pairs))
}

const LIES: [(&str, Lie); 17] = [
    ("nothing", |_, _| Vec::new()),
    ("a false length", |_, answer| [[0xff; 4].as_slice(), &answer[4..]].concat()),
    ("a length beyond the end", |_, answer| {
        [[0xff, 0xff, 0, 0].as_slice(), &answer[4..400]].concat()
    }),
    ("cut in the middle", |_, answer| answer[..=answer.len() / 2].to_vec()),
    ("a value of four gigabytes", |_, answer| {
        let (proof, end, mut pairs) = cut(answer);
        pairs[32..36].fill(0xff);
        joined((proof, end, pairs))
    }),
    ("too long", |_, answer| {
        let mut long = answer.to_vec();
        long.resize(LIMITS.most_bytes() + 1, 0);
        long
    }),
    ("more pairs than were asked for", |_, answer| {
        let (proof, end, pairs) = cut(answer);
        joined((proof, end, pairs.repeat(2 * LIMITS.answer as usize / pairs.len() + 1)))
    }),
    ("the first pair missing", |_, answer| without(answer, |_| 0)),
    ("a pair in the middle missing", |_, answer| without(answer, |count| count / 2)),
    ("the last pair missing", |_, answer| without(answer, |count| count - 1)),
    ("all pairs missing", |_, answer| {
        let (proof, end, _) = cut(answer);
        joined((proof, end, Vec::new()))
    }),
    ("a pair twice", |_, answer| {
        let (proof, end, mut pairs) = cut(answer);
        let first = pairs[places(&pairs)[0].clone()].to_vec();
        pairs.splice(0..0, first);
        joined((proof, end, pairs))
    }),
    ("two pairs exchanged", |_, answer| {
        let (proof, end, pairs) = cut(answer);
        let places = places(&pairs);
        let (a, b) = (&pairs[places[1].clone()], &pairs[places[2].clone()]);
        let pairs = [&pairs[places[0].clone()], b, a, &pairs[places[2].end..]].concat();
        joined((proof, end, pairs))
    }),
    ("another value", |_, answer| {
        let (proof, end, mut pairs) = cut(answer);
        *pairs.last_mut().expect("pairs") ^= 1;
        joined((proof, end, pairs))
    }),
    ("an end before the range", |_, answer| {
        let (proof, _, pairs) = cut(answer);
        joined((proof, [0; 32], pairs))
    }),
    ("a proof without terminals", |_, answer| {
        let (_, end, pairs) = cut(answer);
        let none =
            pleach::proof::multi::MultiProof::default().encode(Hasher::BLAKE3).expect("short");
        joined((none, end, pairs))
    }),
    ("the proof of another range", |_, answer| {
        let (mut proof, end, pairs) = cut(answer);
        *proof.last_mut().expect("a proof") ^= 1;
        joined((proof, end, pairs))
    }),
];

#[test]
fn every_lie_is_found_and_the_liar_is_asked_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 6_000);
    let server = server(&db);
    for (number, (name, lie)) in LIES.into_iter().enumerate() {
        let at = |name: &str| folder.path().join(format!("{name}-{number}"));
        let mut fetch = Fetch::open(&at("sync"), target(&db), LIMITS).expect("opened");
        // The roots, and one honest part.
        let seen = run(&mut fetch, &mut [Peer::honest(&server)], 1, 1);
        assert_eq!(seen.kept.len(), 1);
        let bytes = fetch.progress().bytes;
        let mut lies = 0;
        let liar = Peer::with(&server, |ask, honest| {
            let Ask::Part(part) = ask else { return Some(honest) };
            lies += 1;
            Some(honest.map(|answer| lie(part, &answer)))
        });
        let seen = run(&mut fetch, &mut [liar], 1, usize::MAX);
        assert_eq!(seen.lies.len(), 1, "{name}");
        assert!(lies <= LIMITS.in_flight, "{name}: {lies} questions to a liar");
        assert_eq!((seen.kept.len(), fetch.progress().bytes), (0, bytes), "{name}");
        if number % 4 == 0 {
            let mut peers =
                [Peer::with(&server, |_, _| panic!("a liar is asked")), Peer::honest(&server)];
            assert!(run(&mut fetch, &mut peers, 1, usize::MAX).lies.is_empty());
            load_and_compare(fetch, &at("new"), &db);
        }
    }
}

/// True pairs, of which there are more than were asked for: memory is the client's.
#[test]
fn an_answer_that_is_longer_than_asked_for_is_a_lie() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(options(&folder.path().join("state"))).expect("opened");
    let put = |id: u32| {
        let mut key = [0xa7; 32];
        key[28..].copy_from_slice(&id.to_be_bytes());
        put(0, key, vec![9; 4])
    };
    commit(&db, (0..4_000).map(put).collect());
    let generous = Server::new(db.clone(), Limits { answer: 4 << 20, ..LIMITS });
    generous.refresh().expect("refreshed");
    let liar = Peer::with(&generous, |ask, honest| {
        let Ask::Part(part) = ask else { return Some(honest) };
        let mut answer = Vec::new();
        let ask = Ask::Part(PartAsk { bytes: 4 << 20, ..*part });
        Some(generous.answer(&ask, &mut answer).map(|()| answer))
    });
    let sync = folder.path().join("sync");
    let mut fetch = Fetch::open(&sync, target(&db), LIMITS).expect("opened");
    let seen = run(&mut fetch, &mut [liar], 1, usize::MAX);
    assert_eq!(seen.lies, [(0, "more than was asked for")]);
}

/// The multiproof of a long range has its own ends: an end that lies behind the last pair that is given hides the others.
#[test]
fn an_end_behind_pairs_that_are_left_out_is_a_lie() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 6_000);
    let root = db.roots().get(0).expect("there");
    let session = db.snapshot().expect("a snapshot");
    let (first, last) = ([0; 32], [0xff; 32]);
    let mut pairs = Vec::new();
    let all: Vec<_> = session.iter(..).map(|pair| pair.expect("read")).collect();
    // The proof has the first pair and the last one.
    for (key, value) in all.iter().take(100).chain(all.last()) {
        pairs.extend(key);
        pairs.extend(u32::try_from(value.len()).expect("short").to_le_bytes());
        pairs.extend_from_slice(value);
    }
    let proof = session.prove_many(&[first, last]).expect("proven");
    let answer = joined((proof.to_vec(), last, pairs));
    let judged = verify_part(&answer, Hasher::BLAKE3, &root, &first, &last);
    assert_eq!(judged, Err("pairs of another root"));
}

#[test]
fn roots_that_do_not_make_the_root_over_all_are_a_lie() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 50);
    let server = server(&db);
    let lies: [fn(Vec<u8>) -> Vec<u8>; 7] = [
        |_| Vec::new(),
        |roots| roots[..roots.len() - 1].to_vec(),
        |roots| [[2, 0].as_slice(), &roots[2..68]].concat(),
        |roots| [[0xff; 2].as_slice(), &roots[2..]].concat(),
        |roots| [&roots[..2], &roots[35..68], &roots[2..35], &roots[68..]].concat(),
        |mut roots| {
            *roots.last_mut().expect("a root") ^= 1;
            roots
        },
        |roots| [roots.as_slice(), &[0; 33]].concat(),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let at = folder.path().join(format!("sync-{number}"));
        let mut fetch = Fetch::open(&at, target(&db), LIMITS).expect("opened");
        let liar = Peer::with(&server, |ask, honest| {
            assert!(matches!(ask, Ask::Roots(_)), "no part before the roots are known");
            honest.ok().map(|roots| Ok(lie(roots)))
        });
        let seen = run(&mut fetch, &mut [liar], 1, usize::MAX);
        assert_eq!(seen.lies.len(), 1, "lie {number}");
        let mut peers =
            [Peer::with(&server, |_, _| panic!("a liar is asked")), Peer::honest(&server)];
        run(&mut fetch, &mut peers, 1, usize::MAX);
        assert!(fetch.progress().done);
    }
}

/// True and useless: an honest server fills its answers. A server that gave one pair at a time would keep a fetch for ever.
#[test]
fn answers_with_a_few_pairs_where_there_are_more_are_a_lie() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Db::open(crate::common::options(&folder.path().join("state"))).expect("opened");
    let pair = |id: u64| {
        let mut key = key(id);
        key[0] = 1;
        put(0, key, vec![1; 40])
    };
    crate::common::commit(&db, (0..5_000).map(pair).collect());
    let server = server(&db);
    let session = db.snapshot().expect("a snapshot");
    let mut fetch = Fetch::open(&folder.path().join("sync"), target(&db), LIMITS).expect("opened");
    let miser = Peer::with(&server, |ask, honest| {
        let Ask::Part(PartAsk { first, last, .. }) = ask else { return Some(honest) };
        let mut pairs = session.iter(*first..=*last);
        let (Some(Ok((one, value))), Some(_)) = (pairs.next(), pairs.next()) else {
            return Some(honest);
        };
        let proof = session.prove_many(&[*first, one]).expect("proven");
        let mut pair = one.to_vec();
        pair.extend(u32::try_from(value.len()).expect("short").to_le_bytes());
        pair.extend_from_slice(&value);
        let answer = joined((proof.to_vec(), one, pair));
        let root = db.roots().get(0).expect("there");
        let verified = verify_part(&answer, Hasher::BLAKE3, &root, first, last).expect("true");
        assert_eq!(verified.count, 1);
        Some(Ok(answer))
    });
    let seen = run(&mut fetch, &mut [miser, Peer::honest(&server)], 1, usize::MAX);
    assert_eq!(seen.lies, [(0, "less than an answer has to have")]);
    load_and_compare(fetch, &folder.path().join("new"), &db);
}

#[test]
fn an_answer_to_no_question_is_not_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 50);
    let mut fetch = Fetch::open(&folder.path().join("sync"), target(&db), LIMITS).expect("opened");
    let now = std::time::Duration::ZERO;
    let (ticket, _) = fetch.ask(0, now).expect("the roots");
    assert_eq!(fetch.take(ticket, Err(Refusal::Unknown), now).expect("taken"), Judgement::Refused);
    assert_eq!(fetch.take(ticket, Ok(b"anything"), now).expect("taken"), Judgement::Late);
    assert!(fetch.progress().lies.is_empty());
}
