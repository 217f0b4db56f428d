//! Names of the code that documents have in backticks are names of the code: `Type::member`, `Type` and `file.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Types of other crates that documents name.
const OTHERS: [&str; 3] = ["Matcher", "Ordering", "PrometheusBuilder"];
/// Pages about the names of other libraries.
const FOREIGN: [&str; 2] = ["from-nomt.md", "from-other-stores.md"];

/// All files below a folder with this ending, without what is built and fetched.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "node_modules" {
                files(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.split(move |letter| !is_part(letter)).filter(|word| !word.is_empty())
}

/// The types of the code: the words of all files that define or implement each, and the type that it derefs to.
#[derive(Default)]
struct Types {
    words: BTreeMap<String, BTreeSet<String>>,
    derefs: BTreeMap<String, String>,
    /// The words of all files.
    all: BTreeSet<String>,
}

impl Types {
    fn read(&mut self, code: &str) {
        let all: Vec<&str> = words(code).collect();
        self.all.extend(all.iter().map(|word| (*word).to_owned()));
        let mut types: BTreeSet<&str> = BTreeSet::new();
        for pair in all.windows(2) {
            if ["struct", "enum", "trait", "type", "union"].contains(&pair[0]) {
                types.insert(pair[1]);
            }
        }
        for line in code.lines().filter(|line| line.trim_start().starts_with("impl")) {
            types.extend(words(line).filter(|word| word.starts_with(char::is_uppercase)));
        }
        for name in types {
            let known = self.words.entry(name.to_owned()).or_default();
            known.extend(all.iter().map(|word| (*word).to_owned()));
        }
        for implementation in code.split("Deref for ").skip(1) {
            let target = implementation.split_once("type Target = ").map(|(_, rest)| rest);
            if let (Some(from), Some(to)) =
                (words(implementation).next(), target.and_then(|rest| words(rest).next()))
            {
                self.derefs.insert(from.to_owned(), to.to_owned());
            }
        }
    }

    fn have(&self, name: &str, member: &str) -> bool {
        let derefs = self.derefs.get(name).filter(|to| *to != name);
        self.words.get(name).is_some_and(|words| words.contains(member))
            || derefs.is_some_and(|to| self.have(to, member))
    }
}

#[test]
fn names_of_the_documents_are_names_of_the_code() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    if !workspace.join("docs").exists() {
        return; // A package alone.
    }
    let (mut types, mut sources, mut pages) = (Types::default(), Vec::new(), Vec::new());
    files(workspace, ".rs", &mut sources);
    for source in &sources {
        types.read(&std::fs::read_to_string(source).expect("a source"));
    }
    let mut others = Vec::new();
    for ending in [".go", ".h", ".js", ".py", ".ts"] {
        files(workspace, ending, &mut others);
    }
    for other in others {
        let text = std::fs::read_to_string(other).expect("a source");
        types.all.extend(words(&text).map(str::to_owned));
    }
    files(&workspace.join("docs"), ".md", &mut pages);
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|page| workspace.join(page)));
    let (mut looked_at, mut missing) = (0, Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        let is_foreign = FOREIGN.iter().any(|name| page.ends_with(name));
        for code in text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let is_file = |source: &PathBuf| source.ends_with(code.trim_start_matches("../"));
            if Path::new(code).extension().is_some_and(|end| end == "rs")
                && !code.contains([' ', '*'])
            {
                looked_at += 1;
                if !sources.iter().any(is_file) {
                    missing.push(format!("{}: {code}", page.display()));
                }
            }
            let is_alone = words(code).next() == Some(code) && code.starts_with(char::is_uppercase);
            if is_alone && code.contains(char::is_lowercase) && !is_foreign {
                looked_at += 1;
                if !types.all.contains(code) && !workspace.join(code).exists() {
                    missing.push(format!("{}: {code}", page.display()));
                }
            }
            for (before, after) in code.match_indices("::").map(|(at, _)| code.split_at(at)) {
                let (Some(name), Some(member)) = (words(before).last(), words(after).next()) else {
                    continue;
                };
                let is_type = name.starts_with(char::is_uppercase) && !OTHERS.contains(&name);
                if is_type && before.ends_with(name) && !is_foreign {
                    looked_at += 1;
                    if !types.have(name, member) {
                        missing.push(format!("{}: {name}::{member}", page.display()));
                    }
                }
            }
        }
    }
    assert!(looked_at > 400, "only {looked_at} names were found");
    assert!(missing.is_empty(), "the code does not have these:\n{}", missing.join("\n"));
}
