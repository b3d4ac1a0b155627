//! Integer models: sequential layers, from real images to class scores.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::executor::Plan;
use super::layer::{Map, Operation};
use super::words::{Block, Instructions};
use super::{Int8Error, Layer, QParams, Scheme};
use crate::kernels::quantization::{dequantize, quantize};
use crate::kernels::simd::Level;

/// A sequence of layers that compute on integers. [`infer`](Self::infer) quantizes images before the first
/// layer, and converts the output of the last layer to real scores.
///
/// ```
/// use burn_fused::int8::{Conv, Layer, Linear, MaxPool, Model, Scheme, Weights};
///
/// # fn main() -> Result<(), burn_fused::int8::Int8Error> {
/// let [input, middle, output] =
///     [[-1.0, 1.0], [0.0, 2.0], [-3.0, 3.0]].map(|[min, max]| Scheme::Affine.parameters(min, max));
/// let (input, middle, output) = (input?, middle?, output?);
/// let layers = vec![
///     Layer::Conv(Conv {
///         inputs: 1,
///         outputs: 2,
///         kernel: [3, 3],
///         stride: [1, 1],
///         padding: [1, 1],
///         // One weight scale for each output channel.
///         weights: Weights::quantize(&[0.1; 18], &[0.5, -0.5], &[0.1 / 127.0; 2], input, middle)?,
///         relu: true,
///         output: middle,
///     }),
///     Layer::MaxPool(MaxPool { kernel: [2, 2], stride: [2, 2] }),
///     Layer::Linear(Linear {
///         inputs: 8,
///         outputs: 3,
///         // One for all.
///         weights: Weights::quantize(&[0.2; 24], &[0.0; 3], &[0.2 / 127.0], middle, output)?,
///         relu: false,
///         output,
///     }),
/// ];
/// let model = Model::new([1, 4, 4], input, layers)?;
/// let mut workspace = model.workspace();
/// let mut scores = [0.0; 2 * 3];
/// model.infer(&mut workspace, &[0.5; 2 * 16], &mut scores);
/// assert!(scores.iter().all(|score| (score - 0.76).abs() < 0.03), "{scores:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Model {
    /// Identifies this model. A clone has the same `id`, so that a workspace of this model also fits the
    /// clone.
    id: u64,
    shape: [usize; 3],
    input: QParams,
    layers: Vec<Layer>,
    output: QParams,
    outputs: usize,
    plan: Plan,
}

/// Buffers for the inference of a model, made by [`Model::workspace`]. They have space for one block of
/// images. Inference computes a batch block by block, and therefore allocates nothing, whatever the size of
/// the batch.
///
/// ```
/// # use std::alloc::System;
/// # use burn_fused::int8::{Layer, Linear, Model, Scheme, Weights};
/// # use burn_fused::memory::counting_allocator::{CountingAllocator, allocations};
/// # #[global_allocator]
/// # static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);
/// # fn main() -> Result<(), burn_fused::int8::Int8Error> {
/// # let range = Scheme::Affine.parameters(-1.0, 1.0)?;
/// # let weights = Weights::quantize(&[0.5; 8], &[0.0; 2], &[0.01], range, range)?;
/// # let linear = Linear { inputs: 4, outputs: 2, weights, relu: false, output: range };
/// # let model = Model::new([4, 1, 1], range, vec![Layer::Linear(linear)])?;
/// # let (images, mut scores) = ([0.5; 4 * 200], [0.0; 2 * 200]);
/// let mut workspace = model.workspace();
/// let before = allocations();
/// for batch in [1, 200, 7] {
///     model.infer(&mut workspace, &images[..batch * 4], &mut scores[..batch * 2]);
/// }
/// assert_eq!(allocations(), before);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The `id` of the model that the workspace belongs to.
    model: u64,
    /// The quantized inputs of a block of images, and its outputs.
    inputs: Vec<u8>,
    outputs: Vec<u8>,
    /// The executor's buffers, from `Plan::buffers`.
    maps: Vec<Vec<Block>>,
}

/// A stage of inference. Each block of images passes through all stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Quantizing the images, and copying them to the layout of the kernels.
    Input,
    /// The step of [`Model::steps`] with this index.
    Step(usize),
    /// Converting the last layer's bytes to scores.
    Output,
}

impl Model {
    /// Makes a model for inputs of `shape` (channels, height, width; a feature vector is `[features, 1, 1]`),
    /// quantized with the parameters `input`.
    ///
    /// # Errors
    /// If `input` is invalid, if no layer has weights, or if a layer is invalid; the error names the first
    /// invalid layer. A layer is invalid if its sizes are too large or do not fit the layer before, if the
    /// numbers of its weights, biases and scales do not fit its sizes, if a scale or zero point is invalid,
    /// if its multipliers and shifts are not those of its scales, or if a sum may overflow 32 bits.
    pub fn new(shape: [usize; 3], input: QParams, layers: Vec<Layer>) -> Result<Self, Int8Error> {
        Self::planned(shape, input, layers, true)
    }

