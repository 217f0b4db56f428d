//! Doing damage to a disk.
//!
//! Damage strikes what is durable and what reads see alike. It is meant for a disk at rest: a
//! write that is still pending on a damaged page will undo the damage when it is synced.

use std::sync::Arc;

use super::content::{PAGES_LIMIT, PageBytes, offset_of, pages_of, to_index};
use super::damage::{Damage, DamageKind, DamagedPage};
use super::disk::SimDisk;
use super::inner::SimDiskInner;
use super::ledger::{Injected, LedgerEntry};
use super::rng::Rng;
use super::state::{DiskEvent, FileId, Spoil};
use crate::page::PAGE;

impl SimDisk {
    /// Applies `damage`, and records it in the ledger. False, and nothing is recorded, when the bytes would not change:
    /// no such page, no older bytes known, zeros already.
    pub fn damage(&self, damage: &Damage) -> bool {
        let mut inner = self.lock_inner();
        let Some((id, spoil)) = inner.aim(damage) else { return false };
        let (file, offset) = damage.target();
        let entry = LedgerEntry {
            operation: inner.operations,
            file: file.to_owned(),
            offset,
            injected: Injected::Damage(damage.clone()),
        };
        inner.ledger.push(entry);
        inner.emit(DiskEvent::Damage { id, spoil });
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
                pages.extend((0..count).map(|page| DamagedPage { file: name.to_string(), page }));
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

fn draw(rng: &mut Rng, kind: DamageKind, at: DamagedPage, other: &DamagedPage) -> Damage {
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

impl SimDiskInner {
    /// What `damage` comes to; `None` when nothing would change.
    fn aim(&self, damage: &Damage) -> Option<(FileId, Spoil)> {
        let (file, _) = damage.target();
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

fn noise(seed: u64) -> Arc<PageBytes> {
    let mut page = [0; PAGE];
    Rng::labelled(seed, 0x9a).fill(&mut page);
    Arc::new(page)
}

/// `bytes` as page `page` of a file of `len` bytes can hold them: zeros past the end.
fn in_file(len: u64, page: u64, bytes: &PageBytes) -> PageBytes {
    let mut bytes = *bytes;
    let end = to_index((len - offset_of(page)).min(PAGE as u64));
    bytes[end..].fill(0);
    bytes
}
