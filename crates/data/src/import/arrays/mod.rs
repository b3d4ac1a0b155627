//! Imports NumPy's arrays: pictures or features, and their labels, from the `.npy` files of a folder or an
//! `.npz` file.
//!
//! The words of an array's name show what it contains: `x_train` are the samples of the training split, and
//! `y_test` the labels of the test split. CIFAR's batches and IDX files are converted to arrays first and
//! then imported in the same way.

pub(crate) mod cifar;
pub(crate) mod idx;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use run_record::count;

use crate::formats::{DataSet, FILE, NpyFile};
use crate::import::job::Job;
use crate::import::labels::{Labels, number_in};
use crate::import::pictures::folder::{self, Found, Picture};
use crate::import::pictures::place::{Pixels, Place};
use crate::import::split::{self, SplitKind};
use crate::import::tables::ranges::FeatureRanges;
use crate::import::writer::Writer;
use crate::import::{ImportArgs, Imported, pictures, plan, test_split};
use crate::{DataError, Element, quote};

/// Words in the names of arrays of samples. `LABELS` are the words in the names of arrays of labels.
const SAMPLES: [&str; 9] = ["x", "data", "images", "image", "imgs", "features", "samples", "inputs", "xs"];
const LABELS: [&str; 9] = ["y", "label", "labels", "target", "targets", "class", "classes", "ys", "fine"];
/// Names of arrays of class names. Such an array contains strings, in the order of the class numbers.
const CLASS_NAMES: [&str; 6] =
    ["classes", "class_names", "classnames", "label_names", "labels_names", "target_names"];
const BOOL: &str = "|b1";
/// Name of the import's folder for arrays that were converted from other files.
pub(crate) const FOLDER: &str = "arrays";

/// Returns whether a file is an array, from its name.
pub(crate) fn is_array(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npy"))
}

/// The files of a split, one with its samples and one with their labels.
struct Pair {
    samples: PathBuf,
    labels: PathBuf,
    /// The files that the samples come from.
    files: Rows,
    /// The folder of the user's files, and the files that the labels come from, if the arrays were converted
    /// from other files. `None` if the user's source contains the arrays.
    converted: Option<(PathBuf, Rows)>,
}

/// For each file: the index of the first row that comes from it, and its name.
pub(crate) type Rows = Vec<(usize, String)>;

/// Returns the file of a row, and the index of the row in this file.
fn file_of(files: &Rows, row: usize) -> (&str, usize) {
    let (start, file) = &files[files.partition_point(|(start, _)| *start <= row) - 1];
    (file, row - start)
}

impl Pair {
    /// Returns the file that has the label of a row, and the index of the label in this file.
    fn label(&self, row: usize) -> (PathBuf, usize) {
        match &self.converted {
            None => (self.labels.clone(), row),
            Some((folder, files)) => {
                let (file, row) = file_of(files, row);
                (folder.join(file), row)
            }
        }
    }

    /// Returns the user's file with the samples or, if there are several, the first one.
    fn path(&self) -> PathBuf {
        match &self.converted {
            None => self.samples.clone(),
            Some((folder, _)) => folder.join(file_of(&self.files, 0).0),
        }
    }
}

/// The arrays of a source.
pub(crate) struct Arrays {
    train: Pair,
    /// The other splits, with their names. Splits that are preferred for the test come first. If samples or
    /// labels of a split are missing, the split has an error instead of arrays. This error ends the import
    /// only if the split is chosen as the test split.
    others: Vec<(String, Result<Pair, DataError>)>,
    /// Names of the classes, if the source has them.
    names: Option<Vec<String>>,
    /// Contents of `dataset.json`, if the arrays are an imported data set.
    set: Option<DataSet>,
}

/// Returns the words of a file's name in lower case: `x_train.npy` has x and train.
fn words(path: &Path) -> Vec<String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    name.split(['_', '-', '.', ' ']).map(str::to_owned).collect()
}

/// Returns whether an array contains the names of the classes: its name is in [`CLASS_NAMES`], and is not
/// `label`, the name that the user gave with `--label` for the array of labels. An array named `classes` must
/// also contain strings, and there must be other labels: otherwise it contains labels.
fn has_class_names(path: &Path, has_other_labels: bool, label: Option<&str>) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    CLASS_NAMES.contains(&&*name)
        && label.is_none_or(|label| !label.eq_ignore_ascii_case(&name))
        && (name != "classes" || has_other_labels && NpyFile::open(path, &NpyFile::STRINGS).is_ok())
}

