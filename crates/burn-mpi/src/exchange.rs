//! Exchanges of whole tensors between ranks: sums, gathers, broadcasts and reduce-scatters of Burn's tensors.
//!
//! The values pass through the host, and travel over the transport of the [`World`]. A float tensor that is
//! part of an autodiff graph stays part of it: the backward of an exchange is an exchange of gradients.

#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "ndarray and tch are deprecated upstream, and users ask for them")
)]

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Bytes, DType, Float, Int, Tensor, TensorData, read_sync};

use crate::calling::calling;
use crate::{CommError, Wire, World};

/// The kinds of tensors that ranks exchange: [`Float`], [`Int`] and [`Bool`].
pub trait Exchanged: Basic + sealed::Linked {}

/// The kinds of tensors that ranks sum: [`Float`] and [`Int`].
pub trait Summed: Exchanged {}

impl Exchanged for Float {}
impl Exchanged for Int {}
impl Exchanged for Bool {}
impl Summed for Float {}
impl Summed for Int {}

impl World {
    /// Returns the sum of `tensor` over all ranks, on every rank. All ranks must call it with tensors of the
    /// same shape and type. Values of 16 bits are summed in f32. Integers that overflow wrap around.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_mpi::threads::{Options, run};
    ///
    /// let sums = run(3, &Options::default(), |world| {
    ///     let x = Tensor::<1>::from_data([world.rank() as f32, 1.0], &Device::flex().autodiff()).require_grad();
    ///     let sum = world.all_reduce(x.clone())?;
    ///     // The loss of every rank depends on x.
    ///     let gradients = (sum.clone() * 2.0).sum().backward();
    ///     assert_eq!(x.grad(&gradients).map(|gradient| gradient.into_data()), Some([6.0f32, 6.0].into()));
    ///     Ok::<_, burn_mpi::CommError>(sum.into_data())
    /// });
    /// assert_eq!(sums.unwrap()[0], [3.0f32, 3.0].into());
    /// ```
    ///
    /// # Gradients
    /// The gradients of this and the other exchanges of tensors are those of the *sum* of the losses of all
    /// ranks. All ranks must run the same exchanges and the same backward: the loss of each rank has to depend
    /// on the result, if `tensor` needs a gradient on one rank.
    ///
    /// Burn runs the backward of deeper operators first. If the graphs of ranks have different depths, for
    /// example because an LSTM has another number of time steps, or a rank gathers no rows, ranks may come to
    /// the backward of two exchanges in different orders. The job then ends with an error that names both. Make
    /// one exchange of both tensors instead, concatenated by `Tensor::cat`.
    ///
    /// [`GradientSync`](crate::GradientSync) then weights the gradients of each rank by its share of the
    /// step's samples. So make the shares equal: pass 1 sample of this rank, and as many samples of all ranks
    /// as there are ranks. If each rank has the mean loss of its own samples only, and ranks have different
    /// numbers of samples, also scale it by `samples of this rank · ranks / samples of all ranks`.
    ///
    /// # Errors
    /// [`SharedError::Diverged`](crate::SharedError::Diverged) on all ranks if a rank has another shape or
    /// type. Other errors come from the transport. The backward of an exchange panics if the transport fails,
    /// or if ranks are in the backward of different exchanges.
    pub fn all_reduce<const D: usize, K: Summed>(
        &self,
        tensor: Tensor<D, K>,
    ) -> Result<Tensor<D, K>, CommError> {
        let _calling = calling("all_reduce");
        let tracked = self.agree_on(&tensor, "all_reduce", described(&tensor))?;
        let sum = self.sum_data(tensor.to_data())?;
        Ok(self.linked(tensor, sum, tracked, Reverse::AllReduce))
    }

    /// Returns the tensors of all ranks, concatenated in rank order along the first dimension, on every rank.
    /// Ranks may have tensors of different lengths in this dimension, also 0. All ranks must call it.
    ///
    /// # Gradients
    /// As of [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// [`SharedError::Diverged`](crate::SharedError::Diverged) on all ranks if a rank has another type, or
    /// another length in another dimension. Other errors come from the transport.
    pub fn all_gather<const D: usize, K: Exchanged>(
        &self,
        tensor: Tensor<D, K>,
    ) -> Result<Tensor<D, K>, CommError> {
        let _calling = calling("all_gather");
        let [rows, row @ ..] = &tensor.dims()[..] else { unreachable!("a tensor has a dimension") };
        let what = format!("[_, {row:?}] {:?}", tensor.dtype());
        let tracked = self.agree_on(&tensor, "all_gather", what)?;
        let rows = self.gather(rows)?;
        let all = self.gather_rows(&tensor.to_data(), &rows)?;
        Ok(self.linked(tensor, all, tracked, Reverse::AllGather { rows }))
    }

