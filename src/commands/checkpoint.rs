//! Opens the trained network of a run, for commands such as `eval`, `predict` and `export`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::covered::{self, Samples};
use super::train::check_size;
use super::{on_root, open_data, set_up};
use crate::layout::stored;
use crate::model::{Dimensions, Network};
use crate::options::{ConfigError, RunConfig, RunRecord};
use crate::quant::{Int8File, Quantized};
use crate::train::Position;
use burn_mpi::{ParamLayout, World};
use data::{Description, Element, SampleSource, Split, size_of_sample};
use run_record::checkpoint::{folder_name, verify};
use run_record::files::sha256_of_f32;
use run_record::{Checkpoint, DataRecord, INT8_FILE, Intact, NamedRun, RecordError, RunDir, count};
use terminal::table::shortened;

/// The weights, folder and position of a checkpoint. Ranks other than 0 have only the weights.
#[derive(Default)]
pub struct CheckpointWeights {
    pub values: Vec<f32>,
    pub folder: PathBuf,
    pub position: Position,
}

/// A run opened for reading: options, data set, and network with the weights of the checkpoint.
pub struct Opened {
    pub config: RunConfig,
    pub source: SampleSource,
    /// The network, on a device without autodiff.
    pub network: Network,
    pub weights: CheckpointWeights,
}

impl Opened {
    /// Opens a run on every rank. Rank 0 reads the run from `path` on its disk. `adapt` may change the run's
    /// options.
    ///
    /// If `data_root` is given, this data set replaces the run's. If it is not given, the samples of the
    /// splits in `checked` must be the samples with which the checkpoint was written.
    pub fn open(
        world: &World,
        path: &Path,
        data_root: Option<&PathBuf>,
        checked: &[Split],
        adapt: impl FnOnce(RunConfig) -> Result<RunConfig, ConfigError>,
    ) -> anyhow::Result<Self> {
        let stored = world.broadcast(&on_root(world, || stored_run(path))?)?;
        let StoredRun { mut config, samples, noted } = stored.context("rank 0 sent no configuration")?;
        if let Some(root) = data_root {
            config.data.data_root.clone_from(root);
        }
        let config = adapt(config)?;
        set_up(world, &config)?;
        let root = &config.data.data_root;
        let mut source = open_data(world, root)?;
        noted.check_dimensions(&config, source.description(), data_root.is_some())?;
        let network = config.network(noted.dimensions, &config.device.device());
        match data_root {
            Some(_) => source = noted.as_trained(world, &config, source)?,
            None => {
                for &split in checked {
                    let remedy = "name another data set with --data-root";
                    samples.check(world, &source, &noted.data, split, root, remedy)?;
                }
            }
        }
        let layout = network.parameters();
        let mut weights = on_root(world, || load(path, &layout))?.unwrap_or_default();
        weights.values.resize(layout.len(), 0.0);
        world.broadcast_f32(&mut weights.values)?;
        let network = layout.write(network, &weights.values).valid();
        Ok(Self { config, source, network, weights })
    }

    /// Returns the int8 model stored in the checkpoint's folder.
    pub fn int8(&self, world: &World) -> anyhow::Result<Quantized> {
        share_int8(world, || Ok(load_int8(&self.weights, &self.config, &self.network)?))
    }
}

/// What a run recorded about its data set.
#[derive(Clone, Serialize, Deserialize)]
pub struct Noted {
    /// Input shape and number of classes of the network.
    pub dimensions: Dimensions,
    pub data: DataRecord,
}

impl Noted {
    /// Reads the dimensions and the data set's description from `record`, the `run.json` of the run at
    /// `path`.
    ///
    /// # Errors
    /// If the number of channels or classes is 0, if the images are too small for the network, or if a
    /// network of these dimensions has more parameters than the run's network.
    pub fn from_record(path: &Path, record: &RunRecord) -> anyhow::Result<Self> {
        let damaged =
            |what: String| RecordError::damaged(&path.join("run.json"), what + ": restore the file");
        let data = record.data.clone();
        let (input, classes) = (data.shape, data.classes);
        let (config, dimensions) = (&record.config, Dimensions { input, classes });
        check_size(config, input)?;
        let least = config.model.unbounded_weights(&config.network, dimensions);
        if input[0] == 0 || classes == 0 || least > record.params as u64 {
            let what = format!(
                "`data` has samples of {} in {}, but no {} for such samples has {} parameters",
                size_of_sample(input),
                count(classes, "class"),
                config.model,
                record.params
            );
            return Err(damaged(what).into());
        }
        Ok(Self { dimensions, data })
    }

