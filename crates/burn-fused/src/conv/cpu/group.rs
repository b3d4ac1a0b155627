//! Groups of pixels: the part of a batch that im2col writes as one matrix.
use super::Shape;

/// Approximate number of pixels of a group, so that their columns stay in the cache.
const GROUP: usize = 256;

/// Pixels whose columns make one matrix: whole images, or rows of one image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// First image.
    pub first: usize,
    /// Number of images.
    pub images: usize,
    /// First row, and the one after the last.
    pub rows: [usize; 2],
}

impl Group {
    /// All groups of a batch, in order.
    pub fn all(shape: Shape) -> impl Iterator<Item = Self> {
        // Pooling reads two rows at once.
        Self::split(shape, GROUP, 2)
    }

    /// Groups of about `most` pixels, in order, whose first rows are multiples of
    /// `multiple`.
    pub fn split(shape: Shape, most: usize, multiple: usize) -> impl Iterator<Item = Self> {
        let images = (most / shape.pixels()).clamp(1, shape.batch.max(1));
        let rows = (most / shape.width).max(1).next_multiple_of(multiple);
        let rows = if images > 1 || shape.pixels() <= most { shape.height } else { rows.min(shape.height) };
        (0..shape.batch).step_by(images).flat_map(move |first| {
            (0..shape.height).step_by(rows).map(move |row| Self {
                first,
                images: images.min(shape.batch - first),
                rows: [row, (row + rows).min(shape.height)],
            })
        })
    }

    /// Pixels of one image's part.
    pub fn part(&self, shape: Shape) -> usize {
        (self.rows[1] - self.rows[0]) * shape.width
    }

    /// Pixels of all images' parts.
    pub fn pixels(&self, shape: Shape) -> usize {
        self.images * self.part(shape)
    }
}