/// Returns the name of a file without its extension.
fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the name of a file without its extension and without the words of a split.
fn name_without_split(path: &Path) -> String {
    words(path).into_iter().filter(|word| split::of_name(word).is_none()).collect::<Vec<_>>().join("_")
}

/// Returns whether the name of a file contains one of the words `known`.
fn has_word(path: &Path, known: &[&str]) -> bool {
    words(path).iter().any(|word| known.contains(&&**word))
}

fn split_of(path: &Path) -> Option<SplitKind> {
    split::in_name(&name(path))
}

/// The arrays in a folder that may be samples or labels.
struct Candidates<'a> {
    source: &'a Path,
    paths: Vec<&'a PathBuf>,
    /// The names of the arrays, for messages.
    listed: String,
    /// The name of the labels, as the user typed it.
    label: Option<&'a str>,
}

impl Candidates<'_> {
    /// Returns whether an array contains labels. A name given with `--label` stands for the labels of all
    /// splits: `y_train` stands also for `y_test`.
    fn is_label(&self, path: &Path) -> bool {
        match self.label {
            Some(wanted) => {
                let wanted = PathBuf::from(format!("{wanted}.npy"));
                name_without_split(path) == name_without_split(&wanted)
            }
            None => has_word(path, &LABELS),
        }
    }

    /// Returns the samples and labels of `split`, or of the arrays that name no split if `split` is `None`.
    /// Returns `None` if there are neither samples nor labels. The inner error says that samples or labels
    /// are missing, or that several arrays may be the samples. The outer error says that several arrays may
    /// be the labels.
    fn pair(&self, split: Option<SplitKind>) -> Result<Option<Result<Pair, DataError>>, DataError> {
        let of_split = self.paths.iter().copied().filter(|path| split_of(path) == split);
        let labels: Vec<&PathBuf> = of_split.clone().filter(|path| self.is_label(path)).collect();
        let is_sample = |path: &&PathBuf| has_word(path, &SAMPLES) && !has_word(path, &LABELS);
        let samples: Vec<&PathBuf> = of_split.filter(is_sample).collect();
        match (&samples[..], &labels[..]) {
            ([], []) => Ok(None),
            ([samples], [labels]) => {
                let name = folder::name(samples);
                let [samples, labels] = [samples, labels].map(|path| path.to_path_buf());
                Ok(Some(Ok(Pair { samples, labels, files: vec![(0, name)], converted: None })))
            }
            (_, [first, _, ..]) => bail!(
                self.source,
                "which array contains the labels? The arrays are {}: name one, as in --label {}",
                self.listed,
                run_record::quoted(name_without_split(first))
            ),
            ([first, second, ..], [_]) => Ok(Some(Err(DataError::source(
                self.source,
                format!(
                    "two arrays may be the samples, {} and {}: remove one of them",
                    name(first),
                    name(second)
                ),
            )))),
            _ => {
                let split = split.unwrap_or(SplitKind::Train).name();
                let missing = if labels.is_empty() {
                    format!("labels such as y_{split} (or named with --label)")
                } else {
                    format!("samples such as x_{split}")
                };
                let what = format!("contains the arrays {}, but no array of {missing}", self.listed);
                Ok(Some(Err(DataError::source(self.source, what))))
            }
        }
    }

    /// Warns about arrays that are not used.
    fn say_unused(&self, train: &Pair, others: &[(String, Result<Pair, DataError>)]) {
        let pairs = std::iter::once(train).chain(others.iter().flat_map(|(_, pair)| pair));
        let is_used = |path: &Path| pairs.clone().any(|pair| pair.samples == path || pair.labels == path);
        // The module `test_split` reports splits without samples or without labels, so do not report their
        // arrays here.
        let is_named = |path: &Path| {
            others
                .iter()
                .any(|(split, pair)| pair.is_err() && split_of(path).is_some_and(|kind| kind.name() == split))
        };
        let unused = self.paths.iter().filter(|path| !is_used(path) && !is_named(path));
        let unused: Vec<String> = unused.map(|path| name(path)).collect();
        if !unused.is_empty() {
            let arrays = if unused.len() == 1 { "array" } else { "arrays" };
            log::warn!("not used: {arrays} {}", quote::listed(&unused));
        }
    }
}

