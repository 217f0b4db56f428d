//! BLAKE3 of many short messages at once: one message a lane of a SIMD register.
//!
//! Two batches, both equal, output by output, to a plain `blake3::hash` of each message:
//!
//! * [`hash64_many`]: messages of exactly 64 bytes (nodes). The blake3 crate has assembly for
//!   this behind its hidden `platform` module; without the feature `blake3-platform` the kernel
//!   below is used instead.
//! * [`hash_short_many`]: messages of 0 to 64 bytes, each with its own length (values). The
//!   crate's batch call takes whole blocks only, so this is a kernel of our own: the compression
//!   function written once over arrays of lanes, compiled once for each instruction set.
//!
//! A message of at most 64 bytes is one block of one chunk that is also the root, so a hash is a
//! single compression: chaining value = IV, counter = 0, block length = message length and the
//! flags `CHUNK_START | CHUNK_END | ROOT`.
//!
//! The unsafe code here is calls into functions that are compiled for an instruction set whose
//! presence was checked. Nothing allocates.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls of functions compiled for a detected instruction set")
)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "other processors have no lanes yet and hash one by one")
)]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Hashes of 64-byte messages.
///
/// # Panics
/// When the slices' lengths differ.
pub(crate) fn hash64_many(blocks: &[[u8; 64]], out: &mut [[u8; 32]]) {
    assert_eq!(blocks.len(), out.len(), "one output a block");
    #[cfg(feature = "blake3-platform")]
    platform::hash64_many(blocks, out);
    #[cfg(not(feature = "blake3-platform"))]
    for (blocks, out) in blocks.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        short(blocks, &[64; CHUNK][..blocks.len()], out);
    }
}

/// Messages that are hashed together, since a list of their lengths is on the stack.
#[cfg(not(feature = "blake3-platform"))]
const CHUNK: usize = 64;

/// Hashes of messages of up to 64 bytes: message `i` is the first `lens[i]` bytes of `blocks[i]`,
/// the rest of the block is zero.
///
/// # Panics
/// When the slices' lengths differ or a length is more than 64.
pub(crate) fn hash_short_many(blocks: &[[u8; 64]], lens: &[u8], out: &mut [[u8; 32]]) {
    assert!(blocks.len() == out.len() && blocks.len() == lens.len(), "one output a block");
    assert!(lens.iter().all(|len| *len <= 64), "at most one block");
    debug_assert!(
        blocks.iter().zip(lens).all(|(b, len)| b[usize::from(*len)..].iter().all(|b| *b == 0)),
        "bytes after the message are zero"
    );
    short(blocks, lens, out);
}

#[cfg(feature = "blake3-platform")]
mod platform {
    //! The blake3 crate's own batch call.

    use blake3::{IncrementCounter, platform::Platform};

    use super::kernel::{CHUNK_END, CHUNK_START, IV, ROOT};

    /// References are collected on the stack, this many at a time.
    const GROUP: usize = 32;

    pub(super) fn hash64_many(blocks: &[[u8; 64]], out: &mut [[u8; 32]]) {
        let platform = Platform::detect();
        let lanes = platform.simd_degree();
        let (groups, rest) = blocks.as_chunks::<GROUP>();
        let (group_outs, rest_out) = out.split_at_mut(groups.len() * GROUP);
        for (group, out) in groups.iter().zip(group_outs.chunks_exact_mut(GROUP)) {
            run(platform, &group.each_ref(), out);
        }
        if rest.is_empty() {
            return;
        }
        let last = &rest[rest.len() - 1];
        let refs: [&[u8; 64]; GROUP] = core::array::from_fn(|i| rest.get(i).unwrap_or(last));
        let count = padded(rest.len(), lanes);
        if count == rest.len() {
            run(platform, &refs[..count], rest_out);
        } else {
            let mut hashes = [[0; 32]; GROUP];
            run(platform, &refs[..count], &mut hashes[..count]);
            rest_out.copy_from_slice(&hashes[..rest.len()]);
        }
    }

