//! What training asks of a transport.
//!
//! A buffer in flight belongs to the collective: [`Collective::start`] takes
//! it, [`Collective::wait`] gives it back. So no code can touch or free memory
//! that the transport still reads, and no lifetime has to say so.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::CommError;

/// The transport that averages gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// MPI's own collectives.
    Mpi,
    /// The gloo library over TCP.
    Gloo,
}

impl Backend {
    /// The name that options and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpi => "mpi",
            Self::Gloo => "gloo",
        }
    }
}

impl Backend {
    /// Whether this build has the backend; if not, says how to get it.
    ///
    /// # Errors
    /// The missing package and the feature.
    pub fn check_built(self) -> Result<(), String> {
        match self {
            Self::Gloo if !cfg!(feature = "gloo") => {
                Err("this build lacks gloo; choose mpi, or build with the feature gloo (libgloo-dev)".into())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mpi" => Ok(Self::Mpi),
            "gloo" => Ok(Self::Gloo),
            _ => Err(format!("unknown backend {text}: choose mpi or gloo")),
        }
    }
}

/// Who decides in which order the ranks' values are added up. Floating-point
/// sums depend on it from three ranks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// The backend's own all-reduce, in the order of its algorithm.
    Native,
    /// In rank order whatever the backend and the topology: each rank sums one
    /// chunk of all ranks' buffers and hands the sum to all. It moves as many
    /// bytes as a reduce-scatter and an all-gather.
    Ordered,
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Self::Native),
            "ordered" => Ok(Self::Ordered),
            _ => Err(format!("unknown reduction {text}: choose native or ordered")),
        }
    }
}

/// A buffer on its way through a collective, typed as it travels.
#[derive(Debug, Clone, PartialEq)]
pub enum Wire {
    /// 4 bytes an element.
    F32(Vec<f32>),
    /// 8 bytes an element.
    F64(Vec<f64>),
    /// 2 bytes an element, added up in f32.
    Bf16(Vec<bf16>),
    /// 2 bytes an element, added up in f32.
    F16(Vec<f16>),
}

impl Wire {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bf16(v) => v.len(),
            Self::F16(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer as it travels.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(v) => bytemuck::cast_slice(v),
            Self::F64(v) => bytemuck::cast_slice(v),
            Self::Bf16(v) => bytemuck::cast_slice(v),
            Self::F16(v) => bytemuck::cast_slice(v),
        }
    }

    /// The buffer as it travels, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(v) => bytemuck::cast_slice_mut(v),
            Self::F64(v) => bytemuck::cast_slice_mut(v),
            Self::Bf16(v) => bytemuck::cast_slice_mut(v),
            Self::F16(v) => bytemuck::cast_slice_mut(v),
        }
    }

    /// Adds `chunks`, equally long and in order, into this buffer, which is as
    /// long as one of them. 16-bit types are added up in f32 and rounded once.
    pub fn sum_of_chunks(&mut self, chunks: &Self) {
        match (self, chunks) {
            (Self::F32(sum), Self::F32(all)) => sum_chunks(sum, all, |x| x, |x| x),
            (Self::F64(sum), Self::F64(all)) => {
                let length = sum.len();
                sum.copy_from_slice(&all[..length]);
                for chunk in all[length..].chunks_exact(length) {
                    sum.iter_mut().zip(chunk).for_each(|(s, x)| *s += x);
                }
            }
            (Self::Bf16(sum), Self::Bf16(all)) => {
                sum_chunks(sum, all, bf16::to_f32, bf16::from_f32);
            }
            (Self::F16(sum), Self::F16(all)) => sum_chunks(sum, all, f16::to_f32, f16::from_f32),
            _ => unreachable!("a sum and its terms have one type"),
        }
    }

    /// Zeros of the same type.
    pub fn zeros_like(&self, length: usize) -> Self {
        match self {
            Self::F32(_) => Self::F32(vec![0.0; length]),
            Self::F64(_) => Self::F64(vec![0.0; length]),
            Self::Bf16(_) => Self::Bf16(vec![bf16::ZERO; length]),
            Self::F16(_) => Self::F16(vec![f16::ZERO; length]),
        }
    }
}

fn sum_chunks<T: Copy>(sum: &mut [T], all: &[T], widen: fn(T) -> f32, round: fn(f32) -> T) {
    let length = sum.len();
    for (i, sum) in sum.iter_mut().enumerate() {
        let mut total = widen(all[i]);
        let mut at = i + length;
        while at < all.len() {
            total += widen(all[at]);
            at += length;
        }
        *sum = round(total);
    }
}

/// Collective operations of one backend, called by all ranks in one order.
///
/// ```no_run
/// # use burn_mpi::{Backend, Collective, CommError, Reduction, Transport, Wire, World, connect};
/// # fn example(world: &World) -> Result<(), CommError> {
/// let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
/// let mut sum = Wire::F32(vec![world.rank() as f32; 8]);
/// collective.all_reduce(&mut sum, Reduction::Native)?;
///
/// // The same in the background. In flight, the collective owns the buffer.
/// collective.start(0, sum, Reduction::Native)?;
/// while collective.in_flight() > 0 {
///     // … other work, and now and then:
///     collective.progress()?;
/// }
/// let sum = collective.wait(0)?;
/// # Ok(())
/// # }
/// ```
pub trait Collective {
    /// Which transport this is.
    fn backend(&self) -> Backend;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Sums `buffer` over all ranks, in place, and returns when it is done.
    ///
    /// # Errors
    /// When the transport fails or the deadline passes.
    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError>;

    /// Starts to sum `buffer` over all ranks under the number `bucket`, which
    /// must not be in flight. For [`Reduction::Ordered`] the length is a
    /// multiple of the world size.
    ///
    /// # Errors
    /// When the transport fails.
    fn start(&mut self, bucket: usize, buffer: Wire, how: Reduction) -> Result<(), CommError>;

    /// Moves what is in flight on, without waiting.
    ///
    /// # Errors
    /// When the transport fails.
    fn progress(&mut self) -> Result<(), CommError>;

    /// Number of started operations that are not known to be over.
    fn in_flight(&self) -> usize;

    /// Waits for `bucket` and gives its buffer back, summed.
    ///
    /// # Errors
    /// When the transport fails or the deadline passes.
    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError>;

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// When the transport fails or the deadline passes.
    fn barrier(&mut self) -> Result<(), CommError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_added_in_order_and_rounded_once() {
        let mut sum = Wire::F32(vec![0.0; 2]);
        sum.sum_of_chunks(&Wire::F32(vec![1e8, 1.0, -1e8, 2.0, 1.0, 3.0]));
        assert_eq!(sum, Wire::F32(vec![1.0, 6.0]));

        // 256 + 1 + 1 in bf16, which has 8 bits of mantissa: rounding after
        // each addition would stay at 256.
        let terms = [256.0, 1.0, 1.0].map(bf16::from_f32).to_vec();
        let mut sum = Wire::Bf16(vec![bf16::ZERO]);
        sum.sum_of_chunks(&Wire::Bf16(terms));
        assert_eq!(sum, Wire::Bf16(vec![bf16::from_f32(258.0)]));
    }

    #[test]
    fn backends_are_read_by_name() {
        assert_eq!("gloo".parse(), Ok(Backend::Gloo));
        assert!("nccl".parse::<Backend>().unwrap_err().contains("mpi or gloo"));
    }
}
