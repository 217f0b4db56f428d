//! The figures of the crate `nomt`, and its check for `io_uring`.

/// The figures of the moment in which they were asked for ([`Nomt::metrics`](crate::Nomt::metrics)).
/// [`pleach::Db::metrics`] has more.
#[derive(Clone, Debug)]
pub struct Metrics(pub(crate) pleach::Metrics, pub(crate) Option<u64>);

impl Metrics {
    /// Prints requests of pages, their misses, and the mean of reads to the standard output, as the crate `nomt` does.
    pub fn print(&self) {
        println!("{self}");
    }

    /// Requests of leaf pages, which have values and nodes.
    pub fn get_page_requests(&self) -> u64 {
        self.0.cache_hits + self.0.cache_misses
    }

    /// Leaf pages read from the device.
    pub fn get_page_cache_misses(&self) -> u64 {
        self.0.cache_misses
    }

    /// Always `None`: the engine does not time single pages.
    pub fn get_page_fetch_time(&self) -> Option<u64> {
        None
    }

    /// Mean nanoseconds of [`Session::read`](crate::Session::read); `None` before the first one, and without
    /// [`Options::metrics`](crate::Options::metrics).
    pub fn get_value_fetch_time(&self) -> Option<u64> {
        self.1
    }
}

/// The lines of [`Metrics::print`].
impl std::fmt::Display for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (requests, misses) = (self.get_page_requests(), self.get_page_cache_misses());
        write!(f, "metrics\n  page requests         {requests}")?;
        if requests > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let percent = misses as f64 / requests as f64 * 100.0;
            write!(f, "\n  page cache misses     {misses} - {percent:.2}% of page requests")?;
        }
        match self.1 {
            Some(nanos) => write!(f, "\n  value fetch mean      {nanos} ns"),
            None => Ok(()),
        }
    }
}

/// Whether the process may use `io_uring`. The engine uses threads where it may not.
pub enum IoUringPermission {
    /// Allowed.
    Allowed,
    /// Denied.
    Denied,
    /// The kernel has none.
    NotSupported,
}

/// Probes the kernel for a ring.
pub fn check_iou_permissions() -> IoUringPermission {
    match io_uring::IoUring::new(8).map_err(|error| error.kind()) {
        Ok(_) => IoUringPermission::Allowed,
        Err(std::io::ErrorKind::PermissionDenied) => IoUringPermission::Denied,
        Err(_) => IoUringPermission::NotSupported,
    }
}
