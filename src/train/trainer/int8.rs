//! The int8 model of an epoch's weights, and its test.

use burn::module::Module;

use super::Trainer;
use crate::quant::{Int8File, QuantError, Quantized};
use crate::train::{Tested, TrainError};
use burn_mpi::{CommError, SharedError};

/// An int8 model, the same on every rank, and its test.
pub(super) struct TestedInt8 {
    pub file: Int8File,
    pub test: Tested,
}

impl Trainer<'_> {
    /// Derives the int8 model of the current weights and tests it over all ranks' shares; `None`
    /// without quantization, and where the weights cannot be quantized, which a warning says: the
    /// float training goes on.
    pub(super) fn test_int8(&self) -> Result<Option<TestedInt8>, TrainError> {
        let model = match self.world.agree(self.int8_model()) {
            Ok(model) => model,
            Err(CommError::Shared(SharedError::Elsewhere { reason, .. })) => {
                if self.world.is_root() {
                    let epoch = self.position.epoch + 1;
                    log::warn!(
                        "no int8 model of epoch {epoch}: {reason}; its checkpoint has float weights only"
                    );
                }
                None
            }
            Err(error) => return Err(error.into()),
        };
        let Some(mut model) = model else { return Ok(None) };
        let test = self.evaluation.run_int8(self.world, &mut model)?;
        Ok(Some(TestedInt8 { file: model.file, test }))
    }

    fn int8_model(&self) -> Result<Option<Quantized>, QuantError> {
        let network = || self.learner.network.valid();
        match (self.quantizer(), &self.post_quantizer) {
            (Some(quantizer), _) => quantizer.integer_model(&network()).map(Some),
            (None, Some(quantizer)) => quantizer.quantize(&network()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Checks that all ranks have the same scales of activations.
    pub(super) fn check_scales(&self, int8: &TestedInt8) -> Result<(), TrainError> {
        self.world.check_equal("the int8 model's scales", &format!("{:?}", int8.file.activations))?;
        if let Some(quantizer) = self.quantizer() {
            self.world.check_equal("the ranges of quantization", &format!("{:?}", quantizer.ranges()))?;
        }
        Ok(())
    }
}
