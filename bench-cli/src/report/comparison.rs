//! The page and the JSON of `nomt-bench compare`: the ratio that matters most, all comparisons, then each
//! workload.

use core::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::compare::{Done, Outcome};
use crate::error::Result;
use crate::machine::Machine;
use crate::report::about::About;
use crate::report::claims::{Claim, claims, figures, tally};
use crate::report::plot::escape;
use crate::report::{Grid, html, json as files, sections};
use crate::text::number;

/// Whose comparison makes the headline: the first workload that has one of a case with these words, and of these
/// cases the last, which is that of the largest size. Of the engines in it, it is the one that does best beside us.
const HEADLINES: [(&str, &str); 4] = [
    ("transfer", "transfers a second"),
    ("bank", "write-only"),
    ("history", "point query"),
    ("auth", "commitment"),
];
/// Plain maps in memory stand beside where no engine does.
const MAPS: [&str; 2] = ["btreemap", "hashmap"];

/// Everything that was compared.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    pub(crate) about: &'a About,
    pub(crate) machine: &'a Machine,
    pub(crate) steps: &'a [Done],
    /// Steps that were planned.
    pub(crate) planned: usize,
}

impl Comparison<'_> {
    fn claims(&self) -> Vec<Claim> {
        let of = |done: &Done| {
            let result = done.result();
            result.map(|result| claims(done.name(), &figures(result))).unwrap_or_default()
        };
        self.steps.iter().flat_map(of).collect()
    }

    /// The comparison that matters most, and how many there are.
    fn headline(claims: &[Claim]) -> Vec<String> {
        if claims.is_empty() {
            return vec!["Nothing stands beside Pleach in these results.".to_owned()];
        }
        let first = HEADLINES.iter().find_map(|(name, case)| {
            let fits = |one: &&Claim| one.workload == *name && one.case.contains(case);
            let is_engine = |one: &&Claim| !MAPS.contains(&one.other.as_str());
            let of = || claims.iter().filter(|one| one.subject == "pleach").filter(fits);
            let last = of().rfind(is_engine).or_else(|| of().next_back())?;
            let same =
                of().filter(|one| one.case == last.case && is_engine(one) == is_engine(&last));
            same.min_by(|one, other| one.gain.total_cmp(&other.gain))
        });
        first.map(Claim::sentence).into_iter().chain([tally(claims)]).collect()
    }

    /// What is missing, in words.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for done in self.steps {
            if let Outcome::Failed { why } = done.outcome() {
                missing.push(format!("{} FAILED: {why}", done.name()));
            }
        }
        if self.steps.len() < self.planned {
            let (done, planned) = (self.steps.len(), self.planned);
            missing
                .push(format!("INCOMPLETE: {done} of {planned} steps; the same command goes on"));
        }
        missing
    }

    /// As text, for the terminal.
    pub(crate) fn render(&self) -> String {
        let claims = self.claims();
        let mut grid = Grid::default();
        grid.row(["", "", "", "", "beside", "", "it is"].map(str::to_owned));
        let mut last = "";
        for claim in &claims {
            let (ours, theirs) = claim.both();
            let name = if claim.workload == last { String::new() } else { claim.workload.clone() };
            last = &claim.workload;
            let Claim { case, subject, other, .. } = claim;
            let (subject, other) = (subject.clone(), other.clone());
            grid.row([name, case.clone(), subject, ours, other, theirs, claim.words()]);
        }
        let mut text = Self::headline(&claims).join("\n");
        let _ = write!(text, "\n\n{}", grid.render());
        for line in self.missing() {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Writes all results and comparisons as JSON.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let steps = self.steps.iter().map(|done| {
            let (failed, result) = match done.outcome() {
                Outcome::Failed { why } => (Some(why.as_str()), None),
                Outcome::Measured { result } => (None, Some(result)),
            };
            json!({
                "name": done.name(),
                "arguments": done.arguments(),
                "seconds": done.seconds(),
                "kept": done.kept(),
                "failed": failed,
                "result": result,
            })
        });
        let steps: Vec<Value> = steps.collect();
        let document = json!({
            "schema": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "workload": "compare",
            "machine": self.machine,
            "about": self.about,
            "planned": self.planned,
            "steps": steps,
            "claims": self.claims(),
        });
        files::write(path, &document)
    }

    /// Writes the page.
    pub(crate) fn write_page(&self, path: &Path) -> Result<()> {
        let claims = self.claims();
        let mut body = String::new();
        for (place, line) in Self::headline(&claims).iter().enumerate() {
            let class = if place == 0 { "first" } else { "n" };
            let _ = writeln!(body, "<p class=\"{class}\">{}</p>", escape(line));
        }
        for line in self.missing() {
            let _ = writeln!(body, "<p class=\"worse\">{}</p>", escape(&line));
        }
        let mut facts = self.about.rows(self.machine);
        if let Some(limit) = self.device_limit() {
            facts.push(("device limit", limit));
        }
        body.push_str(&html::facts(&facts));
        body.push_str(&self.contents());
        for done in self.steps {
            let name = escape(done.name());
            let _ = writeln!(body, "<h2 id=\"{name}\">{name}</h2>");
            let command = format!("nomt-bench {} {}", done.name(), done.arguments().join(" "));
            let taken = number(done.seconds());
            let _ =
                writeln!(body, "<p class=\"n\"><code>{}</code>, {taken} s</p>", escape(&command));
            match done.outcome() {
                Outcome::Measured { result } => {
                    body.push_str(&sections::section(done.name(), result));
                }
                Outcome::Failed { why } => {
                    let _ = writeln!(body, "<p class=\"worse\">FAILED: {}</p>", escape(why));
                }
            }
        }
        html::write_page(path, "nomt-bench compare", &body)
    }

    /// Links to the parts of the page.
    fn contents(&self) -> String {
        let mut text = String::from("<p>");
        for done in self.steps {
            let name = escape(done.name());
            let _ = write!(text, "<a href=\"#{name}\">{name}</a> ");
        }
        text.push_str("</p>\n");
        text
    }

    /// The most random reads a second that the device did.
    fn device_limit(&self) -> Option<String> {
        let device = self.steps.iter().find(|done| done.name() == "device")?.result()?;
        let rows = device["rows"].as_array()?;
        let reads = rows.iter().filter(|row| {
            row["name"].as_str().is_some_and(|name| name.starts_with("random read 4 KiB"))
        });
        let rates =
            reads.filter_map(|row| Some((row["per_second"].as_f64()?, row["name"].as_str()?)));
        let (rate, name) = rates.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(format!("{} a second: {name}", number(rate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_is_what_matters_beside_another_engine() {
        let claim = |case: &str, other: &str, ours: f64| Claim {
            workload: "bank".to_owned(),
            case: case.to_owned(),
            subject: "pleach".to_owned(),
            other: other.to_owned(),
            ours,
            theirs: 1000.0,
            unit: "ns".to_owned(),
            gain: 1000.0 / ours,
        };
        let plain = Claim {
            subject: "pleach-plain".to_owned(),
            ..claim("10 a commit, write-only", "redb", 9000.0)
        };
        let claims = [
            claim("10 a commit, write-only", "sqlite", 500.0),
            // The engine that is named last is not the one that says most.
            claim("10 a commit, write-only", "mdbx", 200.0),
            plain,
            claim("10 a commit, write-only", "btreemap", 4000.0),
            claim("10 a commit, scan", "sqlite", 2000.0),
        ];
        let said = Comparison::headline(&claims);
        assert!(said[0].contains("write-only") && said[0].contains("sqlite"), "{said:?}");
        let said = Comparison::headline(&claims[3..]);
        assert!(said[0].contains("write-only") && said[0].contains("btreemap"), "{said:?}");
    }
}
