//! Writes data sets. The files are written to a temporary folder of the import. When all files are complete,
//! the folder is moved to the place of the data set.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use run_record::files::{entries, sha256_with};
use run_record::{byte_size, count};

use crate::formats::data_set::{DataSet, FILE, SplitRecord, label_bytes};
use crate::formats::npy::{HEADER, npy_header};
use crate::import::copies::Copies;
use crate::import::job::{Job, OLD};
use crate::import::{Fit, ImportArgs, Imported};
use crate::{DataError, DataFormat, Element};

/// Sums over the training samples. The means and standard deviations are computed from these sums.
#[derive(Debug, Default)]
struct Moments {
    /// For bytes: exact sums of the values and of their squares, for each channel.
    sums: Vec<[u64; 2]>,
    /// For floats: running mean and running sum of squared differences from the mean, for each feature, by
    /// Welford's method (Technometrics 4, 1962).
    running: Vec<[f64; 2]>,
    samples: u64,
    values: u64,
}

impl Moments {
    fn add_bytes(&mut self, sample: &[u8], channels: usize) {
        self.sums.resize(channels, [0; 2]);
        let plane = sample.len() / channels;
        self.values += plane as u64;
        for (sums, bytes) in self.sums.iter_mut().zip(sample.chunks_exact(plane)) {
            sums[0] += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            sums[1] += bytes.iter().map(|&byte| u64::from(byte).pow(2)).sum::<u64>();
        }
    }

    fn add_floats(&mut self, sample: &[u8]) {
        let (values, _) = sample.as_chunks();
        self.running.resize(values.len(), [0.0; 2]);
        self.samples += 1;
        for ([mean, squares], &value) in self.running.iter_mut().zip(values) {
            let value = f64::from(f32::from_le_bytes(value));
            let before = value - *mean;
            *mean += before / self.samples as f64;
            *squares += before * (value - *mean);
        }
    }

    /// Returns mean and standard deviation of each channel or feature. A standard deviation of 0 becomes 1,
    /// because samples are divided by it.
    fn finish(&self) -> (Vec<f32>, Vec<f32>) {
        let bytes = self.sums.iter().map(|&[sum, squares]| {
            let mean = sum as f64 / self.values as f64;
            (mean / 255.0, (squares as f64 / self.values as f64 - mean * mean).max(0.0).sqrt() / 255.0)
        });
        let floats =
            self.running.iter().map(|&[mean, squares]| (mean, (squares / self.samples as f64).sqrt()));
        let one = |std: f64| if std as f32 > 0.0 { std as f32 } else { 1.0 };
        bytes.chain(floats).map(|(mean, std)| (mean as f32, one(std))).unzip()
    }
}

/// The files of one split while they are being written.
struct SplitFiles {
    name: &'static str,
    images: BufWriter<File>,
    labels: Vec<u16>,
    from: Vec<String>,
    moments: Moments,
}

/// Writes a data set to a temporary folder, and moves the complete data set to its place.
pub(crate) struct Writer {
    folder: PathBuf,
    shape: [usize; 3],
    numbers: Element,
    parts: [SplitFiles; 2],
    copies: Copies,
}

impl Writer {
    /// Creates a writer for a data set of `samples` samples of this shape, in both splits together. Returns
    /// an error if the samples do not fit on the disk, or if `--mean` or `--std` does not fit the samples.
    pub(crate) fn create(
        job: &Job<'_>,
        shape: [usize; 3],
        numbers: Element,
        samples: usize,
    ) -> Result<Self, DataError> {
        let args = job.args;
        check_moments(args, shape, numbers)?;
        let width = numbers.bytes() as u128;
        let bytes = samples as u128 * (shape.iter().product::<usize>() as u128 * width + 2);
        if let Some(free) = run_record::files::free_bytes(&job.folder) {
            log::info!("{} needs {}, and {} are free", args.out.display(), byte_size(bytes), byte_size(free));
            if bytes >= free {
                let problem = format!(
                    "the data set needs {}, but only {} are free: delete something, or choose another folder",
                    byte_size(bytes),
                    byte_size(free)
                );
                return Err(DataError::option("out", args.out.display(), problem));
            }
        }
        let folder = job.folder("set")?;
        let part = |name| {
            let path = folder.join(DataSet::file_name(name, "images"));
            let mut images = BufWriter::new(File::create(&path).map_err(DataError::write(&path))?);
            images.write_all(&[0; HEADER]).map_err(DataError::write(&path))?;
            let (labels, from, moments) = Default::default();
            Ok::<_, DataError>(SplitFiles { name, images, labels, from, moments })
        };
        let parts = [part("train")?, part("test")?];
        Ok(Self { folder, shape, numbers, parts, copies: Copies::default() })
    }

