//! Finds truncated pictures, because decoders of JPEG and WebP accept them. Without this check, the missing
//! pixels would be grey or wrong.
//!
//! Other data may follow a picture in its file: phones append a film (motion photos), and 3D cameras a second
//! picture (MPO). This module therefore follows the structure of the picture from its beginning to the end of
//! the picture itself, as Pillow and browsers do, and ignores what comes after it.

use image::ImageFormat;

/// Describes what is missing in a truncated JPEG or WebP file. Returns `None` for a complete file. Also
/// returns `None` for other formats, because their decoders reject truncated files.
pub(crate) fn missing(format: ImageFormat, bytes: &[u8]) -> Option<&'static str> {
    match format {
        ImageFormat::Jpeg if !has_end(bytes) => Some("is truncated (no end marker)"),
        ImageFormat::WebP if !is_as_long_as_it_says(bytes) => {
            Some("is truncated (shorter than its header declares)")
        }
        _ => None,
    }
}

/// Returns whether a JPEG reaches its end marker (ITU-T T.81, annex B).
fn has_end(bytes: &[u8]) -> bool {
    const END: u8 = 0xd9;
    const SCAN: u8 = 0xda;
    let (mut at, mut is_in_scan) = (2, false);
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0xff)) {
        at += found + 1;
        match bytes.get(at..) {
            Some([END, ..]) => return true,
            // A marker may have any number of 0xff before it.
            Some([0xff, ..]) => {}
            // After 0xff, these bytes do not begin a segment with a length. 0x00 says that the 0xff is data
            // and no marker. The other bytes are markers without a length, such as restart markers.
            Some([0x00 | 0x01 | 0xd0..=0xd8, ..]) => at += 1,
            // Decoders treat reserved markers in a scan as damage, and skip them.
            Some([0x02..=0xbf | 0xf0..=0xfd, ..]) if is_in_scan => at += 1,
            Some(&[marker, high, low, ..]) => {
                at += 1 + usize::from(u16::from_be_bytes([high, low]));
                is_in_scan |= marker == SCAN;
            }
            _ => return false,
        }
    }
    false
}

