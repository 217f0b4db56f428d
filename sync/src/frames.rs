//! The folder of a fetch: the target, and the parts that were verified. docs/sync.md has the formats.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pleach::{Hasher, Key, Node};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::ranges::KeyRange;

/// What is fetched: a root from a source that is trusted, over all namespaces or of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub(crate) root: Node,
    /// The only namespace; none where the root is over all.
    pub(crate) namespace: Option<u8>,
    pub(crate) hasher: Hasher,
}

impl Target {
    /// All Merkle namespaces of the state with this root over all ([`Roots::over_all`](pleach::Roots::over_all)).
    pub fn over_all(root: Node, hasher: Hasher) -> Self {
        Self { root, namespace: None, hasher }
    }

    /// One namespace, by its root.
    pub fn namespace(namespace: u8, root: Node, hasher: Hasher) -> Self {
        Self { root, namespace: Some(namespace), hasher }
    }

    fn encode(&self) -> Vec<u8> {
        let kind =
            [self.hasher.id(), u8::from(self.namespace.is_some()), self.namespace.unwrap_or(0)];
        [b"PLST\x01\x00".as_slice(), &kind, &[0; 3], self.root.as_ref()].concat()
    }
}

/// Name of the file with the list of roots.
const ROOTS: &str = "roots";
const MAGIC: [u8; 4] = *b"PLSF";
/// Bytes of a frame's head.
const HEAD: usize = 128;
/// Bytes after which the file is synced.
const SYNCED_EACH: u64 = 64 << 20;
/// Bytes at the end that may not have been synced: as many, and a long value.
const UNSYNCED: u64 = 3 * SYNCED_EACH;
/// Offset of a frame's kind, which is 1, or 0 for one that was set aside.
const KIND: u64 = 4;

/// A frame, by its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) namespace: u8,
    pub(crate) root: Node,
    pub(crate) range: KeyRange,
    at: u64,
    length: u32,
    checksum: u64,
}

impl Frame {
    fn encode(&self, kind: u8) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&MAGIC);
        head[4..6].copy_from_slice(&[kind, self.namespace]);
        head[8..12].copy_from_slice(&self.length.to_le_bytes());
        head[16..24].copy_from_slice(&self.checksum.to_le_bytes());
        head[24..56].copy_from_slice(self.root.as_ref());
        head[56..88].copy_from_slice(&self.range.first);
        head[88..120].copy_from_slice(&self.range.last);
        // Without the kind, which changes.
        let checksum = XxHash3_64::oneshot(&head[5..120]);
        head[120..].copy_from_slice(&checksum.to_le_bytes());
        head
    }

    fn decode(head: &[u8; HEAD], at: u64) -> Option<(u8, Self)> {
        let array = |from: usize| head[from..].first_chunk::<32>().copied();
        let word =
            |from: usize| head[from..].first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        let length = u32::from_le_bytes(*head[8..].first_chunk::<4>()?);
        let range = KeyRange { first: array(56)?, last: array(88)? };
        let frame = Self {
            namespace: head[5],
            root: array(24)?.into(),
            range,
            at,
            length,
            checksum: word(16)?,
        };
        (frame.encode(head[4]) == *head && head[4] <= 1).then_some((head[4], frame))
    }

    fn end(&self) -> u64 {
        self.at + HEAD as u64 + u64::from(self.length)
    }
}

/// The parts that are kept, in a locked folder.
#[derive(Debug)]
pub struct Frames {
    folder: PathBuf,
    file: File,
    /// Keeps other processes out.
    _lock: File,
    end: u64,
    synced: u64,
    /// By namespace and first key.
    held: BTreeMap<(u8, Key), Vec<Frame>>,
}

