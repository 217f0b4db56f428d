//! The allocator of the overflow file against a list of page states, with its free map written and
//! read back; every damaged free map is refused or means what it says.

use pleach_beatree::space::{
    FileGeometry, GrowingFile, Growth, MAX_EXTENTS, NeedGrowth, OverflowSpace, SpaceError,
};
use pleach_core::page::overflow::OverflowExtent;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Used,
    Pending(u64),
}

struct Twin {
    extents: OverflowSpace,
    pages: Vec<State>,
    /// Values: their runs.
    values: Vec<Vec<OverflowExtent>>,
    stamp: u64,
    random: ChaCha8Rng,
}

impl Twin {
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.next_u32()).unwrap() % limit.max(1)
    }

    fn mark(&mut self, runs: &[OverflowExtent], from: impl Fn(State) -> bool, to: State) {
        for run in runs {
            for page_no in run.start..run.start + u64::from(run.pages) {
                let state = &mut self.pages[usize::try_from(page_no).unwrap()];
                assert!(from(*state), "page {page_no} is {state:?}");
                *state = to;
            }
        }
    }

    fn allocate(&mut self) {
        let wide = self.below(10) == 0;
        let count = u32::try_from(1 + self.below(if wide { 120 } else { 12 })).unwrap();
        let growth = if self.below(3) == 0 { Growth::Refused } else { Growth::Allowed };
        let mut runs = Vec::new();
        let mut grown = 0;
        while let Err(NeedGrowth { segments }) = self.extents.allocate(count, growth, &mut runs) {
            assert!(segments > 0 && grown < 2, "growth is asked for once, as much as it takes");
            grown += 1;
            self.extents.add_segments(segments).unwrap();
            let more = segments * FileGeometry::TINY.segment_pages;
            self.pages.resize(self.pages.len() + more as usize, State::Free);
        }
        assert!((1..=MAX_EXTENTS).contains(&runs.len()));
        assert_eq!(runs.iter().map(|run| run.pages).sum::<u32>(), count);
        let end = |run: &OverflowExtent| run.start + u64::from(run.pages);
        assert!(runs.windows(2).all(|pair| end(&pair[0]) < pair[1].start), "in order, merged");
        self.mark(&runs, |state| state == State::Free, State::Used);
        self.values.push(runs);
    }

    fn retire(&mut self) {
        if self.values.is_empty() {
            return;
        }
        let index = self.below(self.values.len());
        let value = self.values.swap_remove(index);
        self.stamp += u64::from(self.random.next_u32() % 2);
        self.extents.retire(&value, self.stamp).unwrap();
        let again = self.extents.retire(&value, self.stamp);
        assert_eq!(again, Err(SpaceError::AlreadyRetired { page: value[0].start }));
        self.mark(&value, |state| state == State::Used, State::Pending(self.stamp));
    }

    fn free_through(pages: &mut [State], through: u64) {
        for state in pages {
            if matches!(state, State::Pending(stamp) if *stamp <= through) {
                *state = State::Free;
            }
        }
    }

    fn release(&mut self) {
        let through = self.stamp.saturating_sub(self.below(3) as u64);
        let freed = self.extents.release(through);
        let free = |pages: &[State]| pages.iter().filter(|s| **s == State::Free).count();
        let before = free(&self.pages);
        Self::free_through(&mut self.pages, through);
        assert_eq!(usize::try_from(freed).unwrap(), free(&self.pages) - before);
    }

    fn free_runs(pages: &[State]) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (page_no, _) in pages.iter().enumerate().filter(|(_, state)| **state == State::Free) {
            let page_no = page_no as u64;
            match runs.last_mut() {
                Some((start, len)) if *start + *len == page_no => *len += 1,
                _ => runs.push((page_no, 1)),
            }
        }
        runs
    }

    fn drop_tail(&mut self) {
        let is_short = self.below(4) == 0;
        let size = FileGeometry::TINY.segment_pages as usize;
        let live = self.pages.iter().filter(|state| **state == State::Used).count();
        let target = live * FileGeometry::TINY.size_percent as usize / 100;
        let is_far = self.pages.len() > 2 * target + 2 * size;
        if is_far || is_short {
            let used = self.pages.iter().rposition(|state| *state != State::Free);
            let used = used.map_or(0, |at| at + 1).next_multiple_of(size);
            let keep = if is_far { used.max((target / size + 1) * size) } else { used };
            self.pages.truncate(keep);
        }
        self.extents.shrink_tail(is_short);
    }

    fn check(&mut self) {
        let stats = self.extents.stats();
        let runs = Self::free_runs(&self.pages);
        assert_eq!(self.extents.free_extents().collect::<Vec<_>>(), runs);
        assert_eq!(stats.pages, self.pages.len() as u64);
        assert_eq!(stats.free, runs.iter().map(|(_, len)| len).sum::<u64>());
        let used = self.pages.iter().filter(|state| **state == State::Used).count();
        assert_eq!(stats.live, used as u64);

        let through = self.stamp.saturating_sub(self.below(3) as u64);
        let mut bytes = Vec::new();
        self.extents.encode(through, &mut bytes);
        let stored = OverflowSpace::parse(FileGeometry::TINY, &bytes).unwrap();
        let mut later = self.pages.clone();
        Self::free_through(&mut later, through);
        assert_eq!(stored.free_extents().collect::<Vec<_>>(), Self::free_runs(&later));
    }
}

