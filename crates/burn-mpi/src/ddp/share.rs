//! A rank's share of a sharded optimizer state ([`SyncOptions::shard`](crate::SyncOptions::shard)), for
//! programs that have their parameters and their optimizer state as flat vectors. For Burn's optimizers, use
//! [`ShardedOptimizer`](crate::ShardedOptimizer).
//!
//! A rank's share is its chunk of each bucket, so it cuts parameters anywhere. A part is what the share has
//! of one parameter. Values of a share are in visit order, the order in which Burn visits parameters.

use std::fmt::Display;
use std::ops::Range;

use crate::calling::calling;
use crate::ddp::buckets::Buckets;
use crate::ddp::buffers::Part;
use crate::ddp::gradient_sync::{GradientSync, PANICKED};
use crate::{CommError, MissingGradient, World};

/// What this rank updates of one parameter: its values and their averaged gradient.
#[derive(Debug)]
pub struct Piece<'a> {
    /// The parameter, by its index in visit order.
    pub param: usize,
    /// Range of the values in the flat buffer of [`ParamLayout`](crate::ParamLayout).
    pub range: Range<usize>,
    /// Index of the first value among all values of this rank's share. A moment with one value for each value
    /// of the share has those of this piece from here on.
    pub start: usize,
    /// The averaged gradient, in the memory of its bucket.
    pub gradient: &'a mut [f32],
}

/// Maximum number of bytes of a message. MPI counts with 32-bit integers.
const MESSAGE: usize = 1 << 30;