    /// Does the same as [`new`](Self::new). If `lanes` is false, the model uses the layout of
    /// [`rows`](super::rows) even if [`lanes`](super::lanes) supports its layers.
    pub(super) fn planned(
        shape: [usize; 3],
        input: QParams,
        layers: Vec<Layer>,
        lanes: bool,
    ) -> Result<Self, Int8Error> {
        static MODELS: AtomicU64 = AtomicU64::new(0);

        input.check(Scheme::Affine)?;
        let start = match layers.first() {
            // A linear layer flattens its input.
            Some(Layer::Linear(linear)) => [linear.inputs, 1, 1],
            _ => shape,
        };
        let border = |i: usize| layers.get(i).map_or([0; 2], Layer::border);
        let (mut sizes, mut parameters) = (shape, input);
        let mut maps = vec![Map { shape: start, border: border(0), zero: input.zero_point as u8 }];
        let mut biases = Vec::with_capacity(layers.len());
        for (i, layer) in layers.iter().enumerate() {
            let next = layer.output_shape(sizes).map_err(|error| error.at(i))?;
            let bias = match layer.operation(sizes) {
                Operation::Product(geometry, weights) => {
                    let bias = weights.checked_bias(geometry, parameters);
                    parameters = geometry.output;
                    bias.map_err(|error| error.at(i))?
                }
                Operation::MaxPool(_) | Operation::AveragePool(_) => Vec::new(),
            };
            biases.push(bias);
            sizes = next;
            maps.push(Map { shape: sizes, border: border(i + 1), zero: parameters.zero_point as u8 });
        }
        if biases.iter().all(Vec::is_empty) {
            return Err(Int8Error::NoLayers);
        }
        Ok(Self {
            id: MODELS.fetch_add(1, Ordering::Relaxed),
            plan: Plan::new(&maps, &layers, &biases, lanes),
            shape,
            input,
            layers,
            output: parameters,
            outputs: sizes.iter().product(),
        })
    }

    /// Channels, height and width of an image.
    pub fn input_shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Scale and zero point of the input.
    pub fn input(&self) -> QParams {
        self.input
    }

    /// The layers, in order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Scale and zero point of the output.
    pub fn output(&self) -> QParams {
        self.output
    }

    /// Number of output values for each image: the number of classes.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The instructions that inference currently uses: `avx512-vnni`, `avx2` or `portable`, depending on the
    /// SIMD level. All instructions compute the same bits.
    pub fn instructions(&self) -> &'static str {
        Instructions::for_level(Level::current()).name()
    }

    /// Allocates a workspace for [`infer`](Self::infer).
    pub fn workspace(&self) -> Workspace {
        Workspace {
            model: self.id,
            inputs: vec![0; self.plan.images * self.shape.iter().product::<usize>()],
            outputs: vec![0; self.plan.images * self.outputs],
            maps: self.plan.buffers(),
        }
    }

    /// The steps of inference, each as a range of indices of [`layers`](Self::layers). A step computes a
    /// convolution and the pooling after it, if the executor fuses the two, or otherwise one layer.
    pub fn steps(&self) -> Vec<Range<usize>> {
        self.plan.steps().collect()
    }

    /// Computes the class scores, `[batch, outputs]`, of `images`, `[batch, channels, height, width]`.
    /// Allocates nothing. NaN in an image is quantized to byte 0, the lowest value of the quantized input.
    ///
    /// # Panics
    /// If lengths do not match, or the workspace belongs to another model.
    pub fn infer(&self, workspace: &mut Workspace, images: &[f32], scores: &mut [f32]) {
        self.infer_with(workspace, images, scores, &mut |_| ());
    }

    /// Does the same as [`infer`](Self::infer), and calls `watch` at the beginning of each stage of each
    /// block of images.
    ///
    /// # Panics
    /// In the same cases as [`infer`](Self::infer).
    #[inline(never)]
    pub fn infer_watched(
        &self,
        workspace: &mut Workspace,
        images: &[f32],
        scores: &mut [f32],
        watch: &mut dyn FnMut(Stage),
    ) {
        self.infer_with(workspace, images, scores, watch);
    }

    fn infer_with(
        &self,
        workspace: &mut Workspace,
        images: &[f32],
        mut scores: &mut [f32],
        watch: &mut dyn FnMut(Stage),
    ) {
        self.for_each_block(workspace, images, scores.len(), watch, |outputs| {
            let now = scores.split_off_mut(..outputs.len()).expect("scores of all blocks");
            dequantize(outputs, self.output, now);
        });
    }

    /// Does the same as [`infer`](Self::infer) without dequantization: scores are bytes, with the scale and
    /// zero point of [`output`](Self::output).
    ///
    /// # Panics
    /// In the same cases as [`infer`](Self::infer).
    pub fn infer_bytes(&self, workspace: &mut Workspace, images: &[f32], mut scores: &mut [u8]) {
        self.for_each_block(workspace, images, scores.len(), &mut |_| (), |outputs| {
            let now = scores.split_off_mut(..outputs.len()).expect("scores of all blocks");
            now.copy_from_slice(outputs);
        });
    }

    /// Calls `done` with the output of each block of `images`. `scores` is the number of scores for which the
    /// caller has memory.
    fn for_each_block(
        &self,
        workspace: &mut Workspace,
        images: &[f32],
        scores: usize,
        watch: &mut dyn FnMut(Stage),
        mut done: impl FnMut(&[u8]),
    ) {
        assert_eq!(workspace.model, self.id, "the workspace belongs to another model");
        let size: usize = self.shape.iter().product();
        assert!(
            images.len().is_multiple_of(size),
            "{} values are not a whole number of images of {:?} (channels, height, width)",
            images.len(),
            self.shape
        );
        let count = images.len() / size;
        assert_eq!(
            scores,
            count * self.outputs,
            "the number of scores must be the number of images ({count}) times the outputs ({})",
            self.outputs
        );
        let instructions = Instructions::for_level(Level::current());
        let Workspace { inputs, outputs, maps, .. } = workspace;
        for images in images.chunks(self.plan.images * size) {
            let count = images.len() / size;
            let (inputs, outputs) = (&mut inputs[..images.len()], &mut outputs[..count * self.outputs]);
            watch(Stage::Input);
            quantize(images, self.input, inputs);
            self.plan.run(instructions, maps, (count, inputs, outputs), watch);
            done(outputs);
        }
    }
}
