//! A ring's registered memory: one pool's slab.
//!
//! Registering pins the pages once instead of for each request; every page reader of the engine does so. The ring holds
//! the slab as long as requests may use it, so the pages that were pinned are the pages that the process sees.
#![expect(unsafe_code, reason = "the kernel keeps the slab's pages")]

use std::sync::Arc;

use io_uring::Submitter;

use crate::buffer::PageBuf;
use crate::slab::Slab;

/// Largest piece that the kernel registers.
const PIECE: usize = 1 << 30;

/// Most pieces that the kernel registers.
const PIECES: usize = 1 << 14;

pub(super) struct FixedMemory {
    slab: Option<Arc<Slab>>,
    /// Buffers of the pool in each registered piece: none lies in two, though runs may.
    per_piece: usize,
}

impl FixedMemory {
    pub(super) fn new() -> Self {
        Self { slab: None, per_piece: 1 }
    }

    /// Registers `slab`; true when it is registered now. A ring has one slab; a refusal (the
    /// locked-memory limit, as a rule) leaves everything as it was.
    pub(super) fn register(&mut self, ring: &Submitter<'_>, slab: &Arc<Slab>) -> bool {
        if let Some(own) = &self.slab {
            return Arc::ptr_eq(own, slab);
        }
        let (start, len) = slab.memory();
        if len == 0 || slab.stride() > PIECE {
            return false;
        }
        let per_piece = PIECE / slab.stride();
        let piece = per_piece * slab.stride();
        if len.div_ceil(piece) > PIECES {
            return false;
        }
        let pieces: Vec<_> = (0..len)
            .step_by(piece)
            .map(|at| libc::iovec {
                iov_base: start.wrapping_add(at).cast(),
                iov_len: piece.min(len - at),
            })
            .collect();
        // SAFETY: the pieces are inside the slab's memory, which `self.slab` keeps until the ring is closed. The kernel
        // writes there only on behalf of requests, each of which owns its part of the slab.
        let registered = unsafe { ring.register_buffers(&pieces) };
        if registered.is_err() {
            return false;
        }
        self.slab = Some(slab.clone());
        self.per_piece = per_piece;
        true
    }

    /// The piece that `buf` lies in, if it is part of the registered slab.
    pub(super) fn piece(&self, buf: &PageBuf) -> Option<u16> {
        let own = self.slab.as_ref()?;
        let pages = buf.slab().filter(|pages| Arc::ptr_eq(pages.slab(), own))?;
        let parts = pages.parts();
        let piece = parts.start / self.per_piece;
        // A run may lie in two.
        u16::try_from(piece).ok().filter(|_| (parts.end - 1) / self.per_piece == piece)
    }
}
