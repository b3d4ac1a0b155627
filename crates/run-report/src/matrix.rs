//! The confusion matrix of a test, as a picture.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use run_record::ByClass;

use super::console::without_controls;
use super::plots::{FONT, Surface, TEXT, fitting};
use super::table::shortened;

/// Classes up to which cells have their numbers, and rows and columns their names.
const MOST_NAMED: usize = 30;
/// Pixels of the cells together, and of the names beside and below them.
const CELLS: u32 = 560;
const NAMES: u32 = 130;
/// Height of the title.
const TITLE: u32 = 44;

/// A confusion matrix: a row for each class, a column for each class that was named.
pub struct Matrix {
    title: String,
    names: Vec<String>,
    counts: Vec<Vec<u64>>,
}

impl Matrix {
    /// The matrix in the results of a run; none without one, or one that was edited.
    pub fn of(title: impl Into<String>, by_class: &ByClass) -> Option<Self> {
        let names: Vec<String> = by_class.classes.iter().map(|class| short(&class.name)).collect();
        let counts = by_class.confusion_matrix.clone();
        let is_square = counts.len() == names.len() && counts.iter().all(|row| row.len() == names.len());
        (is_square && names.len() > 1).then(|| Self { title: title.into(), names, counts })
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        (NAMES + CELLS + 24, TITLE + CELLS + NAMES)
    }

    /// Size of the text beside `all / classes` pixels.
    fn text(&self, all: u32) -> u32 {
        (all / self.names.len() as u32).clamp(11, TEXT)
    }

    /// The smallest size of its text; of more classes than have names, that of the title.
    pub(super) fn smallest_text(&self) -> u32 {
        if self.names.len() <= MOST_NAMED { self.text(190) } else { TEXT }
    }

    /// Draws it: the darker a cell, the larger its share of the row.
    pub(super) fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let classes = self.names.len();
        let place = |index: usize| (CELLS as usize * index / classes) as i32;
        let (left, top) = (NAMES as i32, TITLE as i32);
        let style = |size: u32, horizontal, vertical| {
            (FONT, size).into_font().into_text_style(area).pos(Pos::new(horizontal, vertical))
        };
        let title = fitting(&self.title, self.size().0 as i32 - 24);
        area.draw_text(&title, &style(TEXT, HPos::Left, VPos::Top), (12, 12))?;
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
                if classes <= MOST_NAMED && count > 0 {
                    let size = self.text(190);
                    let ink = if share > 0.5 { WHITE } else { BLACK };
                    let text = style(size, HPos::Center, VPos::Center).color(&ink);
                    area.draw_text(&count.to_string(), &text, (left + centre(column), top + centre(row)))?;
                }
            }
        }
        if classes <= MOST_NAMED {
            let size = self.text(300);
            for (index, name) in self.names.iter().enumerate() {
                area.draw_text(
                    name,
                    &style(size, HPos::Right, VPos::Center),
                    (left - 8, top + centre(index)),
                )?;
                let font = (FONT, size).into_font().transform(FontTransform::Rotate90);
                let below = font.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
                area.draw_text(name, &below, (left + centre(index), top + CELLS as i32 + 8))?;
            }
        }
        Ok(())
    }
}

/// A name with room beside the cells: its beginning and its end, which tell more names apart.
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
            let by_class = ByClass::of(&entries.collect::<Confusion>(), &names).unwrap();
            Plot::Matrix(Matrix::of("a run", &by_class).unwrap()).svg().unwrap()
        };
        let small = svg(3);
        let number = |text: &str, number: &str| text.lines().filter(|line| line.trim() == number).count();
        assert_eq!((number(&small, "8"), number(&small, "9")), (1, 1), "{small}");
        assert_eq!(small.matches("class &lt;2&gt;").count(), 2, "beside and below");
        assert_eq!(svg(31).matches("class").count(), 0);
        let names = ["a".to_owned(), "b".into()];
        let by_class = ByClass::of(&[(0, 0, 1), (1, 1, 1)].into_iter().collect(), &names).unwrap();
        let titled = Matrix::of(format!("{} end", "long/".repeat(40)), &by_class).unwrap();
        let titled = Plot::Matrix(titled).svg().unwrap();
        assert!(titled.lines().any(|line| line.contains('…') && line.ends_with(" end")), "{titled}");
    }

    #[test]
    fn an_edited_matrix_is_none() {
        let names = ["a".to_owned(), "b".into()];
        let mut by_class = ByClass::of(&[(0, 0, 1), (1, 1, 1)].into_iter().collect(), &names).unwrap();
        by_class.confusion_matrix[1].pop();
        assert!(Matrix::of("a run", &by_class).is_none());
        by_class.confusion_matrix.clear();
        assert!(Matrix::of("a run", &by_class).is_none());
    }
}
