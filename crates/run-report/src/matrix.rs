//! Draws the confusion matrix of a test: how many samples of each class were predicted as each class.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use run_record::ByClass;

use super::plots::{FONT, Surface, TEXT, WIDTH, fitting, width_of};
use terminal::console::without_controls;
use terminal::table::shortened;

/// Maximum number of classes for which cells contain numbers, and rows and columns are named.
const MOST_NAMED: usize = 30;
/// Minimum side of a cell with a number, in pixels. `CELLS` is the minimum side of the whole grid.
const CELL: i32 = 26;
const CELLS: i32 = 240;
/// Maximum length of the names beside and below the grid, in pixels.
const NAMES: i32 = 110;
/// Height of the title in pixels. `MARGIN` is the margin in pixels.
const LINE: i32 = 22;
const MARGIN: i32 = 8;

/// A confusion matrix: a row for each true class, a column for each predicted class.
pub struct Matrix {
    title: String,
    names: Vec<String>,
    counts: Vec<Vec<u64>>,
}

impl Matrix {
    /// Makes the matrix of a run's results. `title` may be empty. `None` if there are fewer than two classes,
    /// or the results contain no matrix, or a matrix of the wrong size because somebody edited it.
    pub fn from_by_class(title: impl Into<String>, by_class: &ByClass) -> Option<Self> {
        let names: Vec<String> = by_class.classes.iter().map(|class| short(&class.name)).collect();
        let counts = by_class.confusion_matrix.clone();
        let is_square = counts.len() == names.len() && counts.iter().all(|row| row.len() == names.len());
        (is_square && names.len() > 1).then(|| Self { title: title.into(), names, counts })
    }

    /// Returns the side of the grid in pixels.
    fn cells(&self) -> i32 {
        let widest = self.counts.iter().flatten().map(|count| width_of(&count.to_string(), TEXT)).max();
        let cell = (widest.unwrap_or(0) + 8).max(CELL);
        let most = WIDTH - 2 * MARGIN - LINE;
        if self.has_names() { (cell * self.names.len() as i32).max(CELLS) } else { most }
    }

    /// Returns the space for the names beside the grid, in pixels. The space below the grid is the same,
    /// unless the names there are horizontal.
    fn room(&self) -> i32 {
        let widest = self.names.iter().map(|name| width_of(name, TEXT)).max().unwrap_or(0);
        if self.has_names() { widest.min(NAMES) + 6 } else { 0 }
    }

    /// Returns the space for the names below the grid, in pixels. Names that are narrower than a cell are
    /// horizontal.
    fn below(&self) -> i32 {
        if self.has_names() && self.is_upright() { LINE } else { self.room() }
    }

    fn is_upright(&self) -> bool {
        let cell = self.cells() / self.names.len() as i32;
        self.names.iter().all(|name| width_of(name, TEXT) + 4 <= cell)
    }

    fn has_names(&self) -> bool {
        self.names.len() <= MOST_NAMED
    }

    /// Returns the position of the grid's upper left corner, in pixels.
    fn corner(&self) -> (i32, i32) {
        let title = if self.title.is_empty() { 0 } else { LINE + MARGIN };
        (MARGIN + LINE + self.room(), MARGIN + title)
    }

