//! The import of NumPy's arrays: pictures or features, and their labels, in the `.npy` files of a folder or an
//! `.npz` file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use run_record::count;

use crate::folder::{self, Found, OTHERS, Picture, TRAIN};
use crate::job::Job;
use crate::labels::Labels;
use crate::pictures;
use crate::place::{Pixels, Place};
use crate::plan;
use crate::set::Numbers;
use crate::writer::Writer;
use crate::{ImportArgs, ImportError, Imported, NpyFile};

/// What an array's name has if it holds samples, or labels.
const SAMPLES: [&str; 9] = ["x", "data", "images", "image", "imgs", "features", "samples", "inputs", "xs"];
const LABELS: [&str; 9] = ["y", "label", "labels", "target", "targets", "class", "classes", "ys", "fine"];
const FLOATS: [&str; 3] = ["<f2", "<f4", "<f8"];
/// The folder of those that are made of other files.
pub(crate) const FOLDER: &str = "arrays";

/// Whether a file is an array.
pub(crate) fn is_array(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "npy")
}

/// A split: the file of its samples, and that of its labels.
struct Pair {
    samples: PathBuf,
    labels: PathBuf,
    /// The first row of each file of the source, and its name.
    files: Vec<(usize, String)>,
}

/// The arrays of a source.
pub(crate) struct Arrays {
    train: Pair,
    test: Option<Pair>,
    /// Names of the classes, if they are known.
    names: Option<Vec<String>>,
}

/// The words of a file's name, in small letters: `x_train.npy` has x and train.
fn words(path: &Path) -> Vec<String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    name.split(['_', '-', '.', ' ']).map(str::to_owned).collect()
}

/// Finds the arrays in a folder; none if it has no array.
pub(crate) fn find(source: &Path, args: &ImportArgs) -> Result<Option<Arrays>, ImportError> {
    let (_, files) = folder::inside(source)?;
    let arrays: Vec<&PathBuf> = files.iter().filter(|path| is_array(path)).collect();
    if arrays.is_empty() {
        return Ok(None);
    }
    let has = |path: &Path, known: &[&str]| words(path).iter().any(|word| known.contains(&&**word));
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let listed = arrays.iter().map(|path| name(path)).collect::<Vec<_>>().join(", ");
    // The name without the words of the split.
    let rest = |path: &Path| -> String {
        let is_split = |word: &String| TRAIN.contains(&&**word) || OTHERS.contains(&&**word);
        words(path).into_iter().filter(|word| !is_split(word)).collect::<Vec<_>>().join("_")
    };
    // One name is that of the labels in each split.
    let is_label = |path: &Path| match &args.label {
        Some(wanted) => rest(path) == rest(&PathBuf::from(format!("{wanted}.npy"))),
        None => has(path, &LABELS),
    };
    let pair = |in_split: &dyn Fn(&Path) -> bool| -> Result<Option<Pair>, ImportError> {
        let of = |is_wanted: &dyn Fn(&Path) -> bool| -> Vec<&PathBuf> {
            arrays.iter().copied().filter(|path| in_split(path) && is_wanted(path)).collect()
        };
        let labels = of(&is_label);
        let samples = of(&|path| has(path, &SAMPLES) && !has(path, &LABELS));
        match (&samples[..], &labels[..]) {
            ([], []) => Ok(None),
            ([samples], [labels]) => {
                let name = folder::name(samples);
                let [samples, labels] = [samples, labels].map(|path| path.to_path_buf());
                Ok(Some(Pair { samples, labels, files: vec![(0, name)] }))
            }
            (_, [first, _, ..]) => bail!(
                source,
                "which array has the labels? It has {listed}: name one, as in --label {}",
                rest(first)
            ),
            _ => bail!(
                source,
                "has the arrays {listed}: one of samples is expected, such as x_train, and one of labels, such as \
                     y_train (or named with --label), and the same for test if there is a test split"
            ),
        }
    };
    let named = pair(&|path| has(path, &TRAIN))?;
    let rest = || pair(&|path| !has(path, &OTHERS));
    let Some(train) = named.map_or_else(rest, |train| Ok(Some(train)))? else {
        bail!(source, "has the arrays {listed}, and none for training, such as x_train and y_train");
    };
    let mut others = Vec::new();
    for split in OTHERS {
        others.extend(pair(&|path| has(path, &[split]))?.map(|pair| (split.to_owned(), pair)));
    }
    let test = folder::test_of(&args.source, args.test_split.as_deref(), others)?;
    Ok(Some(Arrays { train, test, names: None }))
}

/// The samples of a split and the numbers of their labels.
struct Split {
    samples: NpyFile,
    labels: Vec<u32>,
    files: Vec<(usize, String)>,
}

impl Split {
    fn open(pair: &Pair, labels: &mut Labels) -> Result<Self, ImportError> {
        let dtypes: Vec<&str> = FLOATS.into_iter().chain(NpyFile::INTEGERS).collect();
        let samples = NpyFile::open(&pair.samples, &dtypes)?;
        let file = NpyFile::open(&pair.labels, &NpyFile::INTEGERS)?;
        if file.columns != 1 {
            bail!(
                &file.file.path,
                "its shape is {:?}, and one label for each sample is expected",
                file.shape
            );
        }
        if samples.rows != file.rows {
            bail!(&file.file.path, "has {} labels for {} samples", file.rows, samples.rows);
        }
        if samples.rows == 0 || samples.columns == 0 {
            bail!(&samples.file.path, "its shape is {:?}: there is no sample", samples.shape);
        }
        if samples.fortran && samples.columns > 1 {
            bail!(&samples.file.path, "is in Fortran's order: save it again with numpy.ascontiguousarray");
        }
        let number = |(row, label): (usize, i128)| {
            labels
                .number(&label.to_string(), None)
                .map_err(|what| ImportError::source(&pair.labels, format!("label [{row}]: {what}")))
        };
        let labels = file.integers()?.into_iter().enumerate().map(number).collect::<Result<_, _>>()?;
        Ok(Self { samples, labels, files: pair.files.clone() })
    }

