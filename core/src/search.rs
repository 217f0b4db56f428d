//! Searching sorted lists with an even spread, outwards from a guess.
//!
//! Hashed keys are about where their leading bits say. A search that begins there reads one or two
//! cache lines; a binary search reads a new one at almost every step.

use core::hint::select_unpredictable;

/// The first of `count` indexes that is not `less`, where all that are `less` come first. Even with
/// a wrong guess it takes at most about twice the steps of a binary search.
#[inline]
pub fn lower_bound_near(guess: usize, count: usize, less: impl Fn(usize) -> bool) -> usize {
    let (from, to) = around(guess, count, &less);
    partition(from, to, less)
}

/// The same, with a guess from 32 leading bits that are spread evenly.
#[inline]
pub fn lower_bound_bits(bits: u32, count: usize, less: impl Fn(usize) -> bool) -> usize {
    lower_bound_near(guess(bits, count), count, less)
}

/// The index, among `count` sorted items, where one with these leading bits is expected.
#[inline]
pub fn guess(bits: u32, count: usize) -> usize {
    // Fewer than 2^32 things: the result is less than their number.
    usize::try_from((u64::from(bits) * count as u64) >> 32).unwrap_or(0)
}

/// Bounds of the answer, found in doubling steps.
#[inline]
fn around(guess: usize, count: usize, less: &impl Fn(usize) -> bool) -> (usize, usize) {
    let (mut from, mut to, mut step) = (0, count, 2);
    if guess < count && less(guess) {
        from = guess + 1;
        while from + step < to {
            if !less(from + step) {
                to = from + step;
                break;
            }
            from += step + 1;
            step *= 2;
        }
    } else {
        to = guess.min(count);
        while to > step {
            if less(to - step) {
                from = to - step + 1;
                break;
            }
            to -= step;
            step *= 2;
        }
    }
    (from, to)
}

/// The first index in `from..to` that is not `less`, where all `less` come first. Which half it is
/// cannot be predicted, so it is selected without a branch.
#[inline]
pub fn partition(from: usize, to: usize, less: impl Fn(usize) -> bool) -> usize {
    let (mut base, mut size) = (from, to - from);
    while size > 0 {
        let half = size / 2;
        let right = less(base + half);
        base = select_unpredictable(right, base + half + 1, base);
        size = select_unpredictable(right, size - half - 1, half);
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guess_finds_every_answer() {
        for count in 0..70 {
            for answer in 0..=count {
                for guess in 0..count + 3 {
                    assert_eq!(lower_bound_near(guess, count, |index| index < answer), answer);
                }
            }
        }
    }

    #[test]
    fn a_wrong_guess_costs_twice_a_binary_search_at_most() {
        let count = 1 << 16;
        for (guess, answer) in [(0, count), (count, 0), (count / 2, 3), (7, count - 7)] {
            let steps = core::cell::Cell::new(0);
            let less = |index: usize| {
                steps.set(steps.get() + 1);
                index < answer
            };
            assert_eq!(lower_bound_near(guess, count, less), answer);
            assert!(steps.get() <= 2 * 17, "{} steps", steps.get());
        }
    }
}
