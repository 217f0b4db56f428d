//! Images as files: the first one, and the end of each.

use pleach_beatree::space::{self, OverflowSpace};
use pleach_core::page::branch::BranchEntry;
use pleach_core::page::stream::StreamId;
use pleach_core::{Prefix, TERMINATOR};
use pleach_io::Disk;
use pleach_journal::format::image::ImageWriter;
use pleach_journal::format::names::ImageFile;
use pleach_journal::format::position::LogPos;
use pleach_journal::format::superblock::ImageRef;
use pleach_journal::format::table::{ImageTable, StreamRef, TrieRef, TrieSums};
use pleach_journal::format::trie_kind::TrieKind;

use crate::error::Result;
use crate::roots::Roots;
use crate::state::commits::CommitState;
use crate::state::history::ImageHistory;

/// The image of a database without keys: one region, one prefix, no page.
pub(crate) fn first_image(
    device: &Disk,
    database: u64,
    geometry: space::FileGeometry,
) -> Result<ImageRef> {
    let mut writer = ImageWriter::start(device, ImageFile::A, database, 0)?;
    let entry = BranchEntry { depth: 0, page_no: None, tag: 0, node: TERMINATOR };
    let (page, tag) = writer.write_branch(0, &Prefix::ROOT, 1, 0, std::iter::once(entry))?;
    let first = TrieRef {
        namespace: 0,
        kind: TrieKind::Merkle,
        level: 1,
        root_tag: tag,
        root_page: page,
        root: Some(TERMINATOR),
        dropped: 0,
        buffered: StreamRef::of(0, &[]),
        sums: TrieSums::default(),
    };
    let mut map = Vec::new();
    OverflowSpace::new(geometry).encode(0, &mut map);
    let map = StreamRef::of(writer.write_stream(0, StreamId::FreeMap, &map)?, &map);
    let table = ImageTable {
        tries: vec![first],
        overflow_map: map,
        leaf_map: StreamRef::of(0, &[]),
        history: StreamRef::of(0, &[]),
        records_from: LogPos::START,
        kept_from: 0,
        prior_roots: Vec::new(),
        blob: Vec::new(),
    };
    Ok(writer.finish(&table)?)
}

/// Checkpoint `finish-image`: writes everything that follows the tries.
pub(super) fn finish_image(
    mut writer: ImageWriter,
    tip: &CommitState,
    tries: Vec<TrieRef>,
    history: &ImageHistory,
    map: &[u8],
    leaf_map: &[u8],
) -> Result<ImageRef> {
    let map = writer.write_named_stream(0, StreamId::FreeMap, map)?;
    let leaf_map = writer.write_named_stream(0, StreamId::LeafMap, leaf_map)?;
    let mut bytes = Vec::new();
    history.runs.iter().for_each(|run| run.descriptor.encode(&mut bytes));
    let runs = writer.write_named_stream(0, StreamId::History, &bytes)?;
    let ImageHistory { records, kept_from, past, .. } = history;
    let past = past.iter().flat_map(Roots::all);
    let past = past.map(|(namespace, root)| (namespace, root.kind, root.node)).collect();
    Ok(writer.finish(&ImageTable {
        tries,
        overflow_map: map,
        leaf_map,
        history: runs,
        records_from: *records,
        kept_from: *kept_from,
        prior_roots: past,
        blob: tip.blob.to_vec(),
    })?)
}
