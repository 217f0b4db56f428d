//! The engines, their capabilities, and what their commits survive.

use serde::{Deserialize, Serialize};

use crate::error::{Result, usage};
use crate::flags::{Durability, Flags};
use crate::machine::Level;
use crate::measure::float;

const MIB: u64 = 1 << 20;

/// An engine that `--backend` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// This project's engine.
    Pleach,
    /// The same in plain namespaces, which have no Merkle trie.
    PleachPlain,
    Nomt,
    SpTrie,
    Jmt,
    Qmdb,
    Redb,
    Fjall,
    Sqlite,
    Mdbx,
    #[serde(rename = "rocksdb")]
    RocksDb,
    /// A sorted map in memory, with a root that is made from scratch: the oracle, for small sizes.
    Model,
}

/// Capabilities of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// True when blocks have a root.
    pub merkle: bool,
    /// True when the root of a set of pairs is that of this project's engine.
    pub our_root: bool,
    /// True when blocks have witnesses.
    pub witness: bool,
    /// True when several blocks can be finished and not committed.
    pub overlays: bool,
    /// True when other threads read beside commits.
    pub views: bool,
    /// True when the engine has files.
    pub files: bool,
    /// True when background work cannot be paused: it goes on while the clock is stopped.
    pub works_on: bool,
}

/// Name, crate and its version as `Cargo.toml` has it, presence in this build, of each engine of others.
const PEERS: [(EngineKind, &str, &str, bool); 9] = [
    (EngineKind::Nomt, "nomt", "1.0.5", cfg!(feature = "peer-nomt")),
    (EngineKind::SpTrie, "sp-trie", "47.0.0", cfg!(feature = "peer-sp-trie")),
    (EngineKind::Jmt, "jmt", "0.12.0", cfg!(feature = "peer-jmt")),
    (EngineKind::Qmdb, "commonware-storage", "2026.10.0", cfg!(feature = "peer-qmdb")),
    (EngineKind::Redb, "redb", "4.6.0", cfg!(feature = "peer-redb")),
    (EngineKind::Fjall, "fjall", "3.1.13", cfg!(feature = "peer-fjall")),
    (EngineKind::Sqlite, "rusqlite", "0.42.0", cfg!(feature = "peer-sqlite")),
    (EngineKind::Mdbx, "signet-libmdbx", "0.8.3", cfg!(feature = "peer-mdbx")),
    (EngineKind::RocksDb, "rocksdb", "0.25.0", cfg!(feature = "peer-rocksdb")),
];

impl EngineKind {
    /// All engines of this build; the oracle is the last.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        let peers = PEERS.iter().filter(|peer| peer.3).map(|peer| peer.0);
        [Self::Pleach, Self::PleachPlain].into_iter().chain(peers).chain([Self::Model])
    }

    /// The engine's name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pleach => "pleach",
            Self::PleachPlain => "pleach-plain",
            Self::Nomt => "nomt",
            Self::SpTrie => "sp-trie",
            Self::Jmt => "jmt",
            Self::Qmdb => "qmdb",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Sqlite => "sqlite",
            Self::Mdbx => "mdbx",
            Self::RocksDb => "rocksdb",
            Self::Model => "model",
        }
    }

    /// The engine of a name, if this build has it.
    pub fn parse(name: &str) -> Result<Self> {
        if let Some(kind) = Self::all().find(|kind| kind.name() == name) {
            return Ok(kind);
        }
        if let Some((kind, ..)) = PEERS.iter().find(|peer| peer.0.name() == name) {
            return usage(kind.missing());
        }
        let all: Vec<_> = Self::all().map(Self::name).collect();
        usage(format!("no engine {name}: this build has {}", all.join(", ")))
    }

    /// What to do when the build does not have the engine.
    pub fn missing(self) -> String {
        let name = self.name();
        format!(
            "this build has no {name}: add `--features peer-{name}` to `cargo run` or `cargo install`"
        )
    }

    /// Crate and version.
    pub fn version(self) -> String {
        let peer = PEERS.iter().find(|peer| peer.0 == self);
        let own = ("pleach", env!("CARGO_PKG_VERSION"));
        let (name, version) = peer.map_or(own, |peer| (peer.1, peer.2));
        format!("{name} {version}")
    }

    /// The engine's capabilities.
    pub const fn caps(self) -> Caps {
        const NONE: Caps = Caps {
            merkle: false,
            our_root: false,
            witness: false,
            overlays: false,
            views: false,
            files: true,
            works_on: false,
        };
        const TREE: Caps = Caps { merkle: true, witness: true, overlays: true, ..NONE };
        match self {
            Self::Pleach => Caps { our_root: true, views: true, ..TREE },
            Self::PleachPlain => Caps { overlays: true, views: true, ..NONE },
            Self::Nomt => Caps { our_root: true, ..TREE },
            Self::SpTrie | Self::Jmt => Caps { works_on: true, ..TREE },
            Self::Qmdb => Caps { merkle: true, ..NONE },
            Self::RocksDb | Self::Fjall => Caps { views: true, works_on: true, ..NONE },
            Self::Redb | Self::Sqlite | Self::Mdbx => Caps { views: true, ..NONE },
            Self::Model => {
                Caps { our_root: true, merkle: true, overlays: true, files: false, ..NONE }
            }
        }
    }

    /// True when the root follows from the pairs alone. QMDB's root is that of a log.
    pub const fn has_root_of_pairs(self) -> bool {
        self.caps().merkle && !matches!(self, Self::Qmdb)
    }

    /// Bytes of memory with this many keys, about.
    pub fn memory(self, cache_mib: u64, keys: u64) -> u64 {
        let budget = cache_mib * MIB * 11 / 10;
        match self {
            Self::Pleach | Self::PleachPlain => budget + 48 * MIB,
            // Its other memory is on top of its caches.
            Self::Nomt => cache_mib * MIB + 512 * MIB + keys * 12,
            Self::Model => keys * 200 + 16 * MIB,
            // Its index, a table with a power of two of slots.
            Self::Qmdb => budget + 256 * MIB + keys * 43,
            _ => budget + 256 * MIB,
        }
    }

    /// Bytes on disk after this many writes to this many keys, about, as measured from 2^14 to 2^21 keys.
    pub fn disk(self, flags: &Flags, keys: u64, writes: u64) -> u64 {
        let rewritten = writes.min(keys);
        match self {
            Self::Pleach | Self::PleachPlain => {
                // Leaf pages, of which up to a third are free or retired, two images, and the log: it grows by segments
                // of 64 MiB until a checkpoint frees them.
                let leaf = keys * 72;
                let aged = (leaf / 2).min(writes.saturating_mul(4096));
                let log =
                    (writes.saturating_mul(90)).min(2 * flags.log_limit_mib * MIB) + 128 * MIB;
                leaf + aged + 2 * (keys * 2 + rewritten * 16) + log
            }
            Self::Nomt => nomt_buckets(keys) * 4097 + keys * 90 + 512 * MIB,
            Self::SpTrie => keys * 250 + rewritten * 1000 + 512 * MIB,
            Self::Jmt => keys * 500 + rewritten * 1500 + 512 * MIB,
            // Its log is never pruned; each write moves an older operation to the end.
            Self::Qmdb => (keys + 2 * writes) * 150 + 256 * MIB,
            Self::Model => 0,
            _ => keys * 150 + rewritten * 100 + 256 * MIB,
        }
    }

    /// What a commit survives on a device; in memory nothing survives a power cut ([`crate::machine::most`]). Counted
    /// sync calls and a kill prove it, in the engines' tests.
    pub const fn level(self, durability: Durability) -> Level {
        match (self, durability) {
            (Self::Model, _) => Level::Nothing,
            // It syncs each commit, whatever the flag.
            (Self::Nomt, _) | (_, Durability::Commit) => Level::PowerCut,
            (Self::Redb | Self::Qmdb, _) => Level::Nothing,
            _ => Level::Kill,
        }
    }
}

