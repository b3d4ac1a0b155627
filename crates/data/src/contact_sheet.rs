//! Contact sheet: a picture that shows the first training samples of each class.

use std::fmt::Display;
use std::path::Path;

use run_record::files::replace_file;

use crate::import::pictures::codec;
use crate::{DataError, Element, SampleSource, Split};

/// Maximum number of samples of a class in a sheet.
const COLUMNS: usize = 12;
/// Maximum number of classes in a sheet.
const ROWS: usize = 512;
/// Each pixel of a sample is drawn as a square with sides of this many pixels.
const ZOOM: usize = 2;
/// Gap between samples, in pixels.
const GAP: usize = 2;

/// Draws the first 12 training samples of each class, one row for each class, and writes the picture to the
/// PNG file `path`. An existing file is replaced. Only the first 512 classes are drawn.
///
/// A feature vector is drawn as a grey rectangle with one pixel for each feature. The lowest feature of the
/// vector is black, and the highest is white.
///
/// # Errors
/// When the samples cannot be read, `path` does not end in `.png`, the file cannot be written, or the build
/// lacks the feature `pictures`.
pub fn draw(path: &Path, source: &SampleSource) -> Result<(), DataError> {
    let failed = |why: &dyn Display| DataError::Files(format!("cannot write the picture: {why}"));
    if !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png")) {
        return Err(failed(&"the file name must end in .png"));
    }
    let (width, pixels) = sheet(source)?;
    let size = [width as u32, (pixels.len() / width) as u32];
    let png = codec::png(size, &pixels).map_err(|error| failed(&error))?;
    replace_file(path, &png).map_err(|error| failed(&error))
}

/// Returns the width of the sheet in pixels, and the pixels of the sheet, row by row from the top.
fn sheet(source: &SampleSource) -> Result<(usize, Vec<[u8; 3]>), DataError> {
    let description = source.description();
    let [tile_width, tile_height] = tile(description.shape);
    let (step_x, step_y) = (tile_width * ZOOM + GAP, tile_height * ZOOM + GAP);
    let width = COLUMNS * step_x + GAP;
    let mut pixels = vec![[255; 3]; width * (description.classes.min(ROWS) * step_y + GAP)];
    for (class, row) in choose(source)?.iter().enumerate() {
        for (column, picture) in row.iter().enumerate() {
            for (at, &pixel) in picture.iter().enumerate() {
                let x = GAP + column * step_x + at % tile_width * ZOOM;
                let y = GAP + class * step_y + at / tile_width * ZOOM;
                for line in y..y + ZOOM {
                    pixels[line * width + x..][..ZOOM].fill(pixel);
                }
            }
        }
    }
    Ok((width, pixels))
}

/// Returns the width and height of a sample's drawing, in pixels before the enlargement by [`ZOOM`]. A
/// feature vector is drawn in rows of 32 features.
fn tile([_, height, width]: [usize; 3]) -> [usize; 2] {
    match height {
        1 => [32, width.div_ceil(32)],
        _ => [width, height],
    }
}

/// Returns the pixels of the first [`COLUMNS`] training samples of each class, indexed by class.
fn choose(source: &SampleSource) -> Result<Vec<Vec<Vec<[u8; 3]>>>, DataError> {
    let description = source.description();
    let labels = source.labels(Split::Train, usize::MAX)?;
    let mut tiles = vec![Vec::new(); description.classes.min(ROWS)];
    source.for_each_sample(Split::Train, usize::MAX, &mut |sample, bytes| {
        let row = tiles.get_mut(usize::from(labels[sample])).filter(|row| row.len() < COLUMNS);
        if let Some(row) = row {
            row.push(picture(bytes, description.shape, description.element));
        }
    })?;
    Ok(tiles)
}

