//! Blocks and overlays: the results of a finish.

use pleach::{Block, Key, Overlay, Witness};

use crate::bytes::{Owner, PleachBytes};
use crate::db::root_of;
use crate::error::{Failed, guard};
use crate::handle::{Handle, Out, ask, given};

/// A block: a new root and the changes that lead to it, in memory.
pub type PleachBlock = Handle<Made>;
/// An overlay: a block that is kept in memory as a state for further sessions.
pub type PleachOverlay = Handle<Overlay>;

/// A block with its witnesses that were not taken.
pub struct Made {
    block: Block,
    witnesses: Vec<(u8, Witness)>,
}

impl Made {
    pub(crate) fn new(mut block: Block) -> Self {
        let witnesses = block.take_witnesses();
        Self { block, witnesses }
    }
}

/// Frees a block. One that was not committed leaves no trace.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_block_free(block: Option<Box<PleachBlock>>) {
    Handle::free(block);
}

/// The root of a Merkle namespace in the block's state. Errors as of `pleach_root`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_block_root(
    block: Option<&PleachBlock>,
    namespace: u8,
    root: Out<Key>,
) -> Failed {
    ask(given(block, "block"), given(root, "root"), |made| root_of(made.block.roots(), namespace))
}

/// The root of a Merkle namespace in the state before the block: what its witness is verified against. Errors as of
/// `pleach_root`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_block_previous_root(
    block: Option<&PleachBlock>,
    namespace: u8,
    root: Out<Key>,
) -> Failed {
    ask(given(block, "block"), given(root, "root"), |made| {
        root_of(made.block.prev_roots(), namespace)
    })
}

/// Takes the block's witness of a namespace, once, for `pleach_verify_witness`: no bytes where there is none, because
/// it was taken, the session makes none, the namespace is plain, or the batch has no access in it.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_block_witness(
    block: Option<&PleachBlock>,
    namespace: u8,
    witness: Out<PleachBytes>,
) -> Failed {
    guard(|| {
        let witness = given(witness, "witness")?;
        let taken = given(block, "block")?.change(|made| {
            let at = made.witnesses.iter().position(|(of, _)| *of == namespace);
            Ok(at.map(|at| made.witnesses.remove(at).1))
        })?;
        witness.write(PleachBytes::new(taken.map(Owner::Witness)));
        Ok(())
    })
}

/// Commits the block, with the overlays below it, and gives the number of the commit. The block is spent; after an
/// error it is as it was. Errors: 501, other commits came first: make the block again; 105, the device is full: free
/// space and call again; 601 and 602 after a failed write or sync; 603, the database is closed; 416, it is read-only.
/// Of all errors only those with the outcome `PLEACH_UNKNOWN` may have committed.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_block_commit(block: Option<&PleachBlock>, number: Out<u64>) -> Failed {
    guard(|| {
        let number = given(number, "number")?;
        number.write(given(block, "block")?.spend(|Made { block, witnesses }| {
            block.commit().map_err(|failed| {
                let (block, error) = failed.into_parts();
                Box::new((Made { block, witnesses }, error.into()))
            })
        })?);
        Ok(())
    })
}

/// Keeps the block in memory, as a state that sessions read and that can be committed later. The block is spent: take
/// its witness before.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_block_into_overlay(
    block: Option<&PleachBlock>,
    overlay: Out<Box<PleachOverlay>>,
) -> Failed {
    guard(|| {
        let overlay = given(overlay, "overlay")?;
        let made = given(block, "block")?.spend(|made| Ok(made.block.into_overlay()))?;
        overlay.write(Box::new(Handle::new(made)));
        Ok(())
    })
}

/// Frees an overlay. Sessions and overlays on it keep what they need.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_overlay_free(overlay: Option<Box<PleachOverlay>>) {
    Handle::free(overlay);
}

/// The root of a Merkle namespace in the overlay's state. Errors as of `pleach_root`.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_overlay_root(
    overlay: Option<&PleachOverlay>,
    namespace: u8,
    root: Out<Key>,
) -> Failed {
    ask(given(overlay, "overlay"), given(root, "root"), |overlay| {
        root_of(overlay.roots(), namespace)
    })
}

/// Commits the overlay and those below it as one commit, and gives its number; of one that is committed it gives the
/// number again. What stands on it stays valid. Errors as of `pleach_block_commit`; the overlay is never spent.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_overlay_commit(
    overlay: Option<&PleachOverlay>,
    number: Out<u64>,
) -> Failed {
    ask(given(overlay, "overlay"), given(number, "number"), |overlay| Ok(overlay.commit()?))
}
