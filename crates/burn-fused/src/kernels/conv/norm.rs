//! Convolution with batch normalisation, and its gradients: algorithm 1 of Ioffe and Szegedy, "Batch
//! normalization" (2015).
//!
//! The results of the convolution, before the normalisation, are called sums. Forward computes the sums, then
//! the mean and variance of each channel, and then the output. Until backward has read the sums, they stay in
//! the SIMD lanes in which they were computed. They are never rearranged as images. With few input channels,
//! [`patches`] replaces the sums.

use super::blocks::{gather, load_input, total};
use super::correlation::Correlation;
use super::epilogue::finish;
use super::layout::Layout;
use super::patches::{self, Patches};
use super::plane::Plane;
use super::scratch::{Buffers, Scratch, with_buffers};
use super::source::{Planes, Source};
use super::winograd::Convolve;
use super::{Back, Convolution, Gradients, Shape};
use crate::kernels::epilogue::{self, Epilogue};
use crate::kernels::norm::{Moments, level_and_slope};
use crate::kernels::simd::{Kernel, Lanes, Level, MAX_LANES, kernel, load};
use crate::kernels::squares::passes;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each, pieces};

/// What forward saves for backward.
#[derive(Debug)]
pub struct SavedNorm {
    pub moments: Moments,
    known: Known,
}

/// What forward saves besides the moments.
#[derive(Debug)]
enum Known {
    /// The sums of the convolution, bias included, and the argmax of the pooling. The argmax is empty without
    /// pooling, or if no backward follows.
    Sums(Buffer, Buffer<u8>),
    /// The sums over the patches of the input, and the argmax.
    Patches(Patches, Vec<u8>),
}

impl SavedNorm {
    /// Whether backward reads the output.
    pub fn needs_output(&self, epilogue: Epilogue) -> bool {
        matches!(self.known, Known::Patches(..)) && epilogue == Epilogue::Relu
    }
}

/// The forward pass of a convolution, its batch normalisation and the epilogue. Threads share the planes.
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
}

impl NormForward<'_> {
    /// Returns the output, and what backward needs.
    pub fn run(self) -> (Buffer, SavedNorm) {
        let Self { conv: Convolution { level, shape, epilogue, .. }, parameters, epsilon, backward, .. } =
            self;
        if patches::suits(self.conv) {
            let (patches, [weights, bias]) = (Patches::new(level, shape, self.input), self.layer);
            let moments = patches.moments(weights, bias, epsilon);
            let [weights, bias] = patches::scaled(self.layer, parameters, &moments);
            let (output, argmax) = self.conv.forward(self.input, [&weights, &bias], backward);
            return (output, SavedNorm { moments, known: Known::Patches(patches, argmax) });
        }
        let (layout, lanes) = (Layout::for_convolution(self.conv), level.lanes());
        let (groups, plane) = (layout.groups(lanes), layout.plane.len * lanes);
        let planes = layout.planes_of_batch(lanes);
        let sums = sums_of_convolution(self.conv, layout, self.input, self.layer);
        let moments = moments(level, layout, &sums, epsilon);
        let affine = affines(layout, lanes, parameters, &moments);

        let [height, width] = shape.output_size(epilogue);
        let (pixels, keeps) = (height * width, backward && epilogue == Epilogue::ReluPool);
        let mut output = Buffer::new(shape.output_len(epilogue));
        let kept = if keeps { planes * pixels * lanes } else { 0 };
        let mut argmax = Buffer::of_type(kept);
        // An item has all channels of as many images as there are in a vector.
        let count = planes / groups;
        let images = if layout.by_image { lanes } else { 1 };
        let of_images = chunks(&mut output, images * shape.outputs * pixels);
        let bytes = pieces(&mut argmax, count);
        let items = sums.chunks(groups * plane).zip(of_images.zip(bytes)).enumerate();
        each(planes * layout.plane.len * VALUE_TIME, items, |(block, (sums, (output, argmax)))| {
            with_buffers(|[buffers, _]| {
                let (affine, scratch) = (&affine, &mut buffers.part);
                level.run(Normalise { layout, epilogue, block, sums, affine, output, argmax, scratch });
            });
        });
        (output, SavedNorm { moments, known: Known::Sums(sums, argmax) })
    }
}

