//! Convolution with batch normalisation, and its gradients: algorithm 1 of Ioffe and Szegedy, "Batch
//! normalization" (2015).
//!
//! The results of the convolution, before the normalisation, are called sums. Forward computes the sums, then
//! the mean and variance of each channel, and then the output. Until backward has read the sums, they stay in
//! the SIMD lanes in which they were computed. They are never rearranged as images.

use super::blocks::{gather, load_input, total};
use super::correlation::Correlation;
use super::epilogue::finish;
use super::plane::Plane;
use super::scratch::Buffers;
use super::source::{Planes, Source};
use super::winograd::Convolve;
use super::{Convolution, Route, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::norm::{Moments, level_and_slope};
use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, load};
use crate::kernels::squares::passes;
use crate::runtime::memory::Buffer;

/// The layout of sums: planes, one after the other. A plane has one vector for each pixel. With the direct
/// convolution, lanes are images, and a block of images has one plane for each output channel. With Winograd,
/// lanes are channels, and an image has one plane for each vector of output channels.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    shape: Shape,
    /// Whether lanes are images. If not, lanes are channels.
    by_image: bool,
    plane: Plane,
}

impl Layout {
    fn for_convolution(Convolution { route, shape, .. }: Convolution) -> Self {
        let (by_image, size) = (route == Route::Direct, [shape.height, shape.width]);
        let plane = if by_image { Plane::rounded_up(size) } else { Plane::tiled(size) };
        Self { shape, by_image, plane }
    }

    /// Number of planes in a block of images if lanes are images, or in an image if lanes are channels.
    #[inline(always)]
    fn groups<S: Lanes>(self) -> usize {
        if self.by_image { self.shape.outputs } else { self.shape.outputs.div_ceil(S::F32_LANES) }
    }

    /// Number of planes in the batch.
    #[inline(always)]
    fn vectors<S: Lanes>(self) -> usize {
        let lanes = if self.by_image { S::F32_LANES } else { 1 };
        self.shape.batch.div_ceil(lanes) * self.groups::<S>()
    }

    /// Returns which channels of which images are in the lanes of plane `vector`.
    #[inline(always)]
    fn planes<S: Lanes>(self, vector: usize) -> Planes {
        let (Shape { batch, outputs, .. }, lanes) = (self.shape, S::F32_LANES);
        let (block, group) = (vector / self.groups::<S>(), vector % self.groups::<S>());
        if self.by_image {
            let count = lanes.min(batch - block * lanes);
            return Planes { first: block * lanes * outputs + group, step: outputs, count, vector };
        }
        let channel = group * lanes;
        Planes { first: block * outputs + channel, step: 1, count: lanes.min(outputs - channel), vector }
    }

    /// Returns the sum of `value` over the planes and lanes of a channel. `value` is called with the index
    /// `plane * lanes + lane`.
    #[inline(always)]
    fn total<S: Lanes>(self, channel: usize, mut value: impl FnMut(usize) -> f64) -> f64 {
        let (groups, lanes) = (self.groups::<S>(), S::F32_LANES);
        let place = |image: usize| {
            if self.by_image {
                (image / lanes * groups + channel, image % lanes)
            } else {
                (image * groups + channel / lanes, channel % lanes)
            }
        };
        (0..self.shape.batch).map(place).map(|(vector, lane)| value(vector * lanes + lane)).sum()
    }

    /// Arranges numbers, one for each channel, in the lanes of vectors. There is one vector for each of the
    /// planes that [`groups`](Self::groups) counts.
    fn in_lanes<S: Lanes>(self, value: impl Fn(usize) -> f32) -> Vec<f32> {
        let channel = |at: usize| if self.by_image { at / S::F32_LANES } else { at };
        let number = |at: usize| if channel(at) < self.shape.outputs { value(channel(at)) } else { 0.0 };
        (0..self.groups::<S>() * S::F32_LANES).map(number).collect()
    }

    /// Returns the rows of pixels of a plane.
    #[inline(always)]
    fn rows<S: Lanes>(self, sums: &[S::f32s], vector: usize) -> impl Iterator<Item = &[S::f32s]> {
        self.plane.rows(&sums[vector * self.plane.len..])
    }
}

