//! Results for people ([`table`], [`html`]) and for programs ([`json`]).

pub(crate) mod html;
pub(crate) mod json;
mod plot;
pub(crate) mod soak;
pub(crate) mod table;

use core::fmt::Write as _;

/// Rows of cells, printed in aligned columns: the first to the left, the others to the right.
#[derive(Default)]
pub(crate) struct Grid(Vec<Vec<String>>);

impl Grid {
    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// The rows as text.
    pub(crate) fn render(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.0.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.0 {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let wide = widths[column];
                if column == 0 {
                    let _ = write!(line, "  {cell:<wide$}");
                } else {
                    let _ = write!(line, "  {cell:>wide$}");
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A number with as many digits as are worth reading.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if size >= 10_000.0 {
        grouped(value)
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(number(0.0), "0");
        assert_eq!(number(0.0625), "0.062");
        assert_eq!(number(12.345), "12.35");
        assert_eq!(number(999.6), "1000");
        assert_eq!(number(10_000.0), "10,000");
        assert_eq!(number(1_234_567.8), "1,234,568");
    }
}
