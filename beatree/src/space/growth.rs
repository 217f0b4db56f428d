//! How files of pages grow: by whole segments, which the device reserves before they are used.
//!
//! Both allocators grow the same way, [`GrowingFile::allocate_growing`]:
//!
//! 1. ask for pages. An allocator that wants a longer file changes nothing and returns the number of segments that it
//!    needs;
//! 2. have the device reserve them at the end of the file, tell the allocator, and ask again;
//! 3. if the device is full, ask once more with [`Growth::Refused`]: free pages are then taken anywhere, and only when
//!    there are too few the device's error is returned.

use super::{NeedGrowth, SpaceError};
use crate::page_no::page_offset;

/// Segments beyond twice its target that a file may have before it shrinks.
const FAR_SEGMENTS: u64 = 2;

/// How a file of pages grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileGeometry {
    /// Pages of a segment: the file grows by whole segments.
    pub segment_pages: u32,
    /// The file grows while it has fewer pages than this part of its live ones, in percent.
    pub size_percent: u32,
}

impl FileGeometry {
    /// Segments of 1 MiB, files of 1.5 times the live pages.
    pub const DEFAULT: Self = Self { segment_pages: 256, size_percent: 150 };
    /// Segments of 64 KiB, for tests and small databases.
    pub const TINY: Self = Self { segment_pages: 16, size_percent: 150 };

    /// Pages of this many segments.
    pub fn pages_of(self, segments: u32) -> u64 {
        u64::from(segments) * u64::from(self.segment_pages)
    }

    /// # Panics
    /// When a segment has no pages or the size factor is below 100 %.
    pub(super) fn assert_valid(self) {
        assert!(self.segment_pages > 0, "a segment has pages");
        assert!(self.size_percent >= 100, "a file holds its live pages");
    }

    /// Pages that a file with this many live ones grows to.
    pub(super) fn target(self, live: u64) -> u64 {
        live.saturating_mul(self.size_percent.into()) / 100
    }

    /// The pages, in whole segments, to which a file of `pages` pages with `live` live ones should shrink, if it is far
    /// too long: far, so that it does not shrink and grow by turns.
    pub(super) fn shrink_goal(self, pages: u64, live: u64) -> Option<u64> {
        let (target, segment) = (self.target(live), u64::from(self.segment_pages));
        let far = 2 * target + FAR_SEGMENTS * segment;
        (pages > far).then(|| (target / segment + 1) * segment)
    }

    /// The segments that hold this many pages.
    pub(super) fn need(self, pages: u64) -> NeedGrowth {
        let segments = pages.div_ceil(self.segment_pages.into());
        NeedGrowth { segments: u32::try_from(segments).unwrap_or(u32::MAX) }
    }
}

impl Default for FileGeometry {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Whether an allocation may ask for a longer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// As the size factor says.
    Allowed,
    /// Only if no free page is left: the device was found full.
    Refused,
}

/// A part by which a file grows, to be reserved on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its offset, the end of the file so far, in bytes.
    pub offset: u64,
    /// Its length in bytes: whole segments.
    pub bytes: u64,
    /// [`Growth::Refused`] when the device was full before, and there is no other way.
    pub growth: Growth,
}

/// An allocator of a file that grows, by [`GrowingFile::allocate_growing`].
pub trait GrowingFile {
    /// An extent of neighbouring pages.
    type Extent;

    /// Allocates `count` pages; `out` is replaced. Changes nothing when the file must grow before.
    fn allocate(
        &mut self,
        count: u32,
        growth: Growth,
        out: &mut Vec<Self::Extent>,
    ) -> Result<(), NeedGrowth>;

    /// Notes that the device has reserved this many segments more.
    fn add_segments(&mut self, segments: u32) -> Result<(), SpaceError>;

    /// Pages of the file.
    fn file_pages(&self) -> u64;

    /// How the file grows.
    fn geometry(&self) -> FileGeometry;

