//! Questions and answers as bytes and back: docs/sync.md has the formats. What comes from strangers is parsed in place:
//! each length is compared with the bytes that are there.

use std::fmt;
use std::str::FromStr;

use pleach::proof::{Limits as ProofLimits, multi, range, roots::NamespaceRoots};
use pleach::{Hasher, Key, MAX_VALUE, Node, ValueHash};
use pleach_core::hexadecimal::hex;
use pleach_core::node::value_hash;

use crate::error::Refusal;
use crate::limits::MOST_PROOF;

/// Keys of a question, at most: its path is less than 5 KiB.
pub const MOST_KEYS: usize = 64;
/// The length of a value that is not there.
const ABSENT: u32 = u32::MAX;

/// A question to a server. [`fmt::Display`] gives its path, and [`FromStr`] reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// What the server has: a [`Head`].
    Head,
    /// The namespaces of the state with this root over all, and their roots.
    Roots(Node),
    /// Where the state with this root lies: a [`Place`].
    Place(Node),
    /// A part of the pairs of a namespace.
    Part(PartAsk),
    /// What keys of a namespace have, and a proof of it, for [`verify_keys`].
    Keys {
        /// Root over all of the state, or of the namespace.
        root: Node,
        /// The namespace.
        namespace: u8,
        /// The keys, 1 to [`MOST_KEYS`].
        keys: Vec<Key>,
    },
    /// What changed from the state of one root to that of another: a change stream, for
    /// [`catch_up`](crate::catch_up()).
    Changes {
        /// Root over all before.
        from: Node,
        /// Root over all after.
        to: Node,
    },
}

/// The question for a part of a namespace's pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartAsk {
    /// Root over all of the state, or of the namespace.
    pub root: Node,
    /// The namespace.
    pub namespace: u8,
    /// First key of the range.
    pub first: Key,
    /// Last key of the range, which belongs to it.
    pub last: Key,
    /// Bytes of pairs that are wanted.
    pub bytes: u32,
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head => f.write_str("head"),
            Self::Roots(root) => write!(f, "roots/{}", hex(root)),
            Self::Part(PartAsk { root, namespace, first, last, bytes }) => {
                write!(f, "part/{}/{namespace}/{}/{}/{bytes}", hex(root), hex(first), hex(last))
            }
            Self::Place(root) => write!(f, "place/{}", hex(root)),
            Self::Keys { root, namespace, keys } => {
                write!(f, "keys/{}/{namespace}", hex(root))?;
                keys.iter().try_for_each(|key| write!(f, "/{}", hex(key)))
            }
            Self::Changes { from, to } => write!(f, "changes/{}/{}", hex(from), hex(to)),
        }
    }
}

impl FromStr for Ask {
    type Err = Refusal;

    fn from_str(path: &str) -> Result<Self, Refusal> {
        let mut parts = path.split('/');
        let kind = parts.next();
        let mut next = || parts.next().ok_or(Refusal::Malformed);
        let ask = match kind {
            Some("head") => Self::Head,
            Some("roots") => Self::Roots(bytes(next()?)?.into()),
            Some("place") => Self::Place(bytes(next()?)?.into()),
            Some("keys") => {
                let (root, namespace) = (bytes(next()?)?.into(), number(next()?)?);
                let keys =
                    parts.by_ref().take(MOST_KEYS).map(bytes).collect::<Result<Vec<_>, _>>()?;
                Self::Keys { root, namespace, keys }
            }
            Some("part") => Self::Part(PartAsk {
                root: bytes(next()?)?.into(),
                namespace: number(next()?)?,
                first: bytes(next()?)?,
                last: bytes(next()?)?,
                bytes: number(next()?)?,
            }),
            Some("changes") => {
                Self::Changes { from: bytes(next()?)?.into(), to: bytes(next()?)?.into() }
            }
            _ => return Err(Refusal::Malformed),
        };
        let is_empty = matches!(&ask, Self::Keys { keys, .. } if keys.is_empty());
        // One text for each question.
        if !is_empty && parts.next().is_none() && ask.to_string() == path {
            Ok(ask)
        } else {
            Err(Refusal::Malformed)
        }
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| Refusal::Malformed)
}

