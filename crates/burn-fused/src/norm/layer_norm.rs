//! Layer normalisation, and RMS normalisation, which is the same without the mean.
//!
//! Burn composes both of a dozen operators, each of which is a pass over memory. Here forward reads a row once
//! from memory and saves two numbers of it, and backward reads the row and its gradient once.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use crate::extension::{Saved, on_flex};
use crate::flex_tensor::{contiguous, values};
use crate::memory::Buffer;
use crate::nn::{LayerNorm, RmsNorm};
use crate::poll;
use crate::simd::{Kernel, Lanes, Level};

/// `x` `[..., width]` by `layer`, whose parameters have `width` values.
pub(crate) fn layer_norm<const D: usize>(x: Tensor<D>, layer: &LayerNorm) -> Tensor<D> {
    let rule = Rule { epsilon: layer.epsilon as f32, centred: true };
    let beta = layer.beta.as_ref().map(|beta| beta.val());
    normalise(x, layer.gamma.val(), beta, rule, |x| burn::nn::LayerNorm::from(layer.clone()).forward(x))
}

/// `x` `[..., width]` by `layer`, whose parameter has `width` values.
pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, layer: &RmsNorm) -> Tensor<D> {
    let rule = Rule { epsilon: layer.epsilon as f32, centred: false };
    normalise(x, layer.gamma.val(), None, rule, |x| burn::nn::RmsNorm::from(layer.clone()).forward(x))
}

/// How a row is normalised.
#[derive(Debug, Clone, Copy)]
struct Rule {
    epsilon: f32,
    /// Whether the mean is subtracted.
    centred: bool,
}

/// `x` by `rule`, or by `burns` if the operator does not support it.
fn normalise<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    rule: Rule,
    burns: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    // The number of an operator's tensors is fixed: without beta, there is an empty one.
    let beta = beta.unwrap_or_else(|| Tensor::empty([0], &x.device()));
    let tensors = [x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch()];
    match on_flex(tensors, width_of, |tensors, width, _backward| forward(tensors, width, rule)) {
        Ok(output) => Tensor::from_dispatch(output),
        Err([x, ..]) => burns(Tensor::from_dispatch(x)),
    }
}

/// The width of a row, if all is f32 and nothing is empty but beta.
fn width_of(tensors: [&FlexTensor; 3]) -> Option<usize> {
    let [x, gamma, beta] = tensors.map(|tensor| tensor.shape());
    let (width, betas) = (gamma[0], beta[0]);
    let fits = x.last() == Some(&width) && (betas == 0 || betas == width) && x.num_elements() > 0;
    (fits && tensors.iter().all(|tensor| tensor.dtype() == DType::F32)).then_some(width)
}

fn forward(tensors: [FlexTensor; 3], width: usize, rule: Rule) -> (FlexTensor, State) {
    let [x, gamma, beta] = tensors.map(contiguous);
    let level = Level::current();
    let rows = values(&x);
    let (mut output, mut statistics) =
        (Buffer::new(rows.len()), vec![Statistics::default(); rows.len() / width]);
    level.run(Forward {
        rule,
        rows,
        parameters: [&gamma, &beta].map(values),
        output: &mut output,
        statistics: &mut statistics,
    });
    let output = output.into_tensor(&x.shape());
    (output, State { x, has_beta: !values(&beta).is_empty(), gamma, statistics, rule, level })
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    x: FlexTensor,
    gamma: FlexTensor,
    has_beta: bool,
    statistics: Vec<Statistics>,
    rule: Rule,
    level: Level,
}

/// Of a row.
#[derive(Debug, Clone, Copy, Default)]
struct Statistics {
    /// 0 if the rule does not subtract it.
    mean: f32,
    inverse_deviation: f32,
}

/// Rows whose terms of the parameters' gradients are summed before the sum is added to that of all, for its
/// accuracy.
const ROWS: usize = 64;

impl Saved<3> for State {
    fn backward(self, gradient: FlexTensor, _of_x: bool) -> [Option<FlexTensor>; 3] {
        let Self { x, gamma, has_beta, statistics, rule, level } = self;
        let (gamma, poll) = (values(&gamma), poll::current());
        let width = gamma.len();
        // The gradient of x is written over that of the output.
        let mut of_x = match gradient.is_unique() {
            true => gradient,
            false => Buffer::copy_of(values(&gradient)).into_tensor(&x.shape()),
        };
        let mut of_parameters = [(); 2].map(|()| Buffer::zeroed(width));
        let mut sums = Buffer::new(2 * width);
        let (of_gamma, of_beta) = sums.split_at_mut(width);
        let blocks = of_x.storage_mut::<f32>().chunks_mut(ROWS * width);
        for ((rows, statistics), gradient) in
            values(&x).chunks(ROWS * width).zip(statistics.chunks(ROWS)).zip(blocks)
        {
            of_gamma.fill(0.0);
            of_beta.fill(0.0);
            let centred = rule.centred;
            level.run(Backward { centred, rows, statistics, gamma, gradient, of_gamma, of_beta });
            for (total, sum) in of_parameters.iter_mut().zip([&of_gamma, &of_beta]) {
                total.iter_mut().zip(sum.iter()).for_each(|(total, sum)| *total += sum);
            }
            poll();
        }
        let [of_gamma, of_beta] = of_parameters.map(|gradient| gradient.into_tensor(&[width]));
        [Some(of_x), Some(of_gamma), has_beta.then_some(of_beta)]
    }
}