    /// The crate hashes what does not fill a register in halves, quarters and so on; from three
    /// messages on, one wider call is cheaper than several narrow ones.
    fn padded(count: usize, lanes: usize) -> usize {
        let tail = count % lanes;
        if tail < 3 { count } else { count - tail + tail.next_power_of_two() }
    }

    fn run(platform: Platform, blocks: &[&[u8; 64]], out: &mut [[u8; 32]]) {
        platform.hash_many(
            blocks,
            &IV,
            0,
            IncrementCounter::No,
            0,
            CHUNK_START,
            CHUNK_END | ROOT,
            out.as_flattened_mut(),
        );
    }
}

/// Picks the widest kernel that this processor runs.
fn short(blocks: &[[u8; 64]], lens: &[u8], out: &mut [[u8; 32]]) {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: the processor has the instruction set the function is compiled for.
            return unsafe { x86::short_avx512(blocks, lens, out) };
        }
        if x86::has_avx2() {
            // SAFETY: the processor has the instruction set the function is compiled for.
            return unsafe { x86::short_avx2(blocks, lens, out) };
        }
    }
    for ((block, len), out) in blocks.iter().zip(lens).zip(out) {
        *out = *blake3::hash(&block[..usize::from(*len)]).as_bytes();
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::kernel::short_lanes;
    use super::*;

    fn blocks(count: usize, lens: &[u8]) -> Vec<[u8; 64]> {
        let mut state = 0x9e37_79b9_u32;
        (0..count)
            .map(|i| {
                let mut block = [0; 64];
                for byte in &mut block[..usize::from(lens[i])] {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *byte = state.to_be_bytes()[0];
                }
                block
            })
            .collect()
    }

    pub(super) type Kernel = fn(&[[u8; 64]], &[u8], &mut [[u8; 32]]);

    fn check(kernel: Kernel, blocks: &[[u8; 64]], lens: &[u8]) {
        let mut out = alloc::vec![[0xaa; 32]; blocks.len()];
        kernel(blocks, lens, &mut out);
        for (i, (block, len)) in blocks.iter().zip(lens).enumerate() {
            let plain = blake3::hash(&block[..usize::from(*len)]);
            assert_eq!(out[i], *plain.as_bytes(), "lane {i} of {}, length {len}", blocks.len());
        }
    }

    fn kernels() -> Vec<Kernel> {
        let mut all: Vec<Kernel> = alloc::vec![
            hash_short_many as Kernel,
            short_lanes::<1, [u32; 1]>,
            short_lanes::<4, [u32; 4]>,
            short_lanes::<8, [u32; 8]>,
            short_lanes::<16, [u32; 16]>,
        ];
        #[cfg(target_arch = "x86_64")]
        all.extend(x86::tests::kernels());
        all
    }

    #[test]
    fn every_lane_of_every_count_equals_the_plain_call() {
        for count in 0..=40usize {
            let lens: Vec<u8> = (0..count).map(|i| u8::try_from(i * 7 % 65).unwrap()).collect();
            let short = blocks(count, &lens);
            for kernel in kernels() {
                check(kernel, &short, &lens);
            }
            let full = blocks(count, &[64; 40]);
            check(|blocks, _, out| hash64_many(blocks, out), &full, &[64; 40][..count]);
        }
    }

    #[test]
    fn every_length_equals_the_plain_call_in_every_lane() {
        for len in 0..=64u8 {
            let lens = [len; 17];
            let messages = blocks(17, &lens);
            for kernel in kernels() {
                check(kernel, &messages, &lens);
            }
        }
    }

    #[test]
    fn long_batches_of_nodes_equal_the_plain_call() {
        for count in [63usize, 64, 65, 127, 129, 200] {
            let lens = alloc::vec![64u8; count];
            check(|blocks, _, out| hash64_many(blocks, out), &blocks(count, &lens), &lens);
        }
    }

    #[test]
    #[should_panic(expected = "at most one block")]
    fn a_length_of_more_than_a_block_is_refused() {
        hash_short_many(&[[0; 64]], &[65], &mut [[0; 32]]);
    }
}
