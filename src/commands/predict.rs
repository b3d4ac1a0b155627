//! `mpiburn predict`: predicts the classes of pictures, or of the rows of tables.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use burn::module::Module;
use burn::tensor::Device;
use burn_mpi::World;
use clap::ValueEnum;
use data::import::Fit;
use rayon::prelude::*;
use run_record::{DataRecord, count};
use terminal::console::without_controls;

use super::brightness::Brightness;
use super::checkpoint::{self, Noted};
use super::standard_input::each_name;
use super::{on_root, use_threads};
use crate::device::DeviceKind;
use crate::model::{Dimensions, Network, inputs};
use crate::options::{PredictArgs, RunConfig};
use crate::quant::Quantized;
use data::{DataError, DataFormat, Description, Element, Normalizer};

/// Number of samples in one pass through the network.
const BATCH: usize = 64;

/// Predicts on rank 0 only, even under mpirun.
pub fn run(world: &World, args: &PredictArgs) -> anyhow::Result<()> {
    use_threads(1)?;
    on_root(world, || predict(args)).map(drop)
}

fn predict(args: &PredictArgs) -> anyhow::Result<()> {
    let mut predictor = Predictor::open(args)?;
    let mut lines = Lines { top: args.top, csv: args.csv, failed: [0; 2] };
    if args.csv {
        lines.header(predictor.classes.len())?;
    }
    for path in &args.files {
        if path == Path::new("-") {
            if each_name(io::stdin().lock(), |name| predictor.path(name, &mut lines))? == 0 {
                log::warn!("standard input contains no file names");
            }
        } else {
            predictor.path(path, &mut lines)?;
        }
    }
    predictor.read(&mut lines)?;
    if let Some(warning) = predictor.brightness.warning() {
        log::warn!("{warning}");
    }
    let failed = lines.failed.into_iter().zip(["path", "row"]).filter(|(number, _)| *number > 0);
    let failed: Vec<String> = failed.map(|(number, what)| count(number, what)).collect();
    ensure!(failed.is_empty(), "no prediction for {}", failed.join(" and "));
    Ok(())
}

/// A trained network, or its int8 model.
enum Trained {
    Float(Box<Network>, Device),
    Int8(Box<Quantized>),
}

/// Predicts the classes of samples, one batch at a time.
struct Predictor {
    trained: Trained,
    normalizer: Normalizer,
    brightness: Brightness,
    dimensions: Dimensions,
    element: Element,
    classes: Vec<String>,
    features: Vec<String>,
    fit: Fit,
    /// Pictures of the next batch. They are read together, in parallel.
    unread: Vec<PathBuf>,
}

impl Predictor {
    /// Loads the network of a run, and the run's description of its data set.
    fn open(args: &PredictArgs) -> anyhow::Result<Self> {
        let stored = checkpoint::stored_run(&args.run)?;
        let config = RunConfig { device: DeviceKind::Flex, ..stored.config };
        let Noted { dimensions, data } = stored.noted;
        let known = Element::from_name(&data.element);
        let unknown = || {
            format!(
                "{}: `data.element` in run.json is not an element type: restore run.json",
                args.run.display()
            )
        };
        let element = known.with_context(unknown)?;
        let DataRecord { class_names, mean, std, fit, features, train_sha256, .. } = data;
        let description = Description {
            kind: DataFormat::Imported,
            shape: dimensions.input,
            element,
            classes: dimensions.classes,
            class_names,
            mean,
            std,
        };
        let written = stored.samples.train_digest();
        ensure!(
            written.is_none_or(|written| written == description.digest(&train_sha256)),
            "{}: `data` in run.json differs from the checkpoint: restore run.json",
            args.run.display()
        );
        config.conv.use_algorithm();
        let device = config.device.device();
        let network = config.network(dimensions, &device);
        let layout = network.parameters();
        let weights = checkpoint::load(&args.run, &layout)?;
        let trained = if args.int8 {
            Trained::Int8(Box::new(checkpoint::load_int8(&weights, &config, &network)?))
        } else {
            Trained::Float(Box::new(layout.write(network, &weights.values).valid()), device)
        };
        Ok(Self {
            trained,
            normalizer: Normalizer::new(&description),
            brightness: Brightness::of_training_set(&description.mean, &description.std),
            dimensions,
            element,
            classes: description.class_names,
            features,
            fit: fit.and_then(|name| Fit::from_str(&name, true).ok()).unwrap_or_default(),
            unread: Vec::new(),
        })
    }

    /// Predicts the pictures in a file or folder, or the rows of a table.
    fn path(&mut self, path: &Path, lines: &mut Lines) -> anyhow::Result<()> {
        if self.element != Element::U8 {
            return self.table(path, lines);
        }
        match data::import::pictures(path) {
            Ok(found) if found.is_empty() => {
                lines.failed(&anyhow!("{}: contains no pictures", path.display()))
            }
            Ok(found) => {
                for path in found {
                    self.unread.push(path);
                    if self.unread.len() == BATCH {
                        self.read(lines)?;
                    }
                }
            }
            Err(error) => lines.failed(&error.into()),
        }
        Ok(())
    }

