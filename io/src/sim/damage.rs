//! Rot: changes of bytes at rest that no operation asked for.
//!
//! Damage strikes what is durable and what reads see alike. It is meant for a disk at rest: a
//! write that is still pending on a damaged page will undo the damage when it is synced.

use std::sync::Arc;

use super::content::{PAGES_LIMIT, Page, offset_of, pages_of, to_index};
use super::disk::SimDisk;
use super::inner::Inner;
use super::ledger::{Injected, LedgerEntry};
use super::rng::Rng;
use super::state::{Event, FileId, Spoil};
use crate::buffer::PAGE;

/// A page of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOf {
    /// The file's name.
    pub file: String,
    /// Page number.
    pub page: u64,
}

/// One change of bytes at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Bit `bit` (0 to 7) of byte `byte` of the page is turned over.
    Flip {
        /// The page.
        at: PageOf,
        /// Byte in the page.
        byte: u16,
        /// Bit in the byte.
        bit: u8,
    },
    /// The page reads as zeros.
    Zero(PageOf),
    /// The page holds noise drawn from this seed.
    Garbage(PageOf, u64),
    /// The page holds what it held before its last write.
    Stale(PageOf),
    /// The page `hit` holds the bytes of the page `meant`, of the same file or another.
    Misdirected {
        /// Where the bytes belong.
        meant: PageOf,
        /// Where they went.
        hit: PageOf,
    },
    /// Reading the page fails with EIO until it is written.
    Unreadable(PageOf),
    /// The file ends here.
    Truncate {
        /// The file's name.
        file: String,
        /// Its new length, shorter than before.
        len: u64,
    },
}

/// Classes of [`Damage`] for [`SimDisk::damage_randomly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of `Damage`")]
pub enum DamageKind {
    Flip,
    Zero,
    Garbage,
    Stale,
    Misdirected,
    Unreadable,
    Truncate,
}

impl DamageKind {
    /// All classes.
    pub const ALL: [Self; 7] = [
        Self::Flip,
        Self::Zero,
        Self::Garbage,
        Self::Stale,
        Self::Misdirected,
        Self::Unreadable,
        Self::Truncate,
    ];
}

impl SimDisk {
    /// Does `damage`, and records it in the ledger. False, and nothing is recorded, when the
    /// bytes would not change: no such page, no older bytes known, zeros already.
    pub fn damage(&self, damage: &Damage) -> bool {
        let mut inner = self.lock_inner();
        let Some((id, spoil)) = inner.aim(damage) else { return false };
        let (file, offset) = damage.place();
        let entry = LedgerEntry {
            operation: inner.operations,
            file: file.to_owned(),
            offset,
            injected: Injected::Damage(damage.clone()),
        };
        inner.ledger.push(entry);
        inner.emit(Event::Damage { id, spoil });
        true
    }

    /// Damages one page (or, truncating, one file) that `allowed` lets through, in a way drawn
    /// from `seed` out of `kinds`. `None` when 64 draws found nothing that could be changed.
    pub fn damage_randomly(
        &self,
        seed: u64,
        kinds: &[DamageKind],
        mut allowed: impl FnMut(&str, u64) -> bool,
    ) -> Option<Damage> {
        let mut rng = Rng::labelled(seed, 0xda);
        let mut pages = Vec::new();
        {
            let inner = self.lock_inner();
            for (name, id) in &inner.state.names {
                let count = inner.state.files[id.0].visible.pages().min(PAGES_LIMIT);
                pages.extend((0..count).map(|page| PageOf { file: name.to_string(), page }));
            }
        }
        let targets: Vec<_> = pages.iter().filter(|at| allowed(&at.file, at.page)).collect();
        if targets.is_empty() || kinds.is_empty() {
            return None;
        }
        (0..64).find_map(|_| {
            let at = targets[rng.index(targets.len())].clone();
            let other = &pages[rng.index(pages.len())];
            let kind = kinds[rng.index(kinds.len())];
            let damage = draw(&mut rng, kind, at, other);
            self.damage(&damage).then_some(damage)
        })
    }
}

fn draw(rng: &mut Rng, kind: DamageKind, at: PageOf, other: &PageOf) -> Damage {
    match kind {
        DamageKind::Flip => {
            let byte = rng.below(PAGE as u64);
            let byte = u16::try_from(byte).unwrap_or(0);
            Damage::Flip { at, byte, bit: rng.byte() % 8 }
        }
        DamageKind::Zero => Damage::Zero(at),
        DamageKind::Garbage => Damage::Garbage(at, rng.next()),
        DamageKind::Stale => Damage::Stale(at),
        DamageKind::Misdirected => Damage::Misdirected { meant: other.clone(), hit: at },
        DamageKind::Unreadable => Damage::Unreadable(at),
        DamageKind::Truncate => {
            let cut = [0, 1, 512, 2048][rng.index(4)];
            Damage::Truncate { len: offset_of(at.page) + cut, file: at.file }
        }
    }
}

impl Damage {
    /// File and byte offset of what is damaged.
    pub fn place(&self) -> (&str, u64) {
        match self {
            Self::Flip { at, byte, .. } => (&at.file, offset_of(at.page) + u64::from(*byte)),
            Self::Zero(at)
            | Self::Garbage(at, _)
            | Self::Stale(at)
            | Self::Unreadable(at)
            | Self::Misdirected { hit: at, .. } => (&at.file, offset_of(at.page)),
            Self::Truncate { file, len } => (file, *len),
        }
    }
}

impl Inner {
    /// What `damage` comes to; `None` when nothing would change.
    fn aim(&self, damage: &Damage) -> Option<(FileId, Spoil)> {
        let (file, _) = damage.place();
        let id = *self.state.names.get(file)?;
        let content = &self.state.files[id.0].visible;
        let (page, bytes) = match damage {
            Damage::Truncate { len, .. } => {
                return (*len < content.len()).then_some((id, Spoil::Cut(*len)));
            }
            Damage::Unreadable(at) => {
                let can = at.page < content.pages() && !content.is_bad(at.page);
                return can.then_some((id, Spoil::Unreadable(at.page)));
            }
            Damage::Flip { at, byte, bit } => {
                let mut page = *content.page(at.page);
                *page.get_mut(usize::from(*byte))? ^= 1 << (bit % 8);
                (at.page, Arc::new(page))
            }
            Damage::Zero(at) => (at.page, Arc::new([0; PAGE])),
            Damage::Garbage(at, seed) => (at.page, noise(*seed)),
            Damage::Stale(at) => (at.page, self.state.files[id.0].stale(at.page)?),
            Damage::Misdirected { meant, hit } => {
                let from = *self.state.names.get(meant.file.as_str())?;
                let from = &self.state.files[from.0].visible;
                let bytes = (meant.page < from.pages()).then(|| *from.page(meant.page))?;
                (hit.page, Arc::new(bytes))
            }
        };
        let within = page < pages_of(content.len());
        let differs = within && in_file(content.len(), page, &bytes) != *content.page(page);
        differs.then(|| (id, Spoil::Page(page, Arc::new(in_file(content.len(), page, &bytes)))))
    }
}

fn noise(seed: u64) -> Arc<Page> {
    let mut page = [0; PAGE];
    Rng::labelled(seed, 0x9a).fill(&mut page);
    Arc::new(page)
}

/// `bytes` as page `page` of a file of `len` bytes can hold them: zeros past the end.
fn in_file(len: u64, page: u64, bytes: &Page) -> Page {
    let mut bytes = *bytes;
    let end = to_index((len - offset_of(page)).min(PAGE as u64));
    bytes[end..].fill(0);
    bytes
}
