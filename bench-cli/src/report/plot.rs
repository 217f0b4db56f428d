//! Line plots as SVG, for the page that `--report` writes. Colours come from the page's style:
//! line number `i` has the class `c{i}`, so that a backend has the same colour everywhere.

use core::fmt::Write as _;

use crate::text::number;

/// The whole picture.
const SIZE: (f64, f64) = (640.0, 240.0);
/// Left, top, right and bottom margins of the plot inside it.
const MARGIN: (f64, f64, f64, f64) = (64.0, 10.0, 12.0, 40.0);
/// Up to this many points per line, each is marked and shows its value; if there are more, only the
/// line is drawn.
const MARKED: usize = 120;
/// If a line has more points, it is cut into this many stretches and drawn from their extremes.
const STRETCHES: usize = 600;

/// A line: points in the order of x.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot. Axes start at 0, but for a logarithmic one, which starts at the power of ten below its lowest
/// point.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) lines: Vec<Line>,
    /// A value to draw across, such as 1 for ratios.
    pub(crate) level: Option<f64>,
    pub(crate) scale: Scaling,
}

/// How the y axis is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    Linear,
    /// Logarithmic if a line would be flat beside another one.
    Fitting,
}

/// Lines whose medians are further apart than this are drawn on a logarithmic axis.
const APART: f64 = 8.0;

