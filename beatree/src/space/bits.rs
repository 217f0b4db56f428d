//! A growable bitmap with searches for the next set or clear bit, a word at a time.

/// Bits numbered from 0; those from [`Bits::len`] on do not exist.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    /// Bits from `len` on are zero.
    words: Vec<u64>,
    len: u32,
}

const WORD: u32 = u64::BITS;

impl Bits {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Appends clear bits up to `len`.
    pub(super) fn grow(&mut self, len: u32) {
        assert!(len >= self.len, "growing");
        self.len = len;
        self.words.resize(len.div_ceil(WORD) as usize, 0);
    }

    /// Keeps the first `len` bits.
    pub(super) fn cut(&mut self, len: u32) {
        assert!(len <= self.len && self.next_set(len, self.len) == self.len, "clear bits go");
        self.len = len;
        self.words.truncate(len.div_ceil(WORD) as usize);
        self.words.shrink_to_fit();
    }

    pub(super) fn get(&self, at: u32) -> bool {
        assert!(at < self.len);
        self.words[(at / WORD) as usize] >> (at % WORD) & 1 == 1
    }

    pub(super) fn set(&mut self, at: u32) {
        assert!(at < self.len);
        self.words[(at / WORD) as usize] |= 1 << (at % WORD);
    }

    pub(super) fn clear(&mut self, at: u32) {
        assert!(at < self.len);
        self.words[(at / WORD) as usize] &= !(1 << (at % WORD));
    }

    /// Sets bits `from..to`.
    pub(super) fn set_range(&mut self, from: u32, to: u32) {
        assert!(from <= to && to <= self.len);
        let mut at = from;
        while at < to {
            let end = to.min((at / WORD + 1) * WORD);
            let ones = u64::MAX >> (WORD - (end - at));
            self.words[(at / WORD) as usize] |= ones << (at % WORD);
            at = end;
        }
    }

    /// The first set bit of `from..to`; `to` when there is none.
    pub(super) fn next_set(&self, from: u32, to: u32) -> u32 {
        self.next(from, to, 0)
    }

    /// The first clear bit of `from..to`; `to` when there is none.
    pub(super) fn next_clear(&self, from: u32, to: u32) -> u32 {
        self.next(from, to, u64::MAX)
    }

    fn next(&self, from: u32, to: u32, flip: u64) -> u32 {
        assert!(to <= self.len);
        let mut at = from;
        while at < to {
            let word = (self.words[(at / WORD) as usize] ^ flip) >> (at % WORD);
            if word != 0 {
                return to.min(at + word.trailing_zeros());
            }
            at = (at / WORD + 1) * WORD;
        }
        to
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_agree_with_single_bits_at_every_offset() {
        let mut bits = Bits::default();
        bits.grow(200);
        for at in [0, 1, 5, 62, 63, 64, 65, 127, 128, 130, 199] {
            bits.set(at);
        }
        bits.set_range(70, 75);
        bits.set_range(150, 195);
        bits.clear(160);
        for from in 0..=200 {
            for to in from..=200 {
                let slow = |wanted| (from..to).find(|at| bits.get(*at) == wanted).unwrap_or(to);
                assert_eq!(bits.next_set(from, to), slow(true));
                assert_eq!(bits.next_clear(from, to), slow(false));
            }
        }
    }

    #[test]
    fn ranges_are_set_whole_and_nothing_beside() {
        for (from, to) in [(0, 0), (0, 1), (3, 64), (0, 64), (63, 65), (60, 200), (128, 192)] {
            let mut bits = Bits::default();
            bits.grow(200);
            bits.set_range(from, to);
            assert!((0..200).all(|at| bits.get(at) == (from..to).contains(&at)));
        }
    }
}
