//! The engines of others that a build can have, each in exactly one version.

/// An engine behind a cargo feature of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) feature: &'static str,
    /// Its crate.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Has this build got it?
    pub(crate) present: bool,
}

macro_rules! peer {
    ($feature:literal, $name:literal, $version:literal) => {
        Peer {
            feature: $feature,
            name: $name,
            version: $version,
            present: cfg!(feature = $feature),
        }
    };
}

/// All of them, as `Cargo.toml` pins them.
pub(crate) const PEERS: [Peer; 8] = [
    peer!("peer-nomt", "nomt", "1.0.5"),
    peer!("peer-sp-trie", "sp-trie", "47.0.0"),
    peer!("peer-jmt", "jmt", "0.12.0"),
    peer!("peer-redb", "redb", "4.6.0"),
    peer!("peer-fjall", "fjall", "3.1.13"),
    peer!("peer-sqlite", "rusqlite", "0.42.0"),
    peer!("peer-mdbx", "signet-libmdbx", "0.8.3"),
    peer!("peer-rocksdb", "rocksdb", "0.25.0"),
];

/// The version of a crate; empty if it is no peer.
pub(crate) fn of(name: &str) -> &'static str {
    PEERS.iter().find(|peer| peer.name == name).map_or("", |peer| peer.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        for Peer { feature, name, version, .. } in PEERS {
            let pinned = format!("{name} = {{ version = \"={version}\", ");
            assert!(manifest.contains(&pinned), "{pinned}");
            assert!(manifest.contains(&format!("\n{feature} = [\"dep:{name}\"")), "{feature}");
        }
        let features = manifest.lines().filter(|line| line.starts_with("peer-")).count();
        assert_eq!(features, PEERS.len());
    }
}
