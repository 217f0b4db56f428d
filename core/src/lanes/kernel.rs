//! The compression function of BLAKE3, written once over lanes: one message a lane.
//!
//! It is compiled once for each instruction set, as part of that set's function in a sibling file.
#![expect(
    clippy::inline_always,
    reason = "the kernel must become part of its target_feature callers"
)]

pub(super) const CHUNK_START: u8 = 1;
pub(super) const CHUNK_END: u8 = 2;
pub(super) const ROOT: u8 = 8;

pub(super) const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Message word that each of the 16 steps of a round mixes in.
const SCHEDULE: [[usize; 16]; 7] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8],
    [3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1],
    [10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6],
    [12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4],
    [9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7],
    [11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13],
];

/// One 32-bit word of each of several messages.
pub(super) trait Lanes<const N: usize>: Copy {
    fn splat(word: u32) -> Self;
    fn load(words: &[u32; N]) -> Self;
    fn store(self) -> [u32; N];
    fn add(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn rotate_right<const BITS: i32, const REST: i32>(self) -> Self;
}

/// The portable lanes: an array. Slower than one call for each message, so only tests use it.
#[cfg(test)]
impl<const N: usize> Lanes<N> for [u32; N] {
    fn splat(word: u32) -> Self {
        [word; N]
    }

    fn load(words: &[u32; N]) -> Self {
        *words
    }

    fn store(self) -> [u32; N] {
        self
    }

    fn add(self, other: Self) -> Self {
        core::array::from_fn(|i| self[i].wrapping_add(other[i]))
    }

    fn xor(self, other: Self) -> Self {
        core::array::from_fn(|i| self[i] ^ other[i])
    }

    fn rotate_right<const BITS: i32, const REST: i32>(self) -> Self {
        self.map(|word| word.rotate_right(BITS.unsigned_abs()))
    }
}

/// All messages, `N` lanes at a time; unused lanes of the last group hash zeros. Each message has as many blocks as
/// `BYTES` has, the last of them perhaps not full.
#[inline(always)]
pub(super) fn short_lanes<const N: usize, const BYTES: usize, L: Lanes<N>>(
    messages: &[[u8; BYTES]],
    lens: &[u8],
    out: &mut [[u8; 32]],
) {
    for ((messages, lens), out) in messages.chunks(N).zip(lens.chunks(N)).zip(out.chunks_mut(N)) {
        if messages.len() == 1 {
            out[0] = *blake3::hash(&messages[0][..usize::from(lens[0])]).as_bytes();
            continue;
        }
        let mut chaining: [L; 8] = core::array::from_fn(|i| L::splat(IV[i]));
        let mut from = 0_u8;
        while usize::from(from) < BYTES {
            let mut words = [[0u32; N]; 16];
            let mut lengths = [0u32; N];
            let mut longest = 0;
            for (length, len) in lengths.iter_mut().zip(lens) {
                *length = u32::from(len.saturating_sub(from).min(64));
                longest = longest.max(*length);
            }
            // Words that no message of the group reaches are zero already.
            let used = longest.div_ceil(4) as usize;
            for (lane, message) in messages.iter().enumerate() {
                let block = message[usize::from(from)..].as_chunks::<4>().0;
                for (word, bytes) in words[..used].iter_mut().zip(block) {
                    word[lane] = u32::from_le_bytes(*bytes);
                }
            }
            let first = if from == 0 { CHUNK_START } else { 0 };
            from += 64;
            let last = if usize::from(from) == BYTES { CHUNK_END | ROOT } else { 0 };
            chaining = compress::<N, L>(&chaining, &words, &lengths, first | last);
        }
        let hashes = chaining.map(L::store);
        for (lane, out) in out.iter_mut().enumerate() {
            for (bytes, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(&hashes) {
                *bytes = word[lane].to_le_bytes();
            }
        }
    }
}

/// The compression function on a block of each of `N` messages, one in each lane.
#[inline(always)]
fn compress<const N: usize, L: Lanes<N>>(
    chaining: &[L; 8],
    words: &[[u32; N]; 16],
    lengths: &[u32; N],
    flags: u8,
) -> [L; 8] {
    let m: [L; 16] = core::array::from_fn(|i| L::load(&words[i]));
    let mut v: [L; 16] =
        core::array::from_fn(|i| if i < 8 { chaining[i] } else { L::splat(IV[i - 8]) });
    v[12] = L::splat(0);
    v[13] = L::splat(0);
    v[14] = L::load(lengths);
    v[15] = L::splat(u32::from(flags));
    // Not a loop, which a compiler may keep: words of the message are then looked up.
    round::<0, N, L>(&mut v, &m);
    round::<1, N, L>(&mut v, &m);
    round::<2, N, L>(&mut v, &m);
    round::<3, N, L>(&mut v, &m);
    round::<4, N, L>(&mut v, &m);
    round::<5, N, L>(&mut v, &m);
    round::<6, N, L>(&mut v, &m);
    core::array::from_fn(|i| v[i].xor(v[i + 8]))
}

#[inline(always)]
fn round<const ROUND: usize, const N: usize, L: Lanes<N>>(v: &mut [L; 16], m: &[L; 16]) {
    let s = const { SCHEDULE[ROUND] };
    mix(v, [0, 4, 8, 12], m[s[0]], m[s[1]]);
    mix(v, [1, 5, 9, 13], m[s[2]], m[s[3]]);
    mix(v, [2, 6, 10, 14], m[s[4]], m[s[5]]);
    mix(v, [3, 7, 11, 15], m[s[6]], m[s[7]]);
    mix(v, [0, 5, 10, 15], m[s[8]], m[s[9]]);
    mix(v, [1, 6, 11, 12], m[s[10]], m[s[11]]);
    mix(v, [2, 7, 8, 13], m[s[12]], m[s[13]]);
    mix(v, [3, 4, 9, 14], m[s[14]], m[s[15]]);
}

/// One quarter round on four state words of each lane.
#[inline(always)]
fn mix<const N: usize, L: Lanes<N>>(
    v: &mut [L; 16],
    [a, b, c, d]: [usize; 4],
    first: L,
    second: L,
) {
    v[a] = v[a].add(v[b]).add(first);
    v[d] = v[d].xor(v[a]).rotate_right::<16, 16>();
    v[c] = v[c].add(v[d]);
    v[b] = v[b].xor(v[c]).rotate_right::<12, 20>();
    v[a] = v[a].add(v[b]).add(second);
    v[d] = v[d].xor(v[a]).rotate_right::<8, 24>();
    v[c] = v[c].add(v[d]);
    v[b] = v[b].xor(v[c]).rotate_right::<7, 25>();
}
