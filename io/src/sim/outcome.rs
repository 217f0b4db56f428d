//! The outcomes of a crash point: a few fixed ones and draws, or all subsets.

use core::fmt;

use super::content::SECTORS;
use super::crash::{CrashItem, CrashPoint, ItemFate, WriteView};
use super::image::Image;
use super::rng::Rng;

/// Most things whose subsets are all enumerated.
const ENUMERABLE: usize = 12;

/// Which things an outcome keeps. Indexes count the pending things of the crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// None.
    Dropped,
    /// All.
    Kept,
    /// All but one.
    AllBut(usize),
    /// One alone.
    Only(usize),
    /// The first ones, up to this number.
    Prefix(usize),
    /// Each by the seed: dropped, kept, or a write in pieces: torn at a sector, random sectors, garbage sectors (a
    /// quarter kept, a quarter dropped, half garbage), length without data or data without length.
    Random(u64),
    /// Kept items have their bit set; [`Grain`] says what a bit is.
    Subset(Grain, u16),
}

/// What an enumeration of subsets keeps or drops as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Each 512-byte sector of each write.
    Sector,
    /// Each page of each write.
    Page,
    /// Each write.
    Item,
}

/// One possible result of a crash.
#[derive(Clone, Debug)]
pub struct CrashOutcome {
    mode: CrashMode,
    boundary: usize,
    image: Image,
}

impl CrashOutcome {
    pub(super) fn new(mode: CrashMode, boundary: usize, image: Image) -> Self {
        Self { mode, boundary, image }
    }

    /// Number of events before the crash.
    pub(super) fn boundary(&self) -> usize {
        self.boundary
    }

    /// How it came about; [`CrashPoint::outcome`] with this gives the same image again.
    pub fn mode(&self) -> CrashMode {
        self.mode
    }

    /// What is on the disk.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

impl fmt::Display for CrashOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash point {}, {:?}", self.boundary, self.mode)
    }
}

impl CrashPoint {
    /// About `count` outcomes: everything dropped, everything kept, one lost, one alone, a
    /// prefix, and the rest drawn for each pending thing. Only one when nothing is pending.
    pub fn outcomes(&self, seed: u64, count: usize) -> CrashOutcomes<'_> {
        CrashOutcomes::new(self, seed, count)
    }

    /// The outcome of one mode.
    pub fn outcome(&self, mode: CrashMode) -> CrashOutcome {
        CrashOutcomes::one(self, mode)
    }

    /// Every subset of the pending things, when there are at most 12 of this grain.
    pub fn subsets(&self, grain: Grain) -> Option<Subsets<'_>> {
        Subsets::new(self, grain)
    }
}

/// Iterator of [`CrashPoint::outcomes`]. Images are built one by one.
pub struct CrashOutcomes<'a> {
    point: &'a CrashPoint,
    rng: Rng,
    next: usize,
    count: usize,
}

impl core::fmt::Debug for CrashOutcomes<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Outcomes")
            .field("point", self.point)
            .field("next", &self.next)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<'a> CrashOutcomes<'a> {
    pub(super) fn new(point: &'a CrashPoint, seed: u64, count: usize) -> Self {
        let rng = Rng::labelled(seed, point.boundary as u64);
        let count = if point.items.is_empty() { count.min(1) } else { count };
        Self { point, rng, next: 0, count }
    }

    pub(super) fn one(point: &CrashPoint, mode: CrashMode) -> CrashOutcome {
        let seed = if let CrashMode::Random(seed) = mode { seed } else { 0 };
        let mut rng = Rng::new(seed);
        let fates = fates(&point.items, mode, &mut rng);
        let image = point.image(&fates, &mut rng);
        CrashOutcome::new(mode, point.boundary, image)
    }

    /// The mode of outcome number `index`. Some of the first eight differ from the others only when
    /// two things or more are pending; with one, they are drawn.
    fn mode(&mut self, index: usize) -> CrashMode {
        let pending = self.point.items.len();
        let several = pending > 1;
        match index {
            0 => CrashMode::Dropped,
            1 => CrashMode::Kept,
            2 | 5 if several => CrashMode::AllBut(self.rng.index(pending)),
            3 if several => CrashMode::Only(self.rng.index(pending)),
            4 | 6 if pending > 2 => CrashMode::Prefix(1 + self.rng.index(pending - 1)),
            _ => CrashMode::Random(self.rng.next()),
        }
    }
}

impl Iterator for CrashOutcomes<'_> {
    type Item = CrashOutcome;

    fn next(&mut self) -> Option<CrashOutcome> {
        if self.next == self.count {
            return None;
        }
        let mode = self.mode(self.next);
        self.next += 1;
        Some(Self::one(self.point, mode))
    }
}

