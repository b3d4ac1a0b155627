//! One pass over a parameter, its gradient and its moments.

use burn::backend::flex::FlexTensor;
use burn::backend::{DispatchTensorKind, Flex, TensorMetadata};
use burn::tensor::{DType, Tensor};

use crate::flex_tensor::values;
use crate::memory::Buffer;
use crate::simd::{Kernel, Lanes, Level};

/// An update of each value of a parameter, with `M` moments of it.
pub trait Rule<const M: usize>: Copy + Send + Sync {
    /// Updates these values by [`Values::each`].
    fn run(self, values: Values<'_, M>);
}

/// Whether [`update`] takes a parameter and what belongs to it: f32 on flex, outside of a graph, in one shape.
pub fn is_supported<'a, const D: usize>(
    parameter: &'a Tensor<D>,
    others: impl IntoIterator<Item = &'a Tensor<D>>,
) -> bool {
    std::iter::once(parameter).chain(others).all(|tensor| {
        let on_flex = || matches!(tensor.clone().into_dispatch().kind, DispatchTensorKind::Flex(_));
        tensor.dtype() == DType::F32 && tensor.dims() == parameter.dims() && on_flex()
    })
}

/// The parameter and its moments after a step: in the same memory, where nothing else refers to it.
///
/// # Panics
/// If they are not [supported](is_supported).
pub fn update<const D: usize, const M: usize>(
    rule: impl Rule<M>,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; M],
) -> (Tensor<D>, [Tensor<D>; M]) {
    let [parameter, gradient] = [parameter, gradient].map(primitive);
    let (gradient, level) = (readable(gradient), Level::current());
    let mut moments = moments.map(|moment| Target::of(primitive(moment)));
    let mut parameter = Target::of(parameter);
    let (before, now) = parameter.slices();
    let moments_now = moments.each_mut().map(|moment| {
        let (before, now) = moment.slices();
        // Moments are shared only after a copy of the optimizer.
        if let Some(before) = before {
            now.copy_from_slice(before);
        }
        now
    });
    let slices = Values { parameter: now, before, gradient: values(&gradient), moments: moments_now };
    slices.update(level, rule, rayon::current_num_threads());
    let tensor = |target: Target| Tensor::from_primitive::<Flex>(target.into_tensor());
    (tensor(parameter), moments.map(tensor))
}

/// A moment before the first step of this parameter.
pub fn zeros_like<const D: usize>(parameter: &Tensor<D>) -> Tensor<D> {
    let shape = parameter.dims();
    Tensor::from_primitive::<Flex>(Buffer::zeroed(shape.iter().product()).into_tensor(&shape))
}

fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("it is on flex")
}

/// Copies only what is not contiguous: a gradient may be a view into the gradients of all parameters.
fn readable(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// Where new values of a tensor go.
enum Target {
    /// To the old ones, which nothing else refers to.
    Own(FlexTensor),
    /// Elsewhere.
    Shared(FlexTensor, Buffer),
}

impl Target {
    fn of(tensor: FlexTensor) -> Self {
        let tensor = readable(tensor);
        match tensor.is_unique() {
            true => Self::Own(tensor),
            false => {
                let buffer = Buffer::new(tensor.layout().num_elements());
                Self::Shared(tensor, buffer)
            }
        }
    }

    /// The old values, unless they are in the new ones' place.
    fn slices(&mut self) -> (Option<&[f32]>, &mut [f32]) {
        match self {
            Self::Own(tensor) => {
                let (start, end) = tensor.layout().contiguous_offsets().expect("it is contiguous");
                (None, &mut tensor.storage_mut()[start..end])
            }
            Self::Shared(tensor, buffer) => (Some(values(tensor)), buffer),
        }
    }

    fn into_tensor(self) -> FlexTensor {
        match self {
            Self::Own(tensor) => tensor,
            Self::Shared(tensor, buffer) => buffer.into_tensor(&tensor.shape()),
        }
    }
}

/// The values that a [`Rule`] updates, as many of each.
pub struct Values<'a, const M: usize> {
    pub parameter: &'a mut [f32],
    /// The old values of the parameter, if they are elsewhere.
    pub before: Option<&'a [f32]>,
    pub gradient: &'a [f32],
    pub moments: [&'a mut [f32]; M],
}

/// Values of a call, of which old ones that are copied are still in the first-level cache.
const BLOCK: usize = 1 << 11;
/// Values that are worth another thread.
const PART: usize = 1 << 16;

impl<const M: usize> Values<'_, M> {
    /// Updates all, block by block, on at most so many threads.
    fn update(self, level: Level, rule: impl Rule<M>, threads: usize) {
        let len = self.parameter.len();
        if len <= BLOCK {
            return level.run(Block { values: self, rule });
        }
        let middle = (len / 2).next_multiple_of(BLOCK);
        let [first, second] = self.split_at(middle);
        if threads > 1 && len >= 2 * PART {
            rayon::join(|| first.update(level, rule, threads), || second.update(level, rule, threads));
        } else {
            first.update(level, rule, 1);
            second.update(level, rule, 1);
        }
    }

    fn split_at(self, middle: usize) -> [Self; 2] {
        let (parameter, parameters) = self.parameter.split_at_mut(middle);
        let (gradient, gradients) = self.gradient.split_at(middle);
        let before = self.before.map(|before| before.split_at(middle));
        let mut halves = self.moments.map(|moment| moment.split_at_mut(middle));
        let moments = halves.each_mut().map(|(first, _)| std::mem::take(first));
        let first = Self { parameter, before: before.map(|(first, _)| first), gradient, moments };
        let (before, moments) = (before.map(|(_, second)| second), halves.map(|(_, second)| second));
        [first, Self { parameter: parameters, before, gradient: gradients, moments }]
    }

    /// Replaces each value of the parameter and its moments by those that `update` returns for them and the
    /// gradient.
    #[inline(always)]
    pub fn each(self, update: impl Fn(f32, f32, [f32; M]) -> (f32, [f32; M])) {
        let Self { parameter, before, gradient, moments } = self;
        if let Some(before) = before {
            parameter.copy_from_slice(before);
        }
        let len = parameter.len();
        let (gradient, mut moments) = (&gradient[..len], moments.map(|moment| &mut moment[..len]));
        for at in 0..len {
            let mut now = [0.0; M];
            for (now, moment) in now.iter_mut().zip(&moments) {
                *now = moment[at];
            }
            (parameter[at], now) = update(parameter[at], gradient[at], now);
            for (now, moment) in now.iter().zip(&mut moments) {
                moment[at] = *now;
            }
        }
    }
}

struct Block<'a, R, const M: usize> {
    values: Values<'a, M>,
    rule: R,
}

impl<R: Rule<M>, const M: usize> Kernel for Block<'_, R, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        self.rule.run(self.values);
    }
}
