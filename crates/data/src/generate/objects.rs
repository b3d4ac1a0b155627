//! Generates a data set of images of objects with the same files as CIFAR-10. It is about as difficult as
//! CIFAR-10.
//!
//! Each image shows one main object on a coloured background, with smaller objects behind and in front of it,
//! and with noise. The outline of the main object is the class. The object's surface and hue, and the
//! background, correlate with the class, as the colour green correlates with frogs in photographs. In about a
//! quarter of the images, however, the outline is chosen at random. The class of such an image can only be
//! guessed from surface, hue and background, or memorised. A network that keeps training after it has learned
//! everything else therefore overfits.
//!
//! A sample depends only on the seed, the split and its index, and its bytes are the same on every machine
//! (see [`super::digits`]).

use std::io::{self, Write};
use std::path::Path;

use run_record::files::WholeFile;

use super::AfterSample;
use super::chance::{Chance, Stream};
use super::shapes::{self, Colour, SURFACES, Surface};
use crate::Split;

/// Height and width of an image in pixels.
pub const SIDE: usize = 32;
/// Number of classes.
pub const CLASSES: usize = shapes::NAMES.len();
/// Bytes of an image: the red, the green and the blue plane.
pub const BYTES: usize = 3 * SIDE * SIDE;

/// Number of training files, as in CIFAR-10.
const BATCHES: usize = 5;

/// Share of images in which the outline of the main object is chosen at random from all classes. This share
/// limits the accuracy that a network can reach.
const AMBIGUOUS: f32 = 0.24;
/// Share of images in which the main object has a random surface instead of the surface of its class.
/// `ANY_HUE` and `ANY_GROUND` are the shares of images with a random hue and with a random background.
const ANY_SURFACE: f32 = 0.5;
const ANY_HUE: f32 = 0.5;
const ANY_GROUND: f32 = 0.3;

/// Draws sample `index` of `split` in the data set of `seed`: its image `[3, SIDE, SIDE]` and its label.
///
/// Samples do not depend on each other and can be drawn in any order.
pub fn draw(seed: u64, split: Split, index: u64) -> ([u8; BYTES], u8) {
    let chance = &mut Chance::of_sample(Stream::Objects, seed, split, index);
    let class = chance.below(CLASSES);
    let mut canvas = ground(class, chance);
    for _ in 0..chance.below(3) {
        let mut thing = Thing::any(chance);
        thing.radius = chance.between(2.0, 4.5);
        thing.paint(&mut canvas, chance);
    }
    Thing::for_class(class, chance).paint(&mut canvas, chance);
    for _ in 0..chance.below(3) {
        let mut thing = Thing::any(chance);
        thing.radius = chance.between(1.5, 3.5);
        thing.paint(&mut canvas, chance);
    }
    (develop(&canvas, chance), class as u8)
}

type Canvas = [Colour; SIDE * SIDE];

/// Draws the background: a gradient between two colours, with a pattern over it.
fn ground(class: usize, chance: &mut Chance) -> Box<Canvas> {
    let own = !chance.happens(ANY_GROUND);
    let hue = if own { own_hue(class * 7 + 3, chance) } else { chance.between(0.0, 1.0) };
    // Some classes have light backgrounds and some have dark ones. This brightness is nearly all that a deep
    // network learns at first. If all classes had the same brightness, weight decay might prevent any
    // learning.
    let light = if own { 0.15 + 0.075 * (class * 3 % CLASSES) as f32 } else { chance.between(0.3, 0.8) };
    let mut colours = || {
        let brightness = (light + chance.normal(0.1)).clamp(0.05, 1.0);
        shapes::colour(hue + chance.normal(0.08), chance.between(0.1, 0.7), brightness)
    };
    let (from, to) = (colours(), colours());
    let way = [chance.between(-1.0, 1.0), chance.between(-1.0, 1.0)];
    let (pattern, hue) = (chance.below(SURFACES), chance.between(0.0, 1.0));
    let surface = Surface::new(pattern, hue, chance);
    let strength = chance.between(0.0, 0.3);
    let mut canvas = Box::new([[0.0; 3]; SIDE * SIDE]);
    for (at, pixel) in canvas.iter_mut().enumerate() {
        let (x, y) = ((at % SIDE) as f32, (at / SIDE) as f32);
        let part = 0.5 + (way[0] * (x - 15.5) + way[1] * (y - 15.5)) / 32.0;
        let plain = shapes::mix(from, to, part.clamp(0.0, 1.0));
        *pixel = shapes::mix(plain, surface.at(x, y, chance), strength);
    }
    canvas
}

