//! Ascending numbers as bytes: each as its distance to the one before, less one, in LEB128. Seven bits a byte,
//! low ones first; no more bytes than the number needs.

/// Bytes that are no list.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged;

/// Bytes of the longest number.
const LONGEST: usize = 10;

/// Adds a number to bytes.
fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// The number at the front, and the bytes behind it.
fn take_number(bytes: &[u8]) -> Result<(u64, &[u8]), Damaged> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(LONGEST) {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has one bit of 64 left, and a last byte of zero says nothing.
        if at + 1 == LONGEST && *byte > 1 || at > 0 && *byte == 0 {
            return Err(Damaged);
        }
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((number, &bytes[at + 1..]));
        }
    }
    Err(Damaged)
}

/// Adds a number that is above the last one of a list.
pub fn push(bytes: &mut Vec<u8>, last: Option<u64>, number: u64) {
    debug_assert!(last.is_none_or(|last| last < number), "a list ascends");
    push_number(bytes, last.map_or(number, |last| number.wrapping_sub(last).wrapping_sub(1)));
}

/// The numbers of a list.
#[derive(Clone, Debug)]
pub struct Numbers<'a> {
    rest: &'a [u8],
    last: Option<u64>,
}

impl<'a> Numbers<'a> {
    /// Those of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, last: None }
    }

    fn step(&mut self) -> Result<u64, Damaged> {
        let (distance, rest) = take_number(self.rest)?;
        let number = match self.last {
            None => distance,
            Some(last) => {
                last.checked_add(distance).and_then(|sum| sum.checked_add(1)).ok_or(Damaged)?
            }
        };
        (self.rest, self.last) = (rest, Some(number));
        Ok(number)
    }

    /// Goes past numbers that are at most `bound`, eight bytes at a time, as long as these are short numbers: how many,
    /// and the last of them. The number after them may be at most `bound`, too.
    #[inline]
    fn skip_while_at_most(&mut self, bound: u64) -> (u64, Option<u64>) {
        let (mut skipped, mut found) = (0, None);
        while let Some(last) = self.last
            && let Some((count, distance)) = stride(self.rest)
            && let Some(number) = last.checked_add(distance).filter(|number| *number <= bound)
        {
            (self.rest, self.last) = (&self.rest[8..], Some(number));
            skipped += count;
            found = Some(number);
        }
        (skipped, found)
    }
}

impl Iterator for Numbers<'_> {
    type Item = Result<u64, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let next = self.step();
        if next.is_err() {
            self.rest = &[];
        }
        Some(next)
    }
}

/// What the eight bytes at the front add to a list, if they are eight numbers of a byte each, or four of two: how
/// many numbers, and how far the last of them is from the number before the first.
#[inline]
fn stride(bytes: &[u8]) -> Option<(u64, u64)> {
    /// The top bit of each byte: another one follows.
    const MORE: u64 = 0x8080_8080_8080_8080;
    /// The second byte of each pair.
    const SECOND: u64 = 0xff00_ff00_ff00_ff00;
    const LANES: u64 = 0x0001_0001_0001_0001;
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    // Four lanes of 16 bits, whose sum stays below 2^16.
    let (count, lanes) = match word & MORE {
        0 => (8, (word & !SECOND) + ((word & SECOND) >> 8)),
        0x0080_0080_0080_0080 => {
            let second = word & SECOND;
            // One whose second byte says nothing is not in its shortest form.
            if [0xff << 8, 0xff << 24, 0xff << 40, 0xff << 56].iter().any(|byte| second & byte == 0)
            {
                return None;
            }
            (4, (word & !SECOND & !MORE) + (second >> 1))
        }
        _ => return None,
    };
    Some((count, (lanes.wrapping_mul(LANES) >> 48) + count))
}

/// The last number that is at most `bound`, and how many are before it.
pub fn last_at_most(bytes: &[u8], bound: u64) -> Result<Option<(u64, u64)>, Damaged> {
    let mut numbers = Numbers::new(bytes);
    let (mut found, mut at) = (None, 0);
    loop {
        let (skipped, last) = numbers.skip_while_at_most(bound);
        at += skipped;
        found = last.map(|number| (at - 1, number)).or(found);
        match numbers.next().transpose()? {
            Some(number) if number <= bound => found = Some((at, number)),
            _ => return Ok(found),
        }
        at += 1;
    }
}

