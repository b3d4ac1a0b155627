//! `mpiburn data`: generates, imports and describes data sets.

use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, ensure};
use data::import::ImportArgs;
use indicatif::{ProgressBar, ProgressStyle};

use super::logging::{bars, is_quiet};
use super::{Refused, outputs, program};
use crate::model::ModelKind;
use crate::options::{DataArgs, DataKind, InfoArgs, MakeArgs};
use data::contact_sheet;
use data::generate::{AfterSample, digits, features, objects};
use data::{DataError, DataFormat, Element, SampleSource, Split, shard};
use launch::{StopRequest, quoted};
use run_record::files;
use run_record::{byte_size, product_at, run_around};
use terminal::table::{CellAlignment, shortened, table};

pub fn run(args: &DataArgs) -> anyhow::Result<()> {
    let vector_bytes = features::FEATURES * size_of::<f32>() + size_of::<i64>();
    match &args.kind {
        DataKind::Digits(args) => make(args, DataFormat::Idx, digits::SIDE * digits::SIDE + 1, digits::write),
        DataKind::Objects(args) => make(args, DataFormat::Cifar10, objects::BYTES + 1, objects::write),
        DataKind::Features(args) => make(args, DataFormat::Npy, vector_bytes, features::write),
        DataKind::Import(args) => import(args),
        DataKind::Info(args) => info(args),
    }
}

/// If a data set has more classes than this, an import lists only this number: half from the beginning, half
/// from the end. If only one class would be omitted, all are listed.
const SHOWN: usize = 20;
/// Maximum number of characters of a class name in the table.
const MOST_OF_NAME: usize = 80;

type Generator = fn(&Path, usize, usize, u64, AfterSample<'_>) -> io::Result<()>;

/// Generates a data set. `sample_bytes` is the size of a sample with its label.
fn make(args: &MakeArgs, kind: DataFormat, sample_bytes: usize, write: Generator) -> anyhow::Result<()> {
    let MakeArgs { out, train, test, seed, overwrite } = args;
    let refused = |problem: &str| Refused(format!("--out {}: {problem}", out.display())).into();
    match DataFormat::of_folder(out) {
        _ if out.exists() && !out.is_dir() => {
            return Err(refused("is not a folder: choose another folder"));
        }
        _ if run_around(out).is_some() => {
            return Err(refused("is in a run directory: choose another folder"));
        }
        Err(DataError::NoneHere { .. }) => {}
        Ok(found) if found == kind && *overwrite => {}
        Ok(found) if found == kind => {
            return Err(refused("contains a data set: choose another folder, or pass --overwrite"));
        }
        Ok(found) => {
            return Err(refused(&format!("contains another data set, {found}: choose another folder")));
        }
        Err(error) => return Err(error).context("--out"),
    }
    if kind == DataFormat::Npy
        && let Some(class) = features::unlearned(*train, *test, *seed)
    {
        let problem = format!(
            "--train {train} --test {test}: class {class} has test samples but no training samples: choose a larger \
             --train"
        );
        return Err(Refused(problem).into());
    }
    check_space(out, sample_bytes, *train, *test)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot write {}", out.display()))?;
    let bar = bars().add(ProgressBar::new((train + test) as u64));
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} samples  {eta} left")?);
    let stop = StopRequest::listen().context("cannot install signal handlers")?;
    let progress = |done| {
        bar.set_position(done as u64);
        stop.number().map_or(Ok(()), |_| Err(io::ErrorKind::Interrupted.into()))
    };
    let written = write(out, *train, *test, *seed, &progress);
    if written.is_err() {
        end_of_signal(&stop);
    }
    written.with_context(|| format!("cannot write the data set to {}", out.display()))?;
    bar.finish_and_clear();
    data::open(out)?;
    let what = kind.generator();
    log::info!("{}: {train} training and {test} test samples of {what}, seed {seed}", out.display());
    Ok(())
}