#[test]
fn random_values_come_and_go() {
    let cases =
        std::env::var("PLEACH_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    for seed in 0..cases {
        let mut twin = Twin {
            extents: OverflowSpace::new(FileGeometry::TINY),
            pages: Vec::new(),
            values: Vec::new(),
            stamp: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        };
        for _ in 0..600 {
            match twin.below(10) {
                0..=4 => twin.allocate(),
                5..=7 => twin.retire(),
                8 if twin.below(8) == 0 => twin.drop_tail(),
                _ => twin.release(),
            }
            twin.check();
        }
    }
}

#[test]
fn recovery_marks_runs_and_refuses_contradictions() {
    let mut extents = OverflowSpace::new(FileGeometry::TINY);
    extents.add_segments(2).unwrap();
    let run = |start, pages| OverflowExtent { start, pages };
    extents.mark_used(run(3, 5)).unwrap();
    assert_eq!(extents.mark_used(run(7, 2)), Err(SpaceError::AlreadyUsed { page: 7 }));
    assert_eq!(extents.mark_free(run(2, 2)), Err(SpaceError::NotUsed { page: 2 }));
    let outside = Err(SpaceError::OutsideFile { page: 30, pages: 32 });
    assert_eq!(extents.mark_used(run(30, 3)), outside);
    assert!(extents.mark_used(run(u64::MAX, 3)).is_err());
    extents.mark_free(run(4, 2)).unwrap();
    assert_eq!(extents.free_extents().collect::<Vec<_>>(), [(0, 3), (4, 2), (8, 24)]);
}

#[test]
fn a_value_never_needs_more_runs_than_a_cell_holds() {
    let mut extents = OverflowSpace::new(FileGeometry::TINY);
    extents.add_segments(8).unwrap();
    // Every other page is in use: 64 free runs of one page.
    for start in (0..128).step_by(2) {
        extents.mark_used(OverflowExtent { start, pages: 1 }).unwrap();
    }
    let mut runs = Vec::new();
    extents.allocate(32, Growth::Refused, &mut runs).unwrap();
    assert_eq!(runs.len(), MAX_EXTENTS);
    extents.mark_free(runs[0]).unwrap();
    let refused = extents.allocate(33, Growth::Refused, &mut runs);
    // 33 free pages are left, but in 33 runs.
    assert_eq!(refused, Err(NeedGrowth { segments: 3 }));
}

#[test]
fn a_damaged_free_map_is_refused_or_canonical() {
    let mut extents = OverflowSpace::new(FileGeometry::TINY);
    extents.add_segments(4).unwrap();
    for start in [1, 5, 20, 63] {
        extents.mark_used(OverflowExtent { start, pages: 1 }).unwrap();
    }
    let mut bytes = Vec::new();
    extents.encode(0, &mut bytes);
    for len in 0..bytes.len() {
        assert!(OverflowSpace::parse(FileGeometry::TINY, &bytes[..len]).is_err());
    }
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..20_000 {
        let mut mutant = bytes.clone();
        for _ in 0..=random.next_u32() % 2 {
            let at = usize::try_from(random.next_u32()).unwrap() % mutant.len();
            mutant[at] ^= 1 << (random.next_u32() % 8);
        }
        if let Ok(parsed) = OverflowSpace::parse(FileGeometry::TINY, &mutant) {
            let mut again = Vec::new();
            parsed.encode(0, &mut again);
            assert_eq!(again, mutant);
        }
    }
}
