//! One server, asked over one connection, which is made when it is needed.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, RETRY_AFTER};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::{KIND, PREFIX};
use crate::error::{Error, Refusal, Result};
use crate::wire::{Ask, FeedHead};

/// Bytes of the head of an answer.
const HEAD: usize = 16 << 10;

/// Where a server is: `http://HOST:PORT`, perhaps with a path before that of each question. There is no TLS: the root
/// proves what comes, and who wants secrecy has a proxy at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Url {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let uri: Uri = text.parse().map_err(|_| "give http://HOST:PORT")?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("there is no TLS here: give http://HOST:PORT of a proxy that has it");
            }
            _ => return Err("give http://HOST:PORT"),
        }
        if uri.query().is_some() || uri.authority().is_some_and(|at| at.as_str().contains('@')) {
            return Err("give http://HOST:PORT, without a user or a question mark");
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(80), path })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

impl Url {
    fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// A connection, whose task ends with it.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A server that is asked, one question at a time. Calls block, and may not come from a task of tokio.
#[derive(Debug)]
pub struct Peer {
    url: Url,
    runtime: Runtime,
    connection: Option<Connection>,
}

impl Peer {
    /// Connects with the first question.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(url: Url) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self { url, runtime: runtime.map_err(Error::System)?, connection: None })
    }

    /// Where the server is.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Asks, and gives an answer of at most `most` bytes, or one more of a longer one. What it says is not proven.
    ///
    /// # Errors
    /// [`Refusal`]: of the server, or [`Refusal::Failed`] without a whole answer in `patience`.
    pub fn ask(&mut self, ask: &Ask, most: usize, patience: Duration) -> Result<Vec<u8>, Refusal> {
        self.ask_unless(&AtomicBool::new(false), ask, most, patience)
    }

    /// The same, until `stop` is set.
    pub(super) fn ask_unless(
        &mut self,
        stop: &AtomicBool,
        ask: &Ask,
        most: usize,
        patience: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        let Self { url, runtime, connection } = self;
        let asking = async {
            let until = Instant::now() + patience;
            let mut body = begin(url, connection, &ask.to_string(), until).await?;
            let mut answer = Vec::new();
            while let Some(bytes) = chunk(&mut body, until).await? {
                let left = most + 1 - answer.len();
                answer.extend_from_slice(&bytes[..left.min(bytes.len())]);
                if bytes.len() >= left {
                    // The rest is not read: the connection is of no use.
                    *connection = None;
                    break;
                }
            }
            Ok(answer)
        };
        runtime.block_on(async {
            let mut asking = std::pin::pin!(asking);
            loop {
                match timeout(Duration::from_millis(100), asking.as_mut()).await {
                    Ok(answered) => return answered,
                    Err(_) if stop.load(Ordering::Relaxed) => return Err(failed("stopped")),
                    Err(_) => {}
                }
            }
        })
    }

    /// Asks for a change stream, for [`catch_up`](crate::catch_up()); `patience` is for each part of it.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn changes(
        &mut self,
        from: &pleach::Node,
        to: &pleach::Node,
        patience: Duration,
    ) -> Result<Stream<'_>, Refusal> {
        self.stream(&Ask::Changes { from: *from, to: *to }.to_string(), patience)
    }

    /// Follows the commits after this one, which has this root over all. A commit can come at any time: each read waits
    /// for at most `patience`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn feed(
        &mut self,
        commit: u64,
        root: &pleach::Node,
        patience: Duration,
    ) -> Result<FeedReader<'_>, Refusal> {
        let path = format!("feed/{commit}/{}", pleach_core::hexadecimal::hex(root));
        Ok(FeedReader(self.stream(&path, patience)?))
    }

    fn stream(&mut self, path: &str, patience: Duration) -> Result<Stream<'_>, Refusal> {
        let Self { url, runtime, connection } = self;
        let until = Instant::now() + patience;
        let body = runtime.block_on(begin(url, connection, path, until))?;
        // It is the stream's: what is left of it when it is dropped is not read.
        let kept = connection.take();
        Ok(Stream { runtime, connection: kept, body, patience, bytes: Bytes::new() })
    }
}

/// Sends a question, and gives the body of its answer. The connection is there again after the whole body.
async fn begin(
    url: &Url,
    connection: &mut Option<Connection>,
    path: &str,
    until: Instant,
) -> Result<Incoming, Refusal> {
    let mut open = connection.take().filter(|open| !open.sender.is_closed());
    let sent = match &mut open {
        Some(open) => send(url, open, path, until).await,
        None => Err(failed("not connected")),
    };
    let answer = match sent {
        Ok(answer) => answer,
        // The server may have closed it meanwhile.
        Err(_) if Instant::now() < until => {
            let mut new = connect(url, until).await?;
            let answer = send(url, &mut new, path, until).await?;
            open = Some(new);
            answer
        }
        Err(error) => return Err(error),
    };
    let body = judge(answer)?;
    *connection = open;
    Ok(body)
}