fn bytes(text: &str) -> Result<[u8; 32], Refusal> {
    let digits =
        Some(text).filter(|text| text.len() == 64).and_then(pleach_core::hexadecimal::from_hex);
    digits.and_then(|bytes| bytes.try_into().ok()).ok_or(Refusal::Malformed)
}

/// What a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Root over all of the newest state.
    pub newest: Node,
    /// Its commit, in the server's database.
    pub commit: u64,
    /// The oldest commit of the history there.
    pub oldest: u64,
    /// Bytes of pairs that it gives in an answer.
    pub answer: u64,
}

impl Head {
    /// Bytes of a head.
    pub const BYTES: usize = 56;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.newest.to_bytes());
        for number in [self.commit, self.oldest, self.answer] {
            out.extend(number.to_le_bytes());
        }
    }

    /// Reads the answer to [`Ask::Head`]. What it says is not proven.
    pub fn decode(answer: &[u8]) -> Option<Self> {
        let (newest, [commit, oldest, answer]) = root_and_numbers(answer.try_into().ok()?);
        Some(Self { newest, commit, oldest, answer })
    }
}

/// Where a state lies in the history of a server's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The commit of the state.
    pub commit: u64,
    /// The oldest commit of the history.
    pub oldest: u64,
    /// The newest commit.
    pub newest: u64,
}

impl Place {
    /// Bytes of a place.
    pub const BYTES: usize = 24;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.commit, self.oldest, self.newest] {
            out.extend(number.to_le_bytes());
        }
    }

    /// Reads the answer to [`Ask::Place`]. What it says is not proven.
    pub fn decode(answer: &[u8]) -> Option<Self> {
        let answer: &[u8; Self::BYTES] = answer.try_into().ok()?;
        let (numbers, []) = answer.as_chunks::<8>() else { return None };
        let [commit, oldest, newest] = numbers else { return None };
        let [commit, oldest, newest] =
            [commit, oldest, newest].map(|number| u64::from_le_bytes(*number));
        Some(Self { commit, oldest, newest })
    }
}

/// A commit of a feed. Its blob follows, and its change stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedHead {
    /// The commit, in the server's database.
    pub commit: u64,
    /// Root over all of its state.
    pub root: Node,
    /// Bytes of its blob. No root proves it.
    pub blob: u64,
    /// Bytes of its change stream, for [`catch_up`](crate::catch_up()).
    pub stream: u64,
}

impl FeedHead {
    /// Bytes of a head.
    pub const BYTES: usize = 56;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.root.to_bytes());
        for number in [self.commit, self.blob, self.stream] {
            out.extend(number.to_le_bytes());
        }
    }

    /// Reads a head. What it says is not proven.
    pub fn decode(head: &[u8; Self::BYTES]) -> Self {
        let (root, [commit, blob, stream]) = root_and_numbers(head);
        Self { commit, root, blob, stream }
    }
}

fn root_and_numbers(bytes: &[u8; 56]) -> (Node, [u64; 3]) {
    let mut root = [0; 32];
    root.copy_from_slice(&bytes[..32]);
    let (numbers, _) = bytes[32..].as_chunks::<8>();
    (root.into(), std::array::from_fn(|at| u64::from_le_bytes(numbers[at])))
}

/// Appends a value of the answer to [`Ask::Keys`].
pub(crate) fn encode_value(value: Option<&[u8]>, out: &mut Vec<u8>) {
    let length = value
        .map_or(ABSENT, |value| u32::try_from(value.len()).expect("a value has at most 64 MiB"));
    out.extend(length.to_le_bytes());
    out.extend(value.unwrap_or_default());
}

