//! Requests by HTTP/1.1: `POST` with the JSON as the body. Size and time of a request are limited, the time of its
//! answer, connections, and the requests that are answered at the same time. A node that strangers reach stands behind
//! a proxy, which has TLS, a limit for each of them, and memory for the answers of slow ones.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use super::OldBlocks;

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a body.
    pub body: usize,
    /// How long the head of a request may take to come, from the end of the one before, how long its body, and how long
    /// the client may take for the whole answer. Then the connection is closed.
    pub time: Duration,
    /// Connections at the same time.
    pub connections: usize,
    /// Requests that are answered at the same time, each on a thread.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 64 << 10, time: Duration::from_secs(10), connections: 64, at_once: 8 }
    }
}

/// Answers requests until the task is aborted.
pub async fn serve(listener: TcpListener, blocks: Arc<OldBlocks>, limits: Limits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let slots = Arc::new(Semaphore::new(limits.at_once));
    let service = Arc::new(Service { blocks, limits, slots });
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, say: some are closed when other connections end.
                eprintln!("no connection was accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let _place = place;
            // Answers are sent at once, whatever their length.
            if let Err(error) = stream.set_nodelay(true) {
                eprintln!("a connection ended: {error}");
                return;
            }
            let stream = Timed { stream, time: limits.time, late: None };
            let answers = service_fn(|request| service.answer(request));
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.time)
                .serve_connection(TokioIo::new(stream), answers)
                .await;
            // An idle or slow connection is closed without a message.
            if let Err(error) = served
                && !error.is_timeout()
                && !is_late(&error)
            {
                eprintln!("a connection ended: {error}");
            }
        });
    }
}

/// A connection that fails when an answer is not taken in time. hyper has no limit for that, so the clock is here: it
/// starts with the first bytes of an answer and stops when hyper flushes, which it does once the system has them all.
struct Timed {
    stream: TcpStream,
    time: Duration,
    late: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// Fails when the answer is late, also one of which a little is taken again and again.
    fn poll_late(&mut self, context: &mut Context) -> io::Result<()> {
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(self.time)));
        match late.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        into: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_late(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        parts: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        self.poll_late(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.late = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// True for the error of [`Timed`].
fn is_late(error: &hyper::Error) -> bool {
    let cause =
        std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
}

struct Service {
    blocks: Arc<OldBlocks>,
    limits: Limits,
    slots: Arc<Semaphore>,
}

/// The status and text of a refused request.
type Refused = (StatusCode, &'static str);

impl Service {
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let result = match self.read(request).await {
            Ok(body) => self.look_up(body).await,
            Err(refused) => Err(refused),
        };
        let (status, kind, body) = match result {
            Ok(Some(answer)) => (StatusCode::OK, "application/json", answer),
            Ok(None) => (StatusCode::NO_CONTENT, "application/json", String::new()),
            Err((status, why)) => (status, "text/plain", format!("{why}\n")),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        }
        Ok(response)
    }

    /// The body of a request.
    async fn read(&self, request: Request<Incoming>) -> Result<Bytes, Refused> {
        if request.method() != Method::POST {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "a request is a POST"));
        }
        let too_large = (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
        let body = request.into_body();
        // What the head says of the length; a body without a length is counted.
        if usize::try_from(body.size_hint().lower()).is_ok_and(|length| length > self.limits.body) {
            return Err(too_large);
        }
        let body = Limited::new(body, self.limits.body).collect();
        match tokio::time::timeout(self.limits.time, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large),
            Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "the request ended too early")),
            Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the request took too long to come")),
        }
    }

    /// Asks the database on a thread that may wait.
    async fn look_up(&self, request: Bytes) -> Result<Option<String>, Refused> {
        let failed = (StatusCode::INTERNAL_SERVER_ERROR, "the request could not be answered");
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_| failed)?;
        let blocks = Arc::clone(&self.blocks);
        let answer = tokio::task::spawn_blocking(move || {
            // Taken along: a client that goes away leaves the work here.
            let _slot = slot;
            blocks.answer(&request)
        });
        answer.await.map_err(|_| failed)
    }
}
