//! Forward of the pair.

use super::{Between, Layer, PairShape};
use crate::conv::cpu::Shape;
use crate::conv::cpu::blocks::{append_argmax, images_of, load_input};
use crate::conv::cpu::correlation::Correlation;
use crate::conv::cpu::middle::{Extremes, fake_quantize};
use crate::conv::cpu::plane::Plane;
use crate::conv::cpu::scratch::{Buffers, Kept};
use crate::epilogue::Epilogue;
use crate::fake_quantize::Step;
use crate::int8::{Int8Error, QParams, Scheme};
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes};

/// The parameters, affine, for activations of this minimum and maximum; `None` leaves them as
/// they are.
pub type Parameters<'a> = dyn FnMut(Result<[f32; 2], Int8Error>) -> Option<QParams> + 'a;

/// Forward, for any SIMD level.
pub struct PairForward<'a, 'p> {
    pub shape: PairShape,
    pub input: &'a [f32],
    pub layers: [Layer<'a>; 2],
    /// Of the fake quantization between the layers, if any.
    pub quantize: Option<&'a mut Parameters<'p>>,
    pub backward: bool,
    pub buffers: &'a mut [Buffers; 2],
}

impl Kernel for PairForward<'_, '_> {
    type Output = (Vec<f32>, Between);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { shape, layers, backward, mut quantize, .. } = self;
        let [first, second] = [shape.first, shape.second()];
        let planes = [first, second].map(|shape| Plane::bordered(shape.height, shape.width));
        let [height, width] = second.output_size(Epilogue::ReluPool);
        let (result, step) = (Plane::plain(height, width), second.outputs * height * width);
        let blocks = first.batch.div_ceil(S::F32_LANES);
        let values = first.outputs * second.pixels();
        let planed = second.inputs * planes[1].len();
        let kept = if backward { blocks * S::F32_LANES } else { 0 };
        let mut argmax = [values, step].map(|values| Vec::with_capacity(kept * values));
        // Parameters depend on all blocks: with them, the second convolution comes when the
        // first is done with all, and otherwise block by block.
        let apart = quantize.is_some();
        let keep = backward || apart;
        let mut middle = if keep { Kept::new::<S::f32s>(blocks * planed) } else { Kept::default() };
        let (mut extremes, mut parameters) = (Extremes::new(), None);
        let mut output = Uninit::new(second.output_len(Epilogue::ReluPool));
        let [one, two] = self.buffers;
        for turn in 0..2 * blocks {
            let (block, is_second) = match apart {
                true => (turn % blocks, turn >= blocks),
                false => (turn / 2, turn % 2 == 1),
            };
            let (from, images) = images_of::<S>(second, block);
            let between = match keep {
                true => &mut middle.values_mut::<S::f32s>()[block * planed..][..planed],
                false => two.input.take::<S::f32s>(planed),
            };
            if !is_second {
                let input = one.input.take::<S::f32s>(first.inputs * planes[0].len());
                load_input(simd, first, planes[0], self.input, block, input);
                let found = one.output.take::<S::f32s>(values);
                let index = one.part.take::<S::u32s>(if backward { values } else { 0 });
                convolve(simd, first, layers[0], planes[0], input, found, index);
                append_argmax(index, &mut argmax[0]);
                add_borders(simd, second, planes[1], found, between);
                if apart {
                    extremes.include(simd, found, images);
                }
                continue;
            }
            if let Some(quantize) = quantize.take() {
                parameters = quantize(extremes.range()).map(|found| Step::new(Scheme::Affine, found));
            }
            if let Some(parameters) = parameters {
                let bytes = if backward { second.pixels() * S::F32_LANES } else { 0 };
                for (channel, lanes) in between.chunks_exact_mut(planes[1].len()).enumerate() {
                    let from = (block * second.inputs + channel) * bytes;
                    fake_quantize(simd, parameters, planes[1], lanes, &mut argmax[0][from..][..bytes]);
                }
            }
            let lanes = two.output.take::<S::f32s>(step);
            let index = two.part.take::<S::u32s>(if backward { step } else { 0 });
            convolve(simd, second, layers[1], planes[1], between, lanes, index);
            append_argmax(index, &mut argmax[1]);
            for channel in 0..second.outputs {
                let lanes = &lanes[channel * result.len()..][..result.len()];
                let target = &mut output.values()[from * step + channel * result.len()..];
                result.store(simd, lanes, images, step, target);
            }
        }
        // SAFETY: the second convolution came once to every block, with every channel of its
        // images, and `store` initialises all `height * width` values of each.
        (unsafe { output.assume_init() }, Between { middle, argmax })
    }
}

/// Convolution, ReLU and pooling of a block; `output` and `index` have no borders.
#[inline(always)]
fn convolve<S: Lanes>(
    simd: S,
    shape: Shape,
    Layer { weights, bias }: Layer<'_>,
    plane: Plane,
    input: &[S::f32s],
    output: &mut [S::f32s],
    index: &mut [S::u32s],
) {
    let Shape { inputs, outputs, .. } = shape;
    let correlation =
        Correlation { inputs, outputs, weights, bias: Some(bias), epilogue: Epilogue::ReluPool };
    correlation.run(simd, plane, input, output, index);
}

/// Copies the pixels of a block from `middle`, which has no borders, into bordered
/// planes.
#[inline(always)]
fn add_borders<S: Lanes>(simd: S, shape: Shape, plane: Plane, middle: &[S::f32s], lanes: &mut [S::f32s]) {
    let mut rows = middle.chunks_exact(shape.width);
    for lanes in lanes.chunks_exact_mut(plane.len()) {
        plane.clear_border(simd, lanes);
        for (y, row) in rows.by_ref().take(shape.height).enumerate() {
            lanes[plane.first() + y * plane.stride()..][..row.len()].copy_from_slice(row);
        }
    }
}
