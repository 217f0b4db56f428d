//! A server that speaks as much of S3 as an archive needs, and fails a fifth of all requests by a rule: uploads in parts, lists in pages,
//! reads and removals are tried again by the client, or by the caller, and the archive is never wrong.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use pleach_archive::{Archive, ArchiveError, BackupOptions, backup, check, prune};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

use crate::common::{World, commit, put};

/// What becomes of a fifth of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// It is refused with 503.
    Refuse,
    /// It is carried out, and its answer lost with the connection.
    Lose,
    /// Half of its answer comes.
    Cut,
}

#[derive(Debug, Default)]
struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    /// By id: name, and parts by number.
    uploads: BTreeMap<String, (String, BTreeMap<u32, Vec<u8>>)>,
    requests: u64,
    failed: u64,
    /// Parts that were taken, and pages of lists that were not the first.
    parts: u64,
    later_pages: u64,
}

struct Asked {
    method: String,
    /// Name of the object, empty for the bucket.
    name: String,
    query: BTreeMap<String, String>,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    more: String,
    body: Vec<u8>,
}

fn answer(status: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    Answer { status, more: String::new(), body: body.into() }
}

/// Keys of a page of a list.
const PAGE: usize = 2;

impl Bucket {
    fn serve(&mut self, Asked { method, name, query, range, body }: Asked) -> Answer {
        let upload = query.get("uploadId");
        match (&*method, upload) {
            ("GET", _) if name.is_empty() => self.list(&query),
            ("GET", _) => match (self.objects.get(&name), range) {
                (None, _) => answer("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"),
                (Some(object), None) => {
                    let more = "etag: \"1\"\r\nlast-modified: Mon, 30 Nov 2026 00:00:00 GMT\r\n";
                    Answer { more: more.to_owned(), ..answer("200 OK", object.clone()) }
                }
                (Some(object), Some((from, to))) => {
                    let (all, to) = (object.len(), to.min(object.len() - 1));
                    let mut more = format!("content-range: bytes {from}-{to}/{all}\r\n");
                    more += "etag: \"1\"\r\nlast-modified: Mon, 30 Nov 2026 00:00:00 GMT\r\n";
                    let part = object[from..=to].to_vec();
                    Answer { more, ..answer("206 Partial Content", part) }
                }
            },
            ("PUT", Some(id)) => {
                let number = query["partNumber"].parse().expect("a number");
                let Some((_, parts)) = self.uploads.get_mut(id) else { return no_upload() };
                parts.insert(number, body);
                self.parts += 1;
                Answer { more: format!("etag: \"{number}\"\r\n"), ..answer("200 OK", "") }
            }
            ("PUT", None) => {
                self.objects.insert(name, body);
                Answer { more: "etag: \"1\"\r\n".to_owned(), ..answer("200 OK", "") }
            }
            ("POST", Some(id)) => {
                // Of an upload that is complete it says the same again.
                let Some((name, parts)) = self.uploads.get(id) else { return no_upload() };
                self.objects.insert(name.clone(), parts.values().flatten().copied().collect());
                let done = "<CompleteMultipartUploadResult><ETag>\"1\"</ETag>";
                answer("200 OK", format!("{done}</CompleteMultipartUploadResult>"))
            }
            ("POST", None) if query.contains_key("uploads") => {
                let id = self.uploads.len().to_string();
                self.uploads.insert(id.clone(), (name, BTreeMap::new()));
                let id = format!("<UploadId>{id}</UploadId>");
                let begun = "InitiateMultipartUploadResult";
                answer("200 OK", format!("<{begun}>{id}</{begun}>"))
            }
            ("POST", None) if query.contains_key("delete") => {
                let text = String::from_utf8(body).expect("text");
                let mut done = "<DeleteResult>".to_owned();
                for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split('<').next()) {
                    self.objects.remove(key);
                    write!(done, "<Deleted><Key>{key}</Key></Deleted>").expect("written");
                }
                answer("200 OK", done + "</DeleteResult>")
            }
            ("DELETE", upload) => {
                match upload {
                    Some(id) => drop(self.uploads.get_mut(id).map(|(_, parts)| parts.clear())),
                    None => drop(self.objects.remove(&name)),
                }
                answer("204 No Content", "")
            }
            (method, _) => panic!("{method} {name} {query:?}"),
        }
    }

    fn list(&mut self, query: &BTreeMap<String, String>) -> Answer {
        assert_eq!(query["list-type"], "2");
        let after = query.get("continuation-token").cloned().unwrap_or_default();
        self.later_pages += u64::from(!after.is_empty());
        let prefix = query.get("prefix").map_or("", String::as_str);
        let names: Vec<_> = self.objects.iter().filter(|(name, _)| **name > after).collect();
        let mut names = names.into_iter().filter(|(name, _)| name.starts_with(prefix)).peekable();
        let mut text = "<ListBucketResult>".to_owned();
        let mut last = String::new();
        for (name, object) in names.by_ref().take(PAGE) {
            let size = object.len();
            write!(
                text,
                "<Contents><Key>{name}</Key><Size>{size}</Size><ETag>\"1\"</ETag>\
                 <LastModified>2026-11-30T00:00:00.000Z</LastModified></Contents>"
            )
            .expect("written");
            last.clone_from(name);
        }
        if names.peek().is_some() {
            write!(text, "<NextContinuationToken>{last}</NextContinuationToken>").expect("written");
        }
        answer("200 OK", text + "</ListBucketResult>")
    }
}

fn no_upload() -> Answer {
    answer("404 Not Found", "<Error><Code>NoSuchUpload</Code></Error>")
}