/// Computes the sums of a convolution.
fn sums_of_convolution(
    conv: Convolution,
    layout: Layout,
    input: &[f32],
    layer @ [weights, bias]: [&[f32]; 2],
) -> Buffer {
    let Convolution { level, shape, .. } = conv;
    let lanes = level.lanes();
    let mut sums = Buffer::new(layout.planes_of_batch(lanes) * layout.plane.len * lanes);
    if !layout.by_image {
        let convolve = Convolve {
            level,
            shape,
            epilogue: Epilogue::Identity,
            source: Source::input(shape, input),
            weights,
            flipped: false,
            bias: Some(bias),
            keeps_argmax: false,
            sums: Some(&mut sums),
            poll: Poll::nothing(),
        };
        convolve.run();
        return sums;
    }
    let items = sums.chunks_mut(shape.outputs * layout.plane.len * lanes).enumerate();
    each(shape.direct_time(lanes), items, |(block, sums)| {
        with_buffers(|[buffers, _]| level.run(BlockSums { shape, layer, input, block, sums, buffers }));
    });
    sums
}

/// Approximate time in nanoseconds to normalise a vector of values.
const VALUE_TIME: usize = 2;

/// Computes the sums of a block of images by the direct convolution.
struct BlockSums<'a> {
    shape: Shape,
    layer: [&'a [f32]; 2],
    input: &'a [f32],
    block: usize,
    /// Receives the sums, in lanes.
    sums: &'a mut [f32],
    buffers: &'a mut Buffers,
}

impl Kernel for BlockSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shape, layer, input, block, sums, buffers } = self;
        let plane = Plane::bordered(shape.height, shape.width);
        let lanes = buffers.input.take::<S::f32s>(shape.inputs * plane.len);
        load_input(simd, shape, plane, input, block, lanes);
        let correlation = Correlation::forward(shape, Epilogue::Identity, layer);
        correlation.run(simd, plane, lanes, bytemuck::cast_slice_mut(sums), &mut []);
    }
}