async fn connect(url: &Url, until: Instant) -> Result<Connection, Refusal> {
    let stream = timeout_at(until, TcpStream::connect((url.host.as_str(), url.port)));
    let stream = stream.await.map_err(|_| failed("no connection in time"))?.map_err(failed)?;
    // A question is sent at once; without that it is later alone.
    let _ = stream.set_nodelay(true);
    let made = http1::Builder::new().max_buf_size(1 << 20).handshake(TokioIo::new(stream));
    let (sender, connection) = made.await.map_err(failed)?;
    // Its errors are those of the answer.
    let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
    Ok(Connection { sender, task })
}

async fn send(
    url: &Url,
    open: &mut Connection,
    path: &str,
    until: Instant,
) -> Result<Response<Incoming>, Refusal> {
    let question =
        Request::get(format!("{}{PREFIX}{path}", url.path)).header(HOST, url.authority());
    let question = question.body(Empty::new()).map_err(failed)?;
    let sent = timeout_at(until, async {
        open.sender.ready().await?;
        open.sender.send_request(question).await
    });
    sent.await.map_err(|_| failed("no answer in time"))?.map_err(failed)
}

/// The body of an answer, or what it refuses.
fn judge(answer: Response<Incoming>) -> Result<Incoming, Refusal> {
    let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let bytes: usize =
        answer.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > HEAD {
        return Err(failed("the head of the answer is too long"));
    }
    let mut words = header(KIND).unwrap_or_default().split(' ');
    let second = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    match words.next().unwrap_or_default() {
        "answer" if answer.status().is_success() => Ok(answer.into_body()),
        "busy" => {
            let seconds = second(header(RETRY_AFTER.as_str())).unwrap_or(1);
            Err(Refusal::Busy(Duration::from_secs(seconds)))
        }
        "gone" => Err(Refusal::Gone { oldest: second(words.next()).unwrap_or(0) }),
        "unknown" => Err(Refusal::Unknown),
        "malformed" => Err(Refusal::Malformed),
        "failed" => Err(failed("the server says that it failed")),
        _ => {
            let kind = header("content-type").unwrap_or("nothing");
            let kind: String = kind.chars().take(40).collect();
            Err(failed(format!(
                "no server of this kind answers there (status {}, {kind})",
                answer.status().as_u16()
            )))
        }
    }
}

fn failed(why: impl fmt::Display) -> Refusal {
    Refusal::Failed(why.to_string())
}

async fn chunk(body: &mut Incoming, until: Instant) -> Result<Option<Bytes>, Refusal> {
    loop {
        let frame = timeout_at(until, body.frame()).await;
        match frame.map_err(|_| failed("the answer stalls"))?.transpose().map_err(failed)? {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// An answer that is read as it comes. Its end comes after the whole answer alone.
#[derive(Debug)]
pub struct Stream<'a> {
    runtime: &'a Runtime,
    connection: Option<Connection>,
    body: Incoming,
    patience: Duration,
    bytes: Bytes,
}

impl Drop for Stream<'_> {
    /// Closes the connection now: the server has a place for another one.
    fn drop(&mut self) {
        self.connection = None;
        self.runtime.block_on(tokio::task::yield_now());
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.bytes.is_empty() {
            let next = self
                .runtime
                .block_on(async { chunk(&mut self.body, Instant::now() + self.patience).await });
            match next.map_err(io::Error::other)? {
                Some(bytes) => self.bytes = bytes,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.bytes.len());
        into[..length].copy_from_slice(&self.bytes.split_to(length));
        Ok(length)
    }
}

/// Commits as they come, from a server's feed.
#[derive(Debug)]
pub struct FeedReader<'a>(Stream<'a>);

/// A commit of a feed, of which nothing is proven yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FedCommit {
    /// Its number, root over all, and lengths.
    pub head: FeedHead,
    /// The application's blob. **No root proves it.**
    pub unproven_blob: Vec<u8>,
    /// The change stream, for [`catch_up`](crate::catch_up()) and [`ChangeReader`](pleach_ops::export::ChangeReader).
    pub stream: Vec<u8>,
}

impl Iterator for FeedReader<'_> {
    type Item = io::Result<FedCommit>;

    /// Waits for the next commit. `None` when the server ends the feed.
    fn next(&mut self) -> Option<Self::Item> {
        let mut head = [0; FeedHead::BYTES];
        match self.0.read(&mut head[..1]) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return Some(Err(error)),
        }
        let mut commit = || {
            self.0.read_exact(&mut head[1..])?;
            let head = FeedHead::decode(&head);
            let unproven_blob = self.bytes(head.blob)?;
            Ok(FedCommit { head, unproven_blob, stream: self.bytes(head.stream)? })
        };
        Some(commit())
    }
}

impl FeedReader<'_> {
    /// Memory grows with what comes.
    fn bytes(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if length > crate::catch_up::LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        (&mut self.0).take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}
