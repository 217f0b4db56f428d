//! The manifests of the workspace: the stated Rust version is enough for every package that is compiled, each declared
//! dependency is named in the sources, a production build of the engine carries nothing that only tests want, each
//! published package says what it is and under which licences, and each fuzz target is built and has a corpus.
//!
//! The stated version once was 1.89 while `cargo test` compiled a package that asks for 1.90, and
//! four dependencies were built that no source named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// What `cargo` prints for these arguments in the workspace.
fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(arguments).current_dir(workspace()).output().expect("cargo starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "cargo {arguments:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

fn metadata(more: &[&str]) -> Value {
    // `--locked`: the lock file as it is committed, so that no version is looked up.
    let arguments = [&["metadata", "--format-version", "1", "--locked"], more].concat();
    serde_json::from_str(&cargo(&arguments)).expect("metadata is JSON")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("no list {field}"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no text {field} in {value}"))
}

/// `1.89`, `1.89.0` and `1` as numbers.
fn version(text: &str) -> Vec<u32> {
    let mut parts: Vec<u32> = text.split('.').map(|part| part.parse().expect("a number")).collect();
    parts.resize(3, 0);
    parts
}

#[test]
fn no_package_asks_for_a_newer_rust_than_we_state() {
    let about = cargo(&["-vV"]);
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    // Only what is compiled on this host counts, including tests and benchmarks.
    let metadata = metadata(&["--filter-platform", host]);
    let packages = list(&metadata, "packages");
    let members = list(&metadata, "workspace_members");
    let ours: Vec<&Value> = packages.iter().filter(|one| members.contains(&one["id"])).collect();
    // The example nodes have an EVM, which asks for more, and are not published.
    let (examples, ours): (Vec<&Value>, Vec<&Value>) =
        ours.into_iter().partition(|one| text(one, "name") == "pleach-examples");
    let stated = text(ours.first().expect("a member"), "rust_version");
    assert!(ours.iter().all(|one| text(one, "rust_version") == stated), "members differ");
    let of_examples = text(examples.first().expect("the examples"), "rust_version");
    for (members, stated) in [(ours, stated), (examples, of_examples)] {
        let compiled = compiled(&metadata, &members);
        assert!(compiled.len() > members.len() + 50, "only {} were looked at", compiled.len());
        let newer: Vec<String> = packages
            .iter()
            .filter(|one| compiled.contains(text(one, "id")))
            .filter_map(|one| Some((one, one["rust_version"].as_str()?)))
            .filter(|(_, wanted)| version(wanted) > version(stated))
            .map(|(one, wanted)| format!("{} {} asks for {wanted}", one["name"], one["version"]))
            .collect();
        assert!(newer.is_empty(), "we state {stated}, but {newer:?}");
    }
    let readme = std::fs::read_to_string(workspace().join("README.md")).expect("the README");
    let words = format!("stable Rust {stated} or later ({of_examples} for the example nodes)");
    assert!(readme.contains(&words), "the README differs");
}

/// The ids of members and of all that is compiled for them.
fn compiled<'a>(metadata: &'a Value, members: &[&'a Value]) -> BTreeSet<&'a str> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    let mut next: Vec<&str> = members.iter().map(|one| text(one, "id")).collect();
    while let Some(id) = next.pop() {
        if found.insert(id) {
            let node = list(&metadata["resolve"], "nodes").iter().find(|node| node["id"] == id);
            let dependencies = list(node.expect("a package of the graph"), "dependencies");
            next.extend(dependencies.iter().filter_map(Value::as_str));
        }
    }
    found
}

#[test]
fn every_declared_dependency_is_named_in_the_sources() {
    let metadata = metadata(&["--no-deps"]);
    let mut unused = Vec::new();
    let mut looked_at = 0;
    for package in list(&metadata, "packages") {
        let folder = Path::new(text(package, "manifest_path")).parent().expect("a folder");
        let mut source = sources(&folder.join("src"));
        // Files of other packages that belong to it, too.
        for included in source.clone().split("#[path = \"../").skip(1) {
            let file = format!("../{}", included.split('"').next().unwrap_or_default());
            source += &std::fs::read_to_string(folder.join("src").join(file)).expect("a source");
        }
        let mut examples = documentation(&folder.join("src"));
        if text(package, "name") == "pleach" {
            examples +=
                &std::fs::read_to_string(workspace().join("docs/embed.md")).expect("the guide");
        }
        let tests = ["tests", "benches", "examples"].map(|part| sources(&folder.join(part)));
        for dependency in list(package, "dependencies") {
            let name = dependency["rename"].as_str().unwrap_or_else(|| text(dependency, "name"));
            let name = name.replace('-', "_");
            let own = names(&source, &name);
            let named = match dependency["kind"].as_str() {
                // Tests inside `src` may use it as well, and so may examples in comments and in the guide.
                Some("dev") => {
                    own || names(&examples, &name) || tests.iter().any(|part| names(part, &name))
                }
                _ => own,
            };
            looked_at += 1;
            if !named {
                unused.push(format!("{}: {name}", package["name"]));
            }
        }
    }
    assert!(looked_at > 40, "only {looked_at} dependencies were looked at");
    assert!(unused.is_empty(), "declared and never named: {unused:?}");
}

#[test]
fn each_published_package_says_what_it_is() {
    let metadata = metadata(&["--no-deps"]);
    let packages = list(&metadata, "packages");
    // `null` is any registry, an empty list none.
    let published: Vec<&Value> = packages
        .iter()
        .filter(|one| one["publish"].as_array().is_none_or(|to| !to.is_empty()))
        .collect();
    assert_eq!(published.len(), 13, "packages that are published");
    for package in published {
        let name = text(package, "name");
        assert_eq!(text(package, "license"), "MIT OR Apache-2.0", "{name}");
        assert!((40..200).contains(&text(package, "description").len()), "{name}: description");
        let folder = Path::new(text(package, "manifest_path")).parent().expect("a folder");
        let readme =
            std::fs::read_to_string(folder.join(text(package, "readme"))).expect("a README");
        assert!(readme.contains(name), "{name}: the README is of something else");
        let compiled = std::fs::read_to_string(folder.join("src/lib.rs"))
            .is_ok_and(|code| code.contains("#[doc = include_str!(\"../README.md\")]"));
        assert!(compiled || !readme.contains("```rust"), "{name}: nobody compiles the README");
        // A package has no files from outside its folder: the licences are links there.
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = std::fs::read_to_string(folder.join(licence)).expect(licence);
            let whole = std::fs::read_to_string(workspace().join(licence)).expect(licence);
            assert_eq!(own, whole, "{name}: {licence}");
        }
        let keywords = list(package, "keywords");
        assert!((1..=5).contains(&keywords.len()), "{name}: {keywords:?}");
        for keyword in keywords.iter().filter_map(Value::as_str) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_+".contains(&byte);
            assert!(keyword.len() <= 20 && keyword.bytes().all(plain), "{name}: {keyword}");
        }
        assert!((1..=5).contains(&list(package, "categories").len()), "{name}: categories");
        let targets = &package["metadata"]["docs"]["rs"]["targets"];
        assert_eq!(targets, &serde_json::json!(["x86_64-unknown-linux-gnu"]), "{name}: docs.rs");
    }
}

/// All Rust sources below a folder, comments left out.
fn sources(folder: &Path) -> String {
    lines(folder, &|line| line.split("//").next())
}

/// The comments that are documentation.
fn documentation(folder: &Path) -> String {
    let marks = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    lines(folder, &|line| Some(line.trim_start()).filter(marks).map(|line| &line[3..]))
}

fn lines(folder: &Path, part: &dyn Fn(&str) -> Option<&str>) -> String {
    let mut all = String::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return all };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.push_str(&lines(&path, part));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code = std::fs::read_to_string(&path).expect("a source");
            for line in code.lines() {
                all.push_str(part(line).unwrap_or_default());
                all.push('\n');
            }
        }
    }
    all
}