/// Finds the arrays in a folder. Returns `None` if there is no array.
pub(crate) fn find(source: &Path, args: &ImportArgs) -> Result<Option<Arrays>, DataError> {
    let (_, files) = folder::inside(source)?;
    let arrays: Vec<&PathBuf> = files.iter().filter(|path| is_array(path)).collect();
    if arrays.is_empty() {
        return Ok(None);
    }
    let label = args.label.as_deref();
    let other_labels = |path: &Path| arrays.iter().any(|other| *other != path && has_word(other, &LABELS));
    let (names, paths): (Vec<&PathBuf>, Vec<&PathBuf>) =
        arrays.iter().partition(|path| has_class_names(path, other_labels(path), label));
    let listed = quote::listed(paths.iter().map(|path| name(path)));
    let candidates = Candidates { source, paths, listed, label };
    if let Some(label) = label
        && !candidates.paths.iter().any(|path| candidates.is_label(path))
    {
        let problem = format!(
            "is not the name of an array in {}, which has {}",
            args.source.display(),
            candidates.listed
        );
        return Err(DataError::option("label", quote::short(label), problem));
    }
    let train = match candidates.pair(Some(SplitKind::Train))? {
        None => candidates.pair(None)?,
        named => named,
    };
    let Some(train) = train else {
        let listed = candidates.listed;
        bail!(source, "contains the arrays {listed}, but no training arrays such as x_train and y_train");
    };
    let train = train?;
    let mut others = Vec::new();
    for other in SplitKind::OTHERS {
        others.extend(candidates.pair(Some(other))?.map(|pair| (other.name().to_owned(), pair)));
    }
    candidates.say_unused(&train, &others);
    let names = match &names[..] {
        [] => None,
        [only] => Some(NpyFile::open(only, &NpyFile::STRINGS)?.strings()?),
        [first, second, ..] => bail!(
            source,
            "contains two arrays of class names, {} and {}: remove one",
            name(first),
            name(second)
        ),
    };
    if !source.join(FILE).is_file() {
        return Ok(Some(Arrays { train, others, names, set: None }));
    }
    let set = DataSet::read(source)?;
    log::info!(
        "{} is an imported data set: the names of its classes and features are kept",
        args.source.display()
    );
    Ok(Some(Arrays { train, others, names: Some(set.classes.clone()), set: Some(set) }))
}

/// Returns the dtypes of numbers.
fn numbers() -> Vec<&'static str> {
    NpyFile::FLOATS.into_iter().chain(NpyFile::INTEGERS).chain([BOOL]).collect()
}

fn labels_file(pair: &Pair) -> Result<NpyFile, DataError> {
    NpyFile::open(&pair.labels, &[&numbers()[..], &NpyFile::STRINGS].concat())
}