impl Plot {
    /// Is the y axis logarithmic?
    fn is_log(&self) -> bool {
        if self.scale == Scaling::Linear {
            return false;
        }
        let median = |line: &Line| {
            let mut values: Vec<f64> = line.points.iter().map(|point| point.1).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let medians: Vec<f64> = self.lines.iter().filter_map(median).collect();
        let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
        let most = medians.iter().copied().fold(0.0, f64::max);
        least > 0.0 && most > APART * least
    }

    /// A figure with a caption; empty if there are no points.
    pub(crate) fn render(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
        if points().next().is_none() {
            return String::new();
        }
        let above = |of: f64| of > 0.0;
        let lowest =
            points().map(|point| point.1).filter(|&y| above(y)).fold(f64::INFINITY, f64::min);
        let scale = Scale {
            x: most(|point| point.0).max(f64::MIN_POSITIVE),
            y: 1.05 * most(|point| point.1).max(self.level.unwrap_or(0.0)).max(1e-9),
            from: self.is_log().then(|| 10f64.powf(lowest.log10().floor())),
        };
        let mut text = String::from("<figure><figcaption>");
        let log = if scale.from.is_some() { " (logarithmic)" } else { "" };
        let _ = write!(text, "<b>{}{log}</b>", escape(&self.title));
        for (place, line) in self.lines.iter().enumerate() {
            let _ = write!(text, " <span class=\"k c{place}\">{}</span>", escape(&line.name));
        }
        let (width, height) = SIZE;
        let _ = write!(
            text,
            "</figcaption>\n<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.title)
        );
        self.axes(&scale, &mut text);
        for (place, line) in self.lines.iter().enumerate() {
            draw(place, line, &scale, &mut text);
        }
        text.push_str("</svg></figure>\n");
        text
    }

    fn axes(&self, scale: &Scale, text: &mut String) {
        let (left, right) = (scale.at_x(0.0), scale.at_x(scale.x));
        let (top, bottom) = (MARGIN.1, SIZE.1 - MARGIN.3);
        let marks = scale.from.map_or_else(|| ticks(scale.y), |from| powers(from, scale.y));
        for (value, label) in marks {
            let y = scale.at_y(value);
            let _ = writeln!(
                text,
                "<path class=\"g\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        for (value, label) in ticks(scale.x) {
            let x = scale.at_x(value);
            let _ = writeln!(
                text,
                "<path class=\"g\" d=\"M{x:.1} {bottom:.1}v4\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                bottom + 16.0
            );
        }
        if let Some(level) = self.level {
            let y = scale.at_y(level);
            let _ = writeln!(text, "<path class=\"l\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
        }
        let _ = writeln!(
            text,
            "<path class=\"a\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(left, right),
            bottom + 32.0,
            escape(self.x)
        );
    }
}

/// Largest values of both axes.
#[derive(Debug)]
struct Scale {
    x: f64,
    y: f64,
    /// Where a logarithmic y axis begins.
    from: Option<f64>,
}

impl Scale {
    fn at_x(&self, value: f64) -> f64 {
        MARGIN.0 + value / self.x * (SIZE.0 - MARGIN.0 - MARGIN.2)
    }

    fn at_y(&self, value: f64) -> f64 {
        let part = match self.from {
            Some(from) => share(value, from, self.y),
            None => value / self.y,
        };
        SIZE.1 - MARGIN.3 - part * (SIZE.1 - MARGIN.1 - MARGIN.3)
    }
}

fn draw(place: usize, line: &Line, scale: &Scale, text: &mut String) {
    let points = thinned(&line.points);
    let _ = write!(text, "<polyline class=\"c{place}\" points=\"");
    for (x, y) in &points {
        let _ = write!(text, "{:.1},{:.1} ", scale.at_x(*x), scale.at_y(*y));
    }
    text.push_str("\"/>\n");
    if points.len() > MARKED {
        return;
    }
    for (x, y) in &points {
        let _ = writeln!(
            text,
            "<circle class=\"c{place}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"><title>{}: {} at {}</title></circle>",
            scale.at_x(*x),
            scale.at_y(*y),
            escape(&line.name),
            number(*y),
            number(*x)
        );
    }
}

/// At most two points per stretch, its lowest and its highest, so that no peak is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * STRETCHES {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(2 * STRETCHES);
    for stretch in points.chunks(points.len().div_ceil(STRETCHES)) {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = stretch.iter().min_by(by_y).zip(stretch.iter().max_by(by_y));
        if let Some((&low, &high)) = ends {
            kept.extend(if low.0 <= high.0 { [low, high] } else { [high, low] });
        }
    }
    kept
}

/// How far along a logarithmic axis a value is, 0 to 1; what is below the axis lies on its start.
pub(crate) fn share(value: f64, from: f64, most: f64) -> f64 {
    (value.max(from) / from).ln() / (most / from).ln().max(f64::MIN_POSITIVE)
}

/// The powers of ten of a logarithmic axis, and values between them where there are few.
fn powers(from: f64, most: f64) -> Vec<(f64, String)> {
    let steps: &[f64] = match most / from {
        span if span < 100.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    // A span of 24 powers holds whatever a figure can be.
    let each =
        (0..24).flat_map(|power| steps.iter().map(move |step| from * 10f64.powi(power) * step));
    each.take_while(|&value| value <= most).map(|value| (value, number(value))).collect()
}

/// Four to ten round values from 0 to `most`, with their labels.
fn ticks(most: f64) -> Vec<(f64, String)> {
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = match rough / power {
        part if part <= 1.0 => power,
        part if part <= 2.0 => 2.0 * power,
        part if part <= 5.0 => 5.0 * power,
        _ => 10.0 * power,
    };
    let (unit, suffix) = match most {
        most if most >= 10_000_000.0 => (1_000_000.0, " M"),
        most if most >= 10_000.0 => (1000.0, " k"),
        _ => (1.0, ""),
    };
    let decimals = [1.0, 0.1, 0.01, 0.001].iter().take_while(|size| step / unit < **size * 0.999);
    let decimals = decimals.count();
    let mut marks = Vec::new();
    let mut value = 0.0;
    // Rounding may make a sum too large by less than a tenth of a step.
    while value <= most + 0.1 * step && marks.len() < 12 {
        marks.push((value, format!("{:.decimals$}{suffix}", value / unit)));
        value += step;
    }
    if marks.last().is_some_and(|last| last.0 > most) {
        marks.pop();
    }
    marks
}

/// A text as HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let labels = |most| ticks(most).into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(labels(10.0), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(0.7), ["0.0", "0.2", "0.4", "0.6"]);
        assert_eq!(labels(123_456.0), ["0 k", "50 k", "100 k"]);
        for most in [1e-9, 0.013, 1.0, 7.0, 99.0, 1e4, 3e6, 8e9] {
            let ticks = ticks(most);
            assert!((3..=11).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(ticks.iter().all(|tick| tick.0 <= most), "{most}: {ticks:?}");
        }
    }

    #[test]
    fn thinning_keeps_the_peaks_and_the_order() {
        let points: Vec<_> =
            (0..5000u32).map(|i| (f64::from(i), if i == 3333 { 9.0 } else { 1.0 })).collect();
        let kept = thinned(&points);
        assert!(kept.len() <= 2 * STRETCHES);
        assert!(kept.contains(&(3333.0, 9.0)));
        assert!(kept.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn sides_that_differ_get_a_logarithmic_axis() {
        let line = |name: &str, y: f64| {
            let points = (1..9).map(|x| (f64::from(x), y)).collect();
            Line { name: name.to_owned(), points }
        };
        let plot = |other: f64, scale| Plot {
            title: "rate".to_owned(),
            x: "batch",
            lines: vec![line("a", 3.0), line("b", other)],
            level: None,
            scale,
        };
        assert!(plot(300.0, Scaling::Fitting).render().contains("logarithmic"));
        assert!(!plot(300.0, Scaling::Linear).render().contains("logarithmic"));
        assert!(!plot(12.0, Scaling::Fitting).render().contains("logarithmic"));
        // No logarithm of nothing.
        assert!(!plot(0.0, Scaling::Fitting).render().contains("logarithmic"));
        let marks: Vec<_> = powers(1.0, 300.0).into_iter().map(|mark| mark.0).collect();
        assert_eq!(marks, [1.0, 10.0, 100.0]);
        assert!((share(10.0, 1.0, 100.0) - 0.5).abs() < 1e-9 && share(0.0, 1.0, 100.0) == 0.0);
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let lines = vec![Line { name: "<b>&\"".to_owned(), points: vec![(0.0, 1.0), (1.0, 2.0)] }];
        let scale = Scaling::Fitting;
        let plot = Plot { title: "a < b".to_owned(), x: "s", lines, level: None, scale };
        let svg = plot.render();
        assert!(!svg.contains("<b>&\"") && svg.contains("&lt;b&gt;&amp;&quot;"), "{svg}");
        assert!(svg.contains("a &lt; b"), "{svg}");
    }
}
