//! Where the pixels of a picture are.

use std::io::{BufRead, BufReader, Cursor, Seek};
use std::path::PathBuf;
use std::sync::Arc;

use image::DynamicImage;
use run_record::files::open_regular;

use crate::DataError;
use crate::formats::{DataFile, NpyFile};
use crate::import::pictures::picture::{Seen, Size, TRANSPARENT};

/// Where a picture is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In a picture's file.
    Encoded(Encoded),
    /// In a row of an array.
    Row(Arc<Pixels>, usize),
}

/// A picture's file.
#[derive(Debug, Clone)]
pub(crate) enum Encoded {
    /// Of its own.
    File(PathBuf),
    /// As a part of another file.
    Part { file: Arc<DataFile>, start: usize, bytes: usize },
}

/// The bytes of a picture's file.
pub(crate) trait Contents: BufRead + Seek {}

impl<T: BufRead + Seek> Contents for T {}

impl Encoded {
    /// The file, opened.
    pub(crate) fn contents(&self) -> Result<Box<dyn Contents>, String> {
        match self {
            Self::File(path) => {
                let file = open_regular(path).map_err(|error| match path.is_symlink() {
                    true => format!("is a link that leads nowhere: {error}"),
                    false => error.to_string(),
                })?;
                Ok(Box::new(BufReader::new(file)))
            }
            Self::Part { file, start, bytes } => {
                let mut contents = vec![0; *bytes];
                file.read(*start, &mut contents).map_err(|error| error.to_string())?;
                Ok(Box::new(Cursor::new(contents)))
            }
        }
    }
}

/// An array of bytes whose rows are pictures.
#[derive(Debug)]
pub(crate) struct Pixels {
    npy: NpyFile,
    size: Size,
    channels: usize,
    /// Whether channels are before height and width, as PyTorch has them, or behind.
    is_planar: bool,
}

impl Pixels {
    /// The pictures of an array of bytes, whose channels are known to be before height and width if `is_planar`.
    pub(crate) fn of(npy: NpyFile, is_planar: bool) -> Result<Self, DataError> {
        /// Most channels: red, green, blue and transparency.
        const MOST: usize = 4;
        let [height, width, channels, is_planar] = match npy.shape[..] {
            [_, height, width] => [height, width, 1, 0],
            [_, height, width, channels @ 1..=MOST] if !is_planar => [height, width, channels, 0],
            [_, channels @ 1..=MOST, height, width] => [height, width, channels, 1],
            _ => {
                bail!(
                    &npy.file.path,
                    "its shape is {:?}: pictures are [samples, height, width], with 1 to {MOST} channels before or behind \
                     height and width",
                    npy.shape
                );
            }
        };
        let side = |pixels: usize| u32::try_from(pixels).ok().filter(|side| (1..=Size::MOST).contains(side));
        match (side(height), side(width)) {
            (Some(height), Some(width)) => {
                Ok(Self { npy, size: Size { height, width }, channels, is_planar: is_planar == 1 })
            }
            _ => bail!(
                &npy.file.path,
                "its pictures are {height} x {width} pixels: 1 to {} are possible",
                Size::MOST
            ),
        }
    }

    /// What is known of each picture.
    pub(crate) fn seen(&self) -> Seen {
        let special = if self.channels.is_multiple_of(2) { vec![TRANSPARENT] } else { Vec::new() };
        Seen { size: self.size, grey: self.channels < 3, special }
    }

    /// The picture in a row.
    pub(crate) fn picture(&self, row: usize) -> Result<DynamicImage, String> {
        let mut bytes = vec![0; self.npy.columns];
        self.npy.row(row, &mut bytes).map_err(|error| error.to_string())?;
        let plane = bytes.len() / self.channels;
        let pixels = |channels: usize| -> Vec<u8> {
            let [next_pixel, next_channel] = if self.is_planar { [1, plane] } else { [self.channels, 1] };
            let byte = |pixel, channel| bytes[pixel * next_pixel + channel * next_channel];
            (0..plane)
                .flat_map(|pixel| (0..channels).map(move |channel| (pixel, channel)))
                .map(|(p, c)| byte(p, c))
                .collect()
        };
        let Size { height, width } = self.size;
        let picture = match self.channels {
            1 | 2 => image::GrayImage::from_raw(width, height, pixels(1)).map(DynamicImage::from),
            _ => image::RgbImage::from_raw(width, height, pixels(3)).map(DynamicImage::from),
        };
        picture.ok_or_else(|| "has another number of pixels".into())
    }
}
