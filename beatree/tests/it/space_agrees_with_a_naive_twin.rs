//! The allocator of the leaf file against a list of page states: no page has two owners, retired pages are never
//! allocated, fresh pages come first, holes as the sweep says, runs are maximal and sorted, the file grows when and as
//! far as the rule says, and all counters agree.

use pleach_beatree::PageNo;
use pleach_beatree::space::{
    FileGeometry, GrowingFile, Growth, LeafExtent, LeafSpace, NeedGrowth, SpaceError,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

fn page(number: usize) -> PageNo {
    PageNo::new(u32::try_from(number).unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Used,
    Pending(u64),
}

struct Twin {
    geometry: FileGeometry,
    space: LeafSpace,
    pages: Vec<State>,
    frontier: usize,
    /// The segment where the sweep goes on.
    sweep: usize,
    stamp: u64,
    random: ChaCha8Rng,
}

impl Twin {
    fn new(geometry: FileGeometry, seed: u64) -> Self {
        Self {
            geometry,
            space: LeafSpace::new(geometry),
            pages: Vec::new(),
            frontier: 0,
            sweep: 0,
            stamp: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.next_u32()).unwrap() % limit.max(1)
    }

    fn count(&self, wanted: impl Fn(State) -> bool) -> usize {
        self.pages.iter().filter(|state| wanted(**state)).count()
    }

    /// Segments to grow by before `count` pages can be allocated.
    fn growth(&self, count: usize, growth: Growth) -> usize {
        let live = self.count(|state| state == State::Used);
        let holes = self.pages[..self.frontier].iter().filter(|s| **s == State::Free).count();
        let rest = count.saturating_sub(self.pages.len() - self.frontier);
        let target = (live + count) * self.geometry.size_percent as usize / 100;
        let wished = rest.min(target.saturating_sub(self.pages.len()));
        let needed = rest.saturating_sub(holes);
        let pages = if growth == Growth::Allowed { wished.max(needed) } else { needed };
        pages.div_ceil(self.geometry.segment_pages as usize)
    }

    fn allocate(&mut self, count: usize, growth: Growth) {
        let mut runs = Vec::new();
        let wanted = u32::try_from(count).unwrap();
        let segments = self.growth(count, growth);
        if segments > 0 {
            let segments = u32::try_from(segments).unwrap();
            let refused = self.space.allocate(wanted, growth, &mut runs);
            assert_eq!(refused, Err(NeedGrowth { segments }));
            self.check();
            self.space.add_segments(segments).unwrap();
            let more = (segments * self.geometry.segment_pages) as usize;
            self.pages.resize(self.pages.len() + more, State::Free);
        }
        let expected = self.choose(count);
        self.space.allocate(wanted, growth, &mut runs).unwrap();
        self.take(&runs, count);
        let numbers: Vec<_> = runs.iter().flat_map(LeafExtent::pages).collect();
        assert_eq!(numbers, expected);
    }

    /// The pages that the file should shrink to with this many live ones, if it is far too long.
    fn goal(&self, live: usize) -> Option<usize> {
        let (size, target) = (self.geometry.segment_pages as usize, self.target(live));
        (self.pages.len() > 2 * target + 2 * size).then(|| (target / size + 1) * size)
    }

    fn target(&self, live: usize) -> usize {
        live * self.geometry.size_percent as usize / 100
    }

    /// The pages that an allocation of `count` pages should return, one by one.
    fn choose(&mut self, count: usize) -> Vec<PageNo> {
        let size = self.geometry.segment_pages as usize;
        let holes: Vec<usize> =
            (0..self.frontier).filter(|page_no| self.pages[*page_no] == State::Free).collect();
        let live = self.count(|state| state == State::Used);
        if self.goal(live + count).is_some() && holes.len() >= count {
            let numbers = &holes[..count];
            if let Some(last) = numbers.last() {
                self.sweep = last / size;
            }
            return numbers.iter().copied().map(page).collect();
        }
        let mut numbers: Vec<usize> = (self.frontier..self.pages.len()).take(count).collect();
        let mut pages = self.pages.clone();
        for page_no in &numbers {
            pages[*page_no] = State::Used;
        }
        let segments = pages.len() / size;
        let free_in = |pages: &[State], segment: usize| {
            let pages = &pages[segment * size..(segment + 1) * size];
            pages.iter().filter(|state| **state == State::Free).count()
        };
        let free = (0..segments).map(|segment| free_in(&pages, segment)).sum::<usize>();
        let mut least = (free * 75).checked_div(100 * segments).unwrap_or(0).max(1);
        let mut looked = 0;
        while numbers.len() < count {
            if free_in(&pages, self.sweep) >= least {
                let segment = self.sweep * size..(self.sweep + 1) * size;
                let holes = segment.filter(|page_no| pages[*page_no] == State::Free);
                let taken: Vec<_> = holes.take(count - numbers.len()).collect();
                for page_no in &taken {
                    pages[*page_no] = State::Used;
                }
                numbers.extend(taken);
            }
            if numbers.len() < count {
                self.sweep = (self.sweep + 1) % segments;
                looked += 1;
                if looked == segments {
                    least = 1;
                }
            }
        }
        numbers.sort_unstable();
        numbers.into_iter().map(page).collect()
    }

    /// Cuts the end off as far as allowed, or somewhere behind that.
    fn cut(&mut self) {
        let size = self.geometry.segment_pages as usize;
        let used =
            self.pages.iter().rposition(|state| *state != State::Free).map_or(0, |at| at + 1);
        let end = used.next_multiple_of(size);
        assert_eq!(self.space.used_end() as usize, end);
        let live = self.count(|state| state == State::Used);
        assert_eq!(self.space.shrink_goal().map(|goal| goal as usize), self.goal(live));
        if let Some(goal) = self.goal(live) {
            let behind =
                self.pages.iter().skip(goal).filter(|state| **state == State::Used).count();
            let before = self.pages[..goal].iter().filter(|state| **state != State::Used).count();
            assert!(before >= behind, "there is room for what lies behind the goal");
        }
        let keep = end + self.below((self.pages.len() - end) / size + 1) * size;
        self.space.cut(u32::try_from(keep).unwrap());
        self.pages.truncate(keep);
        self.frontier = self.frontier.min(keep);
        self.sweep = if self.sweep < keep / size { self.sweep } else { 0 };
    }

    fn take(&mut self, runs: &[LeafExtent], count: usize) {
        assert_eq!(runs.iter().map(|run| run.len as usize).sum::<usize>(), count);
        assert!(runs.iter().all(|run| run.len > 0));
        assert!(
            runs.windows(2).all(|pair| pair[0].end() < pair[1].start.get()),
            "sorted and merged"
        );
        for page_no in runs.iter().flat_map(LeafExtent::pages) {
            let page_no = page_no.get() as usize;
            let state = &mut self.pages[page_no];
            assert_eq!(*state, State::Free, "page {page_no} was handed out twice");
            *state = State::Used;
            self.frontier = self.frontier.max(page_no + 1);
        }
    }

    fn retire(&mut self) {
        self.stamp += u64::from(self.random.next_u32() % 2);
        let count = self.below(40);
        let mut numbers = Vec::new();
        for _ in 0..count {
            let page_no = self.below(self.pages.len());
            if self.pages.get(page_no) == Some(&State::Used) {
                self.pages[page_no] = State::Pending(self.stamp);
                numbers.push(page(page_no));
            }
        }
        self.space.retire(&numbers, self.stamp).unwrap();
        if let Some(page_no) = numbers.first().copied() {
            let again = self.space.retire(&[page_no], self.stamp);
            assert_eq!(again, Err(SpaceError::AlreadyRetired { page: page_no.into() }));
        }
    }

    fn release(&mut self) {
        let through = self.stamp.saturating_sub(self.below(4) as u64);
        let freed = self.space.release(through);
        let mut expected = 0;
        for state in &mut self.pages {
            if matches!(state, State::Pending(stamp) if *stamp <= through) {
                *state = State::Free;
                expected += 1;
            }
        }
        assert_eq!(freed, expected);
    }

    fn mark(&mut self) {
        let page_no = self.below(self.pages.len() + 2);
        let number = page(page_no);
        let (used, freed) = match self.pages.get(page_no).copied() {
            None => {
                let pages = self.pages.len() as u64;
                let outside = SpaceError::OutsideFile { page: number.into(), pages };
                (Err(outside), Err(outside))
            }
            Some(State::Free) => (Ok(()), Err(SpaceError::NotUsed { page: number.into() })),
            Some(State::Used) => (Err(SpaceError::AlreadyUsed { page: number.into() }), Ok(())),
            Some(State::Pending(_)) => (
                Err(SpaceError::AlreadyUsed { page: number.into() }),
                Err(SpaceError::AlreadyRetired { page: number.into() }),
            ),
        };
        if self.below(2) == 0 {
            assert_eq!(self.space.mark_used(number), used);
            if used.is_ok() {
                self.pages[page_no] = State::Used;
                self.frontier = self.frontier.max(page_no + 1);
            }
        } else {
            assert_eq!(self.space.mark_free(number), freed);
            if freed.is_ok() {
                self.pages[page_no] = State::Free;
            }
        }
    }

    fn check(&self) {
        let stats = self.space.stats();
        assert_eq!(stats.pages as usize, self.pages.len());
        assert_eq!(stats.live as usize, self.count(|state| state == State::Used));
        let pending = self.count(|state| matches!(state, State::Pending(_)));
        assert_eq!(stats.retired as usize, pending);
        assert_eq!(stats.fresh as usize, self.pages.len() - self.frontier);
        assert_eq!((stats.holes + stats.fresh) as usize, self.count(|s| s == State::Free));
        for (page_no, state) in self.pages.iter().enumerate() {
            let page_no = page(page_no);
            assert_eq!(self.space.is_used(page_no), *state != State::Free);
        }
    }

    /// A reopened allocator knows the same pages, except that retired ones are free.
    fn reopen(&mut self) {
        for state in &mut self.pages {
            if matches!(state, State::Pending(_)) {
                *state = State::Free;
            }
        }
        let used =
            |(page_no, state): (usize, &State)| (*state == State::Used).then(|| page(page_no));
        let numbers: Vec<_> = self.pages.iter().enumerate().rev().filter_map(used).collect();
        self.sweep = 0;
        self.frontier = numbers.first().map_or(0, |last| last.get() as usize + 1);
        let segments = self.space.stats().segments;
        self.space = LeafSpace::from_used(self.geometry, segments, numbers).unwrap();
    }
}

#[test]
fn random_operations_on_small_files() {
    let cases =
        std::env::var("PLEACH_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(6);
    for seed in 0..cases {
        for (segment_pages, size_percent) in [(16, 150), (16, 100), (7, 125), (64, 200), (1, 150)] {
            let mut twin = Twin::new(FileGeometry { segment_pages, size_percent }, seed);
            for _ in 0..400 {
                match twin.below(20) {
                    0..=6 => {
                        let growth =
                            if twin.below(4) == 0 { Growth::Refused } else { Growth::Allowed };
                        let count = twin.below(30);
                        twin.allocate(count, growth);
                    }
                    7..=14 => twin.retire(),
                    15..=17 => twin.release(),
                    18 => twin.mark(),
                    19 if twin.below(8) == 0 => twin.cut(),
                    _ if twin.below(4) == 0 => twin.reopen(),
                    _ => {}
                }
                twin.check();
            }
        }
    }
}

#[test]
fn a_fresh_file_is_written_from_front_to_back() {
    let mut space = LeafSpace::new(FileGeometry::TINY);
    let mut runs = Vec::new();
    let mut next = 0;
    for count in [1, 15, 1, 40, 16, 3] {
        while let Err(NeedGrowth { segments }) = space.allocate(count, Growth::Allowed, &mut runs) {
            space.add_segments(segments).unwrap();
        }
        assert_eq!(runs, [LeafExtent { start: PageNo::new(next), len: count }]);
        next += count;
    }
    assert_eq!(space.frontier(), next);
}

#[test]
fn a_wrong_index_is_an_error() {
    let geometry = FileGeometry::TINY;
    let twice = LeafSpace::from_used(geometry, 1, [3, 4, 3].map(PageNo::new));
    assert_eq!(twice.err(), Some(SpaceError::AlreadyUsed { page: 3 }));
    let outside = LeafSpace::from_used(geometry, 1, [PageNo::new(16)]);
    assert_eq!(outside.err(), Some(SpaceError::OutsideFile { page: 16, pages: 16 }));
    let long = LeafSpace::from_used(geometry, u32::MAX, []);
    assert!(matches!(long.err(), Some(SpaceError::TooLong { .. })));
}
