//! A connection whose client has to take an answer in time: hyper has no limit for that.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// Bytes a second that a client takes, at least.
const LEAST_RATE: u64 = 16 << 10;

/// The clock starts with the first bytes of an answer, or of a chunk of it, and stops when hyper flushes, which it does once
/// the system has them all.
#[derive(Debug)]
pub(super) struct Timed {
    stream: TcpStream,
    time: Duration,
    late: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// Gives `time`, and more for a long answer.
    pub(super) fn new(stream: TcpStream, time: Duration) -> Self {
        Self { stream, time, late: None }
    }

    /// Fails when the answer is late, also one of which a little is taken again and again.
    fn poll_late(&mut self, bytes: usize, context: &mut Context<'_>) -> io::Result<()> {
        let time = self.time + Duration::from_secs(bytes as u64 / LEAST_RATE);
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(time)));
        match late.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_late(bytes.len(), context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_late(parts.iter().map(|part| part.len()).sum(), context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.late = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
