//! Quantization-aware training: observes the ranges of values, and computes forward with fake quantization,
//! which rounds f32 values to the values that 8-bit integers with a scale can represent.
//!
//! The input, the weights, and each group's output after ReLU are fake-quantized, as in PyTorch's eager mode
//! with a QuantStub. The output of a group with max pooling is quantized after the pooling. Quantization
//! before the pooling would give the same values, because max pooling is monotonic.
//!
//! Ranges are moving averages. A batch updates a range before values are quantized with the range. Weights
//! are observed once per step on every rank. All ranks have equal weights and therefore equal ranges of
//! weights, except if a batch norm is folded in, because its running statistics differ between ranks.
//! Activations are observed in every batch and differ between ranks. At the end of each step, the caller
//! replaces the ranges that may differ by their means over ranks.
//!
//! NaN and infinite values are not quantized, so that they reach the loss.

use burn::tensor::Tensor;
use burn_fused::conv::conv_relu_pool_twice_quantized;
use burn_fused::fake_quantize::{channel_ranges, fake_quantize, range};
use burn_fused::int8::{Int8Error, Observer, QParams, Scheme};
use burn_fused::nn::{BatchNorm, BatchPlace};

use super::group_layers::{flat, values_of};
use super::ranges::{GroupRanges, Range, Ranges, WeightScheme};
use super::{Group, Product, QuantError, Quantization, Quantized, groups};
use crate::model::Network;
use crate::values::Positive;
use run_record::Method;

/// Fake quantization of a network in training: the ranges of its values, and what is derived from them.
#[derive(Debug, Clone)]
pub struct Quantizer {
    options: Quantization,
    ranges: Ranges,
    /// Scales and zero points with which each group's weights are quantized before its batch norm is applied;
    /// `None` before the first step, and later if a weight is not finite or a scale is invalid.
    weights: Vec<Option<Vec<QParams>>>,
    /// For each group with a batch norm, the number of its weight ranges; 0 for other groups.
    normed: Vec<usize>,
    /// Buffer of the ranges that are averaged over ranks: input, outputs, weights with a batch norm folded
    /// in.
    averaged: Vec<f32>,
    frozen: bool,
    /// Whether this step has not observed the weights yet.
    unobserved: bool,
    /// Whether batch norms use their running statistics.
    folded: bool,
}

impl Quantizer {
    /// Makes a quantizer of `network` with unobserved ranges.
    ///
    /// # Errors
    /// If a layer cannot be quantized. The error names one such layer.
    pub fn new(network: &Network, options: Quantization) -> Result<Self, QuantError> {
        let groups = groups(network)?;
        let normed = groups.iter().map(|group| match group.norm {
            Some(_) => options.weight_scheme.scales(group.product.outputs()),
            None => 0,
        });
        let normed: Vec<usize> = normed.collect();
        Ok(Self {
            options,
            ranges: Ranges::for_groups(groups.len()),
            weights: vec![None; groups.len()],
            averaged: vec![0.0; 2 * (1 + groups.len() + normed.iter().sum::<usize>())],
            normed,
            frozen: false,
            unobserved: false,
            folded: false,
        })
    }

    /// Returns the current ranges.
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Continues from the ranges of a checkpoint of this network.
    pub fn restore(&mut self, ranges: Ranges) {
        self.ranges = ranges;
    }

    /// Begins or resumes `epoch`, counted from 0: sets whether, in this epoch, ranges are frozen and batch
    /// norms are folded into the weights.
    pub fn set_epoch(&mut self, epoch: usize) {
        let past = |after: Option<Positive>| after.is_some_and(|after| epoch >= after.get());
        self.frozen = past(self.options.freeze_after);
        self.folded = past(self.options.fold_after);
    }

    /// Makes the int8 model of `network` with the current ranges.
    ///
    /// # Errors
    /// Returns the errors of [`Quantized::of_ranges`].
    pub fn integer_model(&self, network: &Network) -> Result<Quantized, QuantError> {
        Quantized::of_ranges(network, Method::Qat, &self.ranges, self.options.weight_scheme)
    }

    /// Begins a step. Weights are observed once in each step.
    pub fn begin_step(&mut self) {
        self.unobserved = true;
    }