/// Chooses a hue at random near `tenth` tenths of the colour circle.
fn own_hue(tenth: usize, chance: &mut Chance) -> f32 {
    0.1 * (tenth % 10) as f32 + chance.normal(0.06)
}

/// An object on the canvas.
struct Thing {
    shape: usize,
    surface: Surface,
    centre: [f32; 2],
    radius: f32,
    /// Cosine and sine of the rotation angle.
    rotation: [f32; 2],
    /// Ratio of width to height.
    stretch: f32,
    slant: f32,
    opacity: f32,
}

impl Thing {
    /// Chooses the main object of an image of `class` at random.
    fn for_class(class: usize, chance: &mut Chance) -> Self {
        let mut thing = Self::any(chance);
        if !chance.happens(AMBIGUOUS) {
            thing.shape = class;
        }
        let pattern = if chance.happens(ANY_SURFACE) { chance.below(SURFACES) } else { class % SURFACES };
        let any_hue = chance.happens(ANY_HUE);
        let hue = if any_hue { chance.between(0.0, 1.0) } else { own_hue(class * 3, chance) };
        thing.surface = Surface::new(pattern, hue, chance);
        thing.centre = [15.5 + chance.normal(2.5), 15.5 + chance.normal(2.5)];
        thing.radius = chance.between(7.0, 14.0);
        let angle = chance.normal(0.35);
        thing.rotation = [libm::cosf(angle), libm::sinf(angle)];
        thing.opacity = chance.between(0.7, 1.0);
        thing
    }

    /// Chooses an object and its position at random.
    fn any(chance: &mut Chance) -> Self {
        let (shape, pattern, hue) = (chance.below(CLASSES), chance.below(SURFACES), chance.between(0.0, 1.0));
        let angle = chance.between(0.0, std::f32::consts::TAU);
        Self {
            shape,
            surface: Surface::new(pattern, hue, chance),
            centre: [chance.between(0.0, 31.0), chance.between(0.0, 31.0)],
            radius: 4.0,
            rotation: [libm::cosf(angle), libm::sinf(angle)],
            stretch: chance.between(0.7, 1.4),
            slant: chance.normal(0.25),
            opacity: chance.between(0.6, 1.0),
        }
    }

    fn paint(&self, canvas: &mut Canvas, chance: &mut Chance) {
        for (at, pixel) in canvas.iter_mut().enumerate() {
            let (column, row) = ((at % SIDE) as f32, (at / SIDE) as f32);
            let (x, y) = (column - self.centre[0], row - self.centre[1]);
            let (u, v) =
                (x * self.rotation[0] + y * self.rotation[1], y * self.rotation[0] - x * self.rotation[1]);
            let (u, v) = ((u + self.slant * v) / (self.radius * self.stretch), v / self.radius);
            let cover = 0.5 - self.radius * shapes::outside(self.shape, u, v);
            if cover > 0.0 {
                let colour = self.surface.at(column, row, chance);
                *pixel = shapes::mix(*pixel, colour, self.opacity * cover.min(1.0));
            }
        }
    }
}

/// Converts colours to bytes as a cheap camera would: with random tint, contrast and noise.
fn develop(canvas: &Canvas, chance: &mut Chance) -> [u8; BYTES] {
    let contrast = chance.between(0.75, 1.2);
    let light = chance.normal(0.06);
    let noise = chance.between(0.01, 0.06);
    let tint: Colour = std::array::from_fn(|_| chance.normal(0.05));
    let mut bytes = [0; BYTES];
    for (at, pixel) in canvas.iter().enumerate() {
        for (channel, value) in pixel.iter().enumerate() {
            let value = 0.5 + contrast * (value - 0.5) + light + tint[channel] + chance.normal(noise);
            // Casts of floats saturate at 0 and 255.
            bytes[channel * SIDE * SIDE + at] = (255.0 * value + 0.5) as u8;
        }
    }
    bytes
}