    fn name(&self, row: usize) -> String {
        let (start, file) = &self.files[self.files.partition_point(|(start, _)| *start <= row) - 1];
        format!("{file}[{}]", row - start)
    }
}

impl Arrays {
    /// Those that were made in `folder` of the `files` of each split: the first row and the name of each.
    pub(crate) fn made(
        folder: &Path,
        [train, test]: [Vec<(usize, String)>; 2],
        names: Option<Vec<String>>,
    ) -> Self {
        let pair = |split: &str, files: Vec<(usize, String)>| Pair {
            samples: folder.join(format!("{split}-images.npy")),
            labels: folder.join(format!("{split}-labels.npy")),
            files,
        };
        let test = Some(test).filter(|files| !files.is_empty()).map(|files| pair("test", files));
        Self { train: pair("train", train), test, names }
    }

    pub(crate) fn import(self, job: &Job<'_>) -> Result<Imported, ImportError> {
        let mut labels = Labels::of(self.names);
        let train = Split::open(&self.train, &mut labels)?;
        let test = self.test.map(|pair| Split::open(&pair, &mut labels)).transpose()?;
        let (classes, class) = labels.classes(&job.args.source)?;
        let kind = |split: &Split| match split.samples.shape.len() {
            1 | 2 => format!("rows of {} numbers of {}", split.samples.columns, split.samples.dtype),
            _ => format!("pictures of {}", split.samples.dtype),
        };
        if let Some(test) = test.as_ref().filter(|test| kind(test) != kind(&train)) {
            bail!(&test.samples.file.path, "has {}, and the training split {}", kind(test), kind(&train));
        }
        match train.samples.shape.len() {
            1 | 2 => features(train, test, classes, &class, job),
            _ if train.samples.dtype == "|u1" => {
                let pictures = |split: Split| -> Result<Vec<Picture>, ImportError> {
                    let names: Vec<String> = (0..split.labels.len()).map(|row| split.name(row)).collect();
                    let pixels = Arc::new(Pixels::of(split.samples)?);
                    let rows = split.labels.into_iter().zip(names).enumerate();
                    let picture = |(row, (label, name)): (usize, (u32, String))| Picture {
                        place: Place::Row(pixels.clone(), row),
                        name,
                        class: class[label as usize],
                    };
                    Ok(rows.map(picture).collect())
                };
                let (train, test) = (pictures(train)?, test.map(pictures).transpose()?);
                pictures::import(Found { classes, train, test }, job)
            }
            _ => {
                let NpyFile { dtype, shape, file, .. } = &train.samples;
                bail!(
                    &file.path,
                    "has numbers of {dtype} in the shape {shape:?}: pictures are bytes from 0 to 255 \
                     ((255 * x).round().astype(\"uint8\") for values from 0 to 1), and features [samples, features]"
                );
            }
        }
    }
}

/// Imports features: a row for each sample.
fn features(
    train: Split,
    test: Option<Split>,
    classes: Vec<String>,
    class: &[u16],
    job: &Job<'_>,
) -> Result<Imported, ImportError> {
    let args = job.args;
    args.refuse_those_of_pictures()?;
    args.refuse_those_of_tables()?;
    let all = train.labels.len() + test.as_ref().map_or(0, |test| test.labels.len());
    let columns = train.samples.columns;
    let (number, of) = (count(all, "row"), count(columns, "feature"));
    log::info!("{}: {number} of {of} in {}", args.source.display(), count(classes.len(), "class"));
    let rows = |split: &Split| (0..split.labels.len()).collect::<Vec<usize>>();
    let label = |split: &Split, row: usize| class[split.labels[row] as usize];
    let (train_rows, test_rows) = (rows(&train), test.as_ref().map(rows));
    let splits = plan::splits(args, train_rows, test_rows, classes.len(), |row| label(&train, *row))?;
    let mut writer = Writer::create(job, [1, 1, columns], Numbers::F32, all)?;
    let (mut bytes, mut done) = (vec![0; columns * train.samples.width], 0);
    let of_test = test.as_ref().unwrap_or(&train);
    for (place, (split, rows)) in [&train, of_test].into_iter().zip(splits).enumerate() {
        for row in rows {
            split.samples.row(row, &mut bytes)?;
            let sample = floats(&bytes, &split.samples.dtype, split.samples.width);
            if let Some(column) = sample.iter().position(|value| !value.is_finite()) {
                bail!(
                    &split.samples.file.path,
                    "[{row}, {column}] is {} as f32: clean or scale the features",
                    sample[column]
                );
            }
            let sample: Vec<u8> = sample.into_iter().flat_map(f32::to_le_bytes).collect();
            writer.add(place, &sample, label(split, row), split.name(row))?;
            done += 1;
            job.row(done, all)?;
        }
    }
    writer.finish(job, classes, Vec::new(), None)
}

/// Numbers of a type as f32.
fn floats(bytes: &[u8], dtype: &str, width: usize) -> Vec<f32> {
    let is_float = dtype.contains('f');
    let is_signed = dtype.contains('i');
    let number = |bytes: &[u8]| match (is_float, bytes) {
        (true, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (true, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (true, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
        _ => NpyFile::integer(bytes, is_signed) as f32,
    };
    bytes.chunks_exact(width).map(number).collect()
}
