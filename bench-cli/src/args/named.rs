//! Lists of names: `--backend` and `--only`.

use crate::error::{BenchError, Result};

/// Backends that a build has with the feature `peer-NAME`.
const PEERS: [&str; 8] = ["nomt", "sp-trie", "jmt", "redb", "fjall", "sqlite", "mdbx", "rocksdb"];

/// What the names stand for, in their order; a name that comes twice is refused, and what `of` refuses.
pub(crate) fn each_once<T>(
    flag: &str,
    names: &[String],
    of: impl Fn(&str) -> Result<T>,
) -> Result<Vec<T>> {
    let one = |(at, name): (usize, &String)| {
        if names[..at].contains(name) {
            return Err(BenchError::Usage(format!("{flag} names {name} twice")));
        }
        of(name)
    };
    names.iter().enumerate().map(one).collect()
}

/// The backend of a name.
///
/// # Errors
///
/// Refuses a name that none of them has, and says which there are.
pub(crate) fn backend<T: Copy>(
    name: &str,
    all: impl Iterator<Item = T> + Clone,
    name_of: impl Fn(T) -> &'static str,
) -> Result<T> {
    all.clone().find(|one| name_of(*one) == name).ok_or_else(|| {
        let all: Vec<_> = all.map(name_of).collect();
        let all = all.join(", ");
        let text = if PEERS.contains(&name) {
            format!("{name} is not in this build: add `--features peer-{name}` to `cargo run` or `cargo install`; it has {all}")
        } else {
            format!("no backend {name}: this build has {all}")
        };
        BenchError::Usage(text)
    })
}
