//! A table, before it becomes text or HTML.

use core::fmt::Write as _;

/// Rows of cells, printed in aligned columns: the first to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Grid(pub(super) Vec<Vec<String>>);

impl Grid {
    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Has it no row but its head?
    pub(crate) fn is_head(&self) -> bool {
        self.0.len() < 2
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
