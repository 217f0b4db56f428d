//! The server: one thread carries bytes, others answer. Connections, those of an address, answers at once, feeds, bytes a
//! second and the times of requests and answers are limited.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use super::counters::{self, Counters};
use super::timed::Timed;
use super::{KIND, PREFIX};
use crate::error::{Error, Refusal, Result};
use crate::server::{Feed, Server};
use crate::wire::Ask;

/// How often the database is looked at.
const REFRESH: Duration = Duration::from_millis(200);
/// How long refreshes may fail before the server ends.
const BROKEN: Duration = Duration::from_secs(30);
/// How long connections may go on after the end.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Bytes of a chunk of a stream.
const CHUNK: usize = 64 << 10;
/// Chunks that wait for a client.
const CHUNKS: usize = 4;

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLimits {
    /// Connections at the same time; further ones wait.
    pub connections: usize,
    /// Those of one address; further ones are closed. A proxy is one address.
    pub of_address: usize,
    /// Questions that are answered at the same time. Others wait for a second, and are refused then.
    pub at_once: usize,
    /// Feeds at the same time.
    pub feeds: usize,
    /// Bytes of answers a second; 0 for no limit.
    pub bytes_per_second: u64,
    /// How long the head of a request may take, and a client for an answer, beside a second for each 16 KiB.
    pub time: Duration,
}

impl Default for ServeLimits {
    /// 64 connections, 8 of an address, four answers at once, 16 feeds, 50 MiB a second, ten seconds.
    fn default() -> Self {
        Self {
            connections: 64,
            of_address: 8,
            at_once: 4,
            feeds: 16,
            bytes_per_second: 50 << 20,
            time: Duration::from_secs(10),
        }
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Refusal>>;

/// Answers the questions of a listener, and refreshes the server's database five times a second, until `stop` is set; then
/// answers in progress have five seconds. Faults of single connections end these connections alone.
///
/// Blocks until then.
///
/// # Errors
/// [`Error::System`]; [`Error::Db`], when refreshes of the database have failed for 30 seconds.
pub fn serve(
    listener: std::net::TcpListener,
    server: Arc<Server>,
    limits: ServeLimits,
    stop: &AtomicBool,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::System)?;
    let service = Arc::new(Service {
        server,
        limits,
        slots: Arc::new(Semaphore::new(limits.at_once)),
        feeds: Arc::new(Semaphore::new(limits.feeds)),
        places: Arc::new(Semaphore::new(limits.connections)),
        addresses: Mutex::default(),
        pace: Mutex::new(Instant::now()),
        counters: Counters::default(),
        ends: AtomicBool::new(false),
    });
    let ended = runtime.block_on(async {
        listener.set_nonblocking(true).map_err(Error::System)?;
        let listener = TcpListener::from_std(listener).map_err(Error::System)?;
        let accepts = tokio::spawn(Arc::clone(&service).accept(listener));
        let refreshed = service.refresh_until(stop).await;
        accepts.abort();
        service.ends.store(true, Ordering::Relaxed);
        let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
        // Those that go on longer are cut off.
        let _ = timeout(LAST_ANSWERS, service.places.acquire_many(all)).await;
        refreshed
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

struct Service {
    server: Arc<Server>,
    limits: ServeLimits,
    slots: Arc<Semaphore>,
    feeds: Arc<Semaphore>,
    places: Arc<Semaphore>,
    /// Connections of each address.
    addresses: Mutex<HashMap<IpAddr, usize>>,
    /// When all bytes that were sent have had their time.
    pace: Mutex<Instant>,
    counters: Counters,
    ends: AtomicBool,
}

/// A connection's place.
struct ConnectionPlace {
    service: Arc<Service>,
    address: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut addresses = self.service.addresses.lock();
        if let Some(count) = addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.address);
            }
        }
    }
}

impl Service {
    async fn refresh_until(&self, stop: &AtomicBool) -> Result<()> {
        let mut well = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let server = Arc::clone(&self.server);
            match tokio::task::spawn_blocking(move || server.refresh()).await {
                Ok(Ok(_)) => well = Instant::now(),
                Ok(Err(error)) if well.elapsed() > BROKEN => return Err(error),
                _ => {}
            }
            sleep(REFRESH).await;
        }
        Ok(())
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok(permit) = Arc::clone(&self.places).acquire_owned().await else { return };
            let Ok((stream, from)) = listener.accept().await else {
                // Too many open files, say: some are closed when other connections end.
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let address = from.ip().to_canonical();
            let has_enough = {
                let mut addresses = self.addresses.lock();
                let count = addresses.entry(address).or_default();
                let has_enough = *count >= self.limits.of_address;
                *count += usize::from(!has_enough);
                has_enough
            };
            if has_enough {
                self.counters.turned_away.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let place = ConnectionPlace { service: Arc::clone(&self), address, _permit: permit };
            tokio::spawn(Arc::clone(&self).connection(stream, place));
        }
    }