/// Calls `visit` with the text and the value of each label. The value is `None` for a word. It is also `None`
/// for an integer, because the text of an integer is already the name of its class.
fn for_each_label(
    file: &NpyFile,
    mut visit: impl FnMut(&str, Option<f64>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    match &*file.dtype {
        dtype if NpyFile::FLOATS.contains(&dtype) => file.for_each_row(file.rows, |_, bytes| {
            let value = number(bytes, dtype);
            visit(&value.to_string(), Some(value))
        }),
        dtype if dtype == BOOL || NpyFile::INTEGERS.contains(&dtype) => {
            file.integers()?.into_iter().try_for_each(|label| visit(&label.to_string(), None))
        }
        _ => file.strings()?.iter().try_for_each(|label| visit(label, number_in(label))),
    }
}

/// Returns the classes of a split.
fn classes(pair: &Pair, labels: &Labels) -> Result<BTreeSet<String>, DataError> {
    let mut found = BTreeSet::new();
    for_each_label(&labels_file(pair)?, |label, value| {
        found.extend(labels.name(label, value));
        Ok(())
    })?;
    Ok(found)
}

/// The samples of a split and the numbers of their labels.
struct SplitArrays {
    samples: NpyFile,
    /// Number of each label, or `None` if the sample is left out.
    labels: Vec<Option<u32>>,
    files: Rows,
    /// The user's file with the samples, for messages.
    path: PathBuf,
}

impl SplitArrays {
    fn open(pair: &Pair, labels: &mut Labels) -> Result<Self, DataError> {
        let samples = NpyFile::open(&pair.samples, &numbers())?;
        let file = labels_file(pair)?;
        if pair.converted.is_some() && samples.rows == 0 {
            bail!(&pair.path(), "contains no samples");
        }
        samples.check_labels(&file)?;
        if samples.fortran && samples.columns > 1 {
            bail!(&samples.file.path, "is in Fortran order: save it again with numpy.ascontiguousarray");
        }
        let mut found = Vec::with_capacity(file.rows);
        for_each_label(&file, |label, value| {
            let (path, row) = pair.label(found.len());
            let number = labels.number(format!("label [{row}]"), label, value);
            found.push(number.map_err(|what| DataError::source(&path, what))?);
            Ok(())
        })?;
        let labels = found;
        Ok(Self { samples, labels, files: pair.files.clone(), path: pair.path() })
    }

    /// Returns the rows that are used, each with its class. `class` has the class of each label number.
    fn rows(&self, class: &[u16]) -> Vec<(usize, u16)> {
        let labels = self.labels.iter().enumerate();
        labels.filter_map(|(row, label)| Some((row, class[(*label)? as usize]))).collect()
    }

    fn name(&self, row: usize) -> String {
        let (file, row) = file_of(&self.files, row);
        format!("{file}[{row}]")
    }
}

impl Arrays {
    /// Returns the arrays that an import has written to `folder` from files in `source`. `train` and `test`
    /// list these files: first those with the samples of the split, then those with its labels.
    pub(crate) fn made(
        folder: &Path,
        source: &Path,
        [train, test]: [[Rows; 2]; 2],
        names: Option<Vec<String>>,
    ) -> Self {
        let pair = |split: &str, [files, labels]: [Rows; 2]| Pair {
            samples: folder.join(format!("{split}-images.npy")),
            labels: folder.join(format!("{split}-labels.npy")),
            files,
            converted: Some((source.to_owned(), labels)),
        };
        let test = Some(test).filter(|[files, _]| !files.is_empty());
        let others = test.map(|files| ("test".to_owned(), Ok(pair("test", files)))).into_iter().collect();
        Self { train: pair("train", train), others, names, set: None }
    }

    pub(crate) fn import(self, job: &Job<'_>) -> Result<Imported, DataError> {
        let mut labels = Labels::with_names(self.names, job.args.missing_labels);
        let train = SplitArrays::open(&self.train, &mut labels)?;
        let known = labels.names(train.labels.iter().flatten().copied());
        let (names, mut others): (Vec<String>, Vec<_>) = self.others.into_iter().unzip();
        let (source, wanted) = (&job.args.source, job.args.test_split.as_deref());
        let chosen = test_split::choose(source, wanted, &known, &names, |at| {
            others[at].as_ref().map_or(Ok(BTreeSet::new()), |pair| classes(pair, &labels))
        })?;
        // If no other split has classes, open the first one: the error about it says what is missing.
        let test = (!others.is_empty()).then(|| others.swap_remove(chosen.unwrap_or(0)));
        let test = test.map(|pair| SplitArrays::open(&pair?, &mut labels)).transpose()?;
        let (classes, class) = labels.classes(&job.args.source)?;
        if let Some(split) =
            [Some(&train), test.as_ref()].into_iter().flatten().find(|split| split.rows(&class).is_empty())
        {
            bail!(&split.path, "has no sample with a class");
        }
        let kind = |split: &SplitArrays| match split.samples.shape.len() {
            1 | 2 => format!("rows of {} numbers of type {}", split.samples.columns, split.samples.dtype),
            _ => format!("pictures of type {}", split.samples.dtype),
        };
        if let Some(test) = test.as_ref().filter(|test| kind(test) != kind(&train)) {
            bail!(
                &test.samples.file.path,
                "contains {}, but the training split contains {}",
                kind(test),
                kind(&train)
            );
        }
        match train.samples.shape.len() {
            1 | 2 => features(
                train,
                test,
                classes,
                &class,
                self.set.map(|set| set.features).unwrap_or_default(),
                job,
            ),
            _ if train.samples.dtype == "|u1" => {
                let pictures = |split: SplitArrays| -> Result<Vec<Picture>, DataError> {
                    let rows = split.rows(&class).into_iter();
                    let rows: Vec<_> = rows.map(|(row, class)| (row, split.name(row), class)).collect();
                    let pixels = Arc::new(Pixels::from_npy(split.samples, self.set.is_some())?);
                    let picture =
                        |(row, name, class)| Picture { place: Place::Row(pixels.clone(), row), name, class };
                    Ok(rows.into_iter().map(picture).collect())
                };
                let (train, test) = (pictures(train)?, test.map(pictures).transpose()?);
                pictures::import(Found { classes, train, test }, self.set.and_then(|set| set.fit), job)
            }
            _ => {
                let NpyFile { dtype, shape, file, .. } = &train.samples;
                bail!(
                    &file.path,
                    "contains numbers of type {dtype} in the shape {shape:?}: pictures must be bytes from 0 to 255 \
                     ({}), and features must have the shape [samples, features] (x.reshape(len(x), -1))",
                    as_bytes(&train.samples)?
                );
            }
        }
    }
}

/// Returns the NumPy expression that converts the numbers to bytes of pictures.
fn as_bytes(samples: &NpyFile) -> Result<String, DataError> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    samples.for_each_row(samples.rows, |_, bytes| {
        let numbers = bytes.chunks_exact(samples.width).map(|bytes| number(bytes, &samples.dtype));
        numbers.for_each(|value| (low, high) = (low.min(value), high.max(value)));
        Ok::<_, DataError>(())
    })?;
    Ok(if low >= 0.0 && high <= 1.0 {
        "(255 * x).round().astype(\"uint8\")".into()
    } else if low >= 0.0 && high <= 255.0 {
        "x.round().astype(\"uint8\")".into()
    } else {
        format!(
            "its numbers are from {low} to {high}: ((x - x.min()) / (x.max() - x.min()) * \
             255).round().astype(\"uint8\")"
        )
    })
}