    /// Returns the tensor of rank `root` on every rank. The tensors of the other ranks have the same shape and
    /// type, and their values are not read. All ranks must call it with the same `root`.
    ///
    /// # Gradients
    /// As of [`all_reduce`](Self::all_reduce). The gradient of the tensor of other ranks is 0.
    ///
    /// # Errors
    /// [`SharedError::Diverged`](crate::SharedError::Diverged) on all ranks if a rank has another shape, type
    /// or root. Other errors come from the transport, also if there is no rank `root`.
    pub fn broadcast_tensor<const D: usize, K: Exchanged>(
        &self,
        tensor: Tensor<D, K>,
        root: usize,
    ) -> Result<Tensor<D, K>, CommError> {
        let _calling = calling("broadcast_tensor");
        let what = format!("{} from rank {root}", described(&tensor));
        let tracked = self.agree_on(&tensor, "broadcast_tensor", what)?;
        let data = tensor.to_data();
        let (mut bytes, shape, dtype) = (data.as_bytes().to_vec(), tensor.dims(), tensor.dtype());
        self.control().borrow_mut().broadcast(&mut bytes, root)?;
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
        Ok(self.linked(tensor, data, tracked, Reverse::Broadcast { root }))
    }

    /// Sums `tensor` over all ranks, and returns this rank's part of the sum. The first dimension is divided
    /// into one part for each rank, in rank order: rank `r` of `w` gets the rows from `r · rows / w` to
    /// `(r + 1) · rows / w`, rounded down. All ranks must call it with tensors of the same shape and type.
    ///
    /// # Gradients
    /// As of [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// The errors of [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<const D: usize, K: Summed>(
        &self,
        tensor: Tensor<D, K>,
    ) -> Result<Tensor<D, K>, CommError> {
        let _calling = calling("reduce_scatter");
        let tracked = self.agree_on(&tensor, "reduce_scatter", described(&tensor))?;
        let part = self.scatter_sum(&tensor.to_data())?;
        Ok(self.linked(tensor, part, tracked, Reverse::ReduceScatter))
    }

    /// Checks that the tensors of all ranks are `described` in the same way. Returns whether the tensor of at
    /// least one rank needs a gradient.
    fn agree_on<const D: usize, K: Exchanged>(
        &self,
        tensor: &Tensor<D, K>,
        call: &str,
        described: String,
    ) -> Result<bool, CommError> {
        if let DType::QFloat(_) = tensor.dtype() {
            return Err(self.wrong("exchanges a quantized tensor: dequantize it first".to_owned()));
        }
        let is_tracked = tensor.device().is_autodiff() && K::is_tracked(tensor);
        let ranks = self.gather_distinct(&(described, is_tracked))?;
        let (_, (expected, _)) = &ranks[0];
        match ranks.iter().find(|(_, (found, _))| found != expected) {
            Some((rank, (found, _))) => {
                Err(self.diverged(format!("the tensor of {call}"), *rank, found, expected))
            }
            None => Ok(ranks.iter().any(|(_, (_, is_tracked))| *is_tracked)),
        }
    }

    /// Makes a tensor of `result`, the result of an exchange of `input`. If the `input` of a rank is
    /// `tracked`, so is the result on every rank, and `reverse` computes the gradient of `input` from the
    /// gradient of the result: all ranks must run the backward, because it is an exchange.
    pub(crate) fn linked<const D: usize, const E: usize, K: Exchanged>(
        &self,
        input: Tensor<D, K>,
        result: TensorData,
        tracked: bool,
        reverse: Reverse,
    ) -> Tensor<E, K> {
        let dtype = result.dtype();
        let result = Tensor::<E, K>::from_data(result, (&input.device(), dtype));
        if !tracked {
            return result;
        }
        let number = self.next_exchange();
        if input.device().is_autodiff() { K::link(input, result, (number, reverse)) } else { result }
    }

    /// Returns the rows of `rank`, if ranks divide `rows` among them.
    fn rows_of(&self, rank: usize, rows: usize) -> Range<usize> {
        rank * rows / self.size()..(rank + 1) * rows / self.size()
    }

    /// Sums `data` over all ranks.
    fn sum_data(&self, data: TensorData) -> Result<TensorData, CommError> {
        let Some(mut wire) = wire_of(&data) else {
            let rows = vec![1; self.size()];
            let all = self.gather_rows(&as_row(&data), &rows)?;
            return Ok(sum_of_integers(&all, &data));
        };
        self.control().borrow_mut().all_reduce(&mut wire)?;
        Ok(data_of(wire, data.shape().to_vec(), data.dtype()))
    }

    /// Gathers the rows of all ranks, of which there are `rows`.
    fn gather_rows(&self, data: &TensorData, rows: &[usize]) -> Result<TensorData, CommError> {
        let mut shape = data.shape().to_vec();
        let row = shape[1..].iter().product::<usize>() * data.dtype().size();
        let most = rows.iter().copied().max().unwrap_or_default();
        let is_even = rows.iter().all(|rows| *rows == most);
        // All ranks send the same number of bytes, so fewer rows are padded.
        let mut mine = Cow::from(data.as_bytes());
        if !is_even {
            mine.to_mut().resize(most * row, 0);
        }
        let mut all = if mine.is_empty() { Vec::new() } else { self.all_gather_bytes(&mine)? };
        if !is_even {
            let mut end = 0;
            for (rank, rows) in rows.iter().enumerate() {
                all.copy_within(rank * most * row..(rank * most + rows) * row, end);
                end += rows * row;
            }
            all.truncate(end);
        }
        shape[0] = rows.iter().sum();
        Ok(TensorData::from_bytes(Bytes::from_bytes_vec(all), shape, data.dtype()))
    }

    /// Sums `data` over all ranks, and returns this rank's rows.
    fn scatter_sum(&self, data: &TensorData) -> Result<TensorData, CommError> {
        let mut shape = data.shape().to_vec();
        let own = self.rows_of(self.rank(), shape[0]);
        let row: usize = shape[1..].iter().product();
        let Some(wire) = wire_of(data) else {
            return Ok(rows_in(&self.sum_data(data.clone())?, own));
        };
        // All parts of a reduce-scatter have the same length, so shorter ones are padded.
        let most = shape[0].div_ceil(self.size());
        let mut part = wire.zeros_like(most * row);
        let mut parts = wire;
        if shape[0] != most * self.size() {
            let mut padded = parts.zeros_like(most * row * self.size());
            let bytes = row * parts.element().width();
            for rank in 0..self.size() {
                let rows = self.rows_of(rank, shape[0]);
                let values = &parts.bytes()[rows.start * bytes..rows.end * bytes];
                padded.bytes_mut()[rank * most * bytes..][..values.len()].copy_from_slice(values);
            }
            parts = padded;
        }
        if !parts.is_empty() {
            self.control().borrow_mut().reduce_scatter(&parts, &mut part)?;
        }
        part.resize(own.len() * row);
        shape[0] = own.len();
        Ok(data_of(part, shape, data.dtype()))
    }
}

