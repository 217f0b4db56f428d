//! Servers on ports of this machine, honest or not: what is fetched has the root, and every refusal is typed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pleach::{Db, Hasher, SessionOptions};
use pleach_ops::export::{ChangeReader, export_changes};
use pleach_sync::http::{Ended, HttpFetch, Peer, ServeLimits, Url, serve};
use pleach_sync::{
    Ask, Fetch, Head, Limits, PartAsk, Place, Refusal, Server, Target, catch_up, verify_keys,
};

use crate::common::{
    LIMITS, commit, key, load_and_compare, no_root, options, over_all, put, server, state, target,
};
use crate::strangers::{http, liar, other};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a port that the system has chosen.
struct Served {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(server: Server, limits: ServeLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            serve(listener, Arc::new(server), limits, &ends).expect("served");
        });
        Self { at, stop, thread: Some(thread) }
    }

    fn peer(&self) -> Peer {
        Peer::new(url(self.at)).expect("a client")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("ended");
        }
    }
}

fn url(at: SocketAddr) -> Url {
    format!("http://{at}").parse().expect("a URL")
}

fn fetch_of(folder: &Path, db: &Db, limits: Limits, urls: Vec<Url>) -> HttpFetch {
    let fetch = Fetch::open(folder, target(db), limits).expect("opened");
    HttpFetch::new(fetch, &target(db), limits, urls)
}

#[test]
fn one_liar_and_one_that_dies_do_not_keep_the_third_server_from_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let db = state(&at("state"), 9_000);
    // It dies after some answers, as a killed process does: its connections break.
    let (mortal, left) = (server(&db), AtomicU64::new(4));
    let mortal = other(move |path| {
        let ask: Ask = path.strip_prefix("/v1/")?.parse().ok()?;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).ok()?;
        let mut answer = Vec::new();
        mortal.answer(&ask, &mut answer).ok()?;
        Some(http("200 OK\r\npleach-sync: answer", &answer))
    });
    let honest = Served::new(server(&db), ServeLimits::default());
    let urls = vec![url(liar(server(&db))), url(mortal), url(honest.at)];
    let fetch = fetch_of(&at("new.sync"), &db, LIMITS, urls);
    assert_eq!(fetch.run(PATIENCE).expect("no error"), Ended::Done);
    let status = fetch.status();
    assert!(status.progress.done && (status.progress.share - 1.0).abs() < 1e-9, "{status:?}");
    assert!(status.progress.lies.iter().all(|(number, _)| *number == 0), "{status:?}");
    load_and_compare(fetch.into_fetch(), &at("new"), &db);
}

#[test]
fn every_refusal_of_a_server_is_typed() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 300);
    let old = over_all(&db);
    let served = Server::open(options(&folder.path().join("state")).create(false), LIMITS);
    let served = Served::new(served.expect("opened"), ServeLimits::default());
    let mut peer = served.peer();
    let mut ask = |ask: &Ask| peer.ask(ask, LIMITS.most_bytes(), PATIENCE);
    let head = Head::decode(&ask(&Ask::Head).expect("a head")).expect("a head");
    assert_eq!((head.newest, head.commit), (old, db.commit_number()));
    let place = Place::decode(&ask(&Ask::Place(old)).expect("a place")).expect("a place");
    assert_eq!((place.commit, place.newest), (head.commit, head.commit));
    assert_eq!(ask(&Ask::Roots(no_root())), Err(Refusal::Unknown));
    assert_eq!(ask(&Ask::Place(no_root())), Err(Refusal::Unknown));
    assert_eq!(ask(&Ask::Changes { from: old, to: old }), Err(Refusal::Unknown));
    let part = PartAsk { root: old, namespace: 0, first: [1; 32], last: [0; 32], bytes: 1 };
    assert_eq!(ask(&Ask::Part(part)), Err(Refusal::Malformed));
    let keys = vec![key(1); 65];
    assert_eq!(ask(&Ask::Keys { root: old, namespace: 0, keys }), Err(Refusal::Malformed));
    for id in 0..300 {
        commit(&db, vec![put(0, key(id), vec![4])]);
    }
    let oldest = *db.history().start();
    // The server refreshes by itself.
    let gone = (0..1_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        ask(&Ask::Place(old)).err()
    });
    assert!(matches!(gone, Some(Refusal::Gone { oldest: of }) if of <= oldest), "{gone:?}");
    // What is no question of these is refused, too, whatever it is.
    for text in [
        "POST /v1/head HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        "GET /v1/feed/1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "GET /v2/head HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "GET /v1/../head HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(served.at).expect("connected");
        stream.write_all(text.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{text} {answer}");
    }
}