impl GradientSync {
    /// Returns what this rank updates, in visit order, with the averaged gradients: its share of the
    /// parameters if [`SyncOptions::shard`](crate::SyncOptions::shard) is set, otherwise all parameters. A
    /// parameter without a gradient on any rank has no piece, because it is not updated.
    ///
    /// ```no_run
    /// # use burn_mpi::{CommError, GradientSync, Signals};
    /// # fn example(sync: &mut GradientSync, params: &mut [f32]) -> Result<(), CommError> {
    /// sync.reduce(Signals::default())?;
    /// for piece in sync.pieces()? {
    ///     for (value, gradient) in params[piece.range].iter_mut().zip(piece.gradient) {
    ///         *value -= 0.1 * *gradient;
    ///     }
    /// }
    /// sync.gather_params(params)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CommError::NoGradient`] if no step has ended since the last [`gather_params`](Self::gather_params).
    pub fn pieces(&mut self) -> Result<Vec<Piece<'_>>, CommError> {
        self.reduced()?;
        let (specs, buckets) = (self.layout.specs(), self.buckets.as_deref_mut().ok_or(PANICKED)?);
        let piece = |(start, part, gradient): (usize, &Part, _)| {
            let offset = specs[part.param].range.start;
            let range = offset + part.range.start..offset + part.range.end;
            Piece { param: part.param, range, start, gradient }
        };
        Ok(buckets.gradients_of_parts().into_iter().map(piece).collect())
    }

    /// Completes `params`, the flat buffer of [`ParamLayout`](crate::ParamLayout) in which this rank has
    /// updated its [`pieces`](Self::pieces): overwrites the pieces of the other ranks with their updated
    /// values. All ranks must call it in the same steps. Does nothing unless
    /// [`SyncOptions::shard`](crate::SyncOptions::shard) is set. The gradients of the step are not available
    /// afterwards.
    ///
    /// # Errors
    /// [`CommError::NoGradient`] as for [`pieces`](Self::pieces). If the transport fails, which every later
    /// step returns again.
    ///
    /// # Panics
    /// If `params` is shorter than the layout's flat buffer.
    pub fn gather_params(&mut self, params: &mut [f32]) -> Result<(), CommError> {
        assert!(params.len() >= self.layout.len(), "params must have the values of the whole layout");
        if !self.options.shard {
            return self.reduced().map(drop);
        }
        let specs = self.layout.specs();
        let offsets: Vec<usize> = specs.iter().map(|spec| spec.range.start).collect();
        let buckets = self.reduced()?;
        buckets.copying(|buckets| {
            for (_, part, slots) in buckets.gradients_of_parts() {
                slots.copy_from_slice(&params[offsets[part.param]..][part.range.clone()]);
            }
        });
        let specs = self.layout.specs();
        let buckets = self.buckets.as_deref_mut().ok_or(PANICKED)?;
        let gathered = buckets.gather(&mut |buckets, gathered| {
            for &param in buckets.plan.buckets()[gathered].iter().flat_map(|bucket| &bucket.params) {
                if let Some(values) = buckets.gradient(param).filter(|_| !buckets.absent[param]) {
                    params[specs[param].range.clone()].copy_from_slice(values);
                }
            }
        });
        gathered.inspect_err(|error| self.broken = Some(error.clone()))?;
        self.averaged = false;
        Ok(())
    }

    /// Returns the values that this rank updates, in visit order: for each, the parameter's index and the
    /// range of the values in the flat buffer of [`ParamLayout`](crate::ParamLayout). The ranks' shares
    /// together are all trainable parameters. Without [`SyncOptions::shard`](crate::SyncOptions::shard),
    /// every rank has all of them.
    ///
    /// The shares depend on the order in which gradients become final. They are known, and do not change any
    /// more, after the first [`reduce`](Self::reduce) of a step in which a rank ran a backward, or after
    /// [`adopt`](Self::adopt), and adopting another order changes them.
    ///
    /// # Errors
    /// [`CommError::NoGradient`] if the shares are not known yet.
    pub fn share(&self) -> Result<Vec<(usize, Range<usize>)>, CommError> {
        let specs = self.layout.specs();
        let flat = |part: &Part| {
            let start = specs[part.param].range.start;
            (part.param, start + part.range.start..start + part.range.end)
        };
        Ok(self.known_parts()?.parts().iter().map(flat).collect())
    }

    /// Returns the buckets, if the parts of all ranks are known.
    pub(super) fn known_parts(&self) -> Result<&Buckets, CommError> {
        if self.options.shard && self.arrival.is_none() && self.world.size() > 1 {
            return Err(self.missing(self.first_trainable(), MissingGradient::NoStep));
        }
        self.buckets.as_deref().ok_or(PANICKED)
    }

    /// Number of ranks that have different shares: 1 if every rank has all values.
    pub(super) fn shards(&self) -> usize {
        if self.options.shard { self.world.size() } else { 1 }
    }

    /// Gathers a vector with one value for each trainable value, such as a moment, on rank 0, which saves it
    /// in a checkpoint. `values` has this rank's share: the values of [`share`](Self::share), one after the
    /// other. `receive` is called on rank 0 only, with each trainable parameter in visit order and its
    /// values. Rank 0 has one parameter in memory at a time; other ranks need no memory. All ranks must call
    /// it.
    ///
    /// # Errors
    /// On all ranks: [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) if `receive` fails, or if a
    /// rank's `values` have another length than its share. [`CommError::NoGradient`] if the shares are not
    /// known yet. Other errors come from the transport.
    pub fn gather_share<E: Display>(
        &self,
        values: &[f32],
        mut receive: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), CommError> {
        let _calling = calling("gather_share");
        let length = self.known_parts()?.parts().iter().map(|part| part.range.len()).sum::<usize>();
        self.world.agree(if values.len() == length {
            Ok(())
        } else {
            Err(format!(
                "gather_share requires the {length} values of this rank's share, not {}",
                values.len()
            ))
        })?;
        let (mut rest, mut whole, mut result) = (values, Vec::new(), Ok(()));
        self.each_part(|param, parts| {
            let own = parts.iter().find(|(rank, _)| *rank == self.world.rank() % self.shards());
            let own = own.map_or(0, |(_, part)| part.range.len());
            let (mine, after) = rest.split_at(own);
            rest = after;
            if !self.world.is_root() {
                return if self.options.shard {
                    send(&self.world, bytemuck::cast_slice(mine), 0)
                } else {
                    Ok(())
                };
            }
            whole.resize(self.layout.specs()[param].range.len(), 0.0);
            for (rank, part) in parts {
                let slots = &mut whole[part.range.clone()];
                match rank {
                    0 => slots.copy_from_slice(mine),
                    _ => receive_from(&self.world, bytemuck::cast_slice_mut(slots), *rank)?,
                }
            }
            if result.is_ok() {
                result = receive(param, &whole);
            }
            Ok(())
        })?;
        self.world.agree(result)
    }

    /// The reverse of [`gather_share`](Self::gather_share): returns this rank's share of a vector that rank 0
    /// has read from a checkpoint. The checkpoint may come from a job with another number of ranks. `provide`
    /// is called on rank 0 only, with each trainable parameter in visit order, and writes the values of the
    /// parameter. All ranks must call it.
    ///
    /// # Errors
    /// The errors of [`gather_share`](Self::gather_share).
    pub fn scatter_share<E: Display>(
        &self,
        mut provide: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Vec<f32>, CommError> {
        let _calling = calling("scatter_share");
        self.known_parts()?;
        let (mut share, mut whole, mut result) = (Vec::new(), Vec::new(), Ok(()));
        self.each_part(|param, parts| {
            let length = self.layout.specs()[param].range.len();
            let of_rank = |rank: usize| {
                let part = parts.iter().find(|(owner, _)| *owner == rank % self.shards());
                part.map_or(0..0, |(_, part)| part.range.clone())
            };
            let start = share.len();
            let own = of_rank(self.world.rank());
            share.resize(start + own.len(), 0.0);
            if !self.world.is_root() {
                return receive_from(&self.world, bytemuck::cast_slice_mut(&mut share[start..]), 0);
            }
            whole.resize(length, 0.0);
            if result.is_ok() {
                result = provide(param, &mut whole);
            }
            share[start..].copy_from_slice(&whole[own]);
            (1..self.world.size())
                .try_for_each(|rank| send(&self.world, bytemuck::cast_slice(&whole[of_rank(rank)]), rank))
        })?;
        self.world.agree(result)?;
        Ok(share)
    }

    /// Calls `body` for each trainable parameter in visit order, with the parts of the ranks that have a part
    /// of it.
    pub(super) fn each_part(
        &self,
        mut body: impl FnMut(usize, &[(usize, Part)]) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let plan = &self.known_parts()?.plan;
        let shards = self.shards();
        for param in (0..self.layout.specs().len()).filter(|&param| self.layout.specs()[param].trainable) {
            let part = |rank| Some((rank, plan.part(param, shards, rank)?));
            let parts: Vec<(usize, Part)> = (0..shards).filter_map(part).collect();
            body(param, &parts)?;
        }
        Ok(())
    }
}

/// Sends `bytes` to rank `to`, unless there are none.
pub(super) fn send(world: &World, bytes: &[u8], to: usize) -> Result<(), CommError> {
    bytes.chunks(MESSAGE).try_for_each(|bytes| world.control().borrow_mut().send(bytes, to))
}

/// Receives the `bytes` that rank `from` has passed to [`send`].
pub(super) fn receive_from(world: &World, bytes: &mut [u8], from: usize) -> Result<(), CommError> {
    bytes.chunks_mut(MESSAGE).try_for_each(|bytes| world.control().borrow_mut().receive(bytes, from))
}