    /// Its errors are the client's.
    async fn connection(self: Arc<Self>, stream: TcpStream, _place: ConnectionPlace) {
        // An answer is sent at once, whatever its length; without that it is later alone.
        let _ = stream.set_nodelay(true);
        let stream = TokioIo::new(Timed::new(stream, self.limits.time));
        let answers = service_fn(|request| Arc::clone(&self).answer(request));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.time)
            .max_buf_size(16 << 10)
            .serve_connection(stream, answers);
        let mut served = std::pin::pin!(served);
        loop {
            if timeout(REFRESH, served.as_mut()).await.is_ok() {
                return;
            }
            if self.ends.load(Ordering::Relaxed) {
                served.as_mut().graceful_shutdown();
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let path = request.uri().path();
        let kind = match path.strip_prefix(PREFIX) {
            Some(ask) => ask.split('/').next().unwrap_or_default(),
            None => path.trim_start_matches('/'),
        };
        self.counters.count_question(kind);
        let answered = if request.method() == Method::GET {
            Arc::clone(&self).answer_path(path).await
        } else {
            Err(Refusal::Malformed)
        };
        let mut answer = answered.unwrap_or_else(|refusal| self.refuse(&refusal));
        if self.ends.load(Ordering::Relaxed) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(hyper::header::CONNECTION, close);
        }
        Ok(answer)
    }

    async fn answer_path(self: Arc<Self>, path: &str) -> Result<Answer, Refusal> {
        if path == "/metrics" {
            let connections = self.addresses.lock().values().sum();
            let feeds = self.limits.feeds - self.feeds.available_permits();
            let own = self.counters.text(connections, feeds);
            let page = self.on_thread(metrics).await?;
            return Ok(whole((page + &own).into_bytes(), "text/plain; version=0.0.4"));
        }
        let ask = path.strip_prefix(PREFIX).ok_or(Refusal::Malformed)?;
        if let Some(from) = ask.strip_prefix("feed/") {
            let (commit, root) = from.split_once('/').ok_or(Refusal::Malformed)?;
            let commit = commit.parse().map_err(|_| Refusal::Malformed)?;
            let root = root.parse().map_err(|_| Refusal::Malformed)?;
            let permit = Arc::clone(&self.feeds).try_acquire_owned();
            let permit = permit.map_err(|_| Refusal::Busy(Duration::from_secs(10)))?;
            let feed = self.on_thread(move |server| server.feed(commit, &root)).await?;
            let (to, chunks) = mpsc::channel(1);
            tokio::spawn(self.feed(feed, to, permit));
            return Ok(streamed(Chunks { first: None, rest: chunks }));
        }
        let ask: Ask = ask.parse()?;
        let owed = self.pace.lock().saturating_duration_since(Instant::now());
        if owed > Duration::from_secs(1) {
            return Err(Refusal::Busy(owed));
        }
        if let Ask::Changes { from, to } = ask {
            return self.changes(from, to).await;
        }
        let answer = self.on_thread(move |server| {
            let mut answer = Vec::new();
            server.answer(&ask, &mut answer).map(|()| answer)
        });
        let answer = answer.await?;
        let wait = self.book(answer.len());
        sleep(wait).await;
        Ok(whole(answer, "application/octet-stream"))
    }

    /// Books bytes, and gives how long they have to wait.
    fn book(&self, bytes: usize) -> Duration {
        self.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.limits.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let time = Duration::from_secs_f64(bytes as f64 / self.limits.bytes_per_second as f64);
        let (mut pace, now) = (self.pace.lock(), Instant::now());
        let wait = pace.saturating_duration_since(now);
        *pace = now + wait + time;
        wait
    }