/// Returns the shape and the type of `tensor`, to compare across ranks.
fn described<const D: usize, K: Exchanged>(tensor: &Tensor<D, K>) -> String {
    format!("{:?} {:?}", tensor.dims(), tensor.dtype())
}

/// Returns `data` as one row.
fn as_row(data: &TensorData) -> TensorData {
    let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
    TensorData::from_bytes(bytes, [1, data.num_elements()], data.dtype())
}

/// Returns these rows of `data`.
fn rows_in(data: &TensorData, rows: Range<usize>) -> TensorData {
    let mut shape = data.shape().to_vec();
    let row = shape[1..].iter().product::<usize>() * data.dtype().size();
    shape[0] = rows.len();
    let bytes = data.as_bytes()[rows.start * row..rows.end * row].to_vec();
    TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, data.dtype())
}

/// Returns the values of `data` in the type in which they are summed; `None` if they are integers. 16-bit types
/// are summed in f32, because a sum would be rounded after each addition.
fn wire_of(data: &TensorData) -> Option<Wire> {
    const FITS: &str = "the values have this type";
    Some(match data.dtype() {
        DType::F64 => Wire::F64(data.try_to_vec::<f64>().expect(FITS)),
        dtype if dtype.is_float() => {
            Wire::F32(data.clone().convert_dtype(DType::F32).try_to_vec::<f32>().expect(FITS))
        }
        _ => return None,
    })
}