/// What forward saves for backward.
#[derive(Debug)]
pub struct SavedNorm {
    /// Sums of the convolution, bias included.
    sums: Buffer,
    pub moments: Moments,
    /// Argmax of the pooling, as bytes. Empty without pooling, or if no backward follows.
    argmax: Buffer,
}

impl SavedNorm {
    /// The argmax of the pooling.
    pub fn argmax(&self) -> &[u8] {
        bytemuck::cast_slice(&self.argmax)
    }
}

/// The forward pass of a convolution, its batch normalisation and the epilogue.
pub struct NormForward<'a> {
    pub conv: Convolution,
    pub input: &'a [f32],
    /// Weights and biases.
    pub layer: [&'a [f32]; 2],
    /// Scale and shift of each channel.
    pub parameters: [&'a [f32]; 2],
    pub epsilon: f64,
    /// Whether a backward follows, which needs the argmax of pooling.
    pub backward: bool,
    pub buffers: &'a mut Buffers,
}

impl Kernel for NormForward<'_> {
    type Output = (Buffer, SavedNorm);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { conv, parameters, epsilon, backward, .. } = self;
        let (layout, Convolution { shape, epilogue, .. }) = (Layout::for_convolution(conv), conv);
        let (vectors, plane) = (layout.vectors::<S>(), layout.plane);
        let mut values = Buffer::new(vectors * plane.len * S::F32_LANES);
        let sums: &mut [S::f32s] = bytemuck::cast_slice_mut(&mut values);
        self.convolve(simd, layout, sums);
        let moments = moments(simd, layout, sums, epsilon);
        let affine = affines::<S>(layout, parameters, &moments);

        let [height, width] = shape.output_size(epilogue);
        let (pixels, keeps) = (height * width, backward && epilogue == Epilogue::ReluPool);
        let mut output = Buffer::new(shape.output_len(epilogue));
        let mut argmax = Buffer::new(if keeps { (vectors * pixels * S::F32_LANES).div_ceil(4) } else { 0 });
        let mut scratch = vec![simd.splat_f32s(0.0); 2 * plane.len];
        let (lanes, scratch) = scratch.split_at_mut(plane.len);
        for (vector, sums) in sums.chunks_exact(plane.len).enumerate() {
            let Planes { first, step, count, .. } = layout.planes::<S>(vector);
            let affine = affine.vectors(simd, vector % layout.groups::<S>());
            for (lane, &x) in lanes.iter_mut().zip(sums) {
                *lane = apply(simd, affine, x);
            }
            let argmax: &mut [u8] = bytemuck::cast_slice_mut(&mut argmax);
            let argmax = argmax.get_mut(vector * pixels * S::F32_LANES..).unwrap_or_default();
            let size = [count, step * pixels];
            finish(simd, epilogue, plane, (lanes, scratch), size, &mut output[first * pixels..], argmax);
        }
        (output, SavedNorm { sums: values, moments, argmax })
    }
}

impl NormForward<'_> {
    /// Computes the convolution and stores its sums.
    #[inline(always)]
    fn convolve<S: Lanes>(self, simd: S, layout: Layout, sums: &mut [S::f32s]) {
        let (shape, [weights, bias]) = (self.conv.shape, self.layer);
        if !layout.by_image {
            Convolve {
                shape,
                epilogue: Epilogue::Identity,
                source: Source::input(shape, self.input),
                weights,
                flipped: false,
                bias: Some(bias),
                keeps_argmax: false,
                sums: Some(bytemuck::cast_slice_mut(sums)),
                between: &mut || (),
                buffers: self.buffers,
            }
            .run(simd);
            return;
        }
        let plane = Plane::bordered(shape.height, shape.width);
        let input = self.buffers.input.take::<S::f32s>(shape.inputs * plane.len);
        let correlation = Correlation::forward(shape, Epilogue::Identity, self.layer);
        for (block, sums) in sums.chunks_exact_mut(shape.outputs * layout.plane.len).enumerate() {
            load_input(simd, shape, plane, self.input, block, input);
            correlation.run(simd, plane, input, sums, &mut []);
        }
    }
}

/// The terms of `K` sums over values, or over pairs of a value and its gradient. `add` adds the terms of one
/// pair to the sums in `parts`.
trait Terms<const K: usize>: Copy {
    fn add<S: Lanes>(self, simd: S, affine: [S::f32s; 3], pair: [S::f32s; 2], parts: &mut [S::f32s; K]);
}

