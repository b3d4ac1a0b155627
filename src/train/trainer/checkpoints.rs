//! Checkpoints of a training, and its continuation from one.

use super::Trainer;
use crate::quant::Int8File;
use crate::spans;
use crate::train::step::Learner;
use crate::train::{Position, Recorder, Tally, TrainError};
use run_record::{Checkpoint, Curve};

impl Trainer<'_> {
    /// Restores the position of `checkpoint`.
    ///
    /// # Errors
    /// If the shard of its epoch cannot be read, or the moments belong to a different
    /// optimizer.
    pub fn restore(&mut self, checkpoint: Checkpoint<Position>) -> Result<(), TrainError> {
        let rank = self.world.rank();
        self.learner.updater.optimizer.restore(checkpoint.moments, checkpoint.updates)?;
        self.learner.params = checkpoint.params;
        self.learner.publish();
        self.position = checkpoint.position;
        self.checkpoint_step = Some(self.position.step);
        if let Some(arrival) = self.position.arrival.clone() {
            self.learner.sync.adopt(arrival).map_err(|error| TrainError::State(error.to_string()))?;
        }
        if let (Some(scale), Some(saved)) = (&mut self.learner.loss_scale, self.position.loss_scale) {
            *scale = saved;
        }
        if let (Some(quantizer), Some(ranges)) = (&mut self.learner.quantizer, self.position.ranges.clone()) {
            quantizer.restore(ranges);
        }
        let buffers = std::mem::take(&mut self.position.buffers);
        if let Some(own) = buffers.get(rank) {
            self.learner.set_buffers(own);
        }
        let own = |tallies: &[Tally]| tallies.get(rank).copied().unwrap_or_default();
        self.epoch_tally = own(&self.position.epoch_tallies);
        self.window_tally = own(&self.position.window_tallies);
        self.comm_before = self.position.comm_seconds.get(rank).copied().unwrap_or(0.0);
        if !self.is_done() {
            self.load_shard()?;
        }
        Ok(())
    }

    /// Writes a checkpoint whose weights have the running statistics averaged over ranks. The
    /// training goes on with each rank's own, as if there had been no checkpoint, and
    /// so does a resumed one.
    pub(super) fn checkpoint_inside_epoch(&mut self, recorder: &mut Recorder<'_>) -> Result<(), TrainError> {
        self.check_statistics()?;
        let own = self.learner.buffers();
        if own.is_empty() {
            return self.checkpoint(recorder, self.epoch_tally, None);
        }
        self.position.buffers = self.world.gather(&own)?;
        self.learner.average_buffers()?;
        self.checkpoint(recorder, self.epoch_tally, None)?;
        self.position.buffers.clear();
        self.learner.set_buffers(&own);
        Ok(())
    }

    /// Writes a checkpoint, with each rank's part of the position. One that cannot be written ends
    /// the run only if it is the last.
    pub(super) fn checkpoint(
        &mut self,
        recorder: &mut Recorder<'_>,
        epoch_tally: Tally,
        int8: Option<&Int8File>,
    ) -> Result<(), TrainError> {
        spans::span(&spans::CHECKPOINT, || {
            let ranks: Vec<Vec<(usize, Tally)>> = self.world.gather(&std::mem::take(&mut self.unwritten))?;
            // All ranks log the same steps.
            let point = |at: usize| {
                let tallies: Vec<Tally> = ranks.iter().map(|lines| lines[at].1).collect();
                Tally::curve_point(ranks[0][at].0, &tallies)
            };
            let points: Vec<_> = (0..ranks[0].len()).map(point).collect();
            recorder.write(|writer| writer.points(Curve::Train, &points))?;
            self.position.epoch_tallies = self.world.gather(&epoch_tally)?;
            self.position.window_tallies = self.world.gather(&self.window_tally)?;
            let comm_seconds = self.comm_before + self.learner.times().exposed.as_secs_f64();
            self.position.comm_seconds = self.world.gather(&comm_seconds)?;
            self.position.arrival = self.learner.sync.arrival().cloned();
            self.position.loss_scale = self.learner.loss_scale;
            self.position.ranges = self.quantizer().map(|quantizer| quantizer.ranges().clone());
            let Learner { params, updater, .. } = &self.learner;
            let last = self.stopping || self.is_done();
            let written = recorder.checkpoint(self.learner.layout(), int8, last, || Checkpoint {
                model: self.options.model.to_string(),
                world_size: self.world.size(),
                params: params.clone(),
                moments: updater.optimizer.moments().to_vec(),
                updates: updater.optimizer.updates(),
                position: self.position.clone(),
            })?;
            if written {
                self.checkpoint_step = Some(self.position.step);
            }
            Ok(())
        })
    }
}
