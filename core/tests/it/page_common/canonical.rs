//! What page tests and page fuzz targets share: a page that parses answers all questions, and is
//! exactly the page that its contents build.

#![allow(dead_code, reason = "each fuzz target uses its part")]

use pleach_core::page::{
    BranchBuilder, BranchHeader, BranchView, Cell, FileKind, Identity, LeafBuilder, LeafHeader,
    LeafView, MAX_PAGE_NO, OverflowCell, PAGE_SIZE, Page, PageError, StreamHeader, StreamView,
    leaf, seal, stream,
};

/// A parser of any page type that uses whatever it accepts.
pub(crate) type Parse = fn(&Page, &Identity) -> Result<(), PageError>;

/// Parses; what is accepted must answer all questions and be the page that its contents build.
pub(crate) fn leaf_is_canonical(page: &Page, identity: &Identity) -> Result<(), PageError> {
    let view = LeafView::parse(page, identity)?;
    let header = LeafHeader {
        identity: *identity,
        flush: view.flush(),
        namespace: view.namespace(),
        prefix: view.prefix(),
        applied_through: view.applied_through(),
        levels: view.levels(),
        count: view.len().try_into().unwrap(),
    };
    let mut again = [0xee; PAGE_SIZE];
    let mut builder = LeafBuilder::new(&mut again, &header);
    for (index, (key, cell)) in view.iter().enumerate() {
        assert!(view.prefix().covers(&key));
        assert_eq!(view.find(&key), Ok(index));
        if let Cell::Overflow(cell) = cell {
            assert_eq!(OverflowCell::parse(cell.bytes()), Ok(cell));
        }
        builder.push(&key, cell.raw());
    }
    builder.set_nodes(view.nodes());
    builder.seal();
    assert!(again == *page, "a page that parses is the page that its contents build");
    assert!(view.used() <= leaf::capacity(view.levels()));
    for key in [[0; 32], [0xff; 32]] {
        assert_eq!(view.find(&key).unwrap_or_else(|at| at), view.lower_bound(&key));
    }
    Ok(())
}

/// The same for a branch page.
pub(crate) fn branch_is_canonical(page: &Page, identity: &Identity) -> Result<(), PageError> {
    let view = BranchView::parse(page, identity)?;
    let header = BranchHeader {
        identity: *identity,
        flush: view.flush(),
        namespace: view.namespace(),
        prefix: view.prefix(),
        level: view.level(),
        log_pos: view.log_pos(),
    };
    let mut again = [0xee; PAGE_SIZE];
    let mut builder = BranchBuilder::new(&mut again, &header);
    let mut expected = Some(*view.prefix().first_key());
    for (prefix, entry) in view.iter() {
        // The slow way to say that children tile: each begins with the first key after the last.
        assert_eq!(Some(*prefix.first_key()), expected);
        assert!(view.prefix().contains(&prefix) && prefix.len() == entry.depth);
        expected = prefix.next().map(|next| *next.first_key());
        assert_eq!(builder.push(&entry), prefix);
    }
    assert_eq!(expected, view.prefix().next().map(|next| *next.first_key()));
    builder.seal();
    assert!(again == *page, "a page that parses is the page that its contents build");
    Ok(())
}

/// The same for a stream page.
pub(crate) fn stream_is_canonical(page: &Page, identity: &Identity) -> Result<(), PageError> {
    let view = StreamView::parse(page, identity)?;
    let header = StreamHeader {
        identity: *identity,
        flush: view.flush(),
        namespace: view.namespace(),
        stream: view.stream(),
        index: view.index(),
    };
    let mut again = [0xee; PAGE_SIZE];
    stream::build(&mut again, &header, view.payload());
    assert!(again == *page, "a page that parses is the page that its contents build");
    assert_eq!(
        view.expect_payload(view.stream(), view.index(), view.payload().len()),
        Ok(view.payload())
    );
    Ok(())
}

/// Bytes of a fuzzer as a page with a correct checksum, and the identity that it claims.
pub(crate) fn claimed(bytes: &[u8]) -> (Page, Identity) {
    let mut page = [0; PAGE_SIZE];
    let len = bytes.len().min(PAGE_SIZE - 8);
    page[8..8 + len].copy_from_slice(&bytes[..len]);
    seal(&mut page);
    let kind = match page[32] {
        2 => FileKind::Overflow,
        3 => FileKind::Image,
        _ => FileKind::Leaf,
    };
    let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    let identity = Identity { kind, page_no: word(8) & MAX_PAGE_NO, db_id: word(16) };
    (page, identity)
}