impl Frames {
    /// Opens the folder; makes it, where it is missing.
    pub fn open(folder: &Path, target: &Target) -> Result<Self> {
        let failed = |error| failed(folder, error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let name = folder.join("target");
        match std::fs::read(&name) {
            Ok(found) if found == target.encode() => {}
            Ok(_) => return Err(Error::OtherTarget(folder.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                write_whole(folder, "target", &target.encode()).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        let lock = File::open(&name).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse(folder.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(folder.join("parts")).map_err(failed)?;
        let folder = folder.to_owned();
        let mut frames =
            Self { folder, file, _lock: lock, end: 0, synced: 0, held: BTreeMap::new() };
        frames.walk()?;
        Ok(frames)
    }

    /// Reads the heads, and the bodies that may not have been synced; cuts the file before what is not whole.
    fn walk(&mut self) -> Result<()> {
        let length = self.file.metadata().map_err(|error| self.failed(error))?.len();
        let mut head = [0; HEAD];
        while self.end + HEAD as u64 <= length {
            self.file.read_exact_at(&mut head, self.end).map_err(|error| self.failed(error))?;
            let Some((kind, frame)) = Frame::decode(&head, self.end) else { break };
            let may_be_torn = frame.end() + UNSYNCED >= length;
            if frame.end() > length || may_be_torn && kind == 1 && self.read(&frame)?.is_none() {
                break;
            }
            if kind == 1 {
                self.held.entry((frame.namespace, frame.range.first)).or_default().push(frame);
            }
            self.end = frame.end();
        }
        if self.end < length {
            self.file.set_len(self.end).map_err(|error| self.failed(error))?;
        }
        self.synced = self.end;
        Ok(())
    }

    /// The body of a frame; `None` when it is damaged.
    pub(crate) fn read(&self, frame: &Frame) -> Result<Option<Vec<u8>>> {
        let mut body = vec![0; frame.length as usize];
        self.file
            .read_exact_at(&mut body, frame.at + HEAD as u64)
            .map_err(|error| self.failed(error))?;
        Ok((XxHash3_64::oneshot(&body) == frame.checksum).then_some(body))
    }

    /// Keeps a verified part. After an error it is not kept, and the next one takes its place.
    pub(crate) fn keep(
        &mut self,
        namespace: u8,
        root: Node,
        range: KeyRange,
        body: &[u8],
    ) -> Result<()> {
        let length = u32::try_from(body.len()).expect("an answer is bounded");
        let checksum = XxHash3_64::oneshot(body);
        let frame = Frame { namespace, root, range, at: self.end, length, checksum };
        let written = self.file.write_all_at(body, self.end + HEAD as u64);
        // The head comes last: an open finds no frame without it.
        let written = written.and_then(|()| self.file.write_all_at(&frame.encode(1), self.end));
        written.map_err(|error| self.failed(error))?;
        self.end = frame.end();
        self.held.entry((namespace, range.first)).or_default().push(frame);
        if self.end - self.synced >= SYNCED_EACH { self.sync() } else { Ok(()) }
    }

    /// Makes all that is kept durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|error| self.failed(error))?;
        self.synced = self.end;
        Ok(())
    }

    /// Sets frames aside, so that their ranges are asked for again.
    pub(crate) fn set_aside(
        &mut self,
        is_bad: impl Fn(&Self, &Frame) -> Result<bool>,
    ) -> Result<u64> {
        let all: Vec<Frame> = self.held.values().flatten().copied().collect();
        let mut count = 0;
        for frame in all {
            if is_bad(self, &frame)? {
                self.file
                    .write_all_at(&[0], frame.at + KIND)
                    .map_err(|error| self.failed(error))?;
                let beside = self.held.entry((frame.namespace, frame.range.first)).or_default();
                beside.retain(|one| one.at != frame.at);
                count += 1;
            }
        }
        self.sync()?;
        Ok(count)
    }

    /// The frames of a namespace in the order of their first keys.
    pub(crate) fn of(&self, namespace: u8) -> impl Iterator<Item = &Frame> {
        self.held
            .range((namespace, [0; 32])..=(namespace, [0xff; 32]))
            .flat_map(|(_, frames)| frames)
    }

    /// The ranges of a namespace that no frame has.
    pub(crate) fn missing(&self, namespace: u8) -> Vec<KeyRange> {
        let (mut missing, mut left) = (Vec::new(), Some(KeyRange::ALL));
        for frame in self.of(namespace) {
            let Some(rest) = left else { break };
            missing.extend(rest.before(&frame.range.first));
            if frame.range.last >= rest.first {
                left = rest.behind(&frame.range.last);
            }
        }
        missing.extend(left);
        missing
    }

    /// The list of roots that was kept, if any. It is verified by who reads it.
    pub(crate) fn roots(&self) -> Result<Option<Vec<u8>>> {
        match std::fs::read(self.folder.join(ROOTS)) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Keeps the list of roots.
    pub(crate) fn keep_roots(&self, answer: &[u8]) -> Result<()> {
        write_whole(&self.folder, ROOTS, answer).map_err(|error| self.failed(error))
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    /// Removes the folder.
    pub(crate) fn remove(self) -> Result<()> {
        std::fs::remove_dir_all(&self.folder).map_err(|error| failed(&self.folder, error))
    }

    fn failed(&self, error: std::io::Error) -> Error {
        failed(&self.folder, error)
    }
}

fn failed(folder: &Path, error: std::io::Error) -> Error {
    Error::Folder { path: folder.to_owned(), error }
}

/// Writes a file, which is there as a whole or not at all.
fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    std::fs::write(&new, bytes)?;
    File::open(&new)?.sync_all()?;
    std::fs::rename(&new, folder.join(name))?;
    File::open(folder)?.sync_all()
}
