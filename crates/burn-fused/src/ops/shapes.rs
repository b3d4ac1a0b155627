//! Shape checks that run before an operator computes. Their messages have the format of Burn's own checks.
//!
//! Burn checks shapes in the methods of its tensors. The operators of this crate do not call these methods if
//! they run on a backend directly, and some backends compute a result from operands that do not fit each
//! other.

use std::fmt::{Debug, Display};

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;

/// Checks that `got` equals `expected`.
///
/// # Panics
/// If they differ. The message has the format of Burn's checks.
#[track_caller]
pub(crate) fn expect<T: Debug + PartialEq>(operation: &str, rule: &str, got: T, expected: T) {
    if got != expected {
        refuse(operation, rule, format_args!("got: {got:?}, expected: {expected:?}"));
    }
}

/// Panics with a message in the format of Burn's `TensorCheck`, which is private.
#[cold]
#[track_caller]
pub(crate) fn refuse(operation: &str, rule: &str, details: impl Display) -> ! {
    panic!(
        "=== Tensor Operation Error ===\n  Operation: '{operation}'\n  Reason:\n    1. {rule} {details} \n"
    )
}

/// Returns the shape of the output of `conv` for images of this shape.
///
/// # Panics
/// If a stride, a dilation, the number of groups or a kernel size is 0, if the numbers of channels, groups
/// and biases do not fit each other, or if the kernel is larger than the padded images. A kernel with stride
/// 1 may be one pixel larger: Burn's output then has no pixels.
#[track_caller]
pub(crate) fn of_conv([batch, channels, height, width]: [usize; 4], conv: &Conv2d) -> [usize; 4] {
    let Conv2d { stride, dilation, groups, .. } = *conv;
    let [outputs, inputs, kernel @ ..] = conv.weight.dims();
    for (what, numbers) in
        [("stride", stride), ("dilation", dilation), ("groups", [groups; 2]), ("kernel size", kernel)]
    {
        if numbers.contains(&0) {
            refuse("conv2d", &format!("{what} must be non-zero."), format_args!("got: {numbers:?}"));
        }
    }
    let rule = "Number of channels in input tensor and input channels of convolution must be equal.";
    expect("conv2d", rule, channels, inputs * groups);
    if !outputs.is_multiple_of(groups) {
        let rule = "Both channels must be divisible by the number of groups.";
        let details = format_args!("got: {channels} input and {outputs} output channels, {groups} groups");
        refuse("conv2d", rule, details);
    }
    if let Some(bias) = &conv.bias {
        let rule = "Number of values of the bias and output channels of convolution must be equal.";
        expect("conv2d", rule, bias.dims(), [outputs]);
    }
    let padded = [height + padding(conv, 0, height), width + padding(conv, 1, width)];
    let covered = [0, 1].map(|i| dilation[i] * (kernel[i] - 1) + 1);
    if (0..2).any(|i| covered[i] > padded[i] + usize::from(stride[i] == 1)) {
        let rule = "The kernel must not be larger than the padded input.";
        refuse("conv2d", rule, format_args!("got: {covered:?} pixels, padded input: {padded:?}"));
    }
    let [height, width] = [0, 1].map(|i| (padded[i] + stride[i] - covered[i]) / stride[i]);
    [batch, outputs, height, width]
}

/// Returns the number of padding pixels at both ends of an axis of `size` pixels together, by Burn's formula.
fn padding(conv: &Conv2d, axis: usize, size: usize) -> usize {
    let (stride, kernel) = (conv.stride[axis], conv.kernel_size[axis]);
    match conv.padding {
        PaddingConfig2d::Same if size > 0 => {
            ((size.div_ceil(stride) - 1) * stride + kernel).saturating_sub(size)
        }
        PaddingConfig2d::Same | PaddingConfig2d::Valid => 0,
        PaddingConfig2d::Explicit(top, left, bottom, right) => [top + bottom, left + right][axis],
    }
}