fn data_of(wire: Wire, shape: Vec<usize>, dtype: DType) -> TensorData {
    match wire {
        Wire::F32(values) => TensorData::new(values, shape).convert_dtype(dtype),
        Wire::F64(values) => TensorData::new(values, shape),
        Wire::Bf16(_) | Wire::F16(_) | Wire::Bytes(_) => unreachable!("sums are in f32 or f64"),
    }
}

/// Sums the rows of `all`, which are the integers of each rank. The sum has the shape of `like`.
fn sum_of_integers(all: &TensorData, like: &TensorData) -> TensorData {
    macro_rules! sum {
        ($($dtype:ident $integer:ty),+) => {
            match like.dtype() {
                $(DType::$dtype => {
                    let all = all.try_to_vec::<$integer>().expect("the values have this type");
                    let mut sums: Vec<$integer> = vec![0; like.num_elements()];
                    for row in all.chunks_exact(sums.len().max(1)) {
                        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
                    }
                    TensorData::new(sums, like.shape().to_vec())
                })+
                other => unreachable!("{other:?} is no type of integers"),
            }
        };
    }
    sum!(I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8)
}

/// How the gradient of an exchange's input follows from the gradient of its result.
#[derive(Debug, Clone)]
pub(crate) enum Reverse {
    AllReduce,
    /// The number of rows of each rank.
    AllGather {
        rows: Vec<usize>,
    },
    Broadcast {
        root: usize,
    },
    ReduceScatter,
    Statistics(crate::nn::Merged),
}

impl Reverse {
    /// Returns the name of the exchange; `None` for batch norm, which compares the ranks' layers itself.
    fn name(&self) -> Option<&'static str> {
        match self {
            Self::AllReduce => Some("all_reduce"),
            Self::AllGather { .. } => Some("all_gather"),
            Self::Broadcast { .. } => Some("broadcast_tensor"),
            Self::ReduceScatter => Some("reduce_scatter"),
            Self::Statistics(_) => None,
        }
    }

    /// Returns the gradient of the input. `gradient` is the gradient of the result. `number` is the number of
    /// the exchange. Burn runs the backward of deeper operators first, so with graphs of different depths,
    /// ranks may be in the backward of different exchanges, whose gradients must not be added.
    fn apply(&self, world: &World, number: u64, gradient: TensorData) -> Result<TensorData, CommError> {
        let name = self.name();
        let _calling = name.map(|_| calling("the backward of an exchange of tensors"));
        if let Some(name) = name {
            let what = "the exchange in backward (Burn runs the backward of deeper operators first, and the graphs \
                        of ranks differ: make one exchange of both tensors)";
            world.check_equal(what, &format!("{name}, exchange {number} with gradients"))?;
        }
        let of_all = |gradient| world.sum_data(gradient);
        Ok(match self {
            Self::AllReduce => of_all(gradient)?,
            Self::AllGather { rows } => {
                let start = rows[..world.rank()].iter().sum::<usize>();
                rows_in(&of_all(gradient)?, start..start + rows[world.rank()])
            }
            Self::Broadcast { root } if *root == world.rank() => of_all(gradient)?,
            Self::Broadcast { .. } => {
                let (shape, dtype) = (gradient.shape().clone(), gradient.dtype());
                of_all(gradient)?;
                TensorData::zeros::<f32, _>(shape).convert_dtype(dtype)
            }
            Self::ReduceScatter => {
                let rows = world.gather(&gradient.shape()[0])?;
                world.gather_rows(&gradient, &rows)?
            }
            Self::Statistics(merged) => merged.reverse(world, number, &gradient)?,
        })
    }
}

/// An exchange in an autodiff graph: its number among those of its rank, and its backward.
type Recorded = (u64, Reverse);

