//! The allocator of the leaf file against a list of page states: no page has two owners, pending pages
//! are never handed out, fresh pages come first, holes as the sweep says, runs are maximal and sorted,
//! the file grows when and as far as the rule says, and all counters agree.

use pleach_beatree::PageNo;
use pleach_beatree::space::{Geometry, Growth, NeedGrowth, Run, Space, SpaceError};
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
    geometry: Geometry,
    space: Space,
    pages: Vec<State>,
    frontier: usize,
    /// The segment where the sweep goes on.
    sweep: usize,
    stamp: u64,
    random: ChaCha8Rng,
}

impl Twin {
    fn new(geometry: Geometry, seed: u64) -> Self {
        Self {
            geometry,
            space: Space::new(geometry),
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

    /// Segments to grow by before `count` pages can be had.
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
            self.space.grown(segments).unwrap();
            let more = (segments * self.geometry.segment_pages) as usize;
            self.pages.resize(self.pages.len() + more, State::Free);
        }
        let expected = self.choose(count);
        self.space.allocate(wanted, growth, &mut runs).unwrap();
        self.take(&runs, count);
        let places: Vec<_> = runs.iter().flat_map(Run::pages).collect();
        assert_eq!(places, expected);
    }

    /// The places that an allocation of `count` pages is to give, page by page.
    fn choose(&mut self, count: usize) -> Vec<PageNo> {
        let size = self.geometry.segment_pages as usize;
        let mut places: Vec<usize> = (self.frontier..self.pages.len()).take(count).collect();
        let mut pages = self.pages.clone();
        for place in &places {
            pages[*place] = State::Used;
        }
        let segments = pages.len() / size;
        let free_in = |pages: &[State], segment: usize| {
            let pages = &pages[segment * size..(segment + 1) * size];
            pages.iter().filter(|state| **state == State::Free).count()
        };
        let free = (0..segments).map(|segment| free_in(&pages, segment)).sum::<usize>();
        let mut least = (free * 75).checked_div(100 * segments).unwrap_or(0).max(1);
        let mut looked = 0;
        while places.len() < count {
            if free_in(&pages, self.sweep) >= least {
                let segment = self.sweep * size..(self.sweep + 1) * size;
                let holes = segment.filter(|place| pages[*place] == State::Free);
                let taken: Vec<_> = holes.take(count - places.len()).collect();
                for place in &taken {
                    pages[*place] = State::Used;
                }
                places.extend(taken);
            }
            if places.len() < count {
                self.sweep = (self.sweep + 1) % segments;
                looked += 1;
                if looked == segments {
                    least = 1;
                }
            }
        }
        places.sort_unstable();
        places.into_iter().map(page).collect()
    }

    fn take(&mut self, runs: &[Run], count: usize) {
        assert_eq!(runs.iter().map(|run| run.len as usize).sum::<usize>(), count);
        assert!(runs.iter().all(|run| run.len > 0));
        assert!(
            runs.windows(2).all(|pair| pair[0].end() < pair[1].start.get()),
            "sorted and merged"
        );
        for place in runs.iter().flat_map(Run::pages) {
            let place = place.get() as usize;
            let state = &mut self.pages[place];
            assert_eq!(*state, State::Free, "page {place} was handed out twice");
            *state = State::Used;
            self.frontier = self.frontier.max(place + 1);
        }
    }

    fn retire(&mut self) {
        self.stamp += u64::from(self.random.next_u32() % 2);
        let count = self.below(40);
        let mut places = Vec::new();
        for _ in 0..count {
            let place = self.below(self.pages.len());
            if self.pages.get(place) == Some(&State::Used) {
                self.pages[place] = State::Pending(self.stamp);
                places.push(page(place));
            }
        }
        self.space.retire(&places, self.stamp).unwrap();
        if let Some(place) = places.first().copied() {
            let again = self.space.retire(&[place], self.stamp);
            assert_eq!(again, Err(SpaceError::AlreadyRetired { page: place.into() }));
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
        let place = self.below(self.pages.len() + 2);
        let number = page(place);
        let (used, freed) = match self.pages.get(place).copied() {
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
                self.pages[place] = State::Used;
                self.frontier = self.frontier.max(place + 1);
            }
        } else {
            assert_eq!(self.space.mark_free(number), freed);
            if freed.is_ok() {
                self.pages[place] = State::Free;
            }
        }
    }

    fn check(&self) {
        let stats = self.space.stats();
        assert_eq!(stats.pages as usize, self.pages.len());
        assert_eq!(stats.live as usize, self.count(|state| state == State::Used));
        let pending = self.count(|state| matches!(state, State::Pending(_)));
        assert_eq!(stats.pending as usize, pending);
        assert_eq!(stats.fresh as usize, self.pages.len() - self.frontier);
        assert_eq!((stats.holes + stats.fresh) as usize, self.count(|s| s == State::Free));
        for (place, state) in self.pages.iter().enumerate() {
            let place = page(place);
            assert_eq!(self.space.is_used(place), *state != State::Free);
        }
    }

    /// A reopened allocator knows the same pages, but for what was pending.
    fn reopen(&mut self) {
        for state in &mut self.pages {
            if matches!(state, State::Pending(_)) {
                *state = State::Free;
            }
        }
        let used = |(place, state): (usize, &State)| (*state == State::Used).then(|| page(place));
        let places: Vec<_> = self.pages.iter().enumerate().rev().filter_map(used).collect();
        self.sweep = 0;
        self.frontier = places.first().map_or(0, |last| last.get() as usize + 1);
        let segments = self.space.stats().segments;
        self.space = Space::from_used(self.geometry, segments, places).unwrap();
    }
}

#[test]
fn random_operations_on_small_files() {
    let cases =
        std::env::var("PLEACH_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(6);
    for seed in 0..cases {
        for (segment_pages, size_percent) in [(16, 150), (16, 100), (7, 125), (64, 200), (1, 150)] {
            let mut twin = Twin::new(Geometry { segment_pages, size_percent }, seed);
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
    let mut space = Space::new(Geometry::TINY);
    let mut runs = Vec::new();
    let mut next = 0;
    for count in [1, 15, 1, 40, 16, 3] {
        while let Err(NeedGrowth { segments }) = space.allocate(count, Growth::Allowed, &mut runs) {
            space.grown(segments).unwrap();
        }
        assert_eq!(runs, [Run { start: PageNo::new(next), len: count }]);
        next += count;
    }
    assert_eq!(space.frontier(), next);
}

#[test]
fn a_wrong_index_is_an_error() {
    let geometry = Geometry::TINY;
    let twice = Space::from_used(geometry, 1, [3, 4, 3].map(PageNo::new));
    assert_eq!(twice.err(), Some(SpaceError::AlreadyUsed { page: 3 }));
    let outside = Space::from_used(geometry, 1, [PageNo::new(16)]);
    assert_eq!(outside.err(), Some(SpaceError::OutsideFile { page: 16, pages: 16 }));
    let long = Space::from_used(geometry, u32::MAX, []);
    assert!(matches!(long.err(), Some(SpaceError::TooLong { .. })));
}