/// Imports a data set with a progress bar, then prints its classes and the next command.
fn import(args: &ImportArgs) -> anyhow::Result<()> {
    if run_around(&args.out).is_some() {
        let problem = format!("--out {}: is in a run directory: choose another folder", args.out.display());
        return Err(Refused(problem).into());
    }
    let bar = bars().add(ProgressBar::no_length());
    bar.set_style(ProgressStyle::with_template("{bar:24} {percent}%  {eta} left")?);
    let stop = StopRequest::listen_as_launcher().context("cannot install signal handlers")?;
    let progress = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        stop.number().map_or(ControlFlow::Continue(()), |_| ControlFlow::Break(()))
    };
    let imported = data::import(args, &progress);
    bar.finish_and_clear();
    if let Err(DataError::Stopped) = imported {
        end_of_signal(&stop);
    }
    // If the source is a folder that this program wrote, such as a run directory, the error should say so.
    // But such a folder may contain a table that the user wants to import, so this check comes only after the
    // import has failed.
    let refused = |error| match product_at(&args.source) {
        Some(what) => {
            let source = args.source.display();
            Refused(format!("{source} is {what}, not a data set: name a folder of pictures, or a table"))
                .into()
        }
        None => anyhow::Error::from(error),
    };
    let set = imported.map_err(refused)?.set;
    let [channels, height, width] = set.shape;
    let described = describe(&args.out, &data::open(&args.out)?, Some(SHOWN))?;
    let fits = |model: ModelKind| [height, width].iter().all(|side| *side >= model.least_side());
    let model = match channels {
        3 if fits(ModelKind::Vgg) => ModelKind::Vgg,
        _ if fits(ModelKind::Convnet) => ModelKind::Convnet,
        _ => ModelKind::Mlp,
    };
    let folder = quoted(args.out.display());
    if is_quiet() {
        return Ok(());
    }
    print!("{described}");
    let recipe = recipe(set.train.samples);
    let program = quoted(program());
    println!("next: mpirun -n 2 --bind-to core {program} train --model {model} --data-root {folder}{recipe}");
    Ok(())
}

/// Returns options for the suggested training, in which two ranks learn from `samples` samples. Small sets
/// get smaller batches and more epochs (at most 100), for about 500 steps. Large sets get no options: the
/// defaults suit them.
fn recipe(samples: usize) -> String {
    const RANKS: usize = 2;
    /// Number of steps in which networks learned separable classes in experiments.
    const STEPS: usize = 500;
    const BATCH: usize = 32;
    const EPOCHS: usize = 3;
    let of_rank = samples.div_ceil(RANKS).max(1);
    let batch = (of_rank / 16).next_power_of_two().clamp(4, BATCH);
    let epochs = STEPS.div_ceil(of_rank.div_ceil(batch)).clamp(EPOCHS, 100);
    if epochs == EPOCHS {
        return String::new();
    }
    let batch = if batch < BATCH { format!(" --train-batch-size {batch}") } else { String::new() };
    format!(" --shuffle --epochs {epochs}{batch} --lr 0.001")
}