/// The term is the value.
#[derive(Clone, Copy)]
struct ValueTerms;

impl Terms<1> for ValueTerms {
    #[inline(always)]
    fn add<S: Lanes>(self, simd: S, _: [S::f32s; 3], [x, _]: [S::f32s; 2], [sum]: &mut [S::f32s; 1]) {
        *sum = simd.add_f32s(*sum, x);
    }
}

/// The terms are the distance from the mean and its square.
#[derive(Clone, Copy)]
struct DistanceTerms;

impl Terms<2> for DistanceTerms {
    #[inline(always)]
    fn add<S: Lanes>(
        self,
        simd: S,
        [mean, ..]: [S::f32s; 3],
        [x, _]: [S::f32s; 2],
        [rest, square]: &mut [S::f32s; 2],
    ) {
        let distance = simd.sub_f32s(x, mean);
        *rest = simd.add_f32s(*rest, distance);
        *square = simd.fma(distance, distance, *square);
    }
}

/// The terms are the gradient, and the gradient times the value's distance from the mean.
#[derive(Clone, Copy)]
struct GradientTerms {
    relu: bool,
}

impl Terms<2> for GradientTerms {
    #[inline(always)]
    fn add<S: Lanes>(
        self,
        simd: S,
        affine @ [mean, ..]: [S::f32s; 3],
        [x, gradient]: [S::f32s; 2],
        [gradients, distances]: &mut [S::f32s; 2],
    ) {
        let passed = if self.relu { relu_back(simd, affine, x, gradient) } else { gradient };
        *gradients = simd.add_f32s(*gradients, passed);
        *distances = simd.fma(passed, simd.sub_f32s(x, mean), *distances);
    }
}

/// Approximate number of vectors in a block. A block is summed in f32, lane by lane, and the sums of blocks
/// are added in f64.
const BLOCK: usize = 1024;

/// Returns the `K` sums of `terms` for each lane, over rows of values and of their gradients.
#[inline(always)]
fn sums_of<'a, S: Lanes, T: Terms<K>, const K: usize>(
    simd: S,
    terms: T,
    affine: [S::f32s; 3],
    rows: impl Iterator<Item = (&'a [S::f32s], &'a [S::f32s])>,
) -> [[f64; MAX_LANES]; K] {
    let (mut found, zero) = ([[0.0; MAX_LANES]; K], [simd.splat_f32s(0.0); K]);
    let (mut parts, mut count) = ([zero; 4], 0);
    for (row, gradients) in rows {
        for (row, gradients) in row.chunks(BLOCK).zip(gradients.chunks(BLOCK)) {
            let ((fours, rest), (of_fours, of_rest)) = (row.as_chunks::<4>(), gradients.as_chunks::<4>());
            for (four, gradients) in fours.iter().zip(of_fours) {
                for i in 0..4 {
                    terms.add(simd, affine, [four[i], gradients[i]], &mut parts[i]);
                }
            }
            for (part, (&x, &gradient)) in parts.iter_mut().zip(rest.iter().zip(of_rest)) {
                terms.add(simd, affine, [x, gradient], part);
            }
            count += row.len();
            if count >= BLOCK {
                flush(simd, parts, &mut found);
                (parts, count) = ([zero; 4], 0);
            }
        }
    }
    flush(simd, parts, &mut found);
    found
}

#[inline(always)]
fn flush<S: Lanes, const K: usize>(simd: S, parts: [[S::f32s; K]; 4], found: &mut [[f64; MAX_LANES]; K]) {
    for (k, found) in found.iter_mut().enumerate() {
        // `map` is not used, because its closure may be compiled as a separate function, without the level's
        // instructions.
        let sum = total(simd, &[parts[0][k], parts[1][k], parts[2][k], parts[3][k]]);
        let lanes: &[f32] = bytemuck::cast_slice(std::slice::from_ref(&sum));
        found.iter_mut().zip(lanes).for_each(|(found, &lane)| *found += f64::from(lane));
    }
}

