//! Images of one channel as windows of four pixels, 16 images in lanes.

use super::{Block, LANES, Map, Task, Words};
use crate::int8::layer::Conv;

/// Windows of the first layer's input: `[height, with border][windows]`. Window j of a
/// row begins at its pixel 2 j, counted from the border.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    height: usize,
    width: usize,
    border: [usize; 2],
    /// Windows of a row.
    pub row: usize,
    /// Windows that one row of the kernel needs, for two neighbouring outputs.
    pub words: usize,
    zero: u8,
}

impl Windows {
    pub fn new(Map { shape: [_, height, width], zero, .. }: Map, conv: &Conv) -> Self {
        let words = (conv.kernel[1] + 1).div_ceil(4);
        let outputs = width + 2 * conv.padding[1] - conv.kernel[1] + 1;
        let row = outputs.div_ceil(2) + 2 * (words - 1);
        Self { height, width, border: conv.padding, row, words, zero }
    }

    /// Words of all pixels, without borders, one block more on both sides; and the windows.
    pub fn buffers(&self) -> [Vec<Block>; 2] {
        let words = self.words_of_image().next_multiple_of(LANES) + 2;
        let windows = (self.height + 2 * self.border[0]) * self.row;
        [words, windows].map(|blocks| vec![Block::of(self.zero); blocks])
    }

    fn words_of_image(&self) -> usize {
        (self.height * self.width).div_ceil(4)
    }
}

/// Brings images into lanes and makes their windows, with the buffers of [`Windows::buffers`].
pub(super) struct Fill<'a> {
    pub windows: &'a Windows,
    pub images: &'a [u8],
    pub flat: &'a mut [Block],
    pub target: &'a mut [Block],
}

impl Task for Fill<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let Self { flat, target: windows, .. } = self;
        into_lanes(words, self.windows, self.images, &mut flat[1..]);
        let Windows { height, width, border, row, zero, .. } = *self.windows;
        let zeros = words.splat(i32::from_ne_bytes([zero; 4]));
        for y in 0..height {
            let targets = &mut windows[(y + border[0]) * row..][..row];
            for (j, target) in targets.iter_mut().enumerate() {
                // The window's first pixel, counted from the flat block before the
                // image.
                let x = 2 * j as isize - border[1] as isize;
                let (inside, mask) = inside(x, width as isize);
                let mut word = zeros;
                if inside > 0 {
                    let at = (4 + (y * width) as isize + x) as usize;
                    // For a border wider than a word, the index may be before that
                    // block: then none of it is inside.
                    word = words.funnel(words.load(&flat[at / 4]), words.load(&flat[at / 4 + 1]), at % 4);
                    if inside < 4 {
                        word = words.select(words.splat(mask), word, zeros);
                    }
                }
                words.store(word, target);
            }
        }
    }
}

/// The number of the four pixels from `x` on that are inside the row, and their mask.
#[inline(always)]
fn inside(x: isize, width: isize) -> (usize, i32) {
    if x >= 0 && x + 4 <= width {
        return (4, -1);
    }
    let mut mask = [0; 4];
    let mut count = 0;
    for (i, byte) in mask.iter_mut().enumerate() {
        if (0..width).contains(&(x + i as isize)) {
            *byte = 0xff;
            count += 1;
        }
    }
    (count, i32::from_ne_bytes(mask))
}

/// Transposes images: word w of all of them is block w of `flat`.
#[inline(always)]
fn into_lanes<W: Words>(words: W, windows: &Windows, images: &[u8], flat: &mut [Block]) {
    let size = windows.height * windows.width;
    let count = images.len() / size;
    for first in (0..windows.words_of_image()).step_by(LANES) {
        let mut rows = [words.splat(0); LANES];
        for (lane, row) in rows.iter_mut().enumerate().take(count) {
            let pixels = &images[lane * size + 4 * first..(lane + 1) * size];
            *row = match pixels.first_chunk::<64>() {
                Some(pixels) => words.load(&bytemuck::pod_read_unaligned(pixels)),
                None => {
                    let mut some = [0; 64];
                    some[..pixels.len()].copy_from_slice(pixels);
                    words.load(&bytemuck::cast(some))
                }
            };
        }
        words.transpose(&mut rows);
        for (row, block) in rows.iter().zip(&mut flat[first..]) {
            words.store(*row, block);
        }
    }
}