    /// Reads the pictures in `unread` and predicts them.
    fn read(&mut self, lines: &mut Lines) -> anyhow::Result<()> {
        let read = |path: &PathBuf| data::import::picture(path, self.dimensions.input, self.fit);
        let read: Vec<Result<Vec<u8>, DataError>> = self.unread.par_iter().map(read).collect();
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for (path, pixels) in std::mem::take(&mut self.unread).iter().zip(read) {
            match pixels {
                Ok(pixels) => {
                    names.push(path.display().to_string());
                    self.brightness.look(&names[names.len() - 1], &pixels);
                    values.extend(self.normalizer.values(&pixels));
                }
                Err(error) => lines.failed(&error.into()),
            }
        }
        self.pass(&names, values, lines)
    }

    /// Predicts the rows of a table.
    fn table(&mut self, path: &Path, lines: &mut Lines) -> anyhow::Result<()> {
        let features = self.dimensions.input.iter().product();
        let column_names = self.features.clone();
        let (mut names, mut values, mut passed, mut found) = (Vec::new(), Vec::new(), Ok(()), 0);
        let read = data::import::rows(path, features, &column_names, |line, row| match row {
            Ok(row) => {
                found += 1;
                names.push(format!("{}:{line}", path.display()));
                values.extend(self.normalizer.floats(row));
                if names.len() == BATCH && passed.is_ok() {
                    passed = self.pass(&std::mem::take(&mut names), std::mem::take(&mut values), lines);
                }
            }
            Err(error) => {
                found += 1;
                lines.failed_row(&error.into());
            }
        });
        passed?;
        self.pass(&names, values, lines)?;
        match read {
            Err(error) => lines.failed(&error.into()),
            Ok(()) if found == 0 => log::warn!("{}: contains no rows", path.display()),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Predicts samples with these names and normalised values in one pass.
    fn pass(&mut self, names: &[String], values: Vec<f32>, lines: &mut Lines) -> anyhow::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let scores = match &mut self.trained {
            Trained::Int8(network) => {
                let mut scores = Vec::new();
                network.infer(&values, &mut scores);
                scores
            }
            Trained::Float(network, device) => {
                let samples = inputs(values, self.dimensions.input, device);
                network.forward(samples).into_data().iter().collect()
            }
        };
        for (name, scores) in names.iter().zip(scores.chunks_exact(self.dimensions.classes)) {
            lines.print(name, &self.classes, scores)?;
        }
        Ok(())
    }
}

/// Prints one line per sample, and counts failures.
struct Lines {
    top: usize,
    csv: bool,
    /// Number of files and folders that could not be read, and number of rows that could not be read.
    failed: [usize; 2],
}

impl Lines {
    /// Warns of a file or folder that could not be read.
    fn failed(&mut self, error: &anyhow::Error) {
        self.failed[0] += 1;
        log::warn!("{error:#}");
    }

    /// Warns of a row that could not be read.
    fn failed_row(&mut self, error: &anyhow::Error) {
        self.failed[1] += 1;
        log::warn!("{error:#}");
    }

    /// Prints a row of CSV.
    fn row(&self, cells: &[String]) -> anyhow::Result<()> {
        let mut row = csv::Writer::from_writer(Vec::new());
        row.write_record(cells)?;
        print!("{}", String::from_utf8_lossy(&row.into_inner().map_err(|error| anyhow!("{error}"))?));
        Ok(())
    }

    fn header(&self, classes: usize) -> anyhow::Result<()> {
        let of_place = |place: usize| match place {
            1 => ["class".to_owned(), "probability".into()],
            place => [format!("class {place}"), format!("probability {place}")],
        };
        let places = (1..=self.top.min(classes)).flat_map(of_place);
        self.row(&std::iter::once("file".to_owned()).chain(places).collect::<Vec<_>>())
    }

    /// Prints the most probable classes of a sample.
    fn print(&self, name: &str, classes: &[String], scores: &[f32]) -> anyhow::Result<()> {
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = scores.iter().map(|score| f64::from(score - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let places = order.iter().take(self.top).map(|&class| (classes[class].clone(), powers[class] / sum));
        if self.csv {
            let cells = places.flat_map(|(class, probability)| [class, format!("{probability:.6}")]);
            return self.row(&std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>());
        }
        let places: Vec<String> =
            places.map(|(class, probability)| format!("{class} {probability:.4}")).collect();
        let line = format!("{name}: {}", places.join("  ")).replace(['\n', '\r'], "␤");
        println!("{}", without_controls(&line));
        Ok(())
    }
}
