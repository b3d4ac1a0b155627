//! Where the pixels of a picture are.

use std::path::PathBuf;
use std::sync::Arc;

use crate::DataError;
use crate::formats::{DataFile, NpyFile};
use crate::import::pictures::picture::{PictureInfo, Size, TRANSPARENT};

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

/// An array of bytes whose rows are pictures.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(super) npy: NpyFile,
    pub(super) size: Size,
    pub(super) channels: usize,
    /// Whether channels are before height and width, as PyTorch has them, or behind.
    pub(super) is_planar: bool,
}

impl Pixels {
    /// The pictures of an array of bytes, whose channels are known to be before height and width if `is_planar`.
    pub(crate) fn from_npy(npy: NpyFile, is_planar: bool) -> Result<Self, DataError> {
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
    pub(crate) fn seen(&self) -> PictureInfo {
        let special = if self.channels.is_multiple_of(2) { vec![TRANSPARENT] } else { Vec::new() };
        PictureInfo { size: self.size, grey: self.channels < 3, special }
    }
}
