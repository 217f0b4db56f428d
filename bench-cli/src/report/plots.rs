//! Two plots as SVG: transfers a second by the size of the state and by the size of the batch, a line an engine. Both
//! axes are logarithmic. Points of cold runs are hollow, and a line joins those of one machine that are alike. Runs right
//! after a load are left out: what they leave to be written is not level yet.

use std::path::Path;

use plotters::prelude::*;

use super::headline::{self, Ask, BY_BATCH, BY_STATE, FoundFigure};
use crate::error::{Error, Result, usage};
use crate::measure::grouped;
use crate::results::Document;

/// Width and height of a plot, and where its lines are named.
const SIZE: (u32, u32) = (790, 400);
const NAMES_AT: u32 = 630;

/// A plot: its file, what it shows, what stands along its axis, the exponents there, and a label for each.
struct Plot {
    file: &'static str,
    title: &'static str,
    axis: &'static str,
    ask: Ask,
    exponent: fn(&FoundFigure<'_>) -> Option<f64>,
    label: fn(i32) -> String,
}

const PLOTS: [Plot; 2] = [
    Plot {
        file: "throughput-by-state.svg",
        title: "Transfers a second by the size of the state",
        axis: "accounts (25,000 transfers a commit, each synced, with root and witness)",
        ask: BY_STATE,
        exponent: |found| found.size().strip_prefix("2^")?.parse().ok(),
        label: |power| format!("2^{power}"),
    },
    Plot {
        file: "throughput-by-batch.svg",
        title: "Transfers a second by the size of the batch",
        axis: "transfers a commit (each synced)",
        ask: BY_BATCH,
        exponent: |found| {
            let digits = found.case.split(' ').next()?.replace(',', "");
            digits.parse::<f64>().ok().map(f64::log10)
        },
        label: |power| grouped(10_u64.pow(power.unsigned_abs())),
    },
];

/// A figure of an engine: powers along both axes.
struct Point {
    x: f64,
    y: f64,
    is_cold: bool,
    machine: Option<String>,
}

impl Point {
    fn at(&self) -> (f64, f64) {
        (self.x, self.y)
    }

    fn is_alike(&self, other: &Self) -> bool {
        (self.is_cold, &self.machine) == (other.is_cold, &other.machine)
    }
}

/// An engine, and its points, those that are alike beside each other.
type PlotLine<'a> = (&'a str, Vec<Point>);

/// Draws the plots into a folder.
pub fn draw(folder: &Path, documents: &[Document]) -> Result<()> {
    for plot in &PLOTS {
        let lines = plot.lines(documents);
        if lines.is_empty() {
            return usage(format!("the results have nothing of which {} is drawn", plot.file));
        }
        let mut svg = String::new();
        plot.draw(&lines, &mut svg).map_err(|error| Error::Failed(error.to_string()))?;
        let path = folder.join(plot.file);
        std::fs::write(&path, svg).map_err(Error::file(&path))?;
    }
    Ok(())
}

impl Plot {
    /// The engines that have any of it, the best at the end of its line first.
    fn lines(&self, documents: &[Document]) -> Vec<PlotLine<'static>> {
        let engines = headline::TABLES.iter().flat_map(|table| table.1);
        let points = |engine: &&'static str| {
            let point = |found: FoundFigure<'_>| {
                Some(Point {
                    x: (self.exponent)(&found)?,
                    y: found.figure(engine)?.p50.log10(),
                    is_cold: found.is_cold(),
                    machine: super::machine_name(documents, found.document),
                })
            };
            let found = self.ask.find(documents).filter(|found| !found.is_after_load());
            let mut points: Vec<_> = found.filter_map(point).collect();
            points.sort_by(|one, two| one.is_cold.cmp(&two.is_cold).then(one.x.total_cmp(&two.x)));
            // Of one size, the first document's is drawn: that of the table.
            points.dedup_by_key(|point| (point.x.to_bits(), point.is_cold));
            // Then those of one machine beside each other.
            points
                .sort_by(|one, two| (one.is_cold, &one.machine).cmp(&(two.is_cold, &two.machine)));
            (*engine, points)
        };
        let mut lines: Vec<PlotLine<'_>> = engines.map(points).collect();
        lines.retain(|line| !line.1.is_empty());
        let last = |line: &PlotLine<'_>| {
            let last = line.1.iter().max_by(|one, two| one.x.total_cmp(&two.x));
            last.map_or(0.0, |point| point.y)
        };
        lines.sort_by(|one, two| last(two).total_cmp(&last(one)));
        lines
    }

    fn draw(
        &self,
        lines: &[PlotLine<'_>],
        svg: &mut String,
    ) -> core::result::Result<(), Box<dyn core::error::Error>> {
        let points = || lines.iter().flat_map(|line| &line.1).map(Point::at);
        let is_measured = |power: f64| points().any(|point| (point.0 - power).abs() < 1e-6);
        let ends = |at: fn((f64, f64)) -> f64| {
            let (least, most) = (points().map(at), points().map(at));
            (least.fold(f64::MAX, f64::min).floor(), most.fold(f64::MIN, f64::max).ceil())
        };
        let ((left, right), (low, high)) = (ends(|point| point.0), ends(|point| point.1));
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (chart, names) = area.split_horizontally(NAMES_AT);
        let mut chart = ChartBuilder::on(&chart)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(left - 0.1..right + 0.1, low..high)?;
        // Only whole powers have a label.
        let labelled = |power: &f64, label: fn(i32) -> String| {
            #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
            let whole = power.round() as i32;
            if (power - power.round()).abs() < 1e-6 { label(whole) } else { String::new() }
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(221, 225, 230))
            .axis_desc_style(("sans-serif", 14))
            .label_style(("sans-serif", 13))
            .x_desc(self.axis)
            .x_labels(labels(right - left))
            .x_label_formatter(&|power| {
                if is_measured(power.round()) { labelled(power, self.label) } else { String::new() }
            })
            .y_labels(labels(high - low))
            .y_label_formatter(&|power| {
                labelled(power, |power| grouped(10_u64.pow(power.unsigned_abs())))
            })
            .draw()?;
        for (place, (engine, points)) in (0..).zip(lines) {
            let colour = HSLColor(f64::from(super::hue(engine)) / 360.0, 0.68, 0.42);
            let width = if engine.starts_with("pleach") { 3 } else { 1 };
            for alike in points.chunk_by(Point::is_alike) {
                let line = alike.iter().map(Point::at);
                chart.draw_series(LineSeries::new(line, colour.stroke_width(width)))?;
            }
            let dot = |point: &Point| {
                let style = if point.is_cold { colour.stroke_width(2) } else { colour.filled() };
                Circle::new(point.at(), 3, style)
            };
            chart.draw_series(points.iter().map(dot))?;
            let at = 50 + 22 * place;
            names.draw(&Rectangle::new([(4, at), (14, at + 10)], colour.filled()))?;
            let has_root = headline::TABLES[0].1.contains(engine);
            let name = if has_root { (*engine).to_owned() } else { format!("{engine}, no root") };
            names.draw(&Text::new(name, (20, at - 2), ("sans-serif", 14)))?;
        }
        if lines.iter().any(|line| line.1.iter().any(|point| point.is_cold)) {
            names.draw(&Circle::new((9, 30), 3, BLACK.stroke_width(2)))?;
            names.draw(&Text::new("cold", (20, 23), ("sans-serif", 14)))?;
        }
        area.present()?;
        Ok(())
    }
}

/// Labels of an axis of so many powers.
fn labels(powers: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let whole = powers.max(1.0) as usize;
    whole + 1
}
