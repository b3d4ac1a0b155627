//! Augmentation: random changes of the training images, different in each epoch.
//!
//! How an image changes depends only on the chosen augmentations, the run's seed, the epoch and the sample's
//! index. It does not depend on sharding, batches or threads. Pixels are computed from bytes with integer
//! arithmetic. Only the rotation angle is a float, and its sine and cosine come from `libm`. Every machine
//! therefore gets the same bits.

use std::fmt;
use std::str::FromStr;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Zero padding before a random crop, in pixels.
const PADDING: i32 = 4;
/// Brightness, contrast and saturation change by factors from `1 - JITTER / 256` to `1 + JITTER / 256`: by up
/// to about 20 %.
const JITTER: i32 = 51;
/// Maximum rotation in radians: 15 degrees.
const TURN: f32 = 15.0 * std::f32::consts::PI / 180.0;

/// A kind of augmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AugmentationKind {
    /// Random crop: the image gets 4 pixels of zero padding on each side, and an area of its original size is
    /// cut out.
    Crop,
    /// Horizontal flip with probability 0.5.
    Flip,
    /// Random change of brightness, contrast and saturation, in this order, each by up to about 20 %.
    Jitter,
    /// Random rotation around the centre by up to 15 degrees. Pixels from outside the image are black.
    Rotate,
}

impl AugmentationKind {
    /// All kinds with their names, in the order in which they are applied.
    const ALL: [(Self, &str); 4] =
        [(Self::Crop, "crop"), (Self::Flip, "flip"), (Self::Jitter, "jitter"), (Self::Rotate, "rotate")];
}

/// A set of augmentations. They are applied in the order of `AugmentationKind`: the order in which the user
/// lists them does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Augmentation([bool; 4]);

impl FromStr for Augmentation {
    type Err = String;

    /// Reads comma-separated names, such as `crop,flip`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut chosen = Self::default();
        for word in text.split(',').map(str::trim) {
            let Some((change, _)) = AugmentationKind::ALL.into_iter().find(|(_, name)| *name == word) else {
                let names = AugmentationKind::ALL.map(|(_, name)| name).join(",");
                return Err(format!("unknown augmentation \"{word:.60}\": choose from {names}"));
            };
            if std::mem::replace(&mut chosen.0[change as usize], true) {
                return Err(format!("{word} is given twice"));
            }
        }
        Ok(chosen)
    }
}

impl TryFrom<String> for Augmentation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Augmentation> for String {
    fn from(augmentation: Augmentation) -> Self {
        augmentation.to_string()
    }
}

impl fmt::Display for Augmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = AugmentationKind::ALL.into_iter().filter(|(change, _)| self.0[*change as usize]);
        f.pad(&chosen.map(|(_, name)| name).collect::<Vec<_>>().join(","))
    }
}

impl Augmentation {
    /// Augments one image in place. `shape` has channels, height and width. `seed` is the seed of the run,
    /// and `sample` is the index of the sample in the data set.
    ///
    /// # Panics
    /// If the length of `image` does not match `shape`.
    pub fn apply(self, image: &mut [u8], shape: [usize; 3], seed: u64, epoch: u64, sample: u64) {
        assert_eq!(image.len(), shape.iter().product::<usize>(), "an image of {shape:?}");
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&epoch.to_le_bytes());
        key[16..24].copy_from_slice(&sample.to_le_bytes());
        // Other modules also make keys from the seed of the run. This byte makes the key of augmentations
        // different, so that their random numbers are different too.
        key[31] = 1;
        let mut rng = ChaCha8Rng::from_seed(key);
        // Draw random numbers for each kind of augmentation, even for kinds that are off. Switching one kind
        // on therefore does not change the random numbers of the others.
        let mut below = |n: u32| ((u64::from(rng.next_u32()) * u64::from(n)) >> 32) as i32;
        for (change, _) in AugmentationKind::ALL {
            let draw = [below(2 * PADDING as u32 + 1), below(2 * PADDING as u32 + 1), below(1 << 24)];
            let factors = [(); 3].map(|()| 256 - JITTER + below(2 * JITTER as u32 + 1));
            if !self.0[change as usize] {
                continue;
            }
            match change {
                AugmentationKind::Crop => crop(image, shape, [draw[0] - PADDING, draw[1] - PADDING]),
                AugmentationKind::Flip if draw[2] & 1 == 1 => flip(image, shape),
                AugmentationKind::Flip => {}
                AugmentationKind::Jitter => jitter(image, shape, factors),
                AugmentationKind::Rotate => {
                    rotate(image, shape, TURN * (draw[2] as f32 / (1 << 23) as f32 - 1.0))
                }
            }
        }
    }
}

