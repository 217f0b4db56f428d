//! No circle between the parts of a crate: a part is a file or folder directly below its `src`, and it needs another
//! one where its code names `crate::OTHER`. Unit tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CRATES: [&str; 14] = [
    "core",
    "io",
    "beatree",
    "history",
    "journal",
    "engine",
    "ops",
    "archive",
    "c",
    "nomt",
    "cli",
    "wasm",
    "bench-cli",
    "fuzz",
];

/// The code of each part, without comments and unit tests.
fn parts(at: &Path, top: Option<&str>, all: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(at).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
        let part = top.unwrap_or(name.trim_end_matches(".rs")).to_owned();
        if name.contains("tests") || ["lib", "main", "bin"].contains(&part.as_str()) {
            continue;
        }
        if path.is_dir() {
            parts(&path, Some(&part), all);
        } else {
            let text = std::fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            all.entry(part).or_default().extend(lines.flat_map(|line| [line, "\n"]));
        }
    }
}

/// The names that follow `crate::`, in a list of braces as well.
fn named(code: &str) -> BTreeSet<&str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let word = |text: &'_ str| text.find(|letter| !is_word(letter)).unwrap_or(text.len());
    let mut found = BTreeSet::new();
    for (_, rest) in code.match_indices("crate::").map(|(at, word)| (at, &code[at + word.len()..]))
    {
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(&rest[..word(rest)]);
            continue;
        };
        let mut depth = 0;
        let mut start = 0;
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    let item = list[start..at].trim_start();
                    found.insert(&item[..word(item)]);
                    start = at + 1;
                    if letter == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn no_crate_has_a_circle_between_its_parts() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for krate in CRATES {
        let mut all = BTreeMap::new();
        parts(&workspace.join(krate).join("src"), None, &mut all);
        let needs: BTreeMap<&str, BTreeSet<&str>> = all
            .iter()
            .map(|(part, code)| {
                let others = named(code)
                    .into_iter()
                    .filter(|other| all.contains_key(*other) && other != part);
                (part.as_str(), others.collect())
            })
            .collect();
        assert!(
            needs.values().map(BTreeSet::len).sum::<usize>() >= all.len() / 2,
            "{krate}: few arrows"
        );
        // A part that needs nothing that is left goes; what stays to the end is in a circle or needs one.
        let mut left: BTreeSet<&str> = needs.keys().copied().collect();
        loop {
            let free: Vec<&str> =
                left.iter().filter(|part| needs[*part].is_disjoint(&left)).copied().collect();
            if free.is_empty() {
                break;
            }
            left.retain(|part| !free.contains(part));
        }
        let circle: Vec<_> = left
            .iter()
            .map(|part| (part, needs[part].intersection(&left).collect::<Vec<_>>()))
            .collect();
        assert!(circle.is_empty(), "{krate}: parts that need each other: {circle:?}");
    }
}

#[test]
fn lists_of_names_are_understood() {
    let code = "use crate::a::{X, Y};\nuse crate::{b, c::{Z, W}, d};\nfn f() { crate::e::g() }";
    assert_eq!(named(code).into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
}
