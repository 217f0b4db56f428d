//! Numbers of errors and names of metrics keep their meaning in every later version (docs/stability.md). The samples have those of all
//! releases: lines are added, and none is changed or removed.

use std::collections::BTreeSet;

use pleach::{Metrics, observe};

fn read(path: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(folder.join(path)).expect("it is there")
}

/// `Self::Io(IoError::Locked { .. }) => 102,` as `102 Io(Locked)`.
fn numbered(line: &str) -> Option<String> {
    let line = line.trim().strip_prefix("Self::")?.strip_suffix(',')?;
    let (variant, number) = line.split_once(" => ")?;
    let number: u16 = number.parse().ok()?;
    let name =
        |text: &str| text.split(|part: char| !part.is_alphanumeric()).next().map(str::to_owned);
    let of_io = variant.split_once("IoError::").and_then(|(_, variant)| name(variant));
    let of_io = of_io.map(|variant| format!("({variant})")).unwrap_or_default();
    Some(format!("{number} {}{of_io}", name(variant)?))
}

#[test]
fn a_number_of_an_error_keeps_its_variant() {
    let source = read("src/error/code.rs") + &read("../ops/src/error.rs");
    let found: Vec<String> = source.lines().filter_map(numbered).collect();
    let distinct: BTreeSet<&str> = found.iter().map(|one| &one[..3]).collect();
    assert_eq!(distinct.len(), found.len(), "each number once");
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let sample = read("tests/golden/error_codes.txt");
    assert_eq!(found, sample.lines().collect::<BTreeSet<_>>());

    let page = read("../docs/errors.md").replace("`Io, else`", "`Io`");
    let rows = page.lines().filter_map(|line| {
        let (number, variant) = line.strip_prefix("| ")?.split_once(" | `")?;
        number.parse::<u16>().ok()?;
        Some(format!("{number} {}", variant.strip_suffix("` |")?))
    });
    assert_eq!(rows.collect::<Vec<_>>(), sample.lines().collect::<Vec<_>>());
    assert_eq!(pleach::Error::Missing { folder: String::new() }.code(), 201);
}

#[test]
fn a_metric_keeps_its_name_kind_and_unit() {
    let metrics =
        Metrics::ALL.iter().map(|info| format!("{} {:?} {:?}", info.name, info.kind, info.unit));
    let histograms =
        observe::HISTOGRAMS.iter().map(|(name, _)| format!("{name} histogram seconds"));
    let found: BTreeSet<String> =
        metrics.chain(histograms).map(|line| line.to_lowercase()).collect();
    let sample = read("tests/golden/metric_names.txt");
    assert_eq!(found, sample.lines().map(str::to_owned).collect());
}
