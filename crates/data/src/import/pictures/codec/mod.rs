//! Decodes pictures with the `image` crate: reads their headers, and converts their pixels to the channels
//! and the size of the data set.

mod truncated;

use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};

use image::codecs::{
    bmp::BmpDecoder,
    gif::GifDecoder,
    png::{CompressionType, FilterType as PngFilter, PngDecoder, PngEncoder},
    webp::WebPDecoder,
};
use image::error::UnsupportedErrorKind;
use image::imageops::{self, FilterType};
use image::metadata::Orientation;
use image::{
    AnimationDecoder, ColorType, DynamicImage, ExtendedColorType, GrayImage, ImageBuffer, ImageDecoder,
    ImageEncoder, ImageError, ImageFormat, ImageReader, Pixel,
};
use run_record::files::{foreign, open_regular};

use super::picture::{Fit, PictureInfo, Size, TRANSPARENT, Target};
use super::place::{Encoded, Pixels, Place};
use crate::error::damage;

/// Maximum number of pixels of a picture. A picture with more pixels is rejected as a decompression bomb.
/// Pillow has the same limit.
const MOST_PIXELS: u64 = 2 * 89_478_485;

/// The bytes of a picture file.
trait Contents: BufRead + Seek {}

impl<T: BufRead + Seek> Contents for T {}