    /// Checks that a data set has the shape and the number of classes of the run's network. `typed` is true
    /// if the user named the data set with `--data-root`, and false if `run.json` names it.
    pub fn check_dimensions(
        &self,
        config: &RunConfig,
        data: &Description,
        typed: bool,
    ) -> Result<(), ConfigError> {
        let Dimensions { input, classes } = self.dimensions;
        if self.dimensions == data.into() {
            return Ok(());
        }
        let root = config.data.data_root.display();
        let problem = format!(
            "has samples of {} in {}, but {} {} in {}",
            size_of_sample(data.shape),
            count(data.classes, "class"),
            if typed { "the run was trained on" } else { "run.json records" },
            size_of_sample(input),
            count(classes, "class")
        );
        Err(if typed {
            ConfigError::new("data-root", root, format!("{problem}: name a data set like the run's"))
        } else {
            ConfigError::Message(format!(
                "{root}: {problem}: restore the data set or run.json, whichever has changed"
            ))
        })
    }

    /// Returns `source`, a data set other than the run's, with the normalisation of the run's data set.
    /// Rejects a data set with another element type or other features, or with the run's classes in another
    /// order.
    pub fn as_trained(
        &self,
        world: &World,
        config: &RunConfig,
        mut source: SampleSource,
    ) -> Result<SampleSource, ConfigError> {
        let DataRecord { class_names, element, mean, std, features, .. } = &self.data;
        let data = source.description();
        let refuse = |problem| Err(ConfigError::new("data-root", config.data.data_root.display(), problem));
        if (*element == Element::U8.to_string()) != (data.element == Element::U8) {
            return refuse(format!(
                "contains {} values, but the run's data set has {element} values: name a data set like the run's",
                data.element
            ));
        }
        if let Some(set) = source.imported().filter(|set| set.features != *features) {
            let what = match first_difference(&set.features, features) {
                Some((_, [found, expected])) => {
                    format!("has the feature {found} where the run's data set has {expected}")
                }
                None if features.is_empty() => "names its features, but the run's data set does not".into(),
                None => "does not name its features, but the run's data set does".into(),
            };
            return refuse(format!("{what}: import it again with the run's columns"));
        }
        if *class_names != data.class_names {
            let sorted = |names: &[String]| {
                let mut names = names.to_vec();
                names.sort();
                names
            };
            if sorted(class_names) == sorted(&data.class_names) {
                return refuse(
                    "has the run's classes in another order: import it again with the run's order".into(),
                );
            }
            let different = first_difference(&data.class_names, class_names);
            if let Some((class, [found, expected])) = different.filter(|_| world.is_root()) {
                log::warn!(
                    "class {class} is {found} in {}, but {expected} in the run; classes are matched by number, not by \
                     name",
                    config.data.data_root.display(),
                );
            }
        }
        let description = source.description_mut();
        (description.mean, description.std) = (mean.clone(), std.clone());
        Ok(source)
    }
}

/// Returns the first index at which the two lists have different names, and the names there, shortened.
/// `None` if there is no such index.
fn first_difference(found: &[String], expected: &[String]) -> Option<(usize, [String; 2])> {
    const MOST: usize = 60;
    let mut pairs = found.iter().zip(expected).enumerate();
    let (place, (found, expected)) = pairs.find(|(_, (found, expected))| found != expected)?;
    Some((place, [found, expected].map(|name| shortened(name, MOST))))
}

/// What a run directory says about its run, apart from the weights: options and data set.
#[derive(Serialize, Deserialize)]
pub struct StoredRun {
    pub config: RunConfig,
    /// The samples with which the checkpoint was written.
    pub samples: Samples,
    pub noted: Noted,
}

/// Reads `run.json` of the run in `folder`. If the file is damaged, the error says what to do. To find out
/// whether only `config` is wrong, reads the file again with any `config`. If this succeeds, the error says
/// how to correct `config`.
pub fn open_record(folder: &Path) -> Result<(RunDir, RunRecord), RecordError> {
    RunDir::open::<RunConfig>(folder).map_err(|error| match error {
        RecordError::Damaged { path, what } => {
            let is_config = RunDir::open::<serde_json::Value>(folder).is_ok();
            let remedy = if is_config {
                "correct it, or restore the file; each checkpoint's manifest.json also contains `config`"
            } else {
                "restore the file"
            };
            RecordError::Damaged { path, what: format!("{what}: {remedy}") }
        }
        other => other,
    })
}

