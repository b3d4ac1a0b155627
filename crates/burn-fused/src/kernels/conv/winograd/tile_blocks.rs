//! Blocks of tiles for Winograd. A tile is 4x4 outputs. A tile is transformed to 6x6 values, and the position
//! of a value is called a point. A block is a part of a batch that is small enough for its transforms to stay
//! in the cache.

use super::super::Shape;
use super::super::im2col::Group;
use super::super::plane::Plane;
use super::transform::{HALF, POINTS};
use crate::runtime::poll::Poll;

/// Height and width of a tile of the output.
pub const TILE: usize = 4;

/// Tiles that are transformed together: the tiles of whole images, or rows of tiles of one image. Tiles at
/// the lower and right edges may extend beyond the image.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// First image.
    pub first: usize,
    /// Number of images.
    pub images: usize,
    /// First row of tiles, and the row after the last.
    rows: [usize; 2],
    /// Height and width of the images.
    size: [usize; 2],
}

impl Block {
    /// Splits a batch into blocks of about `tiles` tiles, in order.
    pub fn all(shape: Shape, tiles: usize) -> impl Iterator<Item = Self> {
        Group::split(whole(shape), tiles * TILE * TILE, TILE).map(move |Group { first, images, rows }| Self {
            first,
            images,
            rows: rows.map(|row| row / TILE),
            size: [shape.height, shape.width],
        })
    }

    /// Splits the images of `shape` into blocks as [`all`](Self::all) does. They are a part of a batch, from
    /// image `first` on.
    pub fn of_images(shape: Shape, first: usize, tiles: usize) -> impl Iterator<Item = Self> {
        Self::all(shape, tiles).map(move |block| Self { first: first + block.first, ..block })
    }

    /// Returns the number of images in a block of about `tiles` tiles: 1 if a block is a part of an image.
    pub fn images(shape: Shape, tiles: usize) -> usize {
        (tiles * TILE * TILE / whole(shape).pixels()).clamp(1, shape.batch.max(1))
    }

    /// Number of tiles in a row.
    #[inline(always)]
    pub fn columns(&self) -> usize {
        self.size[1].div_ceil(TILE)
    }

    /// Number of rows of tiles in each image.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.rows[1] - self.rows[0]
    }

    /// Number of tiles in all images.
    #[inline(always)]
    pub fn tiles(&self) -> usize {
        self.images * self.rows() * self.columns()
    }

    /// Number of rows, and of columns, of whole tiles. The last tiles may be half tiles, with only one or two
    /// rows or columns of pixels in the image.
    #[inline(always)]
    fn whole(&self) -> [usize; 2] {
        let [height, width] = self.size.map(|side| (side + 1) / TILE);
        [self.rows[1].min(height) - self.rows[0], width]
    }

    /// Returns the position of a tile in the block, and whether its lower and its right half are beyond the
    /// image. Tiles that lack only the right half come first, then whole tiles, and then tiles that lack the
    /// lower half. In this order, the tiles that have a given point are contiguous.
    #[inline(always)]
    pub fn tile(&self, image: usize, row: usize, column: usize) -> (usize, [bool; 2]) {
        let ([rows, columns], all) = (self.whole(), self.columns());
        let halves = [row == rows, column == columns];
        let position = match halves {
            [false, true] => image * rows + row,
            [false, false] => self.images * rows * (all - columns) + (image * rows + row) * columns + column,
            [true, false] => self.images * rows * all + image * columns + column,
            [true, true] => self.images * (rows * all + columns) + image,
        };
        (position, halves)
    }

    /// Returns which tiles have a point: the position of the first tile, and the number of tiles. Half tiles
    /// lack some points.
    #[inline(always)]
    pub fn tiles_with(&self, point: usize) -> [usize; 2] {
        let ([rows, columns], all) = (self.whole(), self.columns());
        let narrow = self.images * rows * (all - columns);
        let first_low = self.images * rows * all;
        match [point / POINTS, point % POINTS].map(|point| HALF[point]) {
            [true, true] => [0, self.tiles()],
            [true, false] => [narrow, self.images * self.rows() * columns],
            [false, true] => [0, first_low],
            [false, false] => [narrow, first_low - narrow],
        }
    }

    /// Returns the rows of pixels that the block has if it is enlarged by `border` rows above and below: the
    /// first row, and the row after the last. Rows outside the image are left out.
    #[inline(always)]
    pub fn pixels(&self, border: usize) -> [usize; 2] {
        let [first, end] = self.rows.map(|row| row * TILE);
        [first.saturating_sub(border), (end + border).min(self.size[0])]
    }

    /// The plane of one image's part of the block, without a border.
    #[inline(always)]
    pub fn plane(&self) -> Plane {
        let ([from, to], stride) = (self.pixels(0), self.columns() * TILE);
        Plane::part([to - from, self.size[1]], stride, 0, self.rows() * TILE * stride)
    }

    /// The plane of one image's part of the block, and of the pixels around it. Beyond the edges of the
    /// image, the plane has zeros.
    #[inline(always)]
    pub fn bordered(&self) -> Plane {
        let ([from, to], stride) = (self.pixels(BORDER), self.columns() * TILE + 2);
        let above = from + BORDER - self.rows[0] * TILE;
        let len = (self.rows() * TILE + 2 * BORDER) * stride;
        Plane::part([to - from, self.size[1]], stride, above * stride + 1, len)
    }
}

/// Rounds the images up to whole tiles.
fn whole(shape: Shape) -> Shape {
    let [height, width] = [shape.height, shape.width].map(|side| side.next_multiple_of(TILE));
    Shape { height, width, ..shape }
}

/// Number of rows that a bordered plane has above the tiles, and also below them. The transform reads only
/// one row on each side. With two rows, a plane begins at an even row, and no 2x2 square of a pooling is cut.
pub const BORDER: usize = 2;

/// Number of multiplications after which [`Pace`] calls its callback. They take some tens of microseconds.
const EACH: usize = 1 << 21;

/// Calls the poll callback at regular intervals while products are computed.
pub struct Pace {
    poll: Poll,
    products: usize,
}

impl Pace {
    pub fn new(poll: Poll) -> Self {
        Self { poll, products: 0 }
    }

    /// Counts `products` more multiplications. Calls the callback if an interval is over.
    pub fn after(&mut self, products: usize) {
        self.products += products;
        if self.products >= EACH {
            self.products = 0;
            self.poll.call();
        }
    }
}
