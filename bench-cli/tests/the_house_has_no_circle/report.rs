//! What is found in a crate, as text.

use core::fmt::Write as _;
use std::collections::{BTreeMap, BTreeSet};

use crate::arrows::{Arrows, Cause};
use crate::circles::circles;
use crate::modules::{Crate, FileId};

/// Each circle between files, with its arrows and one name that causes each.
pub(crate) fn circles_of(krate: &Crate, arrows: &Arrows) -> Vec<String> {
    let pairs: BTreeSet<_> = arrows.all.keys().copied().collect();
    let found = circles(krate.files.len(), &pairs);
    found.iter().map(|circle| circle_text(krate, arrows, circle)).collect()
}

fn circle_text(krate: &Crate, arrows: &Arrows, circle: &[FileId]) -> String {
    let inside: Vec<_> = arrows
        .all
        .iter()
        .filter(|((from, to), _)| circle.contains(from) && circle.contains(to))
        .collect();
    let mut text =
        format!("{}: a circle of {} files, {} arrows\n", krate.name, circle.len(), inside.len());
    for ((from, to), causes) in inside {
        let (from, to) = (&krate.files[*from].path, &krate.files[*to].path);
        let cause = causes.first().map(|cause| format!("`{}` in line {}", cause.name, cause.line));
        let _ = writeln!(text, "  {from} -> {to}   {}", cause.unwrap_or_default());
    }
    text
}

/// Everything about a crate: circles of files and of rooms, all arrows with all names, and
/// `impl` blocks apart from their types.
pub(crate) fn everything(krate: &Crate, arrows: &Arrows) -> String {
    let mut text = String::new();
    let files = circles_of(krate, arrows);
    let (count, pairs) = (krate.files.len(), arrows.all.len());
    let _ = writeln!(text, "## {}: {count} files, {pairs} arrows\n", krate.name);
    let _ = writeln!(text, "## circles of files: {}\n", files.len());
    for circle in files {
        let _ = writeln!(text, "{circle}");
    }
    let Rooms { count, arrows: between, circles } = rooms_of(krate, arrows);
    let _ = writeln!(text, "## {count} rooms, {between} arrows, circles: {}\n", circles.len());
    for circle in circles {
        let _ = writeln!(text, "{circle}");
    }
    let _ = writeln!(text, "## inherent impls apart from their types: {}", arrows.strangers.len());
    for stranger in &arrows.strangers {
        let _ = writeln!(text, "  {stranger}");
    }
    let _ = writeln!(text, "\n## names that lead nowhere: {}", arrows.unresolved.len());
    for name in &arrows.unresolved {
        let _ = writeln!(text, "  {name}");
    }
    let _ = writeln!(text, "\n## all arrows");
    for ((from, to), causes) in &arrows.all {
        let (from, to) = (&krate.files[*from].path, &krate.files[*to].path);
        let _ = writeln!(text, "  {from} -> {to}   {}", names(causes));
    }
    text
}

/// What stands between the rooms of a crate, which are the folders of `src`, and the files that stand there
/// alone.
pub(crate) struct Rooms {
    count: usize,
    arrows: usize,
    /// Circles, with the arrows in them and what causes each.
    pub(crate) circles: Vec<String>,
}

pub(crate) fn rooms_of(krate: &Crate, arrows: &Arrows) -> Rooms {
    let room = |file: FileId| {
        let path = &krate.files[file].path;
        path.split_once('/').map_or(path.trim_end_matches(".rs"), |(folder, _)| folder)
    };
    let names: BTreeSet<&str> = (0..krate.files.len()).map(room).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let index = |name: &str| names.binary_search(&name).unwrap_or_default();
    let mut between: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
    for ((from, to), causes) in &arrows.all {
        let pair = (index(room(*from)), index(room(*to)));
        if pair.0 != pair.1 {
            let cause = causes.first().map_or("", |cause| cause.name.as_str());
            let (from, to) = (&krate.files[*from].path, &krate.files[*to].path);
            between.entry(pair).or_default().push(format!("{from} -> {to}   `{cause}`"));
        }
    }
    let found = circles(names.len(), &between.keys().copied().collect());
    let circles = found.into_iter().map(|circle| {
        let members: Vec<&str> = circle.iter().map(|&room| names[room]).collect();
        let mut text = format!(
            "{}: a circle of {} rooms: {}\n",
            krate.name,
            members.len(),
            members.join(", ")
        );
        for ((from, to), causes) in &between {
            if circle.contains(from) && circle.contains(to) {
                let _ = writeln!(text, "  {} -> {}", names[*from], names[*to]);
                for cause in causes {
                    let _ = writeln!(text, "    {cause}");
                }
            }
        }
        text
    });
    Rooms { count: names.len(), arrows: between.len(), circles: circles.collect() }
}

/// `a::B` 3, 17; `a::C` 20.
fn names(causes: &BTreeSet<Cause>) -> String {
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for cause in causes {
        lines.entry(&cause.name).or_default().push(cause.line.to_string());
    }
    let names = lines.iter().map(|(name, lines)| format!("`{name}` {}", lines.join(", ")));
    names.collect::<Vec<_>>().join("; ")
}