    /// Allocates `count` pages. `reserve` reserves an extension of the file on the device; `is_full` is true for those
    /// of its errors which mean that the device has no room.
    ///
    /// # Errors
    /// Those of `reserve`; that the device is full only when the free pages of the file do not suffice either. A
    /// [`SpaceError`] when the file would be too long.
    fn allocate_growing<E: From<SpaceError>>(
        &mut self,
        count: u32,
        mut reserve: impl FnMut(Extension) -> Result<(), E>,
        is_full: impl Fn(&E) -> bool,
    ) -> Result<Vec<Self::Extent>, E> {
        let mut extents = Vec::new();
        let mut growth = Growth::Allowed;
        // Each turn grows the file as needed, refuses growth, or ends with the error.
        while let Err(need) = self.allocate(count, growth, &mut extents) {
            let extension = Extension {
                offset: page_offset(self.file_pages()),
                bytes: page_offset(self.geometry().pages_of(need.segments)),
                growth,
            };
            match reserve(extension) {
                Ok(()) => self.add_segments(need.segments)?,
                Err(error) if growth == Growth::Allowed && is_full(&error) => {
                    growth = Growth::Refused;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::page::overflow;

    use super::super::{LeafExtent, LeafSpace, OverflowSpace};
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Failed {
        Full,
        Broken,
        Space(SpaceError),
    }

    impl From<SpaceError> for Failed {
        fn from(error: SpaceError) -> Self {
            Self::Space(error)
        }
    }

    /// Allocates from a device that has room for this many segments more.
    fn allocate<F: GrowingFile>(
        file: &mut F,
        count: u32,
        room: &mut u64,
    ) -> Result<Vec<F::Extent>, Failed> {
        let mut end = page_offset(file.file_pages());
        let segment = page_offset(file.geometry().pages_of(1));
        let reserve = |extension: Extension| {
            assert_eq!((extension.offset, extension.bytes % segment), (end, 0));
            if extension.bytes > *room * segment {
                return Err(Failed::Full);
            }
            *room -= extension.bytes / segment;
            end += extension.bytes;
            Ok(())
        };
        file.allocate_growing(count, reserve, |error| *error == Failed::Full)
    }

    /// Grows, falls back to holes when the device is full, and fails when there are too few.
    fn grows_then_fills_then_fails<F: GrowingFile>(
        file: &mut F,
        free: impl Fn(&mut F, &F::Extent),
        pages: impl Fn(&[F::Extent]) -> u64,
    ) {
        let segment = file.geometry().segment_pages;
        let mut room = 3;
        let first = allocate(file, 2 * segment, &mut room).expect("there is room");
        assert_eq!((pages(&first), room), (u64::from(2 * segment), 1));
        for extent in &first {
            free(file, extent);
        }
        let second = allocate(file, 3 * segment, &mut room).expect("the rest of the room");
        assert_eq!((pages(&second), room), (u64::from(3 * segment), 0));
        assert_eq!(allocate(file, 1, &mut room).err(), Some(Failed::Full));
        for extent in &second {
            free(file, extent);
        }
        let third = allocate(file, 3 * segment, &mut room).expect("free pages");
        assert_eq!(pages(&third), u64::from(3 * segment));
        // Another error ends the allocation at once.
        let broken =
            file.allocate_growing(1, |_| Err(Failed::Broken), |error| *error == Failed::Full);
        assert_eq!(broken.err(), Some(Failed::Broken));
    }

    #[test]
    fn both_files_grow_the_same_way() {
        grows_then_fills_then_fails(
            &mut LeafSpace::new(FileGeometry::TINY),
            |space, extent: &LeafExtent| {
                extent.pages().for_each(|page| space.mark_free(page).expect("handed out"));
            },
            |extents| extents.iter().map(|extent| u64::from(extent.len)).sum(),
        );
        grows_then_fills_then_fails(
            &mut OverflowSpace::new(FileGeometry::TINY),
            |extents, extent: &overflow::OverflowExtent| {
                extents.mark_free(*extent).expect("handed out");
            },
            |extents| extents.iter().map(|extent| u64::from(extent.pages)).sum(),
        );
    }
}