#[test]
fn what_is_no_server_is_no_liar_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 100);
    let page = |status: &'static str| {
        other(move |_| Some(http(&format!("{status}\r\ncontent-type: text/html"), b"<html>")))
    };
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound")
    };
    let stalls = other(|_| {
        Some(b"HTTP/1.1 200 OK\r\npleach-sync: answer\r\ncontent-length: 9\r\n\r\nabc".to_vec())
    });
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_at = silent.local_addr().expect("bound");
    let said = |at| {
        let mut peer = Peer::new(url(at)).expect("a client");
        match peer.ask(&Ask::Head, 100, Duration::from_millis(300)) {
            Err(Refusal::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    assert!(
        said(page("200 OK"))
            .contains("no server of this kind answers there (status 200, text/html)")
    );
    assert!(said(page("404 Not Found")).contains("status 404"));
    assert!(said(nobody).contains("refused"), "{}", said(nobody));
    assert_eq!(said(silent_at), "no answer in time");
    assert!(!said(stalls).is_empty());
    // A fetch from all of them ends without a lie, and says what each said.
    let limits = Limits { patience: Duration::from_millis(300), ..LIMITS };
    let urls = vec![url(page("200 OK")), url(nobody), url(silent_at)];
    let fetch = fetch_of(&folder.path().join("new.sync"), &db, limits, urls);
    assert_eq!(fetch.run(Duration::from_millis(700)).expect("no error"), Ended::Silent);
    let status = fetch.status();
    assert!(status.progress.lies.is_empty() && !status.progress.gone);
    assert!(
        status.failures.iter().all(|one| matches!(one, Some(Refusal::Failed(_)))),
        "{status:?}"
    );
    // Servers without the state are told from these.
    let foreign = Db::open(options(&folder.path().join("foreign"))).expect("opened");
    commit(&foreign, vec![put(0, key(1), vec![1])]);
    let served = Served::new(server(&foreign), ServeLimits::default());
    let fetch = fetch_of(&folder.path().join("other.sync"), &db, limits, vec![url(served.at)]);
    assert_eq!(fetch.run(PATIENCE).expect("no error"), Ended::Gone);
}

#[test]
fn an_answer_that_is_too_long_is_not_read_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 100);
    let endless = other(|_| {
        Some(http("200 OK\r\npleach-sync: answer", &vec![7; LIMITS.most_bytes() + 1_000_000]))
    });
    let limits = Limits { patience: Duration::from_secs(60), ..LIMITS };
    let fetch = fetch_of(&folder.path().join("new.sync"), &db, limits, vec![url(endless)]);
    assert_eq!(fetch.run(Duration::from_secs(120)).expect("no error"), Ended::Silent);
    assert_eq!(fetch.status().progress.lies, [(0, "an answer that is too long")]);
}

#[test]
fn keys_are_proven_at_a_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 300);
    let root = db.root();
    let served = Served::new(server(&db), ServeLimits::default());
    let keys: Vec<_> = [1, 50, 999, 51, 1].map(key).to_vec();
    let ask = Ask::Keys { root: over_all(&db), namespace: 0, keys: keys.clone() };
    let answer = served.peer().ask(&ask, LIMITS.most_bytes(), PATIENCE).expect("answered");
    let values = verify_keys(&answer, Hasher::BLAKE3, &root, &keys).expect("right");
    // The long value is in an answer of its own.
    let lengths: Vec<_> = values.iter().map(|value| value.map(<[u8]>::len)).collect();
    assert_eq!(lengths, [Some(1), Some(3_000), None]);
    let ask = Ask::Keys { root: over_all(&db), namespace: 0, keys: keys[3..].to_vec() };
    let rest = served.peer().ask(&ask, LIMITS.most_bytes(), PATIENCE).expect("answered");
    let rest = verify_keys(&rest, Hasher::BLAKE3, &root, &keys[3..]).expect("right");
    assert_eq!(
        rest.iter().map(|value| value.map(<[u8]>::len)).collect::<Vec<_>>(),
        [Some(200_000)]
    );
    for at in 0..answer.len() {
        let mut wrong = answer.clone();
        wrong[at] ^= 1;
        let verified = verify_keys(&wrong, Hasher::BLAKE3, &root, &keys);
        assert!(verified.is_err(), "byte {at}: {verified:?}");
    }
    assert!(verify_keys(&answer, Hasher::BLAKE3, &no_root(), &keys).is_err());
    assert!(verify_keys(&answer, Hasher::BLAKE3, &root, &keys[..2]).is_err());
    assert!(verify_keys(&answer[..answer.len() - 3], Hasher::BLAKE3, &root, &keys).is_err());
}

