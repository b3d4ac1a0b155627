//! Ranges of tensors.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use crate::int8::{self, Int8Error};
use crate::shapes::refuse;
use crate::simd::{Kernel, Lanes, Level};

/// Minimum and maximum of `x`.
///
/// # Errors
/// If `x` is empty or contains NaN or infinite values.
pub fn range<const D: usize>(x: &Tensor<D>) -> Result<[f32; 2], Int8Error> {
    with_values(x, int8::min_max)
}

/// Minimum and maximum for each index of the dimension `axis` of `x`.
///
/// # Errors
/// As [`range`].
///
/// # Panics
/// If `x` has no such dimension.
#[track_caller]
pub fn channel_ranges<const D: usize>(x: &Tensor<D>, axis: usize) -> Result<Vec<[f32; 2]>, Int8Error> {
    let dims = x.dims();
    if axis >= D {
        let rule = "The dimension must be one of the tensor's.";
        refuse("channel_ranges", rule, format_args!("got: {axis}, dimensions: {D}"));
    }
    let (channels, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    with_values(x, |values| match (values.is_empty(), inner) {
        (true, _) => Err(Int8Error::NoValues),
        (false, 1) => Level::current().run(Columns { values, channels }),
        (false, _) => {
            let mut ranges = vec![[f32::INFINITY, f32::NEG_INFINITY]; channels];
            for slice in values.chunks(channels * inner) {
                for (range, part) in ranges.iter_mut().zip(slice.chunks(inner)) {
                    let [min, max] = int8::min_max(part)?;
                    *range = [range[0].min(min), range[1].max(max)];
                }
            }
            Ok(ranges)
        }
    })
}

/// Ranges of the columns of rows of `channels` values.
struct Columns<'a> {
    values: &'a [f32],
    channels: usize,
}

impl Kernel for Columns<'_> {
    type Output = Result<Vec<[f32; 2]>, Int8Error>;

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) -> Self::Output {
        let Self { values, channels } = self;
        // As many whole rows as make long loops.
        let period = channels * 64usize.div_ceil(channels);
        let (mut min, mut max) = (vec![f32::INFINITY; period], vec![f32::NEG_INFINITY; period]);
        let mut finite = vec![0.0f32; period];
        for block in values.chunks(period) {
            let len = block.len();
            let (min, max, finite) = (&mut min[..len], &mut max[..len], &mut finite[..len]);
            for i in 0..len {
                min[i] = if block[i] < min[i] { block[i] } else { min[i] };
                max[i] = if block[i] > max[i] { block[i] } else { max[i] };
                finite[i] += block[i] * 0.0;
            }
        }
        if !finite.iter().all(|&zero| zero == 0.0) {
            return Err(Int8Error::NonFinite);
        }
        let fold = |ends: &[f32], channel: usize, of: fn(f32, f32) -> f32| {
            ends[channel..].iter().step_by(channels).copied().fold(ends[channel], of) + 0.0
        };
        Ok((0..channels).map(|c| [fold(&min, c, f32::min), fold(&max, c, f32::max)]).collect())
    }
}

/// Applies `read` to the values of `x`; flex's memory is read in place.
fn with_values<const D: usize, T>(x: &Tensor<D>, read: impl FnOnce(&[f32]) -> T) -> T {
    let inner = if x.device().is_autodiff() { x.clone().inner() } else { x.clone() };
    let flex =
        inner.clone().try_into_primitive::<Flex>().ok().filter(|x: &FlexTensor| x.dtype() == DType::F32);
    match flex.map(|x| x.to_contiguous()) {
        Some(x) => read(crate::flex_tensor::values(&x)),
        None => {
            let data = inner.into_data().convert_dtype(DType::F32);
            read(data.as_slice::<f32>().unwrap_or_default())
        }
    }
}