/// True when a path begins with this crate, or an import names it.
fn names(source: &str, name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    source.match_indices(name).any(|(at, _)| {
        let (before, after) = (&source[..at], &source[at + name.len()..]);
        let starts = !before.bytes().next_back().is_some_and(is_part);
        let imported = before.ends_with("use ") || before.ends_with("extern crate ");
        starts && (after.starts_with("::") || (imported && after.starts_with([';', ' '])))
    })
}

#[test]
fn a_name_counts_only_as_the_start_of_a_path() {
    for yes in ["use rayon::prelude::*;", "    rayon::join(a, b)", "extern crate rayon;"] {
        assert!(names(yes, "rayon"), "{yes}");
    }
    for no in ["let rayon = 1;", "crayon::draw()", "crate::rayon::x", "rayonne::x", "\"rayon\""] {
        assert!(!names(no, "rayon"), "{no}");
    }
}

#[test]
fn a_production_build_of_the_engine_has_no_test_crates() {
    let tree = cargo(&["tree", "--locked", "-p", "pleach", "-e", "normal", "--prefix", "none"]);
    assert!(tree.contains("pleach-core "), "{tree}");
    for test_only in ["bitvec ", "nomt-core ", "proptest "] {
        assert!(!tree.contains(test_only), "{test_only}is in a production build:\n{tree}");
    }
}

/// Of macros, which are not in the program, two versions of `syn` remain.
#[test]
fn the_engine_and_its_tools_have_one_version_of_each_dependency() {
    for package in ["pleach", "pleach-ops", "pleach-cli"] {
        let edges = "normal,no-proc-macro";
        let tree = cargo(&["tree", "--locked", "-p", package, "-e", edges, "--prefix", "none"]);
        let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
        for line in tree.lines() {
            let (name, rest) = line.split_once(' ').expect("a name and a version");
            versions.entry(name).or_default().insert(rest.split(' ').next().expect("a version"));
        }
        assert!(versions.len() > 20, "{package} has {} dependencies", versions.len());
        versions.retain(|_, versions| versions.len() > 1);
        assert!(versions.is_empty(), "{package}: {versions:?}");
    }
}

/// `nomt_import` once had none: the fuzzers of a clean clone ended there.
#[test]
fn each_fuzz_target_has_a_corpus_in_git() {
    let workspace = workspace();
    if !workspace.join(".git").exists() {
        return; // Sources without a repository.
    }
    let mut git = Command::new("git");
    let output = git.args(["ls-files", "fuzz"]).current_dir(&workspace).output().expect("git");
    assert!(output.status.success(), "{output:?}");
    let files = String::from_utf8(output.stdout).expect("plain names");
    let manifest = std::fs::read_to_string(workspace.join("fuzz/Cargo.toml")).expect("a manifest");
    let targets: Vec<&str> = files
        .lines()
        .filter_map(|file| file.strip_prefix("fuzz/fuzz_targets/")?.strip_suffix(".rs"))
        .collect();
    assert!(targets.len() > 20, "only {targets:?}");
    for target in targets {
        let corpus = format!("fuzz/corpus/{target}/");
        assert!(files.lines().any(|file| file.starts_with(&corpus)), "{target} has no corpus");
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not built");
    }
}
