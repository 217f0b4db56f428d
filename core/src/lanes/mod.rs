//! BLAKE3 of many short messages at once: one message a lane of a SIMD register.
//!
//! Two batches, both equal, output by output, to a plain `blake3::hash` of each message:
//!
//! * [`hash64_many`]: messages of exactly 64 bytes (nodes). The blake3 crate has assembly for this behind its hidden
//!   `platform` module; without the feature `blake3-platform` the kernel below is used instead.
//! * [`hash_short_many`]: messages of some bytes, each with its own length but as many blocks as the
//!   others (values). The crate's batch call takes whole blocks only, so this is a kernel of our own:
//!   the compression function written once over arrays of lanes, compiled once for each instruction set.
//!
//! A message of few blocks of 64 bytes is one chunk that is also the root, so a hash is a compression
//! for each block: the first chaining value is the IV, the counter is 0, a block's length 64 but for
//! the last one's, the first has the flag `CHUNK_START`, the last `CHUNK_END | ROOT`.
//!
//! The unsafe code here is calls into functions that are compiled for an instruction set whose
//! presence was checked, and loads and stores of registers. Nothing allocates.
#![cfg_attr(
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon")),
    expect(unsafe_code, reason = "calls of functions compiled for an instruction set")
)]
#![cfg_attr(
    not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon"))),
    allow(dead_code, reason = "other processors have no lanes and hash one by one")
)]
mod kernel;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Hashes of 64-byte messages, one output a message.
pub(crate) fn hash64_many(blocks: &[[u8; 64]], out: &mut [[u8; 32]]) {
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

/// Hashes of messages of equally many blocks, as [`Hasher::hash_short_many`] has them.
///
/// [`Hasher::hash_short_many`]: crate::Hasher::hash_short_many
pub(crate) fn hash_short_many(messages: &[u8], stride: usize, lens: &[u8], out: &mut [[u8; 32]]) {
    debug_assert!(
        messages
            .chunks(stride)
            .zip(lens)
            .all(|(m, len)| m[usize::from(*len)..].iter().all(|b| *b == 0)),
        "bytes after the message are zero"
    );
    match stride {
        64 => short::<64>(messages.as_chunks().0, lens, out),
        128 => short::<128>(messages.as_chunks().0, lens, out),
        _ => short::<192>(messages.as_chunks().0, lens, out),
    }
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
fn short<const BYTES: usize>(messages: &[[u8; BYTES]], lens: &[u8], out: &mut [[u8; 32]]) {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: the processor has the instruction set the function is compiled for.
            return unsafe { x86::short_avx512(messages, lens, out) };
        }
        if x86::has_avx2() {
            // SAFETY: the processor has the instruction set the function is compiled for.
            return unsafe { x86::short_avx2(messages, lens, out) };
        }
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    kernel::short_lanes::<4, BYTES, neon::Wide4>(messages, lens, out);
    #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
    for ((message, len), out) in messages.iter().zip(lens).zip(out) {
        *out = *blake3::hash(&message[..usize::from(*len)]).as_bytes();
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::kernel::short_lanes;
    use super::*;
    use crate::Hasher;

    fn messages<const BYTES: usize>(lens: &[u8]) -> Vec<[u8; BYTES]> {
        let mut state = 0x9e37_79b9_u32;
        let message = |len: &u8| {
            let mut message = [0; BYTES];
            for byte in &mut message[..usize::from(*len)] {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = state.to_be_bytes()[0];
            }
            message
        };
        lens.iter().map(message).collect()
    }

    pub(super) type Kernel<const BYTES: usize> = fn(&[[u8; BYTES]], &[u8], &mut [[u8; 32]]);

    fn check<const BYTES: usize>(kernel: Kernel<BYTES>, lens: &[u8]) {
        let messages = messages(lens);
        let mut out = alloc::vec![[0xaa; 32]; messages.len()];
        kernel(&messages, lens, &mut out);
        for (i, (message, len)) in messages.iter().zip(lens).enumerate() {
            let plain = blake3::hash(&message[..usize::from(*len)]);
            assert_eq!(out[i], *plain.as_bytes(), "lane {i} of {}, length {len}", lens.len());
        }
    }

    fn kernels<const BYTES: usize>() -> Vec<Kernel<BYTES>> {
        let mut all: Vec<Kernel<BYTES>> = alloc::vec![
            |messages, lens, out| {
                Hasher::BLAKE3.hash_short_many(messages.as_flattened(), BYTES, lens, out);
            },
            short_lanes::<1, BYTES, [u32; 1]>,
            short_lanes::<4, BYTES, [u32; 4]>,
            short_lanes::<8, BYTES, [u32; 8]>,
            short_lanes::<16, BYTES, [u32; 16]>,
        ];
        #[cfg(target_arch = "x86_64")]
        all.extend(x86::tests::kernels());
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        all.push(short_lanes::<4, BYTES, neon::Wide4>);
        all
    }

    /// All lengths of messages with so many blocks.
    fn lengths<const BYTES: usize>() -> impl Iterator<Item = u8> + Clone {
        let least = if BYTES == 64 { 0 } else { BYTES - 63 };
        (least..=BYTES).map(|len| u8::try_from(len).expect("few blocks"))
    }

    fn every_lane_of_every_count<const BYTES: usize>() {
        for count in 0..=40 {
            let lens: Vec<u8> = lengths::<BYTES>().cycle().step_by(7).take(count).collect();
            for kernel in kernels::<BYTES>() {
                check(kernel, &lens);
            }
        }
    }

    #[test]
    fn every_lane_of_every_count_equals_the_plain_call() {
        every_lane_of_every_count::<64>();
        every_lane_of_every_count::<128>();
        every_lane_of_every_count::<192>();
        for count in 0..=40 {
            check(|blocks, _, out| hash64_many(blocks, out), &[64; 40][..count]);
        }
    }

    fn every_length<const BYTES: usize>() {
        for len in lengths::<BYTES>() {
            for kernel in kernels::<BYTES>() {
                check(kernel, &[len; 17]);
            }
        }
    }

    #[test]
    fn every_length_equals_the_plain_call_in_every_lane() {
        every_length::<64>();
        every_length::<128>();
        every_length::<192>();
    }

    #[test]
    fn long_batches_of_nodes_equal_the_plain_call() {
        for count in [63usize, 64, 65, 127, 129, 200] {
            check(|blocks, _, out| hash64_many(blocks, out), &alloc::vec![64; count]);
        }
    }

    #[test]
    #[should_panic(expected = "each fills all blocks but the last")]
    fn a_length_of_more_than_a_block_is_refused() {
        Hasher::BLAKE3.hash_short_many(&[0; 64], 64, &[65], &mut [[0; 32]]);
    }

    #[test]
    #[should_panic(expected = "each fills all blocks but the last")]
    fn a_length_of_fewer_blocks_is_refused() {
        Hasher::BLAKE3.hash_short_many(&[0; 128], 128, &[64], &mut [[0; 32]]);
    }
}