/// The values of the first keys of the question, as many as the answer has, at least one; `None` for a key that has none.
/// `root` is that of the namespace.
///
/// # Errors
/// What is wrong with the answer.
pub fn verify_keys<'a>(
    answer: &'a [u8],
    hasher: Hasher,
    root: &Node,
    keys: &[Key],
) -> Result<Vec<Option<&'a [u8]>>, &'static str> {
    let cut = "values that are cut off";
    let (length, rest) = answer.split_first_chunk::<4>().ok_or(cut)?;
    let (proof, mut rest) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(cut)?;
    let verified = multi::verify(hasher, proof, root).map_err(|_| "a proof of another root")?;
    let mut values = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let key = keys.get(values.len()).ok_or("more values than keys")?;
        let length = u32::from_le_bytes(*length);
        let value;
        (value, rest) = if length == ABSENT {
            (None, behind)
        } else {
            let (value, behind) = behind.split_at_checked(length as usize).ok_or(cut)?;
            (Some(value), behind)
        };
        if verified.proves(key, value) != Some(true) {
            return Err("a value that is not proven");
        }
        values.push(value);
    }
    if !rest.is_empty() || values.is_empty() && !keys.is_empty() {
        return Err(cut);
    }
    Ok(values)
}

/// The answer to [`Ask::Roots`].
#[expect(clippy::missing_panics_doc, reason = "a namespace is a byte")]
pub fn encode_roots(roots: &NamespaceRoots, out: &mut Vec<u8>) {
    let count = u16::try_from(roots.iter().count()).expect("at most 256 namespaces");
    out.extend(count.to_le_bytes());
    for (number, root) in roots.iter() {
        out.push(number);
        out.extend(root.to_bytes());
    }
}

/// The namespaces of the state with a root over all, if the answer has them.
pub fn decode_roots(
    answer: &[u8],
    hasher: Hasher,
    root: &Node,
) -> Result<NamespaceRoots, &'static str> {
    let undecodable = "a list of roots that cannot be decoded";
    let (count, entries) = answer.split_first_chunk::<2>().ok_or(undecodable)?;
    let (entries, rest) = entries.as_chunks::<33>();
    if !rest.is_empty() || entries.len() != usize::from(u16::from_le_bytes(*count)) {
        return Err(undecodable);
    }
    if !entries.is_sorted_by(|a, b| a[0] < b[0])
        || entries.first().is_none_or(|first| first[0] != 0)
    {
        return Err("roots of namespaces out of order, or without namespace 0");
    }
    let of = |[number, root @ ..]: &[u8; 33]| (*number, Node::from(*root));
    let roots: NamespaceRoots = entries.iter().map(of).collect();
    if roots.over_all(hasher) == *root { Ok(roots) } else { Err("other roots of namespaces") }
}

/// The answer to [`Ask::Part`]: the multiproof of the first key and `end`, and the encoded pairs between them.
#[expect(clippy::missing_panics_doc, reason = "a proof of two keys is short")]
pub fn encode_part(proof: &[u8], end: &Key, pairs: &[u8], out: &mut Vec<u8>) {
    out.extend(u32::try_from(proof.len()).expect("two paths").to_le_bytes());
    out.extend(proof);
    out.extend(end);
    out.extend(pairs);
}

/// Appends a pair.
pub(crate) fn encode_pair(key: &Key, value: &[u8], out: &mut Vec<u8>) {
    out.extend(key);
    out.extend(u32::try_from(value.len()).expect("at most 64 MiB").to_le_bytes());
    out.extend(value);
}

/// A part as it is encoded. Pairs are read as [`Iterator`].
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    proof: &'a [u8],
    pub(crate) end: Key,
    pub(crate) pairs: Pairs<'a>,
}

