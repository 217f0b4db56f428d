//! Leaf pages in key order, with some reads in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use pleach_beatree::{PageNo, Region, RegionIndex};
use pleach_core::page::leaf::LeafView;
use pleach_core::page::{FileKind, Identity, header};
use pleach_io::{Disk, File, IoError, PageBuf, Request, RequestKind};
use pleach_journal::format::names::LEAF_FILE;

use crate::error::{Error, Result};

/// Reads in flight.
const DEPTH: usize = 64;

/// A child of a region, with its page as it was read.
#[expect(missing_debug_implementations, reason = "hidden from users")]
pub struct VisitedPage<'a> {
    /// The region of the child.
    pub region: &'a Arc<Region>,
    /// The child's index in the region.
    pub child: usize,
    /// `None` for a prefix without a page.
    pub page: Option<core::result::Result<PageBuf, IoError>>,
}

/// Visits all children of all regions of a trie in key order, until `visit` returns false. Without the file each page
/// is an error.
#[expect(clippy::missing_panics_doc, reason = "a completion has the token of a request")]
pub fn visit<'a, E: From<Error>>(
    device: &Disk,
    file: core::result::Result<&File, &IoError>,
    index: &'a RegionIndex,
    mut visit: impl FnMut(VisitedPage<'a>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut queue = device.queue(DEPTH).map_err(Error::from)?;
    let mut children = index.regions().iter().flat_map(|region| {
        let children = region.read().children().clone();
        (0..children.len()).map(move |child| (region, child, children.page(child)))
    });
    // Pages in order, each with whether it has arrived.
    let mut pending: VecDeque<(VisitedPage<'a>, bool)> = VecDeque::new();
    let mut first = 0u64;
    let outcome = loop {
        while pending.len() < 2 * DEPTH && queue.in_flight() < DEPTH {
            let Some((region, child, number)) = children.next() else { break };
            let (page, is_here) = match (number, file) {
                (None, _) => (None, true),
                (Some(_), Err(error)) => (Some(Err(error.clone())), true),
                (Some(number), Ok(file)) => {
                    queue.push(Request {
                        file: file.clone(),
                        kind: RequestKind::Read,
                        offset: number.offset(),
                        buf: PageBuf::zeroed(1),
                        token: first + pending.len() as u64,
                    });
                    (None, false)
                }
            };
            pending.push_back((VisitedPage { region, child, page }, is_here));
        }
        let Some((_, is_here)) = pending.front() else { break Ok(()) };
        if *is_here && let Some((visited, _)) = pending.pop_front() {
            first += 1;
            match visit(visited) {
                Ok(true) => continue,
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        }
        let Some(completion) = queue.wait().map_err(Error::from)? else { break Ok(()) };
        let at = usize::try_from(completion.token - first).expect("within what was pending for");
        let (visited, is_here) = &mut pending[at];
        (visited.page, *is_here) = (Some(completion.result.map(|()| completion.buf)), true);
    };
    while queue.in_flight() > 0 {
        // Results that are not needed any more.
        drop(queue.wait().map_err(Error::from)?);
    }
    outcome
}

/// Checks and parses a page that the index of a namespace names.
pub fn parse(
    buf: &PageBuf,
    database: u64,
    namespace: u8,
    number: PageNo,
    tag: u32,
) -> Result<LeafView<'_>> {
    let page = u64::from(number);
    let identity = Identity { kind: FileKind::Leaf, page_no: page, db_id: database };
    let view = LeafView::parse(buf.page(0), &identity).map_err(|error| Error::Page {
        file: LEAF_FILE,
        page,
        error,
    })?;
    let found = header::tag(buf.page(0));
    if found != tag {
        return Err(Error::StalePage { file: LEAF_FILE, page, expected: tag, found });
    }
    header::check_namespace(buf.page(0), namespace).map_err(|error| Error::Page {
        file: LEAF_FILE,
        page,
        error,
    })?;
    Ok(view)
}