/// Computes the statistics of the channels. For each plane, computes the mean, and then the sum of the
/// distances from this mean and the sum of their squares. With an exact mean, the distances would sum to
/// zero. The sum of the distances therefore corrects the rounding of the mean.
#[inline(always)]
fn moments<S: Lanes>(simd: S, layout: Layout, sums: &[S::f32s], epsilon: f64) -> Moments {
    let Shape { batch, outputs, .. } = layout.shape;
    let (pixels, zero, lanes) = (layout.shape.pixels() as f64, simd.splat_f32s(0.0), S::F32_LANES);
    let [mut means, mut rests, mut squares] = [const { Vec::new() }; 3];
    for vector in 0..layout.vectors::<S>() {
        let rows = || layout.rows::<S>(sums, vector).map(|row| (row, row));
        let [sums] = sums_of(simd, ValueTerms, [zero; 3], rows());
        let of_plane = sums.map(|sum| (sum / pixels) as f32);
        let mean = load(simd, &of_plane[..lanes]);
        let [rest, square] = sums_of(simd, DistanceTerms, [mean, zero, zero], rows());
        means.extend(of_plane[..lanes].iter().copied().map(f64::from));
        rests.extend_from_slice(&rest[..lanes]);
        squares.extend_from_slice(&square[..lanes]);
    }
    let mut moments = Moments::default();
    for channel in 0..outputs {
        let mean = layout.total::<S>(channel, |at| means[at] + rests[at] / pixels) / batch as f64;
        let square = layout.total::<S>(channel, |at| {
            let off = means[at] - mean;
            squares[at] + 2.0 * off * rests[at] + pixels * off * off
        });
        // If all values are equal, rounding may make the variance negative. NaN stays NaN.
        let variance = (square / (batch as f64 * pixels)).clamp(0.0, f64::INFINITY);
        moments.push(mean as f32, variance, epsilon);
    }
    moments
}

/// `N` numbers for each channel. Each `Vec` has one of them for all channels, arranged by
/// [`Layout::in_lanes`].
#[derive(Debug)]
struct Numbers<const N: usize>([Vec<f32>; N]);

impl<const N: usize> Numbers<N> {
    fn from_fn<S: Lanes>(layout: Layout, numbers: impl Fn(usize) -> [f32; N]) -> Self {
        Self(std::array::from_fn(|n| layout.in_lanes::<S>(|channel| numbers(channel)[n])))
    }

    #[inline(always)]
    fn vectors<S: Lanes>(&self, simd: S, group: usize) -> [S::f32s; N] {
        self.0.each_ref().map(|values| load(simd, &values[group * S::F32_LANES..][..S::F32_LANES]))
    }
}

/// Returns three numbers for each channel: its mean, the factor of the distance from the mean, and its shift.
fn affines<S: Lanes>(layout: Layout, [scale, shift]: [&[f32]; 2], moments: &Moments) -> Numbers<3> {
    let Moments { mean, inverse, .. } = moments;
    Numbers::from_fn::<S>(layout, |channel| {
        [mean[channel], scale[channel] * inverse[channel], shift[channel]]
    })
}

/// Returns the normalised value. Multiplication and addition are not fused, so that ReLU passes the same
/// values on every level.
#[inline(always)]
fn apply<S: Lanes>(simd: S, [mean, factor, shift]: [S::f32s; 3], x: S::f32s) -> S::f32s {
    simd.add_f32s(simd.mul_f32s(simd.sub_f32s(x, mean), factor), shift)
}

/// Turns the gradient of the normalised values into the gradient of the convolution's sums.
#[derive(Debug)]
pub struct Normed<'a> {
    layout: Layout,
    sums: &'a [f32],
    affine: Numbers<3>,
    /// Whether ReLU follows, without pooling. With pooling, the argmax says which gradients ReLU stops.
    relu: bool,
    /// The two results of [`level_and_slope`] for each channel.
    back: Numbers<2>,
}

impl Normed<'_> {
    /// Replaces the gradient of the normalised values by the gradient of the sums. `rows` is the first row of
    /// the planes and the row after the last.
    #[inline(always)]
    pub fn apply<S: Lanes>(
        &self,
        simd: S,
        Planes { vector, count, .. }: Planes,
        rows: [usize; 2],
        plane: Plane,
        lanes: &mut [S::f32s],
    ) {
        let group = vector % self.layout.groups::<S>();
        let affine @ [mean, factor, _] = self.affine.vectors(simd, group);
        let [level, slope] = self.back.vectors(simd, group);
        let inside = simd.mask_between_m32s(0, count as u32).mask();
        let sums = self.layout.rows::<S>(bytemuck::cast_slice(self.sums), vector);
        for (y, sums) in sums.skip(rows[0]).take(rows[1] - rows[0]).enumerate() {
            for (gradient, &x) in lanes[plane.first + y * plane.stride..].iter_mut().zip(sums) {
                let passed = if self.relu { relu_back(simd, affine, x, *gradient) } else { *gradient };
                let flat = simd.mul_f32s(simd.sub_f32s(x, mean), slope);
                let found = simd.mul_f32s(factor, simd.sub_f32s(simd.sub_f32s(passed, level), flat));
                *gradient = simd.select_f32s(inside, found, simd.splat_f32s(0.0));
            }
        }
    }
}