/// Buckets of nomt's hash table: the pages expected for uniform keys, at an occupancy of two thirds, but at least the
/// crate's own default of 64,000.
pub fn nomt_buckets(keys: u64) -> u64 {
    (expected_pages(keys) * 3 / 2).max(64_000)
}

/// Six trie levels make a page, which is stored if at least 20 leaves lie below it. At level `k` the leaves below a
/// page are Poisson-distributed with mean `keys / 64^k`.
fn expected_pages(keys: u64) -> u64 {
    let (mut pages, mut places) = (0.0, 1.0);
    for _ in 0..10 {
        pages += places * at_least(20, float(keys) / places);
        places *= 64.0;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    let rounded = pages as u64;
    rounded + 1
}

/// P(X >= k) for X Poisson-distributed with this mean.
fn at_least(k: u32, mean: f64) -> f64 {
    if mean > 200.0 {
        return 1.0;
    }
    let (mut term, mut below) = (libm::exp(-mean), 0.0);
    for i in 0..k {
        below += term;
        term *= mean / f64::from(i + 1);
    }
    (1.0 - below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_pages_jump_where_the_keys_fill_another_level() {
        // Published: a table of about 1 GiB at 2^27 and 13 GiB at 2^28.
        let pages = |log2: u32| expected_pages(1 << log2);
        assert!((260_000..300_000).contains(&pages(27)), "{}", pages(27));
        assert!((2_500_000..4_500_000).contains(&pages(28)), "{}", pages(28));
    }

    /// 52, 91 and 181 MB were resident with 2^20, 2^21 and 2^22 keys; the estimate was 256 MiB for all.
    #[test]
    fn the_index_of_qmdb_counts() {
        let memory = |log2: u32| EngineKind::Qmdb.memory(64, 1 << log2);
        assert!(memory(24) - memory(23) > 37 << 23);
    }

    #[test]
    fn versions_and_features_are_those_of_the_manifest() {
        let manifest = include_str!("../../Cargo.toml");
        for (kind, krate, version, _) in PEERS {
            let pinned = format!("{krate} = {{ version = \"={version}\", ");
            assert!(manifest.contains(&pinned), "{pinned}");
            let feature = format!("\npeer-{} = [\"dep:{krate}\"", kind.name());
            assert!(manifest.contains(&feature), "{feature}");
        }
        let features = manifest.lines().filter(|line| line.starts_with("peer-")).count();
        assert_eq!(features, PEERS.len());
    }

    #[test]
    fn names_are_parsed_and_a_missing_engine_names_its_feature() {
        for kind in EngineKind::all() {
            assert_eq!(EngineKind::parse(kind.name()).expect("its name"), kind);
        }
        for (kind, .., present) in PEERS {
            let found = EngineKind::parse(kind.name());
            assert!(present == found.is_ok());
        }
        assert_eq!(EngineKind::parse("none").err().map(|error| error.code()), Some(2));
    }
}
