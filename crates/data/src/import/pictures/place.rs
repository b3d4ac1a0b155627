//! Where the pixels of a picture are stored.

use std::path::PathBuf;
use std::sync::Arc;

use crate::DataError;
use crate::formats::{DataFile, NpyFile};
use crate::import::pictures::picture::{PictureInfo, Size, TRANSPARENT};

/// Where a picture is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In a picture file, such as a JPEG.
    Encoded(Encoded),
    /// In a row of an array. The number is the index of the row.
    Row(Arc<Pixels>, usize),
}

/// An encoded picture, such as a JPEG.
#[derive(Debug, Clone)]
pub(crate) enum Encoded {
    /// A whole file.
    File(PathBuf),
    /// The `bytes` bytes of another file that begin at the offset `start`.
    Part { file: Arc<DataFile>, start: usize, bytes: usize },
}

/// An array of bytes with a picture in each row.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(super) npy: NpyFile,
    pub(super) size: Size,
    pub(super) channels: usize,
    /// Whether the channels come before height and width, as in PyTorch, or after them.
    pub(super) is_planar: bool,
}

impl Pixels {
    /// Returns the pictures of an array as [`Pixels`]. If `is_planar` is true, the channels come before
    /// height and width. If it is false, the shape shows where the channels are.
    pub(crate) fn from_npy(npy: NpyFile, is_planar: bool) -> Result<Self, DataError> {
        /// Maximum number of channels: red, green, blue and transparency.
        const MOST: usize = 4;
        let [height, width, channels, is_planar] = match npy.shape[..] {
            [_, height, width] => [height, width, 1, 0],
            [_, height, width, channels @ 1..=MOST] if !is_planar => [height, width, channels, 0],
            [_, channels @ 1..=MOST, height, width] => [height, width, channels, 1],
            _ => {
                bail!(
                    &npy.file.path,
                    "has the shape {:?}: pictures must have the shape [samples, height, width], with 1 to {MOST} \
                     channels before or after height and width",
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
                "contains pictures of {height} x {width} pixels: height and width must be 1 to {}",
                Size::MOST
            ),
        }
    }

    /// Returns what is known about each picture. With 2 or 4 channels, the last one is transparency.
    pub(crate) fn seen(&self) -> PictureInfo {
        let special = if self.channels.is_multiple_of(2) { vec![TRANSPARENT] } else { Vec::new() };
        PictureInfo { size: self.size, grey: self.channels < 3, special }
    }
}