mod sealed {
    use super::{Arc, AtomicBool, Bool, Dispatch, Float, Int, Link, Ordering, Recorded, Tensor};

    /// A kind whose tensors may be part of an autodiff graph.
    pub trait Linked: Sized {
        /// Returns whether `tensor`, on a device with autodiff, needs a gradient.
        #[doc(hidden)]
        fn is_tracked<const D: usize>(_tensor: &Tensor<D, Self>) -> bool
        where
            Self: super::Basic,
        {
            false
        }

        /// Returns `result` as a part of a graph, in which it depends on `input`.
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "a sealed trait")]
        fn link<const D: usize, const E: usize>(
            _input: Tensor<D, Self>,
            result: Tensor<E, Self>,
            _exchange: Recorded,
        ) -> Tensor<E, Self>
        where
            Self: super::Basic,
        {
            result
        }
    }

    impl Linked for Int {}
    impl Linked for Bool {}
    impl Linked for Float {
        fn is_tracked<const D: usize>(tensor: &Tensor<D>) -> bool {
            let found = Arc::new(AtomicBool::new(false));
            <Dispatch as Link>::find(tensor.clone().into_dispatch(), Arc::clone(&found));
            found.load(Ordering::Relaxed)
        }

        #[allow(private_interfaces, reason = "a sealed trait")]
        fn link<const D: usize, const E: usize>(
            input: Tensor<D>,
            result: Tensor<E>,
            exchange: Recorded,
        ) -> Tensor<E> {
            let (input, result) = (input.into_dispatch(), result.into_dispatch());
            Tensor::from_dispatch(<Dispatch as Link>::link(input, result, exchange))
        }
    }
}

#[backend_extension(
    Flex,
    NdArray: cfg(feature = "ndarray"),
    LibTorch: cfg(feature = "tch"),
    Cube: cfg(feature = "cuda"),
    Autodiff
)]
trait Link: Backend {
    /// Sets `found` if `input` needs a gradient, and returns `input`. Burn's dispatch has to return a tensor.
    fn find(input: FloatTensor<Self>, _found: Arc<AtomicBool>) -> FloatTensor<Self> {
        input
    }

    /// Returns `result`, with the backward of `exchange`. A backend without autodiff has no backward.
    fn link(_input: FloatTensor<Self>, result: FloatTensor<Self>, _exchange: Recorded) -> FloatTensor<Self> {
        result
    }
}

impl Link for Flex {}

#[cfg(feature = "ndarray")]
impl Link for burn::backend::NdArray {}

#[cfg(feature = "tch")]
impl Link for burn::backend::LibTorch {}

#[cfg(feature = "cuda")]
impl Link for burn::backend::Cube {}

impl<B: Link, C: CheckpointStrategy> Link for Autodiff<B, C> {
    fn find(input: FloatTensor<Self>, found: Arc<AtomicBool>) -> FloatTensor<Self> {
        found.store(input.is_tracked(), Ordering::Relaxed);
        input
    }

    fn link(input: FloatTensor<Self>, result: FloatTensor<Self>, exchange: Recorded) -> FloatTensor<Self> {
        // A rank whose input needs no gradient, as one without samples, still runs the backward.
        let input = if input.is_tracked() {
            input
        } else {
            Self::float_set_require_grad(Self::float_detach(input), true)
        };
        let ((_, node), (result, _)) = (input.into_parts(), result.into_parts());
        match Backward::<B, 1>::prepare::<C>(Exchange, [node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(exchange, result),
            OpsKind::UnTracked(prepared) => prepared.finish(result),
        }
    }
}

#[derive(Debug)]
struct Exchange;

impl<B: Backend> Backward<B, 1> for Exchange {
    type State = Recorded;

    /// # Panics
    /// If the ranks are in different exchanges, the transport fails, or the gradient cannot be read.
    fn backward(self, ops: Ops<Recorded, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let device = gradient.device();
        let world = World::current().expect("the backward of an exchange runs on the thread of its World");
        let data = read_sync(B::float_into_data(gradient)).expect("a gradient can be read");
        let (number, reverse) = ops.state;
        match reverse.apply(&world, number, data) {
            Ok(data) => {
                if let [Some(parent)] = ops.parents {
                    grads.register::<B>(parent.id, B::float_from_data(data, &device));
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}