impl<'a> Part<'a> {
    pub(crate) fn parse(answer: &'a [u8]) -> Result<Self, &'static str> {
        let cut = "a part that is cut off";
        let (length, rest) = answer.split_first_chunk::<4>().ok_or(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > MOST_PROOF {
            return Err("a proof that is too long");
        }
        let (proof, rest) = rest.split_at_checked(length).ok_or(cut)?;
        let (end, pairs) = rest.split_first_chunk::<32>().ok_or(cut)?;
        Ok(Self { proof, end: *end, pairs: Pairs(pairs) })
    }
}

/// The pairs of a part that are left.
#[derive(Clone, Debug)]
pub(crate) struct Pairs<'a>(&'a [u8]);

impl Pairs<'_> {
    /// Bytes that are left.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<(Key, &'a [u8]), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let pair = (|| {
            let (key, rest) = self.0.split_first_chunk::<32>()?;
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = u32::from_le_bytes(*length) as usize;
            let (value, rest) = rest.split_at_checked(length).filter(|_| length <= MAX_VALUE)?;
            Some((*key, value, rest))
        })();
        let Some((key, value, rest)) = pair else {
            self.0 = &[];
            return Some(Err("a pair that is cut off"));
        };
        self.0 = rest;
        Some(Ok((key, value)))
    }
}

/// The keys with the hashes of their values. Values of up to 64 bytes are hashed together.
fn hash_values(hasher: Hasher, pairs: &[(Key, &[u8])]) -> impl Iterator<Item = (Key, ValueHash)> {
    const TOGETHER: usize = 64;
    let is_short = |value: &[u8]| value.len() <= 64;
    pairs.chunks(TOGETHER).flat_map(move |pairs| {
        let (mut messages, mut lens) = ([[0; 64]; TOGETHER], [0; TOGETHER]);
        let mut hashes = [[0; 32]; TOGETHER];
        for (at, (_, value)) in pairs.iter().enumerate().filter(|(_, pair)| is_short(pair.1)) {
            messages[at][..value.len()].copy_from_slice(value);
            lens[at] = u8::try_from(value.len()).expect("at most 64");
        }
        let count = pairs.len();
        let messages = messages[..count].as_flattened();
        hasher.hash_short_many(messages, 64, &lens[..count], &mut hashes[..count]);
        pairs.iter().zip(hashes).map(move |((key, value), hash)| {
            (*key, if is_short(value) { hash.into() } else { value_hash(hasher, value) })
        })
    })
}

/// A part that is what the root has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedPart {
    /// The key to which the pairs are complete.
    pub end: Key,
    /// Pairs.
    pub count: u64,
    /// Bytes of the encoded pairs.
    pub bytes: usize,
    /// Bytes of them before the last pair.
    pub before_last: usize,
}

/// Checks that an answer has all pairs of the namespace with this root from `first` to its end, which is at most `last`.
pub fn verify_part(
    answer: &[u8],
    hasher: Hasher,
    root: &Node,
    first: &Key,
    last: &Key,
) -> Result<VerifiedPart, &'static str> {
    let Part { proof, end, pairs } = Part::parse(answer)?;
    if end < *first || end > *last {
        return Err("a part of another range");
    }
    let bytes = pairs.bytes();
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let count = pairs.len() as u64;
    let before_last = bytes - pairs.last().map_or(0, |(_, value)| 36 + value.len());
    // The multiproof has the two ends and nothing else, or what it is of is not known.
    let ends = multi::decode(hasher, proof).map_err(|_| "a proof that cannot be decoded")?;
    if ends.terminal_count() > 2 {
        return Err("a proof of other keys");
    }
    let built = range::build(hasher, proof, first, &end, hash_values(hasher, &pairs));
    let built = built
        .map_err(|_| "pairs of another range, out of order, or that contradict their proof")?;
    let limits = ProofLimits { bytes: u64::MAX, ..ProofLimits::DEFAULT };
    let verified = range::verify_with(hasher, &built, root, first, &end, &limits);
    if verified.is_err() {
        return Err("pairs of another root");
    }
    Ok(VerifiedPart { end, count, bytes, before_last })
}
