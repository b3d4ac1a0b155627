//! Stages of an integer model's inference, for a profiler.

use std::ops::Range;

use super::model::{Model, Workspace};
use super::values::dequantize;

/// A stage of the inference of a block of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Quantizing the images, in the layout of the executor.
    Input,
    /// The layers of [`Model::steps`] with this index.
    Step(usize),
    /// Scores from the last layer's bytes.
    Output,
}

impl Model {
    /// Ranges of [`layers`](Self::layers) that are computed together: a convolution and its
    /// pooling, where the executor fuses them, or one layer.
    pub fn steps(&self) -> Vec<Range<usize>> {
        let firsts = self.first_layers();
        let ends = firsts.iter().skip(1).copied().chain([self.layers().len()]);
        firsts.iter().copied().zip(ends).map(|(first, end)| first..end).collect()
    }

    /// As [`infer`](Self::infer); `watch` is called at the beginning of each stage of each
    /// block of images. Inference without it has no such calls.
    ///
    /// # Panics
    /// As [`infer`](Self::infer).
    pub fn infer_watched(
        &self,
        workspace: &mut Workspace,
        images: &[f32],
        scores: &mut [f32],
        mut watch: impl FnMut(Stage),
    ) {
        self.infer_dyn(workspace, images, scores, &mut watch);
    }

    // Not generic: the kernels would be compiled again with the caller's crate, where they are not
    // inlined into code with the level's instructions, and take several times as long.
    #[inline(never)]
    fn infer_dyn(
        &self,
        workspace: &mut Workspace,
        images: &[f32],
        scores: &mut [f32],
        watch: &mut dyn FnMut(Stage),
    ) {
        self.infer_with(workspace, images, scores, watch);
    }

    /// [`infer`](Self::infer) and [`infer_watched`](Self::infer_watched).
    pub(super) fn infer_with(
        &self,
        workspace: &mut Workspace,
        images: &[f32],
        scores: &mut [f32],
        watch: impl FnMut(Stage),
    ) {
        let mut rest = scores;
        let len = rest.len();
        self.for_each_block(workspace, images, len, watch, |outputs| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(outputs.len());
            dequantize(outputs, self.output(), now);
            rest = later;
        });
    }
}