/// Returns whether a WebP file is as long as its header declares. The length in the header does not include
/// the first eight bytes. libwebp rejects a shorter file.
fn is_as_long_as_it_says(bytes: &[u8]) -> bool {
    let declared = bytes.get(4..8).map(|size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
    declared.is_some_and(|size| bytes.len() as u64 >= u64::from(size) + 8)
}

#[cfg(all(test, feature = "archives", feature = "parquet"))]
mod tests {
    use image::RgbImage;

    use super::*;
    use crate::error::names_all;
    use crate::import::Fit;
    use crate::import::tests::Lab;

    /// Returns a picture of noise, which compresses so little that every part of the file matters.
    fn noise() -> RgbImage {
        let mut state = 1u32;
        RgbImage::from_fn(32, 24, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            image::Rgb([24, 16, 8].map(|shift| (state >> shift) as u8))
        })
    }

    fn encoded(format: ImageFormat) -> Vec<u8> {
        let mut file = std::io::Cursor::new(Vec::new());
        noise().write_to(&mut file, format).unwrap();
        file.into_inner()
    }

    /// Returns a JPEG with a thumbnail in its EXIF data, and with fill bytes before its end marker.
    fn jpeg() -> Vec<u8> {
        let plain = encoded(ImageFormat::Jpeg);
        let exif = [b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0", &plain[..]].concat();
        let length = (exif.len() as u16 + 2).to_be_bytes();
        let (start, rest) = plain.split_at(2);
        let body = rest.strip_suffix(&[0xff, 0xd9]).unwrap();
        [start, &[0xff, 0xe1], &length, &exif, body, &[0xff, 0xff, 0xd9]].concat()
    }

    #[test]
    fn what_is_behind_a_picture_does_not_matter_and_what_is_missing_does() {
        let lab = Lab::new();
        let read = |bytes: &[u8]| {
            lab.write("picture", bytes);
            let read = crate::import::reading::picture(&lab.path("picture"), [3, 24, 32], Fit::Crop);
            read.map_err(|error| error.to_string())
        };
        let own: Vec<u8> = (0u32..20_000).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        // A film may contain a scan marker and no end marker.
        let film = [b"\0\0\0\x18ftypmp42\xff\xda\0\x02", &own[..]].concat();
        let film: Vec<u8> = film.into_iter().map(|byte| if byte == 0xd9 { 0 } else { byte }).collect();
        let formats = [
            ImageFormat::Png,
            ImageFormat::Gif,
            ImageFormat::Bmp,
            ImageFormat::Tiff,
            ImageFormat::WebP,
            ImageFormat::Pnm,
            ImageFormat::Jpeg,
        ];
        let with_thumbnail = (ImageFormat::Jpeg, jpeg());
        for (format, bytes) in
            formats.map(|format| (format, encoded(format))).into_iter().chain([with_thumbnail])
        {
            let whole = read(&bytes).unwrap();
            assert!(read(&[&bytes[..], &film].concat()).as_ref() == Ok(&whole), "{format:?}: a film");
            assert!(read(&[&bytes[..], &bytes].concat()).as_ref() == Ok(&whole), "{format:?}: a picture");
            for length in [bytes.len() / 4, bytes.len() / 2, bytes.len() * 9 / 10, bytes.len() - 20] {
                assert!(read(&bytes[..length]).is_err(), "{format:?}: {length} of {} bytes", bytes.len());
            }
        }
        // Errors about damage do not contain words of the decoders.
        for (format, bytes) in formats.map(|format| (format, encoded(format))) {
            for (at, bit) in (4..bytes.len().min(200)).step_by(5).zip([0, 7].into_iter().cycle()) {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let Err(message) = read(&bytes) else { continue };
                let advice = ["again", "as PNG", "supported format", "bomb"];
                let is_own = advice.iter().any(|advice| message.contains(advice));
                let words = ["Format error", "Error", "expected", "buffer", "Huffman", "{", "["];
                assert!(is_own && !words.iter().any(|word| message.contains(word)), "{format:?}: {message}");
            }
        }
        // If a PNG has an unknown critical chunk, the error does not contain the name of one of the decoder's
        // Rust types.
        let mut png = encoded(ImageFormat::Png);
        let pixels = png.windows(4).position(|name| name == b"IDAT").unwrap();
        png[pixels + 3] = b'U';
        let message = read(&png).unwrap_err();
        assert!(names_all(&message, "picture: | damaged | download it again"), "{message}");
        for format in [ImageFormat::Jpeg, ImageFormat::WebP] {
            let bytes = encoded(format);
            let message = read(&bytes[..bytes.len() - 2]).unwrap_err();
            assert!(names_all(&message, "picture: | truncated"), "{message}");
        }
    }

    #[test]
    fn scans_restarts_and_damage_are_followed_to_the_end() {
        for (bytes, expected) in [
            (&b"\xff\xd8\xff\xda\0\x02pixels\xff\0\xff\xd0more\xff\xd9"[..], true),
            (b"\xff\xd8\xff\xda\0\x02a\xff\xc4\0\x04\xff\xd9\xff\xda\0\x02b\xff\xd9", true),
            (b"\xff\xd8\xff\xda\0\x02a\xff\xc4\0\x04\xff\xd9\xff\xda\0\x02b", false),
            (b"\xff\xd8\xff\xe1\0\x04\xff\xd9\xff\xda\0\x02b", false),
            (b"\xff\xd8\xff\xda\0\x02a\xff\x3c\xff\xffb\xff\xd9", true),
            (b"\xff\xd8\xff\xda\0\x02a\xff", false),
            (b"\xff\xd8", false),
        ] {
            assert_eq!(has_end(bytes), expected, "{}", bytes.escape_ascii());
        }
    }
}
