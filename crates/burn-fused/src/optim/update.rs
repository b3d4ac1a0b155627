//! One pass over a parameter, its gradient and its moments.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Device, Tensor};

use crate::kernels::simd::{Kernel, Lanes, Level};
use crate::ops::flex_tensor::{unshared, values};
use crate::runtime::memory::Buffer;

/// An update of each value of a parameter, with `M` moments of it.
pub trait Rule<const M: usize>: Copy + Send + Sync {
    /// Updates these values by [`Values::each`].
    fn run(self, values: Values<'_, M>);
}

/// What [`update`] does not take.
pub const PARAMETERS: &str = "parameters other than f32 on flex";

/// Whether [`update`] takes a parameter and what belongs to it: f32 on flex, outside of a graph, in one shape.
pub fn is_supported<'a, const D: usize>(
    parameter: &'a Tensor<D>,
    others: impl IntoIterator<Item = &'a Tensor<D>>,
) -> bool {
    let flex = Device::flex();
    std::iter::once(parameter).chain(others).all(|tensor| {
        let device = tensor.device();
        let here = device == flex && !device.is_autodiff();
        here && tensor.dtype() == DType::F32 && tensor.dims() == parameter.dims()
    })
}

/// The parameter and its moments after a step: in the memory of the old ones, where nothing else refers to it.
///
/// # Panics
/// If they are not [supported](is_supported).
pub fn update<const D: usize, const M: usize>(
    rule: impl Rule<M>,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; M],
) -> (Tensor<D>, [Tensor<D>; M]) {
    let [mut parameter, mut gradient] = [parameter, gradient].map(primitive);
    // A copy of the optimizer may refer to a moment.
    let mut moments = moments.map(|moment| unshared(primitive(moment)));
    let slices = moments.each_mut().map(slice_mut);
    let run = |target: &mut [f32], parameter, gradient| {
        let values = Values { target, parameter, gradient, moments: slices };
        values.update(Level::current(), rule, rayon::current_num_threads());
    };
    let parameter = if parameter.is_unique() {
        run(slice_mut(&mut parameter), None, Some(values(&gradient)));
        parameter
    } else if gradient.is_unique() && gradient.storage::<f32>().len() == values(&gradient).len() {
        // A training loop that holds the module during the step drops the old values after it. A view would keep
        // the gradients of all parameters.
        run(slice_mut(&mut gradient), Some(values(&parameter)), None);
        gradient
    } else {
        let mut target = Buffer::new(values(&parameter).len());
        run(&mut target, Some(values(&parameter)), Some(values(&gradient)));
        target.into_tensor(&parameter.shape())
    };
    (Tensor::from_primitive::<Flex>(parameter), moments.map(Tensor::from_primitive::<Flex>))
}

/// A moment before the first step of this parameter.
pub fn zeros_like<const D: usize>(parameter: &Tensor<D>) -> Tensor<D> {
    let shape = parameter.dims();
    Tensor::from_primitive::<Flex>(Buffer::zeroed(shape.iter().product()).into_tensor(&shape))
}

/// Copies only what is not contiguous: a gradient may be a view into those of all parameters.
fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = tensor.try_into_primitive::<Flex>().expect("it is on flex");
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The values of a contiguous tensor that nothing else refers to.
fn slice_mut(tensor: &mut FlexTensor) -> &mut [f32] {
    let (start, end) = tensor.layout().contiguous_offsets().expect("it is contiguous");
    &mut tensor.storage_mut()[start..end]
}

/// What a [`Rule`] updates, as many values of each.
pub struct Values<'a, const M: usize> {
    /// Where the new values of the parameter go.
    target: &'a mut [f32],
    /// The old values, unless they are in the target.
    parameter: Option<&'a [f32]>,
    /// The gradient, unless it is in the target.
    gradient: Option<&'a [f32]>,
    moments: [&'a mut [f32]; M],
}

/// Values that are worth a thread.
const PART: usize = 1 << 16;

impl<const M: usize> Values<'_, M> {
    /// Updates all, on at most so many threads.
    fn update(mut self, level: Level, rule: impl Rule<M>, threads: usize) {
        if threads == 1 || self.target.len() < 2 * PART {
            return level.run(Update { values: self, rule });
        }
        let first = self.split_off(self.target.len() / 2);
        rayon::join(|| first.update(level, rule, threads), || self.update(level, rule, threads));
    }

    /// Takes the first `count` values off.
    ///
    /// # Panics
    /// If there are fewer.
    fn split_off(&mut self, count: usize) -> Self {
        Self {
            target: self.target.split_off_mut(..count).expect("enough values"),
            parameter: self.parameter.as_mut().and_then(|values| values.split_off(..count)),
            gradient: self.gradient.as_mut().and_then(|values| values.split_off(..count)),
            moments: self.moments.each_mut().map(|moment| moment.split_off_mut(..count).expect("as many")),
        }
    }

    /// Replaces each value of the parameter and its moments by those that `update` returns for them and the
    /// gradient.
    #[inline(always)]
    pub fn each(self, update: impl Fn(f32, f32, [f32; M]) -> (f32, [f32; M])) {
        let Self { target, parameter, gradient, moments } = self;
        // A loop for each place of the values, which has no branches.
        match (parameter, gradient) {
            (None, Some(g)) => each(target, g, moments, update),
            (Some(x), None) => each(target, x, moments, |now, x, moments| update(x, now, moments)),
            (Some(x), Some(g)) => {
                target.copy_from_slice(x);
                each(target, g, moments, update)
            }
            (None, None) => unreachable!("one of them is elsewhere"),
        }
    }
}

/// Updates each value of `target` with that of `other`, and the moments.
#[inline(always)]
fn each<const M: usize>(
    target: &mut [f32],
    other: &[f32],
    moments: [&mut [f32]; M],
    update: impl Fn(f32, f32, [f32; M]) -> (f32, [f32; M]),
) {
    let len = target.len();
    let (other, mut moments) = (&other[..len], moments.map(|moment| &mut moment[..len]));
    for at in 0..len {
        let mut now = [0.0; M];
        for (now, moment) in now.iter_mut().zip(&moments) {
            *now = moment[at];
        }
        (target[at], now) = update(target[at], other[at], now);
        for (now, moment) in now.iter().zip(&mut moments) {
            moment[at] = *now;
        }
    }
}

struct Update<'a, R, const M: usize> {
    values: Values<'a, M>,
    rule: R,
}

impl<R: Rule<M>, const M: usize> Kernel for Update<'_, R, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        self.rule.run(self.values);
    }
}