/// Converts a sample to RGB pixels. If the sample has fewer than 3 channels, its last channel is repeated.
/// Channels after the third are ignored. Floats are scaled to bytes: the sample's lowest value becomes 0 and
/// its highest 255.
fn picture(bytes: &[u8], [channels, height, width]: [usize; 3], element: Element) -> Vec<[u8; 3]> {
    let scaled: Vec<u8>;
    let bytes = match element {
        Element::U8 => bytes,
        _ => {
            let mut values = Vec::new();
            element.cast(bytes, &mut values);
            let low = values.iter().copied().fold(f32::INFINITY, f32::min);
            let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let span = (high - low).max(f32::MIN_POSITIVE);
            scaled = values.iter().map(|value| (255.0 * (value - low) / span) as u8).collect();
            &scaled
        }
    };
    let (plane, last) = (height * width, channels - 1);
    (0..plane).map(|at| [0, 1, 2].map(|colour| bytes[colour.min(last) * plane + at])).collect()
}

#[cfg(all(test, feature = "pictures"))]
mod tests {
    use super::*;
    use crate as data;
    use crate::generate::{features, objects};

    /// Reads width and height from the header of a PNG file.
    fn size(path: &Path) -> (u32, u32) {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes[..8], *b"\x89PNG\r\n\x1a\n");
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        (number(16), number(20))
    }

    #[test]
    fn a_sheet_has_a_row_for_each_class() {
        let root = tempfile::tempdir().unwrap();
        let (images, vectors) = (root.path().join("i"), root.path().join("v"));
        std::fs::create_dir_all(&images).unwrap();
        objects::write(&images, 40, 1, 1, &|_| Ok(())).unwrap();
        features::write(&vectors, 200, 60, 1, &|_| Ok(())).unwrap();
        let file = root.path().join("sheet.png");
        draw(&file, &data::open(&images).unwrap()).unwrap();
        assert_eq!(size(&file), (12 * 66 + 2, 10 * 66 + 2));
        draw(&file, &data::open(&vectors).unwrap()).unwrap();
        assert_eq!(size(&file), (12 * 66 + 2, 20 * 34 + 2));
        let source = data::open(&images).unwrap();
        for bad in ["sheet.jpg", "sheet", "none/sheet.png"] {
            let message = draw(&root.path().join(bad), &source).unwrap_err().to_string();
            assert!(message.contains("cannot write") && message.lines().count() == 1, "{message}");
        }
    }

    #[test]
    fn samples_are_in_the_row_of_their_class() {
        let root = tempfile::tempdir().unwrap();
        objects::write(root.path(), 40, 1, 1, &|_| Ok(())).unwrap();
        let (width, pixels) = sheet(&data::open(root.path()).unwrap()).unwrap();
        let (image, label) = objects::draw(1, Split::Train, 0);
        for (row, column) in [(0, 0), (7, 31), (31, 2)] {
            let at = row * 32 + column;
            let expected = [image[at], image[1024 + at], image[2048 + at]];
            for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let y = 2 + usize::from(label) * 66 + 2 * row + down;
                assert_eq!(pixels[y * width + 2 + 2 * column + right], expected);
            }
        }
        assert_eq!(pixels[width * 2], [255; 3], "a gap");
    }

    #[test]
    fn samples_are_converted_to_pixels() {
        assert_eq!(picture(&[0, 255, 10, 20, 30, 40], [3, 1, 2], Element::U8), [[0, 10, 30], [255, 20, 40]]);
        assert_eq!(picture(&[7, 9], [1, 1, 2], Element::U8), [[7; 3], [9; 3]]);
        let floats = [2.0f32, 4.0, 3.0].map(f32::to_le_bytes);
        assert_eq!(picture(floats.as_flattened(), [1, 1, 3], Element::F32), [[0; 3], [255; 3], [127; 3]]);
        assert_eq!(picture(floats[..2].as_flattened(), [2, 1, 1], Element::F32), [[0, 255, 255]]);
        assert_eq!(picture(&[1, 2, 3, 4], [4, 1, 1], Element::U8), [[1, 2, 3]]);
    }
}
