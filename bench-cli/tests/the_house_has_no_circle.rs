//! The house: no circle between the files of a crate, and nobody reaches into another part's
//! state.
//!
//! Files are nodes. File A points to file B if code of A names an item that B defines: in a `use`
//! or in any other path, whichever re-exports it comes through. A facade that passes on names of
//! its own folder does not depend on them, and `mod x;` is no dependency either. Tests are left
//! out. What is not seen: methods and fields, which are called without a path to their type. The
//! second rule closes that gap: methods stand beside their type, and state is private.
//!
//! To see all arrows of a crate while it is being restructured (a crate's name, or the folder of
//! a crate elsewhere):
//!
//! ```text
//! PLEACH_HOUSE=engine cargo test -p pleach-bench --test the_house_has_no_circle show -- --ignored --nocapture
//! ```

#[path = "the_house_has_no_circle/arrows.rs"]
mod arrows;
#[path = "the_house_has_no_circle/circles.rs"]
mod circles;
#[path = "the_house_has_no_circle/modules.rs"]
mod modules;
#[path = "the_house_has_no_circle/names.rs"]
mod names;
#[path = "the_house_has_no_circle/on_small_crates.rs"]
mod on_small_crates;
#[path = "the_house_has_no_circle/report.rs"]
mod report;
#[path = "the_house_has_no_circle/state.rs"]
mod state;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrows::Arrows;
use modules::Crate;

/// The crates of the house.
const CRATES: [&str; 8] =
    ["core", "io", "beatree", "engine", "change-index", "archive", "cli", "bench-cli"];

/// Structs that own a part of the state: crate, folder below `src`, name.
const OWNERS: &[(&str, &str, &str)] = &[
    ("engine", "state/", "Budget"),
    ("engine", "state/", "Commits"),
    ("engine", "state/", "Images"),
    ("engine", "state/", "Index"),
    ("engine", "state/", "InFlight"),
    ("engine", "state/", "NodeStore"),
    ("engine", "state/", "Pace"),
    ("engine", "state/", "PageReader"),
    ("engine", "state/", "PageSpace"),
    ("engine", "state/", "Quarantine"),
    ("engine", "state/", "Sequencer"),
    ("engine", "state/", "Store"),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// All sources of a crate, by their path below `src`.
fn sources(folder: &Path) -> BTreeMap<String, String> {
    let root = folder.join("src");
    let mut all = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).expect("below src");
                let name = below.to_str().expect("a plain name").replace('\\', "/");
                all.insert(name, std::fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    all
}

fn looked_at() -> impl Iterator<Item = (Crate, Arrows)> {
    CRATES.iter().map(|name| {
        let krate = Crate::parse(name, &sources(&workspace().join(name)));
        let arrows = Arrows::of(&krate);
        (krate, arrows)
    })
}

fn none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}\n\n{}\n", findings.join("\n"));
}

#[test]
fn no_crate_has_a_circle_between_its_files() {
    let mut found = Vec::new();
    for (krate, arrows) in looked_at() {
        let (files, pairs) = (krate.files.len(), arrows.all.len());
        assert!(pairs >= files / 2, "{}: only {pairs} arrows in {files} files", krate.name);
        found.extend(report::circles_of(&krate, &arrows));
    }
    none(&found, "files that need each other: cut one arrow of each circle");
}

#[test]
fn no_crate_has_a_circle_between_its_folders() {
    let found = looked_at().flat_map(|(krate, arrows)| report::rooms_of(&krate, &arrows).circles);
    none(&found.collect::<Vec<_>>(), "folders that need each other: cut one arrow of each circle");
}

#[test]
fn every_name_leads_somewhere() {
    let found = CRATES.iter().flat_map(|name| {
        let krate = Crate::parse(name, &sources(&workspace().join(name)));
        let arrows = Arrows::of(&krate);
        let all = [krate.strays, arrows.unresolved].concat();
        all.into_iter().map(move |one| format!("{name}/src/{one}"))
    });
    none(&found.collect::<Vec<_>>(), "this test does not understand these names or files");
}

#[test]
fn methods_stand_beside_their_type() {
    let found = looked_at().flat_map(|(krate, arrows)| {
        arrows.strangers.into_iter().map(move |one| format!("{}/src/{one}", krate.name))
    });
    let rule = "an inherent impl stands in its type's file or folder, or below it";
    none(&found.collect::<Vec<_>>(), rule);
}

#[test]
fn the_state_of_a_part_is_its_own() {
    let found = OWNERS.iter().flat_map(|(krate, folder, name)| {
        let krate = Crate::parse(krate, &sources(&workspace().join(krate)));
        state::open_fields(&krate, folder, name).unwrap_or_else(|missing| vec![missing])
    });
    none(&found.collect::<Vec<_>>(), "fields of these structs are private");
}

#[test]
fn every_crate_of_the_workspace_is_in_the_house() {
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml")).expect("a manifest");
    let line = manifest.lines().find(|line| line.starts_with("members = ")).expect("members");
    let members: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
    assert_eq!(members, CRATES);
}

#[test]
#[ignore = "prints the crate that PLEACH_HOUSE names"]
fn show() {
    let name = std::env::var("PLEACH_HOUSE").expect("PLEACH_HOUSE: a crate, or its folder");
    let krate = Crate::parse(&name, &sources(&workspace().join(&name)));
    println!("{}", report::everything(&krate, &Arrows::of(&krate)));
}
