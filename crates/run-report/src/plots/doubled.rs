//! Doubles the resolution of bitmaps. Plots are laid out for the width of a phone, at which a bitmap would be
//! coarse.

use plotters::prelude::*;
use plotters::style::text_anchor::Pos;
use plotters::style::{FontDesc, FontTransform};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// Draws on another backend, which has twice the width and height.
pub struct Doubled<B>(pub B);

type Drawn<B> = Result<(), DrawingErrorKind<<B as DrawingBackend>::ErrorType>>;

fn twice((x, y): BackendCoord) -> BackendCoord {
    (2 * x, 2 * y)
}

/// Returns the style with twice the line width.
fn thick<S: BackendStyle>(style: &S) -> ShapeStyle {
    let BackendColor { alpha, rgb: (r, g, b) } = style.color();
    ShapeStyle { color: RGBAColor(r, g, b, alpha), filled: false, stroke_width: 2 * style.stroke_width() }
}

/// Returns the style with twice the text size.
fn large<S: BackendTextStyle>(style: &S) -> TextStyle<'_> {
    let transform: FontTransform = style.transform();
    let font = FontDesc::new(style.family(), 2.0 * style.size(), style.style()).transform(transform);
    let pos: Pos = style.anchor();
    TextStyle { font, color: style.color(), pos }
}

impl<B: DrawingBackend> DrawingBackend for Doubled<B> {
    type ErrorType = B::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        let (width, height) = self.0.get_size();
        (width / 2, height / 2)
    }

    fn ensure_prepared(&mut self) -> Drawn<B> {
        self.0.ensure_prepared()
    }

    fn present(&mut self) -> Drawn<B> {
        self.0.present()
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Drawn<B> {
        let (left, top) = twice(point);
        [(0, 0), (1, 0), (0, 1), (1, 1)]
            .into_iter()
            .try_for_each(|(x, y)| self.0.draw_pixel((left + x, top + y), color))
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn<B> {
        self.0.draw_line(twice(from), twice(to), &thick(style))
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn<B> {
        self.0.draw_rect(twice(from), twice(to), &thick(style), fill)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn<B> {
        self.0.draw_path(path.into_iter().map(twice), &thick(style))
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        center: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn<B> {
        self.0.draw_circle(twice(center), 2 * radius, &thick(style), fill)
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        outline: I,
        style: &S,
    ) -> Drawn<B> {
        self.0.fill_polygon(outline.into_iter().map(twice), &thick(style))
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn<B> {
        self.0.draw_text(text, &large(style), twice(at))
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Self::ErrorType>> {
        self.0.estimate_text_size(text, &large(style)).map(|(width, height)| (width / 2, height / 2))
    }
}
