//! Tables without lines, for 80 columns.

use super::number::plain;
use comfy_table::{CellAlignment, ContentArrangement, presets};

/// The width that everything is made for.
const WIDTH: u16 = 80;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table.
#[derive(Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// A table with these columns. A column without a heading has an empty one.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH)
            .force_no_tty();
        if columns.iter().any(|(heading, _)| !heading.is_empty()) {
            table.set_header(columns.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
        } else {
            // Without a heading, the first row makes the columns.
            table.add_row(columns.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
        }
        let last = columns.len().saturating_sub(1);
        for (index, (_, align)) in columns.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, if index == last { 0 } else { 2 }));
                column.set_cell_alignment(match align {
                    Align::Left => CellAlignment::Left,
                    Align::Right => CellAlignment::Right,
                });
            }
        }
        Table(table)
    }

    /// One more row, with a cell for each column. What is in them may be a stranger's, and steers nothing.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        self.0.add_row(cells.into_iter().map(|cell| plain(&cell.to_string())).collect::<Vec<_>>());
    }
}

impl std::fmt::Display for Table {
    /// Lines without blanks at their ends, each with its newline.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in self.0.lines() {
            let line = line.trim_end();
            if !line.is_empty() {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = Table::new(&[("step", Align::Left), ("tok/s", Align::Right)]);
        table.row(["single", "70.2"]);
        table.row(["ladder@16", "4,030"]);
        insta::assert_snapshot!(table.to_string(), @r"
        step       tok/s
        single      70.2
        ladder@16  4,030
        ");
    }

    #[test]
    fn a_cell_that_is_too_long_is_broken_within_80_columns() {
        let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left)]);
        table.row(["command", &"word ".repeat(40)]);
        let text = table.to_string();
        assert!(text.lines().count() > 2, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