/// Reads the run at `path`, which may be a run directory or one of its checkpoints.
pub fn stored_run(path: &Path) -> anyhow::Result<StoredRun> {
    let NamedRun { folder: run, checkpoint } = NamedRun::at(path)?;
    let (_, record) = match open_record(&run) {
        Err(error) if error.is_missing() => Err(NamedRun::none_at(path))?,
        opened => opened?,
    };
    let (folder, manifest) = match checkpoint {
        None => Intact::newest(&run.join("checkpoints"), verify).map(|found| (found.path, found.manifest)),
        Some(folder) => verify(&folder).map(|manifest| (folder, manifest)),
    }?;
    covered::check(&run, &record, &folder, &manifest)?;
    let samples = Samples::of_checkpoint(&manifest, &record.history, &[]);
    Ok(StoredRun { noted: Noted::from_record(&run, &record)?, config: record.config, samples })
}

/// Loads the weights of the checkpoint at `path`. If `path` is a run directory, loads the run's last intact
/// checkpoint. For a run with early stopping, loads the checkpoint with the lowest test loss instead.
pub fn load(path: &Path, layout: &ParamLayout) -> anyhow::Result<CheckpointWeights> {
    let read = |folder: PathBuf| {
        let Checkpoint { params, position, .. } = Checkpoint::<Position>::load(&folder, &stored(layout))?;
        Ok(CheckpointWeights { values: params, folder, position })
    };
    let NamedRun { folder, checkpoint } = NamedRun::at(path)?;
    if let Some(folder) = checkpoint {
        return read(folder);
    }
    let folder = folder.join("checkpoints");
    let intact = Intact::newest(&folder, verify)?;
    intact.warn();
    let last = read(intact.path)?;
    let Some(step) = last.position.best_step else { return Ok(last) };
    let best = read(folder.join(folder_name(step)))?;
    let (epoch, epochs) = (best.position.history.len(), last.position.history.len());
    log::info!("early stopping: taking epoch {epoch} of {epochs}, which had the lowest test loss");
    Ok(best)
}

/// Loads the int8 model in the checkpoint's folder. Rejects a model of weights other than `weights`, or of a
/// network other than the run's `network`.
pub fn load_int8(
    weights: &CheckpointWeights,
    config: &RunConfig,
    network: &Network,
) -> Result<Quantized, RecordError> {
    let path = weights.folder.join(INT8_FILE);
    let again =
        |what: String| RecordError::damaged(&path, format!("{what}: make it again with mpiburn quantize"));
    let file = Int8File::read(&path).map_err(|error| match error {
        RecordError::Damaged { what, .. } => again(what),
        other => other,
    })?;
    let model = config.model;
    let wrong = if file.network != model.to_string() || file.input_shape != network.input_shape() {
        let (found, shape, own) = (&file.network, file.input_shape, network.input_shape());
        format!(
            "contains a {found} for samples of {}, but the run's network is a {model} for {}",
            size_of_sample(shape),
            size_of_sample(own)
        )
    } else if file.weights_sha256 != sha256_of_f32(&weights.values) {
        "was made from other weights than the checkpoint's".into()
    } else {
        return quantized(file, &path);
    };
    Err(again(wrong))
}

/// Returns on every rank the int8 model that `made` returns on rank 0. If `made` fails, every rank returns
/// the error, as [`Refused`](super::Refused) if the user's input is the cause.
pub fn share_int8(
    world: &World,
    made: impl FnOnce() -> anyhow::Result<Quantized>,
) -> anyhow::Result<Quantized> {
    let path = Path::new(INT8_FILE);
    let encoded = on_root(world, || Ok(made()?.file.encode(path)?))?;
    let bytes = world.broadcast_bytes(encoded.unwrap_or_default())?;
    Ok(quantized(Int8File::decode(path, &bytes)?, path)?)
}

/// Makes the int8 network from the contents of the file `path`.
fn quantized(file: Int8File, path: &Path) -> Result<Quantized, RecordError> {
    Quantized::new(file).map_err(|error| RecordError::damaged(path, error.to_string()))
}