impl Encoded {
    /// Returns a reader of the bytes of the picture file.
    fn contents(&self) -> Result<Box<dyn Contents>, String> {
        match self {
            Self::File(path) => {
                let file = open_regular(path).map_err(|error| {
                    if path.is_symlink() { format!("is a broken link: {error}") } else { error.to_string() }
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

/// Returns the decoder and the orientation of the picture, and its format according to its first bytes.
fn open(file: &Encoded) -> Result<(impl ImageDecoder + use<>, ImageFormat, Orientation), String> {
    let mut contents = file.contents()?;
    let beginning = contents.fill_buf().map_err(|error| error.to_string())?;
    if beginning.is_empty() {
        return Err("is empty".into());
    }
    let kind = foreign(beginning);
    let mut reader = ImageReader::new(contents).with_guessed_format().map_err(|e| e.to_string())?;
    let other = || match kind {
        Some(kind) => format!("is {kind}"),
        None => "is not a picture in a supported format".into(),
    };
    let format = reader.format().filter(ImageFormat::reading_enabled).ok_or_else(other)?;
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(MOST_PIXELS * 8);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(reason)?;
    check_pixels(decoder.dimensions())?;
    let mut orientation = decoder.orientation().map_err(reason)?;
    if format == ImageFormat::Png && orientation == Orientation::NoTransforms {
        // The decoder has read only the chunks before the pixels. The orientation may be in a chunk after the
        // pixels.
        let late = png_chunk(file, *b"eXIf").and_then(|exif| Orientation::from_exif_chunk(&exif));
        orientation = late.unwrap_or(orientation);
    }
    Ok((decoder, format, orientation))
}

/// Returns why a picture cannot be decoded. The decoder's own message is not used because it names internal
/// types of the decoder.
fn reason(error: ImageError) -> String {
    let text = error.to_string();
    for (words, kind) in [
        ("RGBPalette", "a TIFF with a palette"),
        ("can only parse 8-bit images", "a JPEG with a depth other than 8 bits per channel"),
    ] {
        if text.contains(words) {
            return format!("is {kind}, which is not supported: save it as PNG");
        }
    }
    let what = match &error {
        ImageError::IoError(error) => match damage(error) {
            Some(what) => what,
            None => return text,
        },
        ImageError::Unsupported(error) => {
            let feature = match error.kind() {
                UnsupportedErrorKind::GenericFeature(feature) if !feature.contains(['{', '(']) => {
                    &format!("a feature ({feature})")
                }
                UnsupportedErrorKind::Color(_) => "a colour type",
                _ => "a feature",
            };
            return format!("has {feature} that is not supported: save it as PNG");
        }
        ImageError::Limits(_) => "is damaged, or needs too much memory",
        _ => "is damaged",
    };
    format!("{what}: {AGAIN}")
}

/// What to do about a damaged picture.
const AGAIN: &str = "save or download it again";

fn check_pixels((width, height): (u32, u32)) -> Result<(), String> {
    match u64::from(width) * u64::from(height) {
        0 => Err(format!("has {height} x {width} pixels: {AGAIN}")),
        1..=MOST_PIXELS => Ok(()),
        _ => Err(format!(
            "declares {height} x {width} pixels, more than {MOST_PIXELS}: rejected as a decompression bomb"
        )),
    }
}

/// Reads the header of a picture.
pub(crate) fn look(place: &Place) -> Result<PictureInfo, String> {
    let file = match place {
        Place::Encoded(file) => file,
        Place::Row(pixels, _) => return Ok(pixels.seen()),
    };
    let (decoder, format, orientation) = open(file)?;
    let [animated, palette] = frames_and_palette(file, format).unwrap_or_default();
    let (width, height) = decoder.dimensions();
    let colour = decoder.color_type();
    // EXIF orientations 5 to 8 swap height and width.
    let is_turned = orientation.to_exif() >= 5;
    let (width, height) = if is_turned { (height, width) } else { (width, height) };
    let original = decoder.original_color_type();
    let is_misnamed = match file {
        Encoded::File(path) => ImageFormat::from_path(path).ok() != Some(format),
        Encoded::Part { .. } => false,
    };
    let special = [
        // The GIF decoder reports an alpha channel for every picture.
        (colour.has_alpha() && format != ImageFormat::Gif, TRANSPARENT),
        (colour.bytes_per_pixel() > colour.channel_count(), "with more than 8 bits per channel, scaled to 8"),
        (
            matches!(original, ExtendedColorType::Cmyk8 | ExtendedColorType::Cmyk16),
            "in CMYK, converted to RGB",
        ),
        (palette, "with a palette, converted to RGB"),
        (animated, "with several frames, of which only the first is used"),
        (orientation != Orientation::NoTransforms, "rotated or flipped by their EXIF orientation"),
        (is_misnamed, "in another format than their extensions say, read by their contents"),
    ];
    let special = special.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect();
    Ok(PictureInfo { size: Size { height, width }, grey: is_grey(colour), special })
}

fn is_grey(colour: ColorType) -> bool {
    matches!(colour, ColorType::L8 | ColorType::La8 | ColorType::L16 | ColorType::La16)
}

/// Returns whether the picture has more than one frame, and whether it has a palette.
fn frames_and_palette(file: &Encoded, format: ImageFormat) -> Option<[bool; 2]> {
    /// Colour type of a palette picture in a PNG header.
    const INDEXED: u8 = 3;
    let contents = || file.contents().ok();
    Some(match format {
        ImageFormat::Gif => [GifDecoder::new(contents()?).ok()?.into_frames().nth(1).is_some(), true],
        ImageFormat::Png => [
            PngDecoder::new(contents()?).ok()?.is_apng().ok()?,
            png_chunk(file, *b"IHDR")?.get(9) == Some(&INDEXED),
        ],
        ImageFormat::WebP => [WebPDecoder::new(contents()?).ok()?.has_animation(), false],
        ImageFormat::Bmp => [false, BmpDecoder::new(contents()?).ok()?.get_palette().is_some()],
        _ => [false, false],
    })
}

/// Returns the contents of the first chunk of the type `wanted` in a PNG file, or `None` if there is no such
/// chunk.
fn png_chunk(file: &Encoded, wanted: [u8; 4]) -> Option<Vec<u8>> {
    let mut contents = file.contents().ok()?;
    // A chunk is its length, its type, its contents and a checksum. The first chunk follows the signature of
    // 8 bytes.
    contents.seek(SeekFrom::Start(8)).ok()?;
    loop {
        let [mut length, mut kind] = [[0; 4]; 2];
        contents.read_exact(&mut length).ok()?;
        contents.read_exact(&mut kind).ok()?;
        let length = u32::from_be_bytes(length);
        if kind == wanted {
            let mut chunk = Vec::new();
            contents.take(length.into()).read_to_end(&mut chunk).ok()?;
            return Some(chunk);
        }
        contents.seek_relative(i64::from(length) + 4).ok()?;
    }
}

/// Decodes a picture and applies its orientation.
fn decode(file: &Encoded) -> Result<DynamicImage, String> {
    let (decoder, format, orientation) = open(file)?;
    if matches!(format, ImageFormat::Jpeg | ImageFormat::WebP) {
        let mut bytes = Vec::new();
        file.contents()?.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if let Some(what) = truncated::missing(format, &bytes) {
            return Err(format!("{what}: {AGAIN}"));
        }
    }
    let mut picture = DynamicImage::from_decoder(decoder).map_err(reason)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Returns the pixels of a picture as bytes `[channels, height, width]`.
pub(crate) fn read(place: &Place, target: Target) -> Result<Vec<u8>, String> {
    let picture = match place {
        Place::Encoded(file) => decode(file)?,
        Place::Row(pixels, row) => in_row(pixels, *row)?,
    };
    Ok(if target.grey {
        fitted(&grey(&picture), target).into_raw()
    } else {
        let pixels = fitted(&picture.into_rgb8(), target);
        let raw = pixels.as_raw();
        (0..3).flat_map(|channel| raw.iter().skip(channel).step_by(3).copied()).collect()
    })
}

/// Converts a picture to grey. The grey of a colour is its luma by ITU-R 601, rounded as in Pillow.
fn grey(picture: &DynamicImage) -> GrayImage {
    if is_grey(picture.color()) {
        return picture.to_luma8();
    }
    let colours = picture.to_rgb8();
    let luma = |[red, green, blue]: [u8; 3]| {
        (u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16
    };
    ImageBuffer::from_fn(colours.width(), colours.height(), |x, y| {
        image::Luma([luma(colours.get_pixel(x, y).0) as u8])
    })
}

/// A picture with bytes as pixels.
type Bytes<P> = ImageBuffer<P, Vec<u8>>;

/// Scales a picture to the size of the target. Scaling is bilinear over all pixels that a new pixel covers,
/// as in Pillow.
fn fitted<P: Pixel<Subpixel = u8> + 'static>(picture: &Bytes<P>, target: Target) -> Bytes<P> {
    let Size { height, width } = target.size;
    let (old_width, old_height) = picture.dimensions();
    if (old_width, old_height) == (width, height) {
        return picture.clone();
    }
    let scaled = |width: u32, height: u32| imageops::resize(picture, width, height, FilterType::Triangle);
    // `by_height` and `by_width` return a size with the aspect ratio of the picture. `by_height` takes the
    // target's height and computes the width. `by_width` takes the target's width and computes the height.
    // `rounded` is added to the dividend of the computed side: 0 rounds the side down, and half of the
    // divisor rounds it to the nearest pixel.
    let wide = u64::from(old_width) * u64::from(height);
    let high = u64::from(old_height) * u64::from(width);
    let by_height = |rounded: u64| (((wide + rounded) / u64::from(old_height)).max(1) as u32, height);
    let by_width = |rounded: u64| (width, ((high + rounded) / u64::from(old_width)).max(1) as u32);
    match target.fit {
        Fit::Stretch => scaled(width, height),
        Fit::Crop => {
            let (new_width, new_height) = if wide >= high { by_height(0) } else { by_width(0) };
            let scaled = scaled(new_width, new_height);
            // If an odd number of pixels is cut off, its half is rounded to the nearest even number, as in
            // torchvision.
            let half = |rest: u32| (f64::from(rest) / 2.0).round_ties_even() as u32;
            let (left, top) = (half(new_width - width), half(new_height - height));
            imageops::crop_imm(&scaled, left, top, width, height).to_image()
        }
        Fit::Pad => {
            let (new_width, new_height) = if wide >= high {
                by_width(u64::from(old_width) / 2)
            } else {
                by_height(u64::from(old_height) / 2)
            };
            let (new_width, new_height) = (new_width.min(width), new_height.min(height));
            let mut padded = Bytes::<P>::new(width, height);
            let (left, top) = ((width - new_width) / 2, (height - new_height) / 2);
            imageops::replace(&mut padded, &scaled(new_width, new_height), left.into(), top.into());
            padded
        }
    }
}

/// Returns the picture in a row of an array.
fn in_row(array: &Pixels, row: usize) -> Result<DynamicImage, String> {
    let mut bytes = vec![0; array.npy.columns];
    array.npy.row(row, &mut bytes).map_err(|error| error.to_string())?;
    let plane = bytes.len() / array.channels;
    let pixels = |channels: usize| -> Vec<u8> {
        let [next_pixel, next_channel] = if array.is_planar { [1, plane] } else { [array.channels, 1] };
        let byte = |pixel, channel| bytes[pixel * next_pixel + channel * next_channel];
        (0..plane)
            .flat_map(|pixel| (0..channels).map(move |channel| (pixel, channel)))
            .map(|(p, c)| byte(p, c))
            .collect()
    };
    let Size { height, width } = array.size;
    let picture = match array.channels {
        1 | 2 => image::GrayImage::from_raw(width, height, pixels(1)).map(DynamicImage::from),
        _ => image::RgbImage::from_raw(width, height, pixels(3)).map(DynamicImage::from),
    };
    picture.ok_or_else(|| "does not have the declared number of pixels".into())
}

/// Encodes pixels, row by row from the top, as a PNG file.
pub(crate) fn png([width, height]: [u32; 2], pixels: &[[u8; 3]]) -> Result<Vec<u8>, String> {
    let mut file = Vec::new();
    // The encoder's defaults produce files of twice the size.
    let encoder = PngEncoder::new_with_quality(&mut file, CompressionType::Default, PngFilter::Adaptive);
    let written = encoder.write_image(pixels.as_flattened(), width, height, ExtendedColorType::Rgb8);
    written.map(|()| file).map_err(|error| error.to_string())
}
