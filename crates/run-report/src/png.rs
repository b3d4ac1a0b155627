//! Writes PNG pictures.

use std::io;
use std::path::Path;

use run_record::files::WholeFile;

/// Writes a picture of 8-bit `rgb`, row by row from the top, to `path`, replacing
/// it.
///
/// # Errors
/// When the file cannot be written.
///
/// # Panics
/// When `rgb` is not `width * height` pixels of 3 bytes.
pub fn write_png(path: &Path, [width, height]: [u32; 2], rgb: &[u8]) -> io::Result<()> {
    assert_eq!(rgb.len(), 3 * width as usize * height as usize, "{width} x {height} pixels");
    let mut file = WholeFile::at(path)?;
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    writer.finish()?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn written_pixels_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let rgb: Vec<u8> = (0..3 * 7 * 5).map(|i| (i * 11) as u8).collect();
        write_png(&path, [7, 5], &rgb).unwrap();
        let mut reader =
            png::Decoder::new(io::BufReader::new(File::open(&path).unwrap())).read_info().unwrap();
        let mut found = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut found).unwrap();
        assert_eq!(([info.width, info.height], found), ([7, 5], rgb));
        assert!(write_png(&folder.path().join("none/a.png"), [0, 0], &[]).is_err());
    }
}