    /// Adds a sample to a split: 0 is training, 1 is test. `from` is the origin of the sample.
    pub(crate) fn add(
        &mut self,
        split: usize,
        sample: &[u8],
        label: u16,
        from: String,
    ) -> Result<(), DataError> {
        let part = &mut self.parts[split];
        match self.numbers {
            _ if split == 1 => {}
            Element::U8 => part.moments.add_bytes(sample, self.shape[0]),
            _ => part.moments.add_floats(sample),
        }
        self.copies.add((split, part.labels.len()), label, sample);
        part.images.write_all(sample).map_err(DataError::write(&self.folder))?;
        part.labels.push(label);
        part.from.push(from);
        Ok(())
    }

    /// Completes the files and moves the data set to its place.
    pub(crate) fn finish(
        self,
        job: &Job<'_>,
        classes: Vec<String>,
        features: Vec<String>,
        fit: Option<Fit>,
    ) -> Result<Imported, DataError> {
        let Self { folder, shape, numbers, parts, copies } = self;
        let args = job.args;
        let names = parts.each_ref().map(|part| &part.from[..]);
        copies.warnings(names).iter().for_each(|warning| log::warn!("{warning}"));
        let counts = parts.each_ref().map(|part| {
            let mut counts = vec![0; classes.len()];
            part.labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
            counts
        });
        for (part, what) in parts.iter().zip(["training", "test"]) {
            if part.labels.is_empty() {
                bail!(
                    &args.source,
                    "no {what} samples are left: at least one class needs two samples, one for each split"
                );
            }
        }
        let (mean, std) = parts[0].moments.finish();
        let given = |given: &Option<Vec<f32>>, found: Vec<f32>| match given.as_deref() {
            None => found,
            Some([one]) => vec![*one; found.len()],
            Some(values) => values.to_vec(),
        };
        let (mean, std) = (given(&args.mean, mean), given(&args.std, std));
        let [train, test] = parts.map(|part| complete(part, &folder, shape, numbers, classes.len()));
        let source = args.source.canonicalize().unwrap_or_else(|_| args.source.clone());
        let source = PathBuf::from(source.to_string_lossy().into_owned());
        let set = DataSet {
            version: 1,
            shape,
            numbers,
            classes,
            mean,
            std,
            train: train?,
            test: test?,
            features,
            fit,
            source,
            seed: args.seed,
        };
        let path = folder.join(FILE);
        let json =
            serde_json::to_vec_pretty(&set).map_err(io::Error::from).map_err(DataError::write(&path))?;
        run_record::files::write_synced(&path, &json).map_err(DataError::write(&path))?;
        // Check the output folder again: somebody may have put a file there during the import.
        check_free(&job.out, job.args.overwrite)?;
        put(&folder, job).map_err(DataError::write(&job.out))?;
        Ok(Imported { set, counts })
    }
}

/// Checks that means and standard deviations from the command line fit the samples.
fn check_moments(args: &ImportArgs, shape: [usize; 3], numbers: Element) -> Result<(), DataError> {
    let (expected, what) = match numbers {
        Element::U8 => (shape[0], "channel"),
        _ => (shape.iter().product(), "feature"),
    };
    for (option, values) in [("mean", &args.mean), ("std", &args.std)] {
        let Some(values) = values else { continue };
        let problem = if values.len() != expected && values.len() != 1 {
            format!(
                "has {}, but the samples have {}: give one value for each, or one for all",
                count(values.len(), "value"),
                count(expected, what)
            )
        } else if values.iter().any(|value| !value.is_finite()) {
            "must be finite".into()
        } else if option == "std" && values.iter().any(|value| *value <= 0.0) {
            "must be above 0".into()
        } else {
            continue;
        };
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        return Err(DataError::option(option, values.join(","), problem));
    }
    Ok(())
}