    /// Returns width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        let ((left, top), cells) = (self.corner(), self.cells());
        ((left + cells + MARGIN) as u32, (top + cells + self.below() + LINE + MARGIN) as u32)
    }

    /// Draws the matrix. The larger a cell's share of its row, the darker the cell.
    pub(super) fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let (classes, cells, (left, top)) = (self.names.len(), self.cells(), self.corner());
        let place = |index: usize| (cells as usize * index / classes) as i32;
        let style = |horizontal, vertical| {
            (FONT, TEXT).into_font().into_text_style(area).pos(Pos::new(horizontal, vertical))
        };
        let turned = |turn, horizontal, vertical| {
            let font = (FONT, TEXT).into_font().transform(turn);
            font.into_text_style(area).pos(Pos::new(horizontal, vertical))
        };
        let title = fitting(&self.title, self.size().0 as i32 - 2 * MARGIN);
        area.draw_text(&title, &style(HPos::Left, VPos::Top), (MARGIN, MARGIN))?;
        let centre = |index: usize| (place(index) + place(index + 1)) / 2;
        for (row, counts) in self.counts.iter().enumerate() {
            let all: u64 = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
            for (column, &count) in counts.iter().enumerate() {
                let share = count as f64 / all.max(1) as f64;
                let fade = |light: u8, dark: u8| {
                    (f64::from(light) + share * (f64::from(dark) - f64::from(light))) as u8
                };
                let colour = RGBColor(fade(245, 0), fade(247, 90), fade(250, 150));
                let corners = [
                    (left + place(column), top + place(row)),
                    (left + place(column + 1) - 1, top + place(row + 1) - 1),
                ];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                if self.has_names() && count > 0 {
                    let ink = if share > 0.5 { WHITE } else { BLACK };
                    let text = style(HPos::Center, VPos::Center).color(&ink);
                    area.draw_text(&count.to_string(), &text, (left + centre(column), top + centre(row)))?;
                }
            }
        }
        if self.has_names() {
            for (index, name) in self.names.iter().enumerate() {
                let name = fitting(name, NAMES);
                let at = (left - 6, top + centre(index));
                area.draw_text(&name, &style(HPos::Right, VPos::Center), at)?;
                let (below, y) = if self.is_upright() {
                    (style(HPos::Center, VPos::Top), top + cells + 4)
                } else {
                    (turned(FontTransform::Rotate90, HPos::Left, VPos::Center), top + cells + 6)
                };
                area.draw_text(&name, &below, (left + centre(index), y))?;
            }
        }
        let beside = turned(FontTransform::Rotate270, HPos::Center, VPos::Top);
        area.draw_text("true class", &beside, (MARGIN, top + cells / 2))?;
        let below = top + cells + self.below();
        area.draw_text("predicted class", &style(HPos::Center, VPos::Top), (left + cells / 2, below))?;
        Ok(())
    }
}

/// Shortens a name that is too long to fit beside the grid. Beginning and end are kept, because names often
/// differ there.
fn short(name: &str) -> String {
    shortened(&without_controls(name), 13)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plots::Plot;
    use run_record::Confusion;

    #[test]
    fn cells_have_their_numbers_and_names_up_to_thirty_classes() {
        let svg = |classes: usize| {
            let names: Vec<String> = (0..classes).map(|class| format!("class <{class}>")).collect();
            let entries = (0..classes).map(|class| (class as u16, 0, 7 + class as u64));
            let by_class = ByClass::from_confusion(&entries.collect::<Confusion>(), &names).unwrap();
            Plot::Matrix(Matrix::from_by_class("a run", &by_class).unwrap()).svg().unwrap()
        };
        let small = svg(3);
        let number = |text: &str, number: &str| text.lines().filter(|line| line.trim() == number).count();
        assert_eq!((number(&small, "8"), number(&small, "9")), (1, 1), "{small}");
        assert_eq!(small.matches("class &lt;2&gt;").count(), 2, "beside and below");
        assert_eq!(svg(31).matches("class &lt;").count(), 0);
        for title in ["true class", "predicted class"] {
            assert!(small.contains(title) && svg(31).contains(title), "{small}");
        }
        let names = ["a".to_owned(), "b".into()];
        let by_class =
            ByClass::from_confusion(&[(0, 0, 1), (1, 1, 1)].into_iter().collect(), &names).unwrap();
        let titled = Matrix::from_by_class(format!("{} end", "long/".repeat(40)), &by_class).unwrap();
        let titled = Plot::Matrix(titled).svg().unwrap();
        assert!(titled.lines().any(|line| line.contains('…') && line.ends_with(" end")), "{titled}");
    }

    #[test]
    fn an_edited_matrix_is_none() {
        let names = ["a".to_owned(), "b".into()];
        let mut by_class =
            ByClass::from_confusion(&[(0, 0, 1), (1, 1, 1)].into_iter().collect(), &names).unwrap();
        by_class.confusion_matrix[1].pop();
        assert!(Matrix::from_by_class("a run", &by_class).is_none());
        by_class.confusion_matrix.clear();
        assert!(Matrix::from_by_class("a run", &by_class).is_none());
    }
}
