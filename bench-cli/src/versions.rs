//! The engines of others that a build can have, each in exactly one version.

/// An engine behind a cargo feature of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) feature: &'static str,
    /// Its crate.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// Was the feature asked for?
    pub(crate) present: bool,
    /// Is the crate in this build, for whichever feature?
    pub(crate) linked: bool,
}

macro_rules! peer {
    ($feature:literal, $name:literal, $version:literal $(, $other:literal)*) => {
        Peer {
            feature: $feature,
            name: $name,
            version: $version,
            present: cfg!(feature = $feature),
            linked: cfg!(any(feature = $feature $(, feature = $other)*)),
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
    // Trees are over it, too.
    peer!("peer-rocksdb", "rocksdb", "0.25.0", "peer-sp-trie", "peer-jmt"),
];

/// The version of a crate; empty if it is no peer.
pub(crate) fn of(name: &str) -> &'static str {
    PEERS.iter().find(|peer| peer.name == name).map_or("", |peer| peer.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What trees lie over was once not told.
    #[test]
    fn a_crate_that_several_features_bring_is_told_with_each() {
        let manifest = include_str!("../Cargo.toml");
        let features = manifest.lines().filter(|line| line.starts_with("peer-"));
        for Peer { name, linked, present, .. } in PEERS {
            assert!(linked || !present, "{name}");
            let bringing =
                features.clone().filter(|line| line.contains(&format!("\"dep:{name}\"")));
            let on = |line: &str| {
                let feature = line.split_once(" = ").map_or(line, |(feature, _)| feature);
                PEERS.iter().any(|peer| peer.feature == feature && peer.present)
            };
            assert_eq!(linked, bringing.clone().any(on), "{name}");
        }
        let rocks = include_str!("versions.rs").lines().find(|line| line.contains("\"rocksdb\""));
        for line in features.filter(|line| line.contains("\"dep:rocksdb\"")) {
            let (feature, _) = line.split_once(" = ").expect("a feature");
            assert!(rocks.is_some_and(|rocks| rocks.contains(feature)), "{feature}");
        }
    }

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
