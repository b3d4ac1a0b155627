//! Reads the sizes of a batch of sequences from tensors, and checks the shapes of states and parameters.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;

use crate::kernels::recurrent::sequences::Sequences;
use crate::runtime::memory::Buffer;

impl Sequences {
    /// Reads the sizes from inputs `[batch, steps, inputs]` and hidden weights `[hidden, hidden]`. Returns
    /// `None` if the inputs are not f32 or a size is 0.
    pub fn from_tensors(
        x: &FlexTensor,
        hidden: &FlexTensor,
        reverse: bool,
        clip: Option<f32>,
    ) -> Option<Self> {
        let [batch, steps, inputs] = x.shape().dims();
        let hidden = hidden.shape()[0];
        let any = x.dtype() == DType::F32 && batch * steps * inputs * hidden > 0;
        any.then_some(Self { batch, steps, inputs, hidden, reverse, clip: clip.unwrap_or(f32::INFINITY) })
    }

    /// Returns whether `parameters` fit a gate. They are the weights and bias of the input, then those of the
    /// hidden state. A tensor of shape `[0]` stands for an absent parameter.
    pub fn has_gate(self, parameters: &[&FlexTensor]) -> bool {
        let Self { inputs, hidden, .. } = self;
        let shapes: [&[usize]; 4] = [&[inputs, hidden], &[hidden], &[hidden, hidden], &[hidden]];
        parameters.iter().zip(shapes).all(|(tensor, shape)| {
            let absent = *tensor.shape() == [0];
            tensor.dtype() == DType::F32 && (absent || *tensor.shape() == *shape)
        })
    }

    /// Returns whether `state` is f32 and has the shape `[batch, hidden]`, or `[0, 0]` for an absent state.
    pub fn has_state(self, state: &FlexTensor) -> bool {
        let shape = state.shape();
        state.dtype() == DType::F32 && (*shape == [0, 0] || *shape == [self.batch, self.hidden])
    }

    /// Returns the state `[batch, hidden]` without the padding of its rows.
    pub fn state(self, padded: &[f32]) -> FlexTensor {
        let mut state = Buffer::new(self.batch * self.hidden);
        for (target, row) in state.chunks_exact_mut(self.hidden).zip(padded.chunks_exact(self.width())) {
            target.copy_from_slice(&row[..self.hidden]);
        }
        state.into_tensor(&[self.batch, self.hidden])
    }
}
