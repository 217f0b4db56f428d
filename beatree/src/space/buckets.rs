//! Segments by the number of their used pages: a bucket queue of doubly linked lists.
//!
//! Invariant: each segment is in the list of its count, and in no other. Moving one, and finding
//! one of the emptiest, costs no more than a look at `pages of a segment + 1` list heads.

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(super) struct Buckets {
    /// First segment of each count.
    heads: Vec<u32>,
    segments: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    used: u32,
    previous: u32,
    next: u32,
}

impl Buckets {
    pub(super) fn new(segment_pages: u32) -> Self {
        Self { heads: vec![NONE; segment_pages as usize + 1], segments: Vec::new() }
    }

    pub(super) fn segments(&self) -> u32 {
        u32::try_from(self.segments.len()).expect("segments are fewer than pages")
    }

    /// Adds the next segment.
    pub(super) fn push(&mut self, used: u32) {
        assert!((used as usize) < self.heads.len(), "a segment has so many pages");
        let segment = self.segments();
        self.segments.push(Link { used, previous: NONE, next: NONE });
        self.link(segment);
    }

    pub(super) fn used(&self, segment: u32) -> u32 {
        self.segments[segment as usize].used
    }

    /// Moves a segment to another count.
    pub(super) fn set_used(&mut self, segment: u32, used: u32) {
        assert!((used as usize) < self.heads.len(), "a segment has so many pages");
        self.unlink(segment);
        self.segments[segment as usize].used = used;
        self.link(segment);
    }

    /// A segment with the fewest used pages among those with at least `from`.
    pub(super) fn emptiest(&self, from: u32) -> Option<u32> {
        self.heads[from as usize..].iter().copied().find(|head| *head != NONE)
    }

    pub(super) fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<u32>() + self.segments.capacity() * size_of::<Link>()
    }

    fn link(&mut self, segment: u32) {
        let used = self.segments[segment as usize].used;
        let next = core::mem::replace(&mut self.heads[used as usize], segment);
        self.segments[segment as usize].previous = NONE;
        self.segments[segment as usize].next = next;
        if next != NONE {
            self.segments[next as usize].previous = segment;
        }
    }

    fn unlink(&mut self, segment: u32) {
        let Link { used, previous, next } = self.segments[segment as usize];
        if previous == NONE {
            self.heads[used as usize] = next;
        } else {
            self.segments[previous as usize].next = next;
        }
        if next != NONE {
            self.segments[next as usize].previous = previous;
        }
    }
}
