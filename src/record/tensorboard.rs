//! TensorBoard event files: one folder a rank, and one for the means.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tfrecord::{EventWriter, EventWriterConfig};

use super::RecordError;

/// Event files under one folder, one for each name.
pub struct TensorBoard {
    writers: Vec<EventWriter<BufWriter<File>>>,
}

impl TensorBoard {
    /// Opens a new event file in `folder/<name>` for each name.
    ///
    /// # Errors
    /// When a file cannot be made.
    pub fn create(folder: &Path, names: &[String]) -> Result<Self, RecordError> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let open = |name: &String| {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).map_err(|e| RecordError::write(&folder, e))?;
            // TensorBoard reads files whose names have `tfevents` in them.
            let path = folder.join(format!("events.out.tfevents.{seconds}.{}", std::process::id()));
            EventWriter::create(&path, EventWriterConfig { auto_flush: false })
                .map_err(|e| RecordError::write(&path, io::Error::other(e.to_string())))
        };
        let writers = names.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { writers })
    }

    /// Adds a point to the curve `tag` of the file with number `file`. Values
    /// that are no numbers are left out: the format has no place for them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn point(&mut self, file: usize, tag: &str, step: usize, value: f64) -> Result<(), RecordError> {
        if !value.is_finite() {
            return Ok(());
        }
        let meta = tfrecord::EventMeta::with_step(step as i64);
        self.writers[file]
            .write_scalar(tag, meta, value as f32)
            .map_err(|e| RecordError::write(Path::new("tensorboard"), io::Error::other(e.to_string())))
    }

    /// Brings all points to the disk.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        for writer in &mut self.writers {
            writer
                .flush()
                .map_err(|e| RecordError::write(Path::new("tensorboard"), io::Error::other(e.to_string())))?;
        }
        Ok(())
    }
}