/// Writes the header of the samples, writes the labels, and returns what `dataset.json` records of the split.
fn complete(
    part: SplitFiles,
    folder: &Path,
    shape: [usize; 3],
    numbers: Element,
    classes: usize,
) -> Result<SplitRecord, DataError> {
    let SplitFiles { name, images, labels, from, .. } = part;
    let path = |what| folder.join(DataSet::file_name(name, what));
    let samples = labels.len();
    let (dtype, shape) = DataSet::array(samples, shape, numbers);
    let write_images = || -> io::Result<()> {
        let mut file = images.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&npy_header(dtype, &shape))?;
        file.sync_all()
    };
    write_images().map_err(DataError::write(&path("images")))?;
    let bytes: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
    let file = [npy_header("<u2", &[samples]), bytes].concat();
    run_record::files::write_synced(&path("labels"), &file).map_err(DataError::write(&path("labels")))?;
    let sha256 =
        digest(&path("images"), &label_bytes(&labels, classes)).map_err(DataError::read(&path("images")))?;
    Ok(SplitRecord { samples, sha256, from })
}

/// Returns the SHA-256 digest of `labels`, the bytes of the labels, followed by the contents of the file
/// after its header.
fn digest(path: &Path, labels: &[u8]) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(HEADER as u64))?;
    sha256_with(labels, file)
}

/// Checks that an import may write to `out`: this path must not exist, or be an empty folder. If `overwrite`
/// is set, it may also be a folder that contains only an imported data set.
pub(crate) fn check_free(out: &Path, overwrite: bool) -> Result<(), DataError> {
    let refuse = |problem: String| Err(DataError::option("out", out.display(), problem));
    if !out.exists() && out.symlink_metadata().is_err() {
        return Ok(());
    }
    if !out.is_dir() {
        return refuse("is not a folder: choose another folder".into());
    }
    if let Ok(kind) = DataFormat::of_folder(out)
        && kind != DataFormat::Imported
    {
        return refuse(format!("contains another data set, {kind}: choose another folder"));
    }
    let ours = DataSet::file_names();
    let found = entries(out).map_err(DataError::read(out))?;
    let other =
        found.iter().map(|entry| entry.file_name()).find(|name| !ours.iter().any(|own| name == own.as_str()));
    match other {
        Some(name) => refuse(format!(
            "contains {}, which is not a file of a data set: choose another folder, or move the file",
            name.to_string_lossy()
        )),
        None if !found.is_empty() && !overwrite => {
            refuse("contains a data set: choose another folder, or pass --overwrite".into())
        }
        None => Ok(()),
    }
}

/// Moves the folder `new` to the place of the data set. First, an old data set is moved into the import's
/// temporary folder, and is later removed with that folder.
fn put(new: &Path, job: &Job<'_>) -> io::Result<()> {
    let (out, old) = (&job.out, job.folder.join(OLD));
    let is_replaced = job.args.overwrite && out.exists();
    // Keep the permissions of a folder that is replaced: a private folder stays private.
    let permissions = out.metadata().ok().map(|found| found.permissions());
    if is_replaced {
        fs::rename(out, &old)?;
    }
    if let Err(error) = fs::rename(new, out) {
        if is_replaced {
            fs::rename(old, out)?;
        }
        return Err(error);
    }
    if let Some(permissions) = permissions {
        fs::set_permissions(out, permissions)?;
    }
    run_record::files::sync_folder(out.parent().unwrap_or(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_bytes_are_exact_and_those_of_floats_close() {
        let mut bytes = Moments::default();
        bytes.add_bytes(&[0, 255, 10, 10], 2);
        bytes.add_bytes(&[255, 0, 10, 10], 2);
        let (mean, std) = bytes.finish();
        assert_eq!((mean[0], std[0]), (0.5, 0.5));
        assert_eq!((mean[1], std[1]), (10.0 / 255.0, 1.0), "no deviation: nothing is scaled");
        let mut floats = Moments::default();
        for row in [[1e6f32, 5.0], [1e6 + 1.0, 5.0], [1e6 + 2.0, 5.0]] {
            floats.add_floats(&row.map(f32::to_le_bytes).concat());
        }
        let (mean, std) = floats.finish();
        assert_eq!(mean, [1e6 + 1.0, 5.0]);
        assert!((std[0] - (2.0f32 / 3.0).sqrt()).abs() < 1e-6 && std[1] == 1.0, "{std:?}");
    }
}