/// Normalises the sums of some images and applies the epilogue.
struct Normalise<'a> {
    layout: Layout,
    epilogue: Epilogue,
    /// Index of these images: their first plane is this number times all channels.
    block: usize,
    /// The sums of these images, in lanes.
    sums: &'a [f32],
    affine: &'a Numbers<3>,
    /// Receives the output of these images.
    output: &'a mut [f32],
    /// Receives the argmax of these images. Empty if it is not kept.
    argmax: &'a mut [u8],
    scratch: &'a mut Scratch,
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { layout, epilogue, block, sums, affine, output, argmax, scratch } = self;
        let (plane, sums): (_, &[S::f32s]) = (layout.plane, bytemuck::cast_slice(sums));
        let pixels = epilogue.size(plane.size).iter().product::<usize>();
        let (lanes, scratch) = scratch.take::<S::f32s>(2 * plane.len).split_at_mut(plane.len);
        let groups = layout.groups(S::F32_LANES);
        let before = layout.planes::<S>(block * groups).first;
        for (group, sums) in sums.chunks_exact(plane.len).enumerate() {
            let Planes { first, step, count, .. } = layout.planes::<S>(block * groups + group);
            let affine = affine.vectors(simd, group);
            for (lane, &x) in lanes.iter_mut().zip(sums) {
                *lane = apply(simd, affine, x);
            }
            let argmax = argmax.get_mut(group * pixels * S::F32_LANES..).unwrap_or_default();
            let (size, output) = ([count, step * pixels], &mut output[(first - before) * pixels..]);
            finish(simd, epilogue, plane, (lanes, scratch), size, output, argmax);
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
fn moments(level: Level, layout: Layout, sums: &[f32], epsilon: f64) -> Moments {
    let (Shape { batch, outputs, .. }, lanes) = (layout.shape, level.lanes());
    let (pixels, planes) = (layout.shape.pixels() as f64, layout.planes_of_batch(lanes));
    let mut found = vec![[0.0; 3]; planes * lanes];
    let items = sums.chunks(layout.plane.len * lanes).zip(found.chunks_mut(lanes));
    each(planes * layout.plane.len, items, |(sums, found)| plane_moments(level, layout, sums, found));
    let mut moments = Moments::default();
    for channel in 0..outputs {
        let mean = layout.total(lanes, channel, |at| found[at][0] + found[at][1] / pixels) / batch as f64;
        let square = layout.total(lanes, channel, |at| {
            let [of_plane, rest, square] = found[at];
            let off = of_plane - mean;
            square + 2.0 * off * rest + pixels * off * off
        });
        // If all values are equal, rounding may make the variance negative. NaN stays NaN.
        let variance = (square / (batch as f64 * pixels)).clamp(0.0, f64::INFINITY);
        moments.push(mean as f32, variance, epsilon);
    }
    moments
}

kernel! {
    /// Computes the mean, the distances and their squares for each lane of a plane.
    fn plane_moments<S>(simd: S, layout: Layout, sums: &[f32], found: &mut [[f64; 3]]) {
        let (zero, pixels) = (simd.splat_f32s(0.0), layout.shape.pixels() as f64);
        let sums: &[S::f32s] = bytemuck::cast_slice(sums);
        let rows = || layout.plane.rows(sums).map(|row| (row, row));
        let [all] = sums_of(simd, ValueTerms, [zero; 3], rows());
        let of_plane = all.map(|sum| (sum / pixels) as f32);
        let mean = load(simd, &of_plane[..S::F32_LANES]);
        let [rest, square] = sums_of(simd, DistanceTerms, [mean, zero, zero], rows());
        for (lane, found) in found.iter_mut().enumerate() {
            *found = [f64::from(of_plane[lane]), rest[lane], square[lane]];
        }
    }
}

/// `N` numbers for each channel. Each `Vec` has one of them for all channels, arranged by
/// [`Layout::in_lanes`].
#[derive(Debug)]
struct Numbers<const N: usize>([Vec<f32>; N]);

impl<const N: usize> Numbers<N> {
    fn from_fn(layout: Layout, lanes: usize, numbers: impl Fn(usize) -> [f32; N]) -> Self {
        Self(std::array::from_fn(|n| layout.in_lanes(lanes, |channel| numbers(channel)[n])))
    }

    #[inline(always)]
    fn vectors<S: Lanes>(&self, simd: S, group: usize) -> [S::f32s; N] {
        self.0.each_ref().map(|values| load(simd, &values[group * S::F32_LANES..][..S::F32_LANES]))
    }
}

/// Returns three numbers for each channel: its mean, the factor of the distance from the mean, and its shift.
fn affines(layout: Layout, lanes: usize, [scale, shift]: [&[f32]; 2], moments: &Moments) -> Numbers<3> {
    let Moments { mean, inverse, .. } = moments;
    Numbers::from_fn(layout, lanes, |channel| {
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
        let group = vector % self.layout.groups(S::F32_LANES);
        let affine @ [mean, factor, _] = self.affine.vectors(simd, group);
        let [level, slope] = self.back.vectors(simd, group);
        let inside = simd.mask_between_m32s(0, count as u32).mask();
        let sums = self.layout.plane.rows(&bytemuck::cast_slice(self.sums)[vector * self.layout.plane.len..]);
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

/// The backward pass of a convolution, its batch normalisation and the epilogue. Threads share the planes.
pub struct NormBackward<'a> {
    pub conv: Convolution,
    pub input: &'a [f32],
    /// Weights and biases.
    pub layer: [&'a [f32]; 2],
    /// Scale and shift of each channel.
    pub parameters: [&'a [f32]; 2],
    pub saved: &'a SavedNorm,
    /// The output. Empty unless [`SavedNorm::needs_output`].
    pub output: &'a [f32],
    /// Gradient of the output.
    pub gradient: &'a [f32],
    /// Whether the gradient of the input is requested.
    pub of_input: bool,
    /// The poll callback. It is called at short intervals.
    pub poll: Poll,
}

impl NormBackward<'_> {
    /// Returns the gradients of the convolution, and those of scale and shift.
    pub fn run(self) -> (Gradients, [Vec<f32>; 2]) {
        match &self.saved.known {
            Known::Patches(patches, argmax) if !self.of_input => {
                let ([weights, _], [scale, _]) = (self.layer, self.parameters);
                let found = self.conv.backward(self.back(argmax, None), self.poll);
                patches.gradients(weights, scale, &self.saved.moments, found)
            }
            Known::Patches(_, argmax) => {
                let layout = Layout::for_convolution(self.conv);
                let sums = sums_of_convolution(self.conv, layout, self.input, self.layer);
                if self.conv.epilogue != Epilogue::Relu {
                    return self.with_sums(layout, &sums, argmax);
                }
                // ReLU passed the outputs of other weights, which may differ in rounding.
                let mut gradient = Buffer::copy_of(self.gradient);
                for (gradient, &output) in gradient.iter_mut().zip(self.output) {
                    *gradient = if epilogue::passes(output) { *gradient } else { 0.0 };
                }
                let conv = Convolution { epilogue: Epilogue::Identity, ..self.conv };
                NormBackward { conv, gradient: &gradient, ..self }.with_sums(layout, &sums, argmax)
            }
            Known::Sums(sums, argmax) => self.with_sums(Layout::for_convolution(self.conv), sums, argmax),
        }
    }

    fn back<'b>(&'b self, argmax: &'b [u8], normed: Option<&'b Normed<'b>>) -> Back<'b> {
        let Self { input, layer: [weights, _], output, gradient, of_input, .. } = *self;
        Back { input, weights, output, argmax, gradient, normed, of_input }
    }

    /// Does the work of [`run`](Self::run) with the sums of the convolution.
    fn with_sums(&self, layout: Layout, sums: &[f32], argmax: &[u8]) -> (Gradients, [Vec<f32>; 2]) {
        let Self { conv: Convolution { level, shape, epilogue, .. }, saved, gradient, poll, .. } = *self;
        let (lanes, moments) = (level.lanes(), &saved.moments);
        let affine = affines(layout, lanes, self.parameters, moments);
        let planes = layout.planes_of_batch(lanes);
        let mut found = vec![[0.0; 2]; planes * lanes];
        each(
            planes * layout.plane.len * VALUE_TIME,
            found.chunks_mut(lanes).enumerate(),
            |(vector, found)| {
                with_buffers(|[buffers, _]| {
                    let (affine, scratch) = (&affine, &mut buffers.part);
                    level.run(PlaneGradients {
                        layout,
                        epilogue,
                        sums,
                        argmax,
                        gradient,
                        affine,
                        vector,
                        found,
                        scratch,
                    });
                });
                poll.call();
            },
        );
        let (mut backs, mut of_scale, mut of_shift) = (Vec::new(), Vec::new(), Vec::new());
        for channel in 0..shape.outputs {
            let [gradients, distances] = [0, 1].map(|n| layout.total(lanes, channel, |at| found[at][n]));
            let inverse = moments.inverse[channel];
            backs.push(level_and_slope(inverse, gradients, distances, shape.batch * shape.pixels()));
            of_scale.push((distances * f64::from(inverse)) as f32);
            of_shift.push(gradients as f32);
        }
        let back = Numbers::from_fn(layout, lanes, |channel| backs[channel]);
        let normed = Normed { layout, sums, affine, relu: epilogue == Epilogue::Relu, back };
        (self.conv.backward(self.back(argmax, Some(&normed)), poll), [of_scale, of_shift])
    }
}

/// Sums the gradients of a plane, and their products with the distances from the mean, for each lane.
struct PlaneGradients<'a> {
    layout: Layout,
    epilogue: Epilogue,
    sums: &'a [f32],
    argmax: &'a [u8],
    gradient: &'a [f32],
    affine: &'a Numbers<3>,
    vector: usize,
    found: &'a mut [[f64; 2]],
    scratch: &'a mut Scratch,
}

impl Kernel for PlaneGradients<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { layout, epilogue, sums, argmax, gradient, affine, vector, found, scratch } = self;
        let (plane, relu, pools) = (layout.plane, epilogue == Epilogue::Relu, epilogue == Epilogue::ReluPool);
        let size = epilogue.size(plane.size);
        let pixels = size[0] * size[1];
        // With pooling, only the maximum of a square gets a gradient, so only maxima are summed.
        let summed = if pools { Plane::plain([1, pixels]) } else { plane };
        let (lanes, maxima) = scratch.take::<S::f32s>(2 * summed.len).split_at_mut(summed.len);
        let Planes { first, step, count, .. } = layout.planes::<S>(vector);
        summed.load(simd, lanes, [count, step * pixels], &gradient[first * pixels..], None);
        let values: &[S::f32s] = &bytemuck::cast_slice(sums)[vector * plane.len..][..plane.len];
        if pools {
            let argmax = &argmax[vector * pixels * S::F32_LANES..];
            gather(simd, plane, size, argmax, values, lanes, maxima);
        }
        let rows = summed.rows(if pools { maxima } else { values }).zip(summed.rows(lanes));
        let affine = affine.vectors(simd, vector % layout.groups(S::F32_LANES));
        let [gradients, distances] = sums_of(simd, GradientTerms { relu }, affine, rows);
        for (lane, found) in found.iter_mut().enumerate() {
            *found = [gradients[lane], distances[lane]];
        }
    }
}