/// The next request of a connection; `None` when it has ended.
fn ask(from: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    let mut head = Vec::new();
    loop {
        line.clear();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let of = |name: &str| {
        head.iter().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let length = of("content-length").map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    let mut words = head.first()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.replace("%2F", "/"))
    });
    let name = path.strip_prefix("/bucket")?.trim_start_matches('/').to_owned();
    let range = of("range").map(|range| {
        let (from, to) =
            range.strip_prefix("bytes=").and_then(|it| it.split_once('-')).expect("a range");
        (from.parse().expect("a number"), to.parse().unwrap_or(usize::MAX))
    });
    Some(Asked { method, name, query: query.collect(), range, body })
}

fn serve(stream: TcpStream, bucket: &Mutex<Bucket>, rule: Option<Rule>) {
    let mut to = stream.try_clone().expect("a second handle");
    let mut from = BufReader::new(stream);
    while let Some(asked) = ask(&mut from) {
        let mut answer = {
            let mut bucket = bucket.lock().expect("no panic");
            bucket.requests += 1;
            let fails = rule.filter(|_| is_drawn(bucket.requests));
            bucket.failed += u64::from(fails.is_some());
            let answer = if fails == Some(Rule::Refuse) {
                answer("503 Slow Down", "<Error><Code>SlowDown</Code></Error>")
            } else {
                bucket.serve(asked)
            };
            (answer, fails)
        };
        let Answer { status, more, body } = &mut answer.0;
        let head = format!("HTTP/1.1 {status}\r\n{more}content-length: {}\r\n\r\n", body.len());
        match answer.1 {
            Some(Rule::Lose) => return,
            Some(Rule::Cut) => {
                let half = &body[..body.len() / 2];
                // The client may be gone.
                let _ = to.write_all(&[head.as_bytes(), half].concat());
                return;
            }
            _ if to.write_all(&[head.as_bytes(), body].concat()).is_err() => return,
            _ => {}
        }
    }
}

/// A fifth of all numbers, without a period that a backup's requests might have, too.
fn is_drawn(number: u64) -> bool {
    ChaCha8Rng::seed_from_u64(number).next_u64().is_multiple_of(5)
}

/// A bucket, and a client of a server that shows it.
fn bucket(rule: Option<Rule>, bucket: &Arc<Mutex<Bucket>>) -> Archive {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let bucket = Arc::clone(bucket);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, bucket) = (stream.expect("a connection"), Arc::clone(&bucket));
            std::thread::spawn(move || serve(stream, &bucket, rule));
        }
    });
    // The upper limit of a pause is above the first one: else the client panics.
    let (init_backoff, max_backoff) = (Duration::from_millis(1), Duration::from_millis(10));
    let backoff = BackoffConfig { init_backoff, max_backoff, base: 2.0 };
    let retry = RetryConfig { backoff, max_retries: 4, retry_timeout: Duration::from_secs(30) };
    let client = AmazonS3Builder::new()
        .with_endpoint(url)
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_region("here")
        .with_access_key_id("who")
        .with_secret_access_key("what")
        .with_retry(retry)
        .build();
    let store: Arc<dyn ObjectStore> = Arc::new(client.expect("a client"));
    Archive::with_store(store, "node/state").expect("an archive")
}

/// Calls again what the store has failed, as an operator does; nothing else may fail.
fn again<T>(what: &str, call: impl Fn() -> Result<T, ArchiveError>) -> T {
    for _ in 0..60 {
        match call() {
            Ok(done) => return done,
            Err(error @ ArchiveError::Store { .. }) => println!("{what}: {error}"),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    panic!("{what}: sixty times failed");
}

#[test]
fn an_archive_in_a_store_that_fails_is_right_or_tried_again() {
    for rule in [None, Some(Rule::Refuse), Some(Rule::Lose), Some(Rule::Cut)] {
        let shared = Arc::new(Mutex::new(Bucket::default()));
        let archive = bucket(rule, &shared);
        let mut world = World::new(21, 50);
        let long = |id| put(0, id, Some(vec![u8::try_from(id % 200).expect("a byte"); 90_000]));
        commit(&world.db, (0..130).map(long).collect(), None);
        let how = BackupOptions::new().part_mib(5);
        for round in 0..6 {
            commit(&world.db, (round..round + 70).map(long).collect(), None);
            let newest = world.db.commit_number();
            let how = if round == 4 { how.clone().full(true) } else { how.clone() };
            again("backup", || backup(&archive, &world.db, &how));
            assert_eq!(again("list", || archive.list()).newest(), Some(newest));
        }
        // What lies there is right, as a store without faults shows it.
        let quiet = bucket(None, &shared);
        assert_eq!(check(&quiet, None).expect("checked").len(), 0, "{rule:?}");
        let newest = world.db.commit_number();
        let copy = world.path("copy");
        let restored = again("restore", || {
            let restored = pleach_archive::restore(&archive, &copy, &crate::common::options());
            restored.map(|report| report.roots.get(0))
        });
        assert_eq!(restored, Some(world.db.root()), "{rule:?}");
        again("prune", || prune(&archive, 1));
        let listing = quiet.list().expect("listed");
        assert_eq!((listing.gaps(), listing.newest()), (Vec::new(), Some(newest)));
        assert_eq!(listing.restorable().count(), 2, "the second full, and a change");
        let Bucket { failed, parts, later_pages, .. } = &*shared.lock().expect("no panic");
        assert!(*parts > 6 && *later_pages > 6, "{parts} parts, {later_pages} pages");
        assert_eq!(*failed > 10, rule.is_some(), "{failed} failed by {rule:?}");
    }
}
