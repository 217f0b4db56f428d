//! Bodies of records decode to what was encoded, their bytes never change by accident, and no bytes at all make a view
//! panic or read past its end.

use pleach_core::page::overflow::OverflowExtent;
use pleach_core::{Key, Node, Prefix};
use pleach_io::sim::Rng;
use pleach_journal::format::bytes::BodyError;
use pleach_journal::format::commit_body::{
    CommitView, EntryKind, LoggedValue, NamespacePart, ReplacedItem, Section, UndoHeader,
    commit_record,
};
use pleach_journal::format::location_body::{LocationEncoder, LocationView, NewPage, Rewrite};
use pleach_journal::format::record::{RecordBuf, body_checksum};
use pleach_journal::format::trie_kind::TrieKind;

const DATABASE: u64 = 7;

fn bytes(record: &RecordBuf) -> Vec<u8> {
    record.body_parts().flatten().copied().collect()
}

fn keys(rng: &mut Rng, count: usize) -> Vec<Key> {
    let mut keys = vec![[0; 32]; count];
    for key in &mut keys {
        rng.fill(key);
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

type Bytes = Option<Vec<u8>>;

const BEFORE: UndoHeader<'_> =
    UndoHeader { kept_from: 3, blob: b"height 16", back_to: None, time: Some(1) };

struct Sample {
    changes: Vec<(Key, Bytes, Bytes)>,
    nodes: Vec<(Prefix, Node, Node)>,
    blob: Vec<u8>,
    undo: bool,
}

fn value(bytes: Option<&Vec<u8>>) -> LoggedValue<'_> {
    match bytes {
        None => LoggedValue::Absent,
        Some(bytes) if bytes.len() == 77 => LoggedValue::Overflow(bytes),
        Some(bytes) => LoggedValue::Inline(bytes),
    }
}

impl Sample {
    fn new(rng: &mut Rng, undo: bool) -> Self {
        let any = |rng: &mut Rng| {
            let len = [0, 1, 8, 77, 900][rng.index(5)];
            rng.chance(4, 5).then(|| {
                let mut bytes = vec![0; len];
                rng.fill(&mut bytes);
                bytes
            })
        };
        let mut nodes: Vec<Prefix> = (keys(rng, 30).iter())
            .map(|key| Prefix::new(key, u16::try_from(rng.below(257)).expect("small")))
            .collect();
        nodes.push(Prefix::ROOT);
        nodes.sort_unstable();
        nodes.dedup();
        Self {
            changes: keys(rng, 40).into_iter().map(|key| (key, any(rng), any(rng))).collect(),
            nodes: nodes
                .into_iter()
                .map(|p| (p, [rng.byte(); 32].into(), [rng.byte(); 32].into()))
                .collect(),
            blob: b"height 17".to_vec(),
            undo,
        }
    }

    /// The record, with its slices encoded separately as workers do.
    fn encode(&self, pieces: usize) -> RecordBuf {
        let part = |ns: u8| {
            let all = |count: usize, piece: usize| {
                let len = count.div_ceil(pieces);
                (piece * len).min(count)..((piece + 1) * len).min(count)
            };
            let sections = (0..pieces).map(|piece| {
                let mut section = Section::default();
                for (key, new, old) in &self.changes[all(self.changes.len(), piece)] {
                    let (new, old) = (value(new.as_ref()), value(old.as_ref()));
                    if self.undo {
                        section.push_with_undo(key, new, old);
                    } else {
                        section.push(key, new);
                    }
                }
                for (position, new, old) in &self.nodes[all(self.nodes.len(), piece)] {
                    if self.undo {
                        section.push_node_with_undo(position, new, old);
                        section.push_region(position, new);
                    } else {
                        section.push_node(position, new);
                    }
                }
                section
            });
            NamespacePart {
                ns,
                kind: EntryKind::Changed,
                trie: TrieKind::Merkle,
                previous_root: [1; 32].into(),
                new_root: [2; 32].into(),
                sections: sections.collect(),
            }
        };
        commit_record(
            DATABASE,
            9,
            &self.blob,
            self.undo.then_some(BEFORE),
            vec![part(0), part(200)],
        )
    }
}

#[test]
fn a_commit_comes_back_however_many_workers_encoded_it() {
    let mut rng = Rng::new(1);
    for undo in [false, true] {
        let sample = Sample::new(&mut rng, undo);
        let body = bytes(&sample.encode(1));
        assert_eq!(bytes(&sample.encode(5)), body);
        let view = CommitView::parse(&body).expect("our own bytes");
        assert_eq!((view.blob, view.undo_header), (sample.blob.as_slice(), undo.then_some(BEFORE)));
        let namespaces: Vec<_> = view.namespaces().map(|ns| ns.expect("parsed")).collect();
        assert_eq!(namespaces.iter().map(|ns| ns.ns).collect::<Vec<_>>(), [0, 200]);
        for ns in namespaces {
            assert_eq!((ns.previous_root, ns.new_root), (&[1; 32].into(), &[2; 32].into()));
            let changes: Result<Vec<_>, _> = ns.changes().collect();
            let expected: Vec<_> =
                sample.changes.iter().map(|(key, new, _)| (key, value(new.as_ref()))).collect();
            assert_eq!(changes.expect("sorted"), expected);
            assert!(ns.change_bound() >= expected.len() && ns.node_bound() >= sample.nodes.len());
            let nodes: Result<Vec<_>, _> = ns.nodes().collect();
            let expected: Vec<_> = sample.nodes.iter().map(|(p, new, _)| (*p, new)).collect();
            assert_eq!(nodes.expect("sorted"), expected);
            let replaced: Vec<_> = ns.undo().map(|item| item.expect("complete")).collect();
            let values = sample.changes.iter().map(|it| ReplacedItem::Value(value(it.2.as_ref())));
            let (own, others) = replaced.split_at(replaced.len().min(sample.changes.len()));
            assert!(own.iter().copied().eq(values.filter(|_| undo)));
            let nodes = sample.nodes.iter().map(|it| ReplacedItem::Node(&it.2));
            let regions = sample.nodes.iter().map(|it| ReplacedItem::Region(it.0, &it.1));
            assert!(others.iter().copied().eq(nodes.chain(regions).filter(|_| undo)));
        }
    }
}

fn location(rng: &mut Rng) -> Vec<u8> {
    let root = Prefix::ROOT;
    let (left, right) = (root.child(false), root.child(true));
    let node = [rng.byte(); 32].into();
    let page = |prefix, page| NewPage { prefix, page, tag: 5, applied_through: 6, node: &node };
    let split = [page(left.child(false), Some(0)), page(left.child(true), None)];
    let whole = [page(right, Some((1 << 40) - 2))];
    let mut encoder = LocationEncoder::with_buffer(vec![9; 10], 77, 3);
    encoder.push(&Rewrite { range: left, pages: &split, replaced: &[1, 2, 3] });
    encoder.push(&Rewrite { range: right, pages: &whole, replaced: &[] });
    let allocated = [
        OverflowExtent { start: 4, pages: 5 },
        OverflowExtent { start: 1 << 39, pages: (1 << 24) - 1 },
    ];
    bytes(&encoder.finish(DATABASE, &allocated, &[OverflowExtent { start: 1, pages: 1 }]))
}

#[test]
fn a_location_record_comes_back() {
    let body = location(&mut Rng::new(2));
    let view = LocationView::parse(&body).expect("our own bytes");
    assert_eq!((view.flush, view.ns), (77, 3));
    let rewrites: Vec<_> = view.rewrites().map(|rewrite| rewrite.expect("parsed")).collect();
    let places: Vec<Vec<_>> =
        rewrites.iter().map(|rewrite| rewrite.pages().map(|page| page.page).collect()).collect();
    assert_eq!(places, [vec![Some(0), None], vec![Some((1 << 40) - 2)]]);
    assert_eq!(rewrites[0].replaced_pages().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(rewrites[1].range, Prefix::ROOT.child(true));
    assert_eq!(view.allocated().map(|run| run.pages).collect::<Vec<_>>(), [5, (1 << 24) - 1]);
    assert_eq!(
        view.replaced_extents().collect::<Vec<_>>(),
        [OverflowExtent { start: 1, pages: 1 }]
    );
}

/// Reads everything that a commit's view offers.
fn walk(body: &[u8]) -> Result<usize, BodyError> {
    let mut items = 0;
    for ns in CommitView::parse(body)?.namespaces() {
        let ns = ns?;
        assert!(ns.change_bound() <= body.len() && ns.node_bound() <= body.len());
        for change in ns.changes() {
            change?;
            items += 1;
        }
        for node in ns.nodes() {
            node?;
            items += 1;
        }
        for replaced in ns.undo() {
            replaced?;
            items += 1;
        }
    }
    Ok(items)
}

#[test]
fn mutated_bodies_are_errors_or_other_contents_and_never_panic() {
    let mut rng = Rng::new(3);
    let commit = bytes(&Sample::new(&mut rng, true).encode(2));
    let location = location(&mut rng);
    let good = walk(&commit).expect("our own bytes");
    for len in 0..commit.len() {
        assert!(CommitView::parse(&commit[..len]).is_err());
    }
    for len in 0..location.len() {
        assert!(LocationView::parse(&location[..len]).is_err());
    }
    for body in [&commit, &location] {
        let mut longer = body.clone();
        longer.push(0);
        assert!(CommitView::parse(&longer).is_err());
        assert!(LocationView::parse(&longer).is_err());
        for _ in 0..20_000 {
            let mut bad = body.clone();
            for _ in 0..=rng.index(3) {
                let at = rng.index(bad.len());
                bad[at] = [0, 0xff, rng.byte(), bad[at] ^ 1][rng.index(4)];
            }
            if let Ok(items) = walk(&bad) {
                assert!(items <= good);
            }
            if let Ok(view) = LocationView::parse(&bad) {
                assert!(view.rewrites().all(|one| one.is_ok_and(|one| one.pages().count() > 0)));
            }
        }
    }
}

#[test]
fn unsorted_untiled_and_padded_bodies_are_refused() {
    let key = [5; 32];
    let mut section = Section::default();
    section.push(&key, LoggedValue::Absent);
    section.push(&key, LoggedValue::Absent);
    let part = NamespacePart {
        ns: 0,
        kind: EntryKind::Changed,
        trie: TrieKind::Merkle,
        previous_root: [0; 32].into(),
        new_root: [0; 32].into(),
        sections: vec![section],
    };
    let body = bytes(&commit_record(DATABASE, 1, &[], None, vec![part]));
    assert_eq!(walk(&body), Err(BodyError::Unsorted));

    let mut gap = location(&mut Rng::new(4));
    // The first page's position, behind head (24), range (3), counts (8): 2 bits to 3 bits.
    assert_eq!(gap[35], 2);
    gap[35] = 3;
    assert_eq!(LocationView::parse(&gap).err(), Some(BodyError::Tiling));
}

/// A part with a change and its node, or without.
fn part(ns: u8, kind: EntryKind, roots: [u8; 2], changes: bool) -> NamespacePart {
    let mut section = Section::default();
    if changes {
        section.push(&[5; 32], LoggedValue::Inline(b"five"));
        section.push_node(&Prefix::ROOT, &Node::new([9; 32]));
    }
    let [previous_root, new_root] = roots.map(|root| Node::new([root; 32]));
    let (trie, sections) = (TrieKind::Merkle, vec![section]);
    NamespacePart { ns, kind, trie, previous_root, new_root, sections }
}

#[test]
fn a_commit_says_which_namespaces_it_adds_drops_and_restores() {
    use EntryKind::{Added, Changed, Dropped, Restored};
    let parts = || {
        vec![
            part(0, Changed, [1, 1], false),
            part(1, Added, [0, 0], false),
            part(2, Added, [0, 3], true),
            part(7, Dropped, [4, 0], false),
            part(8, Dropped, [0, 0], false),
            part(254, Restored, [0, 5], true),
            part(255, Restored, [0, 5], false),
        ]
    };
    let body = bytes(&commit_record(DATABASE, 1, &[], None, parts()));
    let view = CommitView::parse(&body).expect("our own bytes");
    let found: Vec<_> = view.namespaces().map(|ns| ns.expect("parsed")).collect();
    for (found, part) in found.iter().zip(parts()) {
        assert_eq!((found.ns, found.kind), (part.ns, part.kind));
        assert_eq!(found.previous_root, &part.previous_root);
        assert_eq!(found.new_root, &part.new_root);
        assert_eq!(found.changes().count(), usize::from([2, 254].contains(&part.ns)));
    }
    assert_eq!(found.len(), parts().len());
}

/// Where an entry of a record with one namespace begins.
const ENTRY: usize = 16;

#[test]
fn an_entry_that_contradicts_its_kind_is_refused() {
    let record = |part| bytes(&commit_record(DATABASE, 1, &[], None, vec![part]));
    let as_kind = |roots, changes, ns: u8, kind: u8| {
        let mut body = record(part(3, EntryKind::Changed, roots, changes));
        body[ENTRY] = ns;
        body[ENTRY + 1] = kind;
        walk(&body).map(|_| ())
    };
    let refused = |ns, kind| Err(BodyError::Entry { ns, kind });
    for (roots, changes, right) in [
        // Previous and new root, with changes or without; the valid kinds.
        ([0, 0], false, [true, true, true, true]),
        ([0, 0], true, [true, true, false, true]),
        ([0, 2], false, [true, true, false, true]),
        ([0, 2], true, [true, true, false, true]),
        ([1, 0], false, [true, false, true, false]),
        ([1, 0], true, [true, false, false, false]),
        ([1, 2], false, [true, false, false, false]),
        ([1, 2], true, [true, false, false, false]),
    ] {
        for (kind, right) in (0..).zip(right) {
            let expected = if right { Ok(()) } else { refused(3, kind) };
            assert_eq!(as_kind(roots, changes, 3, kind), expected, "{roots:?} {changes} {kind}");
            // Namespace 0 always exists.
            let expected = if kind == 0 { Ok(()) } else { refused(0, kind) };
            assert_eq!(as_kind(roots, changes, 0, kind), expected, "{roots:?} {changes} {kind}");
        }
        // A namespace that is set is plain.
        assert_eq!(as_kind(roots, changes, 3, 4), refused(3, 4), "{roots:?} {changes}");
        for kind in 5..=255 {
            assert_eq!(as_kind(roots, changes, 3, kind), Err(BodyError::EntryKind(kind)));
        }
    }
    // A plain namespace has changes, and no nodes; namespace 0 is not plain.
    let as_plain = |ns: u8, kind: EntryKind, trie: u8, nodes: bool| {
        let mut part = part(3, EntryKind::Changed, [1, 2], true);
        if !nodes {
            let mut section = Section::default();
            section.push(&[5; 32], LoggedValue::Inline(b"five"));
            part.sections = vec![section];
        }
        let mut body = record(part);
        body[ENTRY..ENTRY + 3].copy_from_slice(&[ns, kind as u8, trie]);
        walk(&body).map(|_| ())
    };
    assert_eq!(as_plain(3, EntryKind::Changed, 1, false), Ok(()));
    assert_eq!(as_plain(3, EntryKind::Set, 1, false), Ok(()));
    assert_eq!(as_plain(3, EntryKind::Changed, 1, true), refused(3, 0));
    assert_eq!(as_plain(0, EntryKind::Changed, 1, false), refused(0, 0));
    assert_eq!(as_plain(3, EntryKind::Set, 0, false), refused(3, 4));
    for trie in 2..=255 {
        assert_eq!(as_plain(3, EntryKind::Changed, trie, false), Err(BodyError::Trie(trie)));
    }
    // A drop replaces nothing, even where sections claim it.
    let mut body = record(part(3, EntryKind::Dropped, [1, 0], false));
    body[ENTRY + 4] = 1;
    assert_eq!(walk(&body).err(), Some(BodyError::Entry { ns: 3, kind: 2 }));
    let mut reserved = record(part(3, EntryKind::Added, [0, 0], false));
    reserved[ENTRY + 3] = 1;
    assert_eq!(walk(&reserved).err(), Some(BodyError::Reserved));
}

#[test]
fn a_rollback_says_what_it_goes_back_to() {
    let before = Some(UndoHeader { back_to: Some(7), ..BEFORE });
    let part = || vec![part(0, EntryKind::Changed, [1, 2], false)];
    let mut body = bytes(&commit_record(DATABASE, 9, &[], before, part()));
    assert_eq!(CommitView::parse(&body).expect("our own bytes").undo_header, before);
    assert_eq!(body.len(), bytes(&commit_record(DATABASE, 9, &[], Some(BEFORE), part())).len() + 8);
    // The flags. A rollback has undo, and there is no other flag.
    for flags in [2, 4, 6, 9] {
        body[2] = flags;
        assert_eq!(walk(&body).err(), Some(BodyError::Flags(flags.into())));
    }
}

#[test]
fn the_bytes_of_the_format_are_pinned() {
    let mut rng = Rng::new(5);
    let commit = bytes(&Sample::new(&mut rng, false).encode(3));
    let undo = bytes(&Sample::new(&mut rng, true).encode(3));
    let location = location(&mut rng);
    let digests =
        [&commit, &undo, &location].map(|body| body_checksum(DATABASE, [body.as_slice()]));
    assert_eq!(digests, GOLDEN, "the format has changed: is that meant?");
}

const GOLDEN: [u64; 3] =
    [8_053_342_532_813_539_999, 8_462_171_505_961_970_670, 11_159_530_113_861_064_239];