    /// Observes the current weights, unless this step has already done so.
    fn observe_weights(&mut self, groups: &[Group<'_>]) {
        if !std::mem::take(&mut self.unobserved) {
            return;
        }
        for ((group, ranges), weights) in groups.iter().zip(&mut self.ranges.groups).zip(&mut self.weights) {
            *weights = group.observe_weights(ranges, self.options.weight_scheme, self.frozen).ok();
        }
    }

    /// Returns class scores of `images` `[batch, channels, height, width]`, with fake quantization of all
    /// values. Updates the ranges of activations. `place` says where in the training the batch is; if it is
    /// `None`, dropout has no effect.
    pub fn fake_quantized(
        &mut self,
        network: &Network,
        images: Tensor<4>,
        place: Option<&BatchPlace>,
    ) -> Tensor<2> {
        let Ok(groups) = groups(network) else { unreachable!("the network was checked") };
        self.observe_weights(&groups);
        let convolutions =
            groups.iter().take_while(|group| matches!(group.product, Product::Conv(_))).count();
        let mut images = self.activation(None, images);
        let mut index = 0;
        while index < convolutions {
            images = match &groups[index..convolutions] {
                [first, second, ..] if [first, second].iter().all(|g| g.is_conv_relu_pool(self.folded)) => {
                    index += 1;
                    let [first, second] = [(first, index - 1), (second, index)]
                        .map(|(group, at)| group.convolution(self.weights[at].as_deref(), self.folded));
                    conv_relu_pool_twice_quantized(images, &first, &second, &mut |found| {
                        self.parameters(Some(index - 1), || found)
                    })
                }
                rest => rest[0].images(images, self.weights[index].as_deref(), self.folded),
            };
            images = self.activation(Some(index), images);
            index += 1;
        }
        let mut x = flat(groups[..convolutions].last(), images);
        let dropped =
            |group: Option<&Group<'_>>, x: Tensor<2>| match (group.and_then(|group| group.dropout), place) {
                (Some(dropout), Some(place)) => dropout.forward_at(x, place),
                _ => x,
            };
        x = dropped(groups[..convolutions].last(), x);
        for (index, group) in groups.iter().enumerate().skip(convolutions) {
            x = group.features(x, self.weights[index].as_deref(), self.folded);
            x = self.activation(Some(index), x);
            x = dropped(Some(group), x);
        }
        x
    }

    /// Fake-quantizes the input (`group` is `None`) or a group's output.
    fn activation<const D: usize>(&mut self, group: Option<usize>, x: Tensor<D>) -> Tensor<D> {
        match self.parameters(group, || range(&x)) {
            Some(parameters) => fake_quantize(x, Scheme::Affine, &[parameters], 0),
            None => x,
        }
    }

    /// Unless ranges are frozen, updates the range of the input (`group` is `None`) or of a group's output
    /// with the range that `found` returns. Returns the scale and zero point of the range; `None` if values
    /// are not finite, if the scale is invalid, or if ranges were frozen before a batch was observed.
    fn parameters(
        &mut self,
        group: Option<usize>,
        found: impl FnOnce() -> Result<Range, Int8Error>,
    ) -> Option<QParams> {
        let slot = match group {
            None => &mut self.ranges.input,
            Some(index) => &mut self.ranges.groups[index].output,
        };
        let parameters = if self.frozen {
            Observer::from_range(*slot).parameters(Scheme::Affine)
        } else {
            found().and_then(|found| {
                let mut observer = Observer::from_range(*slot);
                observer.observe(found)?;
                *slot = observer.range();
                observer.parameters(Scheme::Affine)
            })
        };
        parameters.and_then(|parameters| parameters.check(Scheme::Affine)).ok()
    }

    /// Returns the ranges that the caller averages over ranks: of activations, and of weights with a batch
    /// norm folded in. On a rank without samples in this step, observes the weights first.
    pub fn averaged_mut(&mut self, network: &Network) -> &mut [f32] {
        if self.unobserved {
            let Ok(groups) = groups(network) else { unreachable!("the network was checked") };
            self.observe_weights(&groups);
        }
        let Self { ranges, normed, averaged, .. } = self;
        let (slots, _) = averaged.as_chunks_mut::<2>();
        let found = Self::averaged_ranges(ranges, normed).map(|range| range.copied().unwrap_or_default());
        slots.iter_mut().zip(found).for_each(|(slot, range)| *slot = range);
        averaged
    }

