//! Types for the size and the properties of a picture, and for the ways to fit a picture to a size.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use clap::ValueEnum;
use run_record::files::{FileKind, foreign_file};
use serde::{Deserialize, Serialize};

/// Height and width of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size {
    /// Height in pixels.
    pub height: u32,
    /// Width in pixels.
    pub width: u32,
}

impl Size {
    /// Maximum height and width of pictures in a data set, in pixels.
    pub const MOST: u32 = 8192;

    /// Returns the value of `--size`, which is one number for a square.
    pub(crate) fn as_typed(self) -> String {
        if self.height == self.width { self.height.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (height, width) = text.split_once(['x', 'X', '×']).unwrap_or((text, text));
        let most = Self::MOST;
        let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=most).contains(side));
        match (side(height), side(width)) {
            (Some(height), Some(width)) => Ok(Self { height, width }),
            _ => Err(format!(
                "expected height x width in pixels, such as 64x96, or 64 for both; at most {most}"
            )),
        }
    }
}

/// How a picture is fitted to a size with another aspect ratio. Scaling is bilinear, over all pixels of the
/// old picture that a new pixel covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// Scale until the shorter side fits, then cut the middle, as torchvision's Resize and `CenterCrop` do.
    #[default]
    Crop,
    /// Scale until the longer side fits, then add black bars.
    Pad,
    /// Scale height and width each by its own factor.
    Stretch,
}

/// What is known about a picture from its header.
#[derive(Debug)]
pub(crate) struct PictureInfo {
    /// Size of the picture as it is displayed, after applying its orientation.
    pub(crate) size: Size,
    pub(crate) grey: bool,
    /// Descriptions of special properties, for messages.
    pub(crate) special: Vec<&'static str>,
}

/// Description of a picture with an alpha channel.
pub(crate) const TRANSPARENT: &str = "with transparency, which is dropped";

/// What all pictures become: their size, how they are fitted to it, and whether they are grey.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) size: Size,
    pub(crate) fit: Fit,
    pub(crate) grey: bool,
}

/// Returns the format of a file, if it is a picture in a format that is not supported.
pub(crate) fn foreign_picture(path: &Path) -> Option<FileKind> {
    foreign_file(path).filter(|kind| kind.name.contains("picture") && !kind.advice.is_empty())
}