/// Imports features, with a row for each sample.
fn features(
    train: SplitArrays,
    test: Option<SplitArrays>,
    classes: Vec<String>,
    class: &[u16],
    names: Vec<String>,
    job: &Job<'_>,
) -> Result<Imported, DataError> {
    let args = job.args;
    args.refuse_those_of_pictures()?;
    args.refuse_those_of_tables()?;
    let (train_rows, test_rows) = (train.rows(class), test.as_ref().map(|test| test.rows(class)));
    let all = train_rows.len() + test_rows.as_ref().map_or(0, Vec::len);
    let columns = train.samples.columns;
    let (all_rows, of) = (count(all, "row"), count(columns, "feature"));
    log::info!("{}: {all_rows} of {of} in {}", args.source.display(), count(classes.len(), "class"));
    let splits = plan::splits(args, train_rows, test_rows, &classes, |(_, class)| *class)?;
    let mut ranges = FeatureRanges::for_features(columns);
    let mut writer = Writer::create(job, [1, 1, columns], Element::F32, all)?;
    let (mut bytes, mut sample, mut done) = (vec![0; columns * train.samples.width], Vec::new(), 0);
    let of_test = test.as_ref().unwrap_or(&train);
    for (place, (split, rows)) in [&train, of_test].into_iter().zip(splits).enumerate() {
        for (row, class) in rows {
            split.samples.row(row, &mut bytes)?;
            sample.clear();
            for (column, bytes) in bytes.chunks_exact(split.samples.width).enumerate() {
                let value = number(bytes, &split.samples.dtype);
                if !(value as f32).is_finite() {
                    bail!(
                        &split.samples.file.path,
                        "[{row}, {column}] is {value}{}",
                        if value.is_finite() {
                            ", which exceeds the range of f32: scale the features"
                        } else {
                            ": clean the features"
                        }
                    );
                }
                ranges.add(column, value, bytes);
                sample.extend((value as f32).to_le_bytes());
            }
            writer.add(place, &sample, class, split.name(row))?;
            done += 1;
            job.row(done, all)?;
        }
    }
    let name = |column: usize| names.get(column).cloned().unwrap_or_else(|| format!("[:, {column}]"));
    for problem in ranges.problems(name, "leave such columns out before the import") {
        log::warn!("{problem}");
    }
    writer.finish(job, classes, names, None)
}

/// Converts a number to f64. `bytes` are the number in the dtype `dtype`.
fn number(bytes: &[u8], dtype: &str) -> f64 {
    match (dtype.contains('f'), bytes) {
        (true, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
        (true, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        (true, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => NpyFile::integer(bytes, dtype.contains('i')) as f64,
    }
}