    /// Sets the ranges to the averages that the caller has written into the slice from
    /// [`averaged_mut`](Self::averaged_mut). Frozen ranges stay as they are.
    pub fn adopt_averages(&mut self) {
        // Frozen ranges are already equal on all ranks, and averaging could round them.
        if self.frozen {
            return;
        }
        let (means, _) = self.averaged.as_chunks::<2>();
        let mut means = means.iter().copied();
        self.ranges.input = means.next();
        self.ranges.groups.iter_mut().for_each(|group| group.output = means.next());
        for (group, &scales) in self.ranges.groups.iter_mut().zip(&self.normed) {
            if scales > 0 {
                group.weights = Some(means.by_ref().take(scales).collect());
            }
        }
    }

    /// Returns the ranges that are averaged, in the order of the buffer `averaged`; `None` for a range that
    /// was not observed.
    fn averaged_ranges<'a>(
        ranges: &'a Ranges,
        normed: &'a [usize],
    ) -> impl Iterator<Item = Option<&'a Range>> {
        let outputs = ranges.groups.iter().map(|group| group.output.as_ref());
        let weights = ranges.groups.iter().zip(normed).flat_map(|(group, &scales)| {
            (0..scales).map(|at| group.weights.as_ref().and_then(|weights| weights.get(at)))
        });
        std::iter::once(ranges.input.as_ref()).chain(outputs).chain(weights)
    }
}

impl Group<'_> {
    /// Updates the ranges of the folded weights, unless they are `frozen`. Returns the scales and zero points
    /// with which the weights are quantized before the batch norm is applied.
    ///
    /// The batch norm multiplies the weights of a channel by a factor. The returned scale is the scale of the
    /// folded weights divided by the factor's absolute value, so quantization before and after folding gives
    /// the same integers.
    fn observe_weights(
        &self,
        ranges: &mut GroupRanges,
        scheme: WeightScheme,
        frozen: bool,
    ) -> Result<Vec<QParams>, Int8Error> {
        let factors = self.norm.map(BatchNorm::running_affine).map(|[factor, _]| values_of(factor));
        if !frozen || ranges.weights.is_none() {
            let found = self.weight_ranges(factors.as_deref(), scheme)?;
            let before = ranges.weights.take();
            let moved = found.iter().enumerate().map(|(at, &found)| {
                let mut observer = Observer::from_range(before.as_ref().map(|ranges| ranges[at]));
                observer.observe(found)?;
                observer.range().ok_or(Int8Error::NotCalibrated)
            });
            ranges.weights = Some(moved.collect::<Result<_, _>>()?);
        }
        let folded = ranges.weights.iter().flatten();
        let scales =
            folded.map(|&[min, max]| Scheme::Symmetric.parameters(min, max)?.check(Scheme::Symmetric));
        let scales = scales.collect::<Result<Vec<_>, _>>()?;
        let Some(factors) = factors else { return Ok(scales) };
        let parameters = |(at, &factor): (usize, &f32)| {
            let QParams { scale, zero_point } = scales[if scales.len() == 1 { 0 } else { at }];
            QParams { scale: scale / factor.abs(), zero_point }.check(Scheme::Symmetric)
        };
        factors.iter().enumerate().map(parameters).collect()
    }

    /// Returns the ranges of the weights after folding: one for each output channel, or one for all.
    /// `factors` are the batch norm's factors, if there is one.
    fn weight_ranges(&self, factors: Option<&[f32]>, scheme: WeightScheme) -> Result<Vec<Range>, Int8Error> {
        if let (None, WeightScheme::Tensor) = (factors, scheme) {
            return Ok(vec![match self.product {
                Product::Conv(conv) => range(&conv.weight.val())?,
                Product::Linear(linear) => range(&linear.weight.val())?,
            }]);
        }
        let mut ranges = match self.product {
            Product::Conv(conv) => channel_ranges(&conv.weight.val(), 0)?,
            Product::Linear(linear) => channel_ranges(&linear.weight.val(), 1)?,
        };
        for (range, &factor) in ranges.iter_mut().zip(factors.unwrap_or_default()) {
            let ends = range.map(|end| end * factor);
            *range = if factor < 0.0 { [ends[1], ends[0]] } else { ends };
        }
        let all = |[low, high]: Range, [min, max]: Range| [low.min(min), high.max(max)];
        Ok(match scheme {
            WeightScheme::Channel => ranges,
            WeightScheme::Tensor => ranges.into_iter().reduce(all).into_iter().collect(),
        })
    }
}