/// Iterator of [`CrashPoint::subsets`].
pub struct Subsets<'a> {
    point: &'a CrashPoint,
    grain: Grain,
    next: u32,
    end: u32,
}

impl core::fmt::Debug for Subsets<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Subsets")
            .field("point", self.point)
            .field("grain", &self.grain)
            .field("next", &self.next)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl<'a> Subsets<'a> {
    pub(super) fn new(point: &'a CrashPoint, grain: Grain) -> Option<Self> {
        let units: usize = point.items.iter().map(|item| units(item, grain)).sum();
        (units <= ENUMERABLE).then(|| Self { point, grain, next: 0, end: 1 << units })
    }
}

impl Iterator for Subsets<'_> {
    type Item = CrashOutcome;

    fn next(&mut self) -> Option<CrashOutcome> {
        if self.next == self.end {
            return None;
        }
        let bits = u16::try_from(self.next).ok()?;
        self.next += 1;
        Some(CrashOutcomes::one(self.point, CrashMode::Subset(self.grain, bits)))
    }
}

/// Things of this grain in a pending one.
fn units(item: &CrashItem, grain: Grain) -> usize {
    let Some(write) = item.write() else { return 1 };
    let data = match grain {
        Grain::Item => return 1,
        Grain::Page => write.pages,
        Grain::Sector => {
            (0..write.pages).map(|page| write.reached(page).count_ones() as usize).sum()
        }
    };
    data + usize::from(write.lengthens)
}

fn fates(items: &[CrashItem], mode: CrashMode, rng: &mut Rng) -> Vec<ItemFate> {
    let kept = |keep: &dyn Fn(usize) -> bool| {
        let fate = |at| if keep(at) { ItemFate::Keep } else { ItemFate::Drop };
        (0..items.len()).map(fate).collect()
    };
    match mode {
        CrashMode::Dropped => kept(&|_| false),
        CrashMode::Kept => kept(&|_| true),
        CrashMode::AllBut(lost) => kept(&|at| at != lost),
        CrashMode::Only(alone) => kept(&|at| at == alone),
        CrashMode::Prefix(end) => kept(&|at| at < end),
        CrashMode::Random(_) => items.iter().map(|item| random_fate(item, rng)).collect(),
        CrashMode::Subset(grain, bits) => {
            let mut bits = u32::from(bits);
            items.iter().map(|item| subset_fate(item, grain, &mut bits)).collect()
        }
    }
}

fn random_fate(item: &CrashItem, rng: &mut Rng) -> ItemFate {
    let Some(WriteView { pages, lengthens, .. }) = item.write() else {
        return if rng.chance(1, 2) { ItemFate::Keep } else { ItemFate::Drop };
    };
    let mut keep = vec![0_u8; pages];
    let mut garbage = vec![0_u8; pages];
    let sectors = pages * SECTORS;
    let set = |masks: &mut [u8], sector: usize| masks[sector / SECTORS] |= 1 << (sector % SECTORS);
    let mut length = rng.chance(1, 2);
    match rng.below(if lengthens { 6 } else { 5 }) {
        0 => return ItemFate::Drop,
        1 => return ItemFate::Keep,
        2 => {
            let torn = rng.index(sectors + 1);
            (0..torn).for_each(|sector| set(&mut keep, sector));
        }
        3 => keep.iter_mut().for_each(|mask| *mask = rng.byte()),
        4 => (0..sectors).for_each(|sector| match rng.below(4) {
            0 => set(&mut keep, sector),
            1 => {}
            _ => set(&mut garbage, sector),
        }),
        _ => {
            // Length without data, or data without length.
            let all = if length { 0 } else { u8::MAX };
            keep.fill(all);
        }
    }
    // When the write does not change the length, keeping the length means nothing.
    length |= !lengthens;
    ItemFate::Pieces { keep, garbage, length }
}

fn subset_fate(item: &CrashItem, grain: Grain, bits: &mut u32) -> ItemFate {
    let mut take = || {
        let bit = *bits & 1 == 1;
        *bits >>= 1;
        bit
    };
    let whole = grain == Grain::Item;
    let Some(write) = item.write().filter(|_| !whole) else {
        return if take() { ItemFate::Keep } else { ItemFate::Drop };
    };
    let mut keep = vec![0_u8; write.pages];
    for (index, mask) in keep.iter_mut().enumerate() {
        let reached = write.reached(index);
        if grain == Grain::Page {
            *mask = if take() { reached } else { 0 };
            continue;
        }
        for sector in (0..SECTORS).filter(|sector| reached >> sector & 1 == 1) {
            *mask |= u8::from(take()) << sector;
        }
    }
    let length = !write.lengthens || take();
    ItemFate::Pieces { keep, garbage: vec![0; write.pages], length }
}
