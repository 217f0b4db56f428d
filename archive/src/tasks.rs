//! A thread that runs the calls of object stores. Callers wait for it with plain channels, so that this crate may be
//! called from any thread, even one of another tokio runtime.

use std::future::Future;
use std::sync::mpsc::{Receiver, sync_channel};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{ArchiveError, Result};

/// The thread's runtime. It ends with this value.
#[derive(Debug)]
pub(crate) struct Tasks {
    handle: Handle,
    /// Dropped to end the thread.
    _end: oneshot::Sender<()>,
}

impl Tasks {
    pub(crate) fn new() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("pleach-archive".to_owned()).spawn(move || {
            // An error means that the sender was dropped, which is the end.
            let _ = runtime.block_on(ended);
        })?;
        Ok(Self { handle, _end: end })
    }

    /// Starts a task.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> StartedTask<T> {
        let (give, take) = sync_channel(1);
        self.handle.spawn(async move {
            // No thread takes the result where the caller has failed meanwhile.
            let _ = give.send(task.await);
        });
        StartedTask(take)
    }
}

/// A task that was started.
#[derive(Debug)]
pub(crate) struct StartedTask<T>(Receiver<T>);

impl<T> StartedTask<T> {
    /// Waits for the task.
    pub(crate) fn wait(self) -> Result<T> {
        self.0.recv().map_err(|_| ArchiveError::Panicked)
    }
}