#[test]
fn a_feed_has_each_commit_with_its_blob_and_a_catch_up_takes_its_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let db = state(&at("state"), 200);
    let served = Server::open(options(&at("state")).create(false), LIMITS).expect("opened");
    let served = Served::new(served, ServeLimits { feeds: 1, ..ServeLimits::default() });
    let fetch = fetch_of(&at("copy.sync"), &db, LIMITS, vec![url(served.at)]);
    assert_eq!(fetch.run(PATIENCE).expect("no error"), Ended::Done);
    let copy = fetch.into_fetch().load(&at("copy"), pleach::Options::small).expect("loaded");
    let (mut peer, mut second) = (served.peer(), served.peer());
    let (start, root) = (db.commit_number(), over_all(&db));
    let mut feed = peer.feed(start, &root, PATIENCE).expect("a feed");
    for round in 0..5 {
        let before = db.snapshot().expect("a snapshot");
        let session = db.session(SessionOptions::new()).expect("a session");
        let changes = (0..50).map(|id| put(0, key(id), vec![round; 3]));
        let mut block =
            session.finish(changes.chain([put(11, key(1), vec![round])])).expect("finished");
        block.set_blob(vec![round; 7]).expect("short");
        block.commit().expect("committed");
        let fed = feed.next().expect("goes on").expect("read");
        assert_eq!((fed.head.commit, fed.head.root), (db.commit_number(), over_all(&db)));
        assert_eq!(fed.unproven_blob, vec![round; 7]);
        let reader = ChangeReader::new(&fed.stream[..]).expect("a stream");
        assert!(reader.head().blob.is_empty(), "no stranger's blob");
        let mut whole = Vec::new();
        export_changes(&before, &db.snapshot().expect("a snapshot"), &mut whole).expect("written");
        assert!(whole.len() > fed.stream.len(), "blob and plain namespace are not there");
        let to = Target::over_all(fed.head.root, Hasher::BLAKE3);
        catch_up(&copy, &to, &fed.stream[..]).expect("caught up");
        assert_eq!(over_all(&copy), over_all(&db));
    }
    let refused = second.feed(start, &root, PATIENCE).err();
    assert!(matches!(refused, Some(Refusal::Busy(_))), "{refused:?}");
    drop(feed);
    // From another commit, or one that is not there: refused. The place of the first feed is free soon.
    let mut refused = None;
    for _ in 0..1_000 {
        refused = second.feed(start, &no_root(), PATIENCE).err();
        if refused == Some(Refusal::Unknown) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(refused, Some(Refusal::Unknown));
    assert_eq!(second.feed(99, &root, PATIENCE).err(), Some(Refusal::Unknown));
    // A feed waits for a commit as long as its reader does.
    let newest = over_all(&db);
    let mut feed =
        second.feed(db.commit_number(), &newest, Duration::from_millis(300)).expect("a feed");
    let late = feed.next().expect("no end").expect_err("nothing comes");
    assert_eq!(late.kind(), ErrorKind::Other, "{late}");
}

#[test]
fn a_server_keeps_its_limits_and_says_what_it_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = state(&folder.path().join("state"), 3_000);
    let limits = ServeLimits {
        of_address: 3,
        bytes_per_second: 1_000,
        time: Duration::from_millis(500),
        ..ServeLimits::default()
    };
    let served = Served::new(server(&db), limits);
    // Connections of one address.
    let idle: Vec<_> = (0..3).map(|_| TcpStream::connect(served.at).expect("connected")).collect();
    std::thread::sleep(Duration::from_millis(100));
    let mut closed = TcpStream::connect(served.at).expect("the system takes it");
    let ended = closed.read(&mut [0]);
    assert!(matches!(ended, Ok(0)) || ended.is_err(), "{ended:?}");
    // Those that say nothing are closed.
    for mut stream in idle {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(ended.is_ok() || rest.is_empty());
    }
    let mut peer = served.peer();
    let part = Ask::Part(PartAsk {
        root: over_all(&db),
        namespace: 0,
        first: [0; 32],
        last: [0xff; 32],
        bytes: 64 << 10,
    });
    peer.ask(&part, LIMITS.most_bytes(), PATIENCE).expect("answered");
    let busy = peer.ask(&part, LIMITS.most_bytes(), PATIENCE).expect_err("a minute's bytes");
    assert!(matches!(busy, Refusal::Busy(time) if time > Duration::from_secs(20)), "{busy:?}");
    let mut stream = TcpStream::connect(served.at).expect("connected");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("read");
    for line in [
        "pleach_serve_turned_away_total 1",
        "pleach_serve_questions_total{kind=\"part\"} 2",
        "pleach_serve_refusals_total{kind=\"busy\"} 1",
    ] {
        assert!(page.lines().any(|one| one == line), "{line} is missing: {page}");
    }
    let commit = format!("}} {}", db.commit_number());
    let newest = page.lines().find(|line| line.starts_with("pleach_newest_commit{"));
    assert!(newest.is_some_and(|line| line.ends_with(&commit)), "{page}");
}

#[test]
fn urls_are_those_of_plain_http() {
    for (text, again) in [
        ("http://a", "http://a:80"),
        ("http://a:7070/", "http://a:7070"),
        ("http://[::1]:1/states/b", "http://[::1]:1/states/b"),
    ] {
        assert_eq!(text.parse::<Url>().expect("a URL").to_string(), again);
    }
    for text in ["a:70", "https://a", "http://a/?b", "http://u@a", "http://", "ftp://a", ""] {
        assert!(text.parse::<Url>().is_err(), "{text}");
    }
}