/// The bytes of the first `count` numbers, and the last of these.
pub fn first(bytes: &[u8], count: u64) -> Result<(&[u8], Option<u64>), Damaged> {
    let mut numbers = Numbers::new(bytes);
    for _ in 0..count {
        numbers.next().ok_or(Damaged)??;
    }
    Ok((&bytes[..bytes.len() - numbers.rest.len()], numbers.last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(numbers: &[u64]) -> Vec<u8> {
        let (mut bytes, mut last) = (Vec::new(), None);
        for number in numbers {
            push(&mut bytes, last, *number);
            last = Some(*number);
        }
        bytes
    }

    #[test]
    fn numbers_come_back_from_their_bytes() {
        let numbers = [0, 1, 2, 129, 130, 1 << 14, 1 << 35, u64::MAX - 1, u64::MAX];
        for from in 0..numbers.len() {
            let bytes = list(&numbers[from..]);
            let back: Result<Vec<u64>, Damaged> = Numbers::new(&bytes).collect();
            assert_eq!(back.expect("sound"), numbers[from..]);
            for (at, number) in numbers[from..].iter().enumerate() {
                let before = at as u64;
                assert_eq!(last_at_most(&bytes, *number), Ok(Some((before, *number))));
                let (front, last) = first(&bytes, before + 1).expect("sound");
                assert_eq!((front, last), (&list(&numbers[from..=from + at])[..], Some(*number)));
            }
        }
        assert_eq!(list(&[7, 8, 9, 10]), [7, 0, 0, 0], "neighbours take a byte each");
        assert_eq!(last_at_most(&list(&[7]), 6), Ok(None));
        assert!(first(&list(&[7]), 2).is_err());
    }

    /// One number after the other.
    fn last_at_most_by_steps(bytes: &[u8], bound: u64) -> Result<Option<(u64, u64)>, Damaged> {
        let mut found = None;
        for (at, number) in (0..).zip(Numbers::new(bytes)) {
            match number? {
                number if number <= bound => found = Some((at, number)),
                _ => break,
            }
        }
        Ok(found)
    }

    #[test]
    fn eight_bytes_at_a_time_find_what_steps_do() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut strides = 0;
        for round in 0..300 {
            // Runs of numbers of one byte, two, or more; every third list reaches the largest number.
            let mut numbers = vec![if round % 3 == 0 { u64::MAX - (1 << 22) } else { draw(1000) }];
            for _ in 0..draw(12) {
                let width = [0x80, 0x80, 0x4000, 1 << 20][usize::try_from(draw(4)).unwrap()];
                for _ in 0..draw(40) {
                    let next = numbers.last().unwrap().checked_add(1 + draw(width));
                    numbers.extend(next);
                }
            }
            let mut bytes = list(&numbers);
            let damaged = round % 2 == 0;
            if damaged {
                let at = usize::try_from(draw(bytes.len() as u64)).unwrap();
                bytes[at] = u8::try_from(draw(256)).unwrap();
            }
            strides += (0..bytes.len()).filter(|at| stride(&bytes[*at..]).is_some()).count();
            for bound in numbers.iter().flat_map(|number| [number - 1, *number]) {
                let (found, expected) =
                    (last_at_most(&bytes, bound), last_at_most_by_steps(&bytes, bound));
                assert_eq!(found, expected, "{numbers:?} {bytes:?} {bound}");
            }
            for bound in [0, u64::MAX] {
                assert_eq!(last_at_most(&bytes, bound), last_at_most_by_steps(&bytes, bound));
            }
        }
        assert!(strides > 10_000, "{strides}");
        // Four numbers, one of which is longer than it needs to be.
        let long = [9, 0x81, 1, 0x81, 0, 0x81, 1, 0x81, 1];
        assert_eq!((last_at_most(&long, u64::MAX), stride(&long[1..])), (Err(Damaged), None));
    }

    #[test]
    fn bytes_that_are_no_list_are_refused() {
        let bad: [&[u8]; 6] = [
            &[0x80],                                                       // it does not end
            &[0x80, 0],                                                    // longer than it needs
            &[0xff; 10],                                                   // more than 64 bits
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],    // likewise
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0], // beyond the last number
            &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], // likewise
        ];
        for bytes in bad {
            assert!(Numbers::new(bytes).any(|number| number.is_err()), "{bytes:?}");
            assert_eq!(Numbers::new(bytes).take(20).filter(Result::is_err).count(), 1, "{bytes:?}");
        }
    }
}