/// Shifts the image: the pixel at row `down` and column `right` moves to the top left corner. Both numbers
/// may be negative. Pixels from outside the image are 0.
fn crop(image: &mut [u8], [_, height, width]: [usize; 3], [down, right]: [i32; 2]) {
    let source = image.to_vec();
    let size = height * width;
    for (plane, source) in image.chunks_exact_mut(size).zip(source.chunks_exact(size)) {
        for (row, pixels) in plane.chunks_exact_mut(width).enumerate() {
            let from = usize::try_from(row as i32 + down).ok().filter(|&from| from < height);
            let source = from.map_or(&[][..], |from| &source[from * width..(from + 1) * width]);
            for (column, pixel) in pixels.iter_mut().enumerate() {
                let from = usize::try_from(column as i32 + right).ok();
                *pixel = from.and_then(|from| source.get(from)).copied().unwrap_or(0);
            }
        }
    }
}

fn flip(image: &mut [u8], [.., width]: [usize; 3]) {
    image.chunks_exact_mut(width).for_each(<[u8]>::reverse);
}

/// Changes brightness, then contrast (the distance of pixels from the mean grey), then saturation. `factors`
/// has one factor for each of these three changes, in 1/256. Pixels are rounded to bytes after each of the
/// three changes. Saturation changes only in images of 3 channels.
fn jitter(image: &mut [u8], [channels, height, width]: [usize; 3], factors: [i32; 3]) {
    let plane = height * width;
    let through = |image: &mut [u8], factor: i32, around: i32| {
        let table: [u8; 256] = std::array::from_fn(|byte| blend(byte as i32, around, factor));
        image.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
    };
    through(image, factors[0], 0);
    let total: u64 = match channels {
        3 => (0..plane).map(|at| grey(image, plane, at) as u64).sum(),
        _ => image.iter().map(|&byte| u64::from(byte)).sum::<u64>() / channels as u64,
    };
    through(image, factors[1], (total / plane as u64) as i32);
    if channels == 3 {
        for at in 0..plane {
            let grey = grey(image, plane, at);
            for byte in [at, plane + at, 2 * plane + at] {
                image[byte] = blend(i32::from(image[byte]), grey, factors[2]);
            }
        }
    }
}

/// Returns `(factor * value + (256 - factor) * other) / 256`, rounded and clamped to a byte.
fn blend(value: i32, other: i32, factor: i32) -> u8 {
    ((value * factor + other * (256 - factor) + 128) >> 8).clamp(0, 255) as u8
}

/// Returns the luma of the pixel with the index `at`. The weights are those of ITU-R BT.601, in 1/256.
fn grey(image: &[u8], plane: usize, at: usize) -> i32 {
    let [red, green, blue] = [at, plane + at, 2 * plane + at].map(|byte| i32::from(image[byte]));
    (77 * red + 150 * green + 29 * blue + 128) >> 8
}

/// Rotates the image by `angle` radians around its centre with bilinear interpolation. Pixels from outside
/// the image are 0.
fn rotate(image: &mut [u8], [channels, height, width]: [usize; 3], angle: f32) {
    let plane = height * width;
    // Fixed-point arithmetic: coordinates in 1/256 of a pixel, sine and cosine in 1/65536.
    let fixed = |value: f32| (value * 65536.0) as i64;
    let (sin, cos) = (fixed(libm::sinf(angle)), fixed(libm::cosf(angle)));
    let middle = |size: usize| 128 * (size as i64 - 1);
    let source = image.to_vec();
    for row in 0..height {
        for column in 0..width {
            let (x, y) = (256 * column as i64 - middle(width), 256 * row as i64 - middle(height));
            let from_x = ((cos * x + sin * y) >> 16) + middle(width);
            let from_y = ((cos * y - sin * x) >> 16) + middle(height);
            let (left, top) = ((from_x >> 8) as isize, (from_y >> 8) as isize);
            let (right, down) = ((from_x & 255) as u32, (from_y & 255) as u32);
            let corners = [
                (top, left, (256 - down) * (256 - right)),
                (top, left + 1, (256 - down) * right),
                (top + 1, left, down * (256 - right)),
                (top + 1, left + 1, down * right),
            ];
            for channel in 0..channels {
                let sum: u32 = corners
                    .iter()
                    .filter(|&&(y, x, _)| {
                        (0..height as isize).contains(&y) && (0..width as isize).contains(&x)
                    })
                    .map(|&(y, x, share)| {
                        share * u32::from(source[channel * plane + y as usize * width + x as usize])
                    })
                    .sum();
                image[channel * plane + row * width + column] = ((sum + (1 << 15)) >> 16) as u8;
            }
        }
    }
}

#[cfg(test)]
#[path = "augment_tests.rs"]
mod tests;
