//! What a training starts from: its run directory, and the weights or the checkpoint in it.

use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::cli::TrainArgs;
use crate::commands::outcome::default_name;
use crate::config::{RunConfig, RunRecord};
use crate::model::Network;
use crate::record::checkpoint::load_weights;
use crate::record::{Checkpoint, RunDir};
use crate::train::Position;
use burn_mpi::{ParamLayout, World};

/// Makes or opens the run directory and reads what the run starts from: rank
/// 0's work, the only rank with a run directory.
pub fn prepare(
    args: &TrainArgs,
    config: &RunConfig,
    world: &World,
    layout: &ParamLayout,
    network: Network,
    resumed: Option<PathBuf>,
    record: &RunRecord,
) -> anyhow::Result<(Option<RunDir>, Network, Option<Checkpoint<Position>>)> {
    if !world.is_root() {
        return Ok((None, network, None));
    }
    if let Some(path) = resumed {
        let (dir, _) = RunDir::open::<RunConfig>(&path)?;
        let checkpoint = Checkpoint::load_last(&dir.checkpoints(), layout)?;
        ensure!(
            checkpoint.model == config.model.to_string() && checkpoint.world_size == world.size(),
            "{}: its checkpoint is of {} at {} ranks, its run.json says {} at {}",
            path.display(),
            checkpoint.model,
            checkpoint.world_size,
            config.model,
            world.size()
        );
        dir.write_record(record)?;
        return Ok((Some(dir), network, Some(checkpoint)));
    }
    let network = match &config.init {
        Some(file) => layout.write(network, &load_weights(file, layout).context("--init")?),
        None => network,
    };
    let dir = match &args.out {
        Some(path) => RunDir::create(path, args.overwrite)?,
        None => RunDir::create_unique(&default_name(record))?,
    };
    dir.write_record(record)?;
    Ok((Some(dir), network, None))
}

/// Gives every rank rank 0's checkpoint: numbers as bytes, the rest as JSON.
pub fn share(
    world: &World,
    checkpoint: Option<Checkpoint<Position>>,
) -> anyhow::Result<Option<Checkpoint<Position>>> {
    let names = |c: &Checkpoint<Position>| c.moments.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let head = checkpoint
        .as_ref()
        .map(|c| (c.model.clone(), c.updates, c.position.clone(), c.params.len(), names(c)));
    let Some((model, updates, position, length, names)) = world.broadcast(&head)? else {
        return Ok(None);
    };
    let zeros = |name| (name, vec![0.0; length]);
    let (mut params, mut moments) = match checkpoint {
        Some(c) => (c.params, c.moments),
        None => (vec![0.0; length], names.into_iter().map(zeros).collect()),
    };
    for buffer in std::iter::once(&mut params).chain(moments.iter_mut().map(|(_, values)| values)) {
        world.broadcast_f32(buffer)?;
    }
    Ok(Some(Checkpoint { model, world_size: world.size(), params, moments, updates, position }))
}
