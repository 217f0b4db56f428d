//! No circle between the modules of a crate: neither between the parts of the crate itself nor, in any folder, between
//! the files and folders in it. A module needs another one where its code names a path to it that begins with `crate`,
//! `super` or `self`. Unit tests are left out, and what a module takes from the one that it lies in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CRATES: [&str; 15] = [
    "core",
    "io",
    "beatree",
    "history",
    "journal",
    "engine",
    "ops",
    "archive",
    "sync",
    "bindings/c",
    "bindings/nomt",
    "cli",
    "bindings/wasm",
    "bench-cli",
    "fuzz",
];

type ModulePath = Vec<String>;

/// The code of each module below a folder, without comments and unit tests.
fn read_modules(folder: &Path, module: &ModulePath, all: &mut BTreeMap<ModulePath, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a plain name");
        let is_root = module.is_empty() && ["lib", "main", "bin"].contains(&name);
        if name.contains("tests") || is_root {
            continue;
        }
        let mut inner = module.clone();
        if name != "mod" {
            inner.push(name.to_owned());
        }
        if path.is_dir() {
            read_modules(&path, &inner, all);
        } else {
            let text = std::fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            all.entry(inner).or_default().extend(lines.flat_map(|line| [line, "\n"]));
        }
    }
}

/// Reads a path, or a tree of them in braces, at the beginning of `code`; gives what follows.
fn read_tree<'a>(mut code: &'a str, above: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let mut path = above.to_vec();
    loop {
        code = code.trim_start();
        if let Some(mut list) = code.strip_prefix('{') {
            loop {
                list =
                    list.trim_start_matches(|letter: char| letter == ',' || letter.is_whitespace());
                if let Some(rest) = list.strip_prefix('}') {
                    return rest;
                }
                list = read_tree(list, &path, found);
                let Some(end) = list.find([',', '}']) else { return list };
                list = &list[end..];
            }
        }
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let (word, rest) =
            code.split_at(code.find(|letter| !is_word(letter)).unwrap_or(code.len()));
        path.push(word);
        match rest.strip_prefix("::") {
            Some(rest) if !word.is_empty() => code = rest,
            _ => break found.push(path),
        }
    }
    code
}

/// The paths in `code` that begin in its own crate.
fn own_paths(code: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if !(before.is_alphanumeric() || "_:$".contains(before)) {
                read_tree(&code[at..], &[], &mut found);
            }
        }
    }
    found
}

/// The module that a path in `module` leads to.
fn resolved(path: &[&str], module: &ModulePath, all: &BTreeMap<ModulePath, String>) -> ModulePath {
    let mut to = if path[0] == "crate" { ModulePath::new() } else { module.clone() };
    for step in path {
        match *step {
            "crate" | "self" => {}
            "super" => drop(to.pop()),
            name => {
                to.push(name.to_owned());
                if !all.contains_key(&to) {
                    to.pop();
                    break;
                }
            }
        }
    }
    to
}

#[test]
fn no_crate_has_a_circle_between_its_modules() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for krate in CRATES {
        let mut all = BTreeMap::new();
        read_modules(&workspace.join(krate).join("src"), &ModulePath::new(), &mut all);
        // In each module that has modules below it: which of these need which.
        let mut needs: BTreeMap<&[String], BTreeMap<&str, BTreeSet<String>>> = BTreeMap::new();
        for (module, code) in &all {
            for path in own_paths(code) {
                let other = resolved(&path, module, &all);
                let shared = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
                if shared < module.len() && shared < other.len() {
                    let folder = needs.entry(&module[..shared]).or_default();
                    folder.entry(&module[shared]).or_default().insert(other[shared].clone());
                }
            }
        }
        let arrows: usize = needs.values().flat_map(BTreeMap::values).map(BTreeSet::len).sum();
        assert!(
            arrows >= all.len() / 2,
            "{krate}: few arrows, {arrows} between {} modules",
            all.len()
        );
        for (folder, mut left) in needs {
            // A module that needs nothing that is left goes; what stays to the end is in a circle or needs one.
            loop {
                let names: BTreeSet<String> = left.keys().copied().map(str::to_owned).collect();
                left.retain(|_, others| !others.is_disjoint(&names));
                if left.len() == names.len() {
                    break;
                }
            }
            assert!(
                left.is_empty(),
                "{krate}: modules of {folder:?} that need each other: {left:?}"
            );
        }
    }
}

#[test]
fn paths_are_understood() {
    let code = "use crate::a::{X, Y as Z};\nuse super::{b, c::{Z, d::W}};\nfn f() { self::e::g() } pleach::crate_::h";
    let found: Vec<String> = own_paths(code).iter().map(|path| path.join("::")).collect();
    let own =
        ["crate::a::X", "crate::a::Y", "super::b", "super::c::Z", "super::c::d::W", "self::e::g"];
    assert_eq!(found, own);
}

/// Each crate has an `Error` of its own, several compile their README, and a rank is held in debug builds only.
const MANY: [&str; 2] = ["Error", "Readme"];

#[test]
fn at_most_two_types_share_a_name_and_these_are_of_two_crates() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut owners: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for krate in CRATES {
        let mut all = BTreeMap::new();
        read_modules(&workspace.join(krate).join("src"), &ModulePath::new(), &mut all);
        for line in all.values().flat_map(|code| code.lines()) {
            let kinds = ["struct ", "enum ", "trait ", "union "];
            let Some((before, name)) = kinds.iter().find_map(|kind| line.split_once(kind)) else {
                continue;
            };
            let name =
                name.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            if before.trim().is_empty() || before.trim_start().starts_with("pub") {
                owners.entry(name.to_owned()).or_default().push(krate);
            }
        }
    }
    assert!(owners.len() > 500, "{} names", owners.len());
    owners.retain(|name, crates| {
        let is_shared = crates.len() > 2 || (crates.len() == 2 && crates[0] == crates[1]);
        is_shared && !name.is_empty() && !MANY.contains(&&**name)
    });
    assert!(owners.is_empty(), "types that share a name: {owners:?}");
}