/// Writes the data set of `seed` into the existing folder `out`, as the files of CIFAR-10: `train` training
/// samples, divided among at most five files, and `test` test samples in one file. Training files that remain
/// from an earlier, larger data set are removed.
///
/// After each sample, `progress` is called with the number of samples written so far, in both splits
/// together.
///
/// # Errors
/// When a file cannot be written, when an old file cannot be removed, or when `progress` returns an error.
///
/// # Panics
/// If `train` is 0.
pub fn write(out: &Path, train: usize, test: usize, seed: u64, progress: AfterSample<'_>) -> io::Result<()> {
    let mut done = 0;
    let mut batch = |name: &str, split, samples: std::ops::Range<usize>| -> io::Result<()> {
        let mut file = WholeFile::create(out, name)?;
        for index in samples {
            let (image, label) = draw(seed, split, index as u64);
            file.write_all(&[label])?;
            file.write_all(&image)?;
            done += 1;
            progress(done)?;
        }
        file.finish()
    };
    // All files but the last have `each` samples. If there are few samples, fewer than five files are
    // written, because a file of CIFAR-10 is never empty.
    let each = train.div_ceil(BATCHES);
    for number in 0..train.div_ceil(each) {
        let samples = number * each..train.min((number + 1) * each);
        batch(&format!("data_batch_{}.bin", number + 1), Split::Train, samples)?;
    }
    batch("test_batch.bin", Split::Test, 0..test)?;
    for number in train.div_ceil(each) + 1.. {
        match std::fs::remove_file(out.join(format!("data_batch_{number}.bin"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            result => result?,
        }
    }
    let mut names = WholeFile::create(out, "batches.meta.txt")?;
    for name in shapes::NAMES {
        writeln!(names, "{name}")?;
    }
    names.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the FNV-1a hash of images and labels.
    fn checksum(seed: u64, split: Split, count: u64) -> u64 {
        let samples = (0..count).map(|index| draw(seed, split, index));
        let bytes = samples.flat_map(|(image, label)| image.into_iter().chain([label]));
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn bytes_are_the_same_on_every_machine() {
        assert_eq!(checksum(7, Split::Train, 200), 0x0e3f_719a_58c4_c7a6);
        assert_eq!(checksum(7, Split::Test, 200), 0xd5db_7e96_ead1_20c0);
    }

    #[test]
    fn seeds_splits_and_indices_draw_different_samples() {
        let base = draw(7, Split::Train, 3).0;
        for other in [draw(8, Split::Train, 3), draw(7, Split::Test, 3), draw(7, Split::Train, 4)] {
            assert_ne!(base, other.0);
        }
    }

    #[test]
    fn labels_are_balanced_and_images_use_the_whole_range() {
        let (mut counts, mut tones) = ([0; CLASSES], [0u64; 256]);
        for index in 0..2000 {
            let (image, label) = draw(1, Split::Train, index);
            counts[usize::from(label)] += 1;
            image.iter().for_each(|&byte| tones[usize::from(byte)] += 1);
        }
        assert!(counts.iter().all(|count| (140..260).contains(count)), "{counts:?}");
        let total: u64 = tones.iter().sum();
        let share = |range: std::ops::Range<usize>| tones[range].iter().sum::<u64>() as f64 / total as f64;
        assert!(
            share(0..64) > 0.1 && share(192..256) > 0.05,
            "dark {} light {}",
            share(0..64),
            share(192..256)
        );
        assert!(tones[0] + tones[255] < total / 5, "few pixels are saturated");
    }

    #[test]
    fn a_smaller_data_set_removes_the_files_of_a_larger_one() {
        let root = tempfile::tempdir().unwrap();
        let names = || {
            let entries = std::fs::read_dir(root.path()).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        write(root.path(), 10, 2, 1, &|_| Ok(())).unwrap();
        let five = ["1", "2", "3", "4", "5"].map(|n| format!("data_batch_{n}.bin"));
        assert_eq!(
            names(),
            [&["batches.meta.txt".to_owned()], &five[..], &["test_batch.bin".to_owned()]].concat()
        );
        write(root.path(), 2, 2, 1, &|_| Ok(())).unwrap();
        assert_eq!(names(), ["batches.meta.txt", "data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"]);
    }
}