/// `output = (rows - mean) * inverse deviation * gamma + beta`.
struct Forward<'a> {
    rule: Rule,
    rows: &'a [f32],
    /// Gamma, and beta, which may be empty.
    parameters: [&'a [f32]; 2],
    output: &'a mut [f32],
    statistics: &'a mut [Statistics],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { rule, rows, parameters: [gamma, beta], output, statistics } = self;
        let width = gamma.len();
        let rows = rows.chunks_exact(width).zip(output.chunks_exact_mut(width));
        for ((row, output), statistics) in rows.zip(statistics) {
            let mean = if rule.centred { sum(row, |x| x) / width as f32 } else { 0.0 };
            // Of the distances from the mean: the difference of two large numbers would lose digits.
            let variance = sum(row, |x| (x - mean) * (x - mean)) / width as f32;
            let inverse_deviation = 1.0 / (variance + rule.epsilon).sqrt();
            *statistics = Statistics { mean, inverse_deviation };
            let values = row.iter().zip(gamma).map(|(x, gamma)| (x - mean) * inverse_deviation * gamma);
            match beta.is_empty() {
                true => output.iter_mut().zip(values).for_each(|(y, value)| *y = value),
                false => {
                    output.iter_mut().zip(values).zip(beta).for_each(|((y, value), beta)| *y = value + beta);
                }
            }
        }
    }
}

/// Lanes of a sum: two of the widest vectors, whose additions overlap.
const LANES: usize = 32;

/// The sum of `term` over a row.
#[inline(always)]
fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = row.as_chunks::<LANES>();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += term(*x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += term(*x));
    total(lanes)
}

#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The gradients of [`Forward`]'s rows and parameters. With `h` the normalised row and `g` its gradient, that of
/// the row is `(g - mean(g) - h * mean(g * h)) * inverse deviation`; without centring, `mean(g)` is not there.
struct Backward<'a> {
    centred: bool,
    rows: &'a [f32],
    statistics: &'a [Statistics],
    gamma: &'a [f32],
    /// Of the outputs, and then of the rows.
    gradient: &'a mut [f32],
    /// Sums so far.
    of_gamma: &'a mut [f32],
    of_beta: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { centred, rows, statistics, gamma, gradient, of_gamma, of_beta } = self;
        let width = gamma.len();
        let rows = rows.chunks_exact(width).zip(gradient.chunks_exact_mut(width));
        for ((row, gradient), &statistics) in rows.zip(statistics) {
            let mut sums = [[0.0; LANES]; 2];
            let blocks = (0..width).step_by(LANES).map(|first| first..width.min(first + LANES));
            for block in blocks {
                let terms = Terms {
                    statistics,
                    row: &row[block.clone()],
                    gradient: &gradient[block.clone()],
                    gamma: &gamma[block.clone()],
                    of_gamma: &mut of_gamma[block.clone()],
                    of_beta: &mut of_beta[block.clone()],
                };
                // With a number of columns that the compiler knows.
                if block.len() == LANES {
                    terms.add(LANES, &mut sums)
                } else {
                    terms.add(block.len(), &mut sums)
                }
            }
            let [of_mean, of_deviation] = sums.map(|lanes| total(lanes) / width as f32);
            let of_mean = if centred { of_mean } else { 0.0 };
            let Statistics { mean, inverse_deviation } = statistics;
            for ((gradient, x), gamma) in gradient.iter_mut().zip(row).zip(gamma) {
                let normalised = (x - mean) * inverse_deviation;
                *gradient = (*gradient * gamma - of_mean - normalised * of_deviation) * inverse_deviation;
            }
        }
    }
}

/// Of at most [`LANES`] columns of a row.
struct Terms<'a> {
    statistics: Statistics,
    row: &'a [f32],
    gradient: &'a [f32],
    gamma: &'a [f32],
    of_gamma: &'a mut [f32],
    of_beta: &'a mut [f32],
}

impl Terms<'_> {
    /// Adds them to the sums of the parameters' gradients, and to the row's sums of `g` and `g * h`.
    #[inline(always)]
    fn add(self, columns: usize, [of_mean, of_deviation]: &mut [[f32; LANES]; 2]) {
        let Statistics { mean, inverse_deviation } = self.statistics;
        let (row, gradient, gamma) =
            (&self.row[..columns], &self.gradient[..columns], &self.gamma[..columns]);
        let (of_gamma, of_beta) = (&mut self.of_gamma[..columns], &mut self.of_beta[..columns]);
        for at in 0..columns {
            let normalised = (row[at] - mean) * inverse_deviation;
            let weighted = gradient[at] * gamma[at];
            of_mean[at] += weighted;
            of_deviation[at] += weighted * normalised;
            of_gamma[at] += gradient[at] * normalised;
            of_beta[at] += gradient[at];
        }
    }
}