/// If a signal has arrived, ends the process as the signal would end it without a handler.
fn end_of_signal(stop: &StopRequest) {
    if let Some(signal) = stop.number() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

/// Checks that the samples, of `sample_bytes` bytes each, fit on the disk.
fn check_space(out: &Path, sample_bytes: usize, train: usize, test: usize) -> anyhow::Result<()> {
    let samples = train as u128 + test as u128;
    let bytes = samples * sample_bytes as u128;
    let Some(free) = files::free_bytes(out) else { return Ok(()) };
    ensure!(
        bytes < free,
        "--train {train} --test {test}: {samples} samples take {}, but {} has only {} free: choose fewer samples, or \
         another --out",
        byte_size(bytes),
        out.display(),
        byte_size(free)
    );
    Ok(())
}

fn info(args: &InfoArgs) -> anyhow::Result<()> {
    outputs::check(&[("sheet", args.sheet.as_ref())], &[])?;
    let source = data::open(&args.root)?;
    let mut text = describe(&args.root, &source, None)?;
    if let Some(set) = source.imported() {
        let from = set.source.display();
        writeln!(text, "imported from {from}; samples and labels are unchanged since the import")?;
    }
    if let Some(file) = &args.sheet {
        contact_sheet::draw(file, &source).with_context(|| format!("--sheet {}", file.display()))?;
        writeln!(text, "{}: training samples, one row per class in the order of the table", file.display())?;
    }
    print!("{text}");
    Ok(())
}

/// Describes the data set in `root`: its samples and classes. Lists only the first and the last `most / 2`
/// classes if this omits at least two classes.
fn describe(root: &Path, source: &SampleSource, most: Option<usize>) -> anyhow::Result<String> {
    let description = source.description();
    let mut text = String::new();
    let classes = run_record::count(description.classes, "class");
    writeln!(text, "{}: {}, {classes}", root.display(), description.kind)?;
    let numbers = match description.shape {
        [1, 1, 1] => "1 feature".into(),
        [1, 1, features] => format!("{features} features"),
        [channels, height, width] => format!("{channels} x {height} x {width} (channels, height, width)"),
    };
    writeln!(text, "a sample is {numbers} of {}{}", description.element, normalisation(description))?;
    let (mut classes, mut compared) = (Vec::new(), String::new());
    for split in Split::ALL {
        let samples = source.len(split);
        let digest = shard::digest(source, split, samples)?;
        let samples = run_record::count(samples, "sample");
        writeln!(text, "{:<5} {samples}, SHA-256 {digest}", split.name())?;
        let digest = description.digest(&digest);
        let name = split.name();
        writeln!(
            compared,
            "{name:<5} SHA-256 of samples, shape, normalisation and class names, as in checkpoints: {digest}"
        )?;
        classes.push(count(source, split)?);
    }
    text += &compared;
    let line = |(class, name): (usize, &String)| {
        let name = shortened(name, MOST_OF_NAME);
        vec![class.to_string(), name, classes[0][class].to_string(), classes[1][class].to_string()]
    };
    let lines = description.class_names.iter().enumerate().map(line);
    let (all, edge) = (lines.len(), most.map_or(usize::MAX, |most| most / 2));
    let is_cut = all / 2 > edge;
    let more = vec![vec![
        "…".into(),
        format!("{} more", all.saturating_sub(edge.saturating_mul(2))),
        "…".into(),
        "…".into(),
    ]];
    let lines = if is_cut {
        lines.clone().take(edge).chain(more).chain(lines.skip(all - edge)).collect()
    } else {
        lines.collect::<Vec<_>>()
    };
    let mut table = table(&["class", "label", "train", "test"], 2, lines);
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(text, "{table}")?;
    if is_cut {
        writeln!(text, "all classes: {} data info {}", quoted(program()), quoted(root.display()))?;
    }
    Ok(text)
}

fn normalisation(description: &data::Description) -> String {
    let list = |values: &[f32]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    match (description.element, description.mean.len()) {
        (_, 0) => String::new(),
        (Element::U8, _) => format!(
            ", scaled to 0..1 and normalised by mean {} and standard deviation {}",
            list(&description.mean),
            list(&description.std)
        ),
        _ => {
            let common = |values: &[f32]| values.iter().all(|value| *value == values[0]).then_some(values[0]);
            match (common(&description.mean), common(&description.std)) {
                (Some(mean), Some(std)) => {
                    format!(", each normalised by mean {mean} and standard deviation {std}")
                }
                (Some(mean), None) => {
                    format!(", each normalised by mean {mean} and its own standard deviation")
                }
                (None, Some(std)) => {
                    format!(", each normalised by its own mean, and by standard deviation {std}")
                }
                (None, None) => ", each normalised by its own mean and standard deviation".into(),
            }
        }
    }
}

/// Returns the number of samples of each class.
fn count(source: &SampleSource, split: Split) -> Result<Vec<usize>, DataError> {
    let mut counts = vec![0; source.description().classes];
    source.labels(split, source.len(split))?.iter().for_each(|&label| counts[usize::from(label)] += 1);
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normalisation_of_features_is_what_the_import_was_told() {
        let text = |mean: [f32; 2], std: [f32; 2]| {
            normalisation(&data::Description {
                kind: DataFormat::Imported,
                shape: [1, 1, 2],
                element: Element::F32,
                classes: 1,
                class_names: vec!["a".into()],
                mean: mean.to_vec(),
                std: std.to_vec(),
            })
        };
        assert!(text([0.0, 0.0], [1.0, 1.0]).ends_with(" mean 0 and standard deviation 1"));
        assert!(text([0.0, 0.0], [1.0, 2.0]).ends_with(" mean 0 and its own standard deviation"));
        assert!(text([0.5, 0.0], [1.0, 2.0]).ends_with(" its own mean and standard deviation"));
        assert!(text([0.5, 0.0], [1.0, 1.0]).ends_with(" its own mean, and by standard deviation 1"));
    }

    #[test]
    fn few_samples_are_learned_in_more_epochs_of_smaller_batches() {
        for (samples, expected) in [
            (1, " --shuffle --epochs 100 --train-batch-size 4 --lr 0.001"),
            (72, " --shuffle --epochs 56 --train-batch-size 4 --lr 0.001"),
            (240, " --shuffle --epochs 34 --train-batch-size 8 --lr 0.001"),
            (4000, " --shuffle --epochs 8 --lr 0.001"),
            (48_000, ""),
        ] {
            assert_eq!(recipe(samples), expected, "{samples}");
        }
    }
}
