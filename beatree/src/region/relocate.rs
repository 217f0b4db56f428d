//! New pages take the place of old ones, and their buffered changes are removed.

use pleach_core::prefix::Prefix;
use pleach_core::{Key, Node};

use super::RegionState;
use super::buffered::{FEW, FEW_CHANGES};
use crate::children::{ChildRef, ChildTable};

/// A range of a region whose pages were rewritten.
#[derive(Clone, Copy, Debug)]
pub struct Relocation<'a> {
    /// The range: one old page, or siblings that merged.
    pub range: Prefix,
    /// The range's new pages with their nodes, tiling the range.
    pub pages: &'a [(ChildRef, Node)],
    /// The last commit whose changes the pages contain.
    pub last_commit: u64,
}

/// What relocating changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RelocationEffect {
    /// True when children were split or merged.
    pub layout_changed: bool,
    /// Bytes of the removed buffered changes.
    pub bytes: usize,
    /// Number of the removed buffered changes.
    pub entries: usize,
    /// Pages now, less pages before.
    pub pages: isize,
}

impl RegionState {
    /// Puts new pages into the table of children and removes the buffered changes that they contain. `moves` are
    /// disjoint and in order, and their ranges are in the region.
    ///
    /// # Panics
    /// When records come out of order, or the new pages do not tile their ranges.
    pub fn relocate(&mut self, moves: &[Relocation<'_>], log_position: u64) -> RelocationEffect {
        self.assert_next_record(log_position);
        let mut done = RelocationEffect::default();
        let same_prefixes = moves.iter().all(|moved| {
            let child = self.children.find(moved.range.first_key());
            matches!(moved.pages, [(page, _)] if page.prefix == moved.range)
                && self.children.prefix(child) == moved.range
        });
        if same_prefixes {
            self.move_children(moves, &mut done);
        } else {
            self.rebuild_children(moves, &mut done);
        }
        let below = || moves.iter().map(|moved| self.buffered_range(&moved.range).len());
        let few = moves.len() <= FEW && below().sum::<usize>() <= FEW_CHANGES;
        (done.bytes, done.entries) =
            if few { self.remove_few_buffered(moves) } else { self.remove_buffered(moves) };
        self.buffered.trim();
        // A value that was replaced while the pages were being written is in one of their cells.
        self.buffered.replaced_values.retain(|replaced| {
            !moves.iter().any(|moved| replaced.is_in(&moved.range, moved.last_commit))
        });
        self.log_position = log_position;
        self.layout_version += u64::from(done.layout_changed);
        done
    }

    /// Moves pages that keep their prefixes.
    fn move_children(&mut self, moves: &[Relocation<'_>], done: &mut RelocationEffect) {
        for (page, node) in moves.iter().flat_map(|moved| moved.pages) {
            let child = self.children.find(page.prefix.first_key());
            done.pages +=
                isize::from(page.page.is_some()) - isize::from(self.children.page(child).is_some());
            self.children.set_page(child, page.page, page.tag);
            self.set_node(child, node);
            self.changes_since_write[child] = 0;
        }
    }

    /// Rebuilds the whole table of children: pages were split or merged.
    fn rebuild_children(&mut self, moves: &[Relocation<'_>], done: &mut RelocationEffect) {
        let room = self.children.len() + moves.len();
        let mut children: Vec<ChildRef> = Vec::with_capacity(room);
        let mut nodes: Vec<Node> = Vec::with_capacity(if self.is_plain() { 0 } else { room });
        let mut counts: Vec<u8> = Vec::with_capacity(room);
        let mut versions: Vec<u64> = Vec::with_capacity(room);
        let mut coming = moves.iter().peekable();
        for index in 0..self.children.len() {
            let child = self.children.get(index);
            let Some(replaced) = coming.peek().filter(|next| next.range.contains(&child.prefix))
            else {
                children.push(child);
                nodes.push(*self.node(index));
                counts.push(self.changes_since_write[index]);
                versions.push(self.versions[index]);
                continue;
            };
            done.pages -= isize::from(child.page.is_some());
            done.layout_changed |= replaced.pages.len() != 1 || replaced.range != child.prefix;
            if child.prefix.last_key() == replaced.range.last_key() {
                for (page, node) in replaced.pages {
                    done.pages += isize::from(page.page.is_some());
                    children.push(*page);
                    nodes.push(*node);
                    counts.push(0);
                    // Where pages were split or merged this is the last of several versions, and no page has a treelet
                    // as of it.
                    versions.push(self.versions[index]);
                }
                coming.next();
            }
        }
        assert!(coming.next().is_none(), "every range lies in the region");
        self.children = ChildTable::new(*self.children.region(), &children);
        if !self.is_plain() {
            // Pages divide and merge below the region: its own node is that of the same pairs.
            self.replace_nodes(nodes);
        }
        self.changes_since_write = counts;
        self.versions = versions;
        // The page that nodes of parts belong to may be as of an older commit now.
        self.parts.clear();
    }

    /// Removes the buffered changes that the new pages contain; returns their bytes and number. Each change that is
    /// still buffered for a moved page counts as one.
    fn remove_buffered(&mut self, moves: &[Relocation<'_>]) -> (usize, usize) {
        let (mut bytes, mut entries) = (0, 0);
        let ends: Vec<Key> = moves.iter().map(|moved| moved.range.last_key()).collect();
        let (mut at, depth) = (0, self.depth());
        let (children, counts) = (&self.children, &mut self.changes_since_write);
        self.buffered.retain(
            |buffered| {
                while at < moves.len() && ends[at] < buffered.key {
                    at += 1;
                }
                let Some(moved) =
                    moves.get(at).filter(|moved| moved.range.first_key() <= &buffered.key)
                else {
                    return true;
                };
                if buffered.commit > moved.last_commit {
                    let child = children.find(&buffered.key);
                    counts[child] = counts[child].saturating_add(1);
                    return true;
                }
                bytes += buffered.bytes();
                entries += 1;
                false
            },
            depth,
        );
        (bytes, entries)
    }

    /// The same for few moves of few changes: reads only these, and moves what is after them.
    fn remove_few_buffered(&mut self, moves: &[Relocation<'_>]) -> (usize, usize) {
        let (mut bytes, mut entries) = (0, 0);
        let mut remove = |(gone_bytes, gone): (usize, usize)| {
            bytes += gone_bytes;
            entries += gone;
        };
        for moved in moves {
            let mut range = self.buffered_range(&moved.range);
            while let Some(at) = self.buffered()[range.clone()]
                .iter()
                .position(|buffered| buffered.commit > moved.last_commit)
                .map(|at| range.start + at)
            {
                let child = self.children.find(&self.buffered()[at].key);
                self.changes_since_write[child] = self.changes_since_write[child].saturating_add(1);
                let before = at - range.start;
                remove(self.buffered.remove(range.start..at));
                // The changes that stay are where the first one was.
                range = range.start + 1..range.end - before;
            }
            remove(self.buffered.remove(range));
        }
        (bytes, entries)
    }
}