    /// Asks the database on a thread that may wait, when one of the slots is free.
    async fn on_thread<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Server) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let slot = self.slot().await?;
        let server = Arc::clone(&self.server);
        let asked = tokio::task::spawn_blocking(move || {
            // Taken along: a client that goes away leaves the work here.
            let _slot = slot;
            ask(&server)
        });
        asked.await.map_err(|_| Refusal::Failed("the server has failed".to_owned()))?
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let slot = Arc::clone(&self.slots).acquire_owned();
        match timeout(Duration::from_secs(1), slot).await {
            Ok(Ok(slot)) => Ok(slot),
            _ => Err(Refusal::Busy(Duration::from_secs(1))),
        }
    }

    async fn changes(
        self: Arc<Self>,
        from: pleach::Node,
        to: pleach::Node,
    ) -> Result<Answer, Refusal> {
        let slot = self.slot().await?;
        let (chunks, mut received) = mpsc::channel(CHUNKS);
        tokio::task::spawn_blocking(move || {
            let _slot = slot;
            let mut out = ChunkWriter { service: &self, bytes: Vec::new(), to: &chunks };
            let written = self.server.changes(&from, &to, &mut out);
            let flushed = out.flush();
            if let Err(refusal) = written {
                // A client that is gone wants none.
                let _ = chunks.blocking_send(Err(refusal));
            } else if flushed.is_ok() {
                // The end: what was cut off has none.
                let _ = chunks.blocking_send(Ok(Bytes::new()));
            }
        });
        // A refusal comes before the first chunk.
        match received.recv().await {
            Some(Ok(first)) => Ok(streamed(Chunks { first: Some(first), rest: received })),
            Some(Err(refusal)) => Err(refusal),
            None => Err(Refusal::Failed("the server has failed".to_owned())),
        }
    }

    async fn feed(
        self: Arc<Self>,
        mut feed: Feed,
        to: mpsc::Sender<Result<Bytes, Refusal>>,
        _permit: OwnedSemaphorePermit,
    ) {
        while !to.is_closed() && !self.ends.load(Ordering::Relaxed) {
            let next = self.on_thread(move |_| {
                let mut commit = Vec::new();
                feed.next(&mut commit).map(|()| (feed, commit))
            });
            let commit;
            (feed, commit) = match next.await {
                Ok(next) => next,
                // The client asks again from where it is.
                Err(refusal) => return drop(to.send(Err(refusal)).await),
            };
            if commit.is_empty() {
                sleep(REFRESH).await;
                continue;
            }
            sleep(self.book(commit.len())).await;
            if to.send(Ok(commit.into())).await.is_err() {
                return;
            }
        }
        let _ = to.send(Ok(Bytes::new())).await;
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        self.counters.count_refusal(refusal);
        let mut answer = whole(format!("{refusal}\n").into_bytes(), "text/plain");
        *answer.status_mut() = match refusal {
            Refusal::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Gone { .. } => StatusCode::GONE,
            Refusal::Unknown => StatusCode::NOT_FOUND,
            Refusal::Malformed => StatusCode::BAD_REQUEST,
            Refusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let headers = answer.headers_mut();
        let kind = match refusal {
            Refusal::Gone { oldest } => HeaderValue::from_str(&format!("gone {oldest}")),
            refusal => Ok(HeaderValue::from_static(counters::name(refusal))),
        };
        headers.insert(KIND, kind.expect("a word and a number"));
        if let Refusal::Busy(time) = refusal {
            headers.insert(RETRY_AFTER, HeaderValue::from(time.as_secs() + 1));
        }
        answer
    }
}

fn metrics(server: &Server) -> Result<String, Refusal> {
    pleach_ops::reader_metrics(server.db()).map_err(|error| Refusal::Failed(error.to_string()))
}

fn whole(bytes: Vec<u8>, kind: &'static str) -> Answer {
    answer(UnsyncBoxBody::new(Full::from(bytes).map_err(|never| match never {})), kind)
}

fn streamed(body: Chunks) -> Answer {
    answer(UnsyncBoxBody::new(body), "application/octet-stream")
}

fn answer(body: UnsyncBoxBody<Bytes, Refusal>, kind: &'static str) -> Answer {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(KIND, HeaderValue::from_static("answer"));
    answer
}

/// A body of chunks; an empty one is the end. Without it the body is cut off, and the client sees that.
struct Chunks {
    first: Option<Bytes>,
    rest: mpsc::Receiver<Result<Bytes, Refusal>>,
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.rest.poll_recv(context).map(|chunk| match chunk {
            Some(Ok(bytes)) if bytes.is_empty() => None,
            Some(chunk) => Some(chunk.map(Frame::data)),
            None => Some(Err(Refusal::Failed("the server has failed".to_owned()))),
        })
    }
}

/// Sends what is written as chunks, at the pace of the server.
struct ChunkWriter<'a> {
    service: &'a Service,
    bytes: Vec<u8>,
    to: &'a mpsc::Sender<Result<Bytes, Refusal>>,
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend(bytes);
        if self.bytes.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        std::thread::sleep(self.service.book(bytes.len()));
        self.to.blocking_send(Ok(bytes)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
