//! The pixels of a block of images in one row.

use super::super::Shape;
use super::super::plane::Plane;
use super::super::scratch::Scratch;
use crate::precision::amx::BLOCK;

/// Where the pixels of images are: row by row, image by image, with one zero after each row and a row
/// of zeros after each image. The neighbours of a pixel are at the same distances everywhere, and those
/// outside of the image are zeros.
#[derive(Debug, Clone, Copy)]
pub struct Flat {
    /// Height and width.
    size: [usize; 2],
    /// Images.
    pub images: usize,
}

impl Flat {
    /// That of a block's images.
    pub fn of(block: Shape) -> Self {
        Self { size: [block.height, block.width], images: block.batch }
    }

    /// Positions from an image to the next.
    #[inline(always)]
    pub fn period(self) -> usize {
        (self.size[0] + 1) * (self.size[1] + 1)
    }

    /// Positions of all images, and zeros until they are whole tiles.
    #[inline(always)]
    pub fn len(self) -> usize {
        (self.images * self.period()).next_multiple_of(BLOCK)
    }

    /// Zeros in front of the first pixel: its neighbours.
    #[inline(always)]
    pub fn front(self) -> usize {
        self.size[1] + 2
    }

    /// All positions, with the neighbours of the first and the last.
    #[inline(always)]
    pub fn all(self) -> usize {
        self.len() + 2 * self.front()
    }

    /// How many positions before a pixel's own the matrix of a tap begins: row `q` of it is
    /// position `q + tap(n)` of all.
    #[inline(always)]
    pub fn tap(self, tap: usize) -> usize {
        tap / 3 * (self.size[1] + 1) + tap % 3
    }

    /// One image's pixels in its period.
    #[inline(always)]
    pub fn plane(self) -> Plane {
        Plane::part(self.size, self.size[1] + 1, 0, self.period())
    }

    /// Height and width of the images.
    #[inline(always)]
    pub fn size(self) -> [usize; 2] {
        self.size
    }

    /// Room for all positions of `channels`, which are side by side.
    pub fn channels(self, channels: usize, buffer: &mut Scratch) -> &mut [u16] {
        buffer.take(self.all() * padded(channels))
    }

    /// Room for pairs of positions of `channels`, in tiles.
    pub fn pairs(self, channels: usize, buffer: &mut Scratch) -> &mut [u32] {
        buffer.take(self.len() / 2 * padded(channels))
    }
}

/// Channels of whole tiles.
#[inline(always)]
pub fn padded(channels: usize) -> usize {
    channels.next_multiple_of(BLOCK)
}