/// Returns the gradient if ReLU passes the normalised value, and zero otherwise.
#[inline(always)]
fn relu_back<S: Lanes>(simd: S, affine: [S::f32s; 3], x: S::f32s, gradient: S::f32s) -> S::f32s {
    simd.select_f32s(passes(simd, apply(simd, affine, x)), gradient, simd.splat_f32s(0.0))
}

/// First half of backward: computes [`level_and_slope`] of each channel's gradients. Returns the [`Normed`]
/// with which the convolution's backward computes the gradient of the sums. Also returns the gradients of the
/// scales and of the shifts.
pub struct Means<'a, 'p> {
    pub conv: Convolution,
    pub parameters: [&'a [f32]; 2],
    pub saved: &'a SavedNorm,
    /// Gradient of the output.
    pub gradient: &'a [f32],
    /// Callback that lets communication progress. It is called after each plane.
    pub between: &'p mut dyn FnMut(),
}

impl<'a> Kernel for Means<'a, '_> {
    type Output = (Normed<'a>, [Vec<f32>; 2]);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { conv: Convolution { shape, epilogue, .. }, saved, .. } = self;
        let layout = Layout::for_convolution(self.conv);
        let SavedNorm { sums: values, moments, .. } = saved;
        let affine = affines::<S>(layout, self.parameters, moments);
        let (plane, relu, zero) = (layout.plane, epilogue == Epilogue::Relu, simd.splat_f32s(0.0));
        let pools = epilogue == Epilogue::ReluPool;
        let size = shape.output_size(epilogue);
        let pixels = size[0] * size[1];
        // With pooling, only the maximum of a square gets a gradient, so only maxima are summed.
        let summed = if pools { Plane::plain([1, pixels]) } else { plane };
        let mut scratch = vec![zero; 2 * summed.len];
        let (lanes, maxima) = scratch.split_at_mut(summed.len);
        let [mut gradients, mut distances] = [const { Vec::new() }; 2];
        for vector in 0..layout.vectors::<S>() {
            let Planes { first, step, count, .. } = layout.planes::<S>(vector);
            summed.load(simd, lanes, [count, step * pixels], &self.gradient[first * pixels..], None);
            let values: &[S::f32s] = &bytemuck::cast_slice(values)[vector * plane.len..][..plane.len];
            if pools {
                let argmax = &saved.argmax()[vector * pixels * S::F32_LANES..];
                gather(simd, plane, size, argmax, values, lanes, maxima);
            }
            let rows = summed.rows(if pools { maxima } else { values }).zip(summed.rows(lanes));
            let affine = affine.vectors(simd, vector % layout.groups::<S>());
            let [gradient, distance] = sums_of(simd, GradientTerms { relu }, affine, rows);
            gradients.extend_from_slice(&gradient[..S::F32_LANES]);
            distances.extend_from_slice(&distance[..S::F32_LANES]);
            (self.between)();
        }
        let (mut backs, mut of_scale, mut of_shift) = (Vec::new(), Vec::new(), Vec::new());
        for channel in 0..shape.outputs {
            let [gradients, distances] =
                [&gradients, &distances].map(|all| layout.total::<S>(channel, |at| all[at]));
            let inverse = moments.inverse[channel];
            backs.push(level_and_slope(inverse, gradients, distances, shape.batch * shape.pixels()));
            of_scale.push((distances * f64::from(inverse)) as f32);
            of_shift.push(gradients as f32);
        }
        let back = Numbers::from_fn::<S>(layout, |channel| backs[channel]);
        (Normed { layout, sums: values, affine, relu, back }, [of_scale, of_shift])
    }
}
