//! Saves and loads the state of a [`ShardedOptimizer`] as a record of Burn's `ModuleOptimizer`, which has the
//! whole state. A record does not depend on the number of ranks.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{Optimizer, OptimizerRecord, RecordState, StateSink, StateSource};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Writer};

use crate::calling::calling;
use crate::ddp::gradient_sync::GradientSync;
use crate::ddp::share::{receive_from, send};
use crate::{CommError, ParamSpec, ShardedOptimizer};

/// The scalar in which Burn records the number of dimensions of a parameter.
const RANK: &str = "__rank";

impl<O: Optimizer> ShardedOptimizer<O> {
    /// Gathers the whole state on rank 0, as a record that Burn's `ModuleOptimizer` would return. Other ranks
    /// get an empty record. [`save_record`](crate::save_record) saves it; a job with any number of ranks, or
    /// a program with Burn's own optimizer, loads it. `sync` and `module` are those of the last step. All
    /// ranks must call it.
    ///
    /// Rank 0 needs memory for the whole state. Other ranks need memory for the state of one parameter. For a
    /// state that is too large for one process, use [`GradientSync::gather_share`].
    ///
    /// # Errors
    /// On all ranks, [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) if `sync` is not that of the
    /// last step, if the state is in 16 bits (Burn cannot load it), or if the state cannot be written. Other
    /// errors come from the transport.
    pub fn to_record<M: Module>(
        &self,
        sync: &GradientSync,
        module: &M,
    ) -> Result<OptimizerRecord, CommError> {
        let _calling = calling("to_record");
        let (world, ids) = (&sync.world, ids_of(module));
        if let Some(loaded) = &self.loaded {
            let record = OptimizerRecord::from_bytes(loaded.clone());
            return world.agree(record).map(|record| if world.is_root() { record } else { <_>::default() });
        }
        if self.plan.is_none() {
            return Ok(OptimizerRecord::default());
        }
        world.agree(self.check(sync, &ids))?;
        let (mut whole, mut result) = (Whole::default(), Ok(()));
        let mut states = self.parts.iter().zip(&self.states).peekable();
        sync.each_part(|param, parts| {
            let state = states.next_if(|(part, _)| part.param == param).and_then(|(_, state)| state.as_ref());
            let mine = state.map_or(Ok(Vec::new()), pack);
            let mine = mine.unwrap_or_else(|error| {
                result = Err(error);
                Vec::new()
            });
            if !world.is_root() {
                if parts.iter().any(|(rank, _)| *rank == world.rank()) {
                    send(world, &(mine.len() as u64).to_le_bytes(), 0)?;
                    send(world, &mine, 0)?;
                }
                return Ok(());
            }
            let mut states = Vec::new();
            for (rank, _) in parts {
                states.push(if *rank == 0 { mine.clone() } else { received(sync, *rank)? });
            }
            if result.is_ok() {
                result = whole.add(ids[param], &sync.layout.specs()[param], states);
            }
            Ok(())
        })?;
        let record = result.and_then(|()| {
            let record = whole.write().and_then(OptimizerRecord::from_bytes);
            record.map_err(|error| error.to_string())
        });
        world.agree(record)
    }

    /// Returns the optimizer with the state of `record`, which is the whole state: of a
    /// [`to_record`](Self::to_record) of a job with any number of ranks, or of Burn's `ModuleOptimizer` with
    /// the same optimizer. All ranks must load the same record; [`load_record`](crate::load_record) reads it
    /// on rank 0 and sends it to all ranks. Load the module first, because the record has rank 0's ids.
    ///
    /// The shares are known after the next [`GradientSync::reduce`]. The next step therefore takes this
    /// rank's share of the record. Until then, each rank has the whole record in memory.
    ///
    /// # Errors
    /// [`CommError::Sharded`] if the record cannot be written to memory.
    pub fn load_record(mut self, record: OptimizerRecord) -> Result<Self, CommError> {
        (self.plan, self.states) = (None, Vec::new());
        self.loaded = Some(record.into_bytes().map_err(unreadable)?);
        Ok(self)
    }

    /// Takes this rank's share of a whole record, in which the parameters have these `ids`.
    pub(super) fn take_share(
        &mut self,
        record: Bytes,
        ids: &[u64],
        sync: &GradientSync,
    ) -> Result<(), CommError> {
        let device = Device::flex();
        let reader = Reader::from_bytes(record).map_err(unreadable)?;
        let scalars = reader.scalars().clone();
        let has_id = |id: &u64| scalars.contains_key(&format!("{id}.{RANK}"));
        if !scalars.is_empty() && !ids.iter().any(has_id) {
            return Err(CommError::Sharded(
                "its record has none of the module's ids: load the module's record of the same training \
                 first"
                    .into(),
            ));
        }
        let mut source = StateSource::new(scalars);
        let mut tensors: HashMap<u64, Vec<burn_pack::Tensor>> = HashMap::new();
        for tensor in reader.into_tensors().map_err(unreadable)? {
            tensors.entry(tensor.param_id.unwrap_or_default()).or_default().push(tensor);
        }
        for (part, state) in self.parts.iter().zip(&mut self.states) {
            let (id, length) = (ids[part.param], sync.layout.specs()[part.param].range.len());
            for tensor in tensors.remove(&id).unwrap_or_default() {
                let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(unreadable)?;
                if shape.num_elements() != length {
                    return Err(CommError::Sharded(format!(
                        "{name} in its record has the shape {shape:?}, but the parameter {} has {length} \
                         values",
                        sync.layout.specs()[part.param].name
                    )));
                }
                let Range { start, end } = part.range;
                let values = bytes[start * dtype.size()..end * dtype.size()].to_vec();
                let data = TensorData::from_bytes(Bytes::from_bytes_vec(values), [end - start], dtype);
                source.insert_tensor(name, data);
            }
            *state = O::State::<1>::state_unflatten(&id.to_string(), &mut source, &device);
        }
        Ok(())
    }

    /// Checks that `sync` has the shares of the last step, and the module with these `ids` its parameters.
    fn check(&self, sync: &GradientSync, ids: &[u64]) -> Result<(), &'static str> {
        let has_shares = sync.buckets.as_deref().is_some_and(|buckets| self.is_of(buckets));
        if has_shares && ids.len() == sync.layout.specs().len() {
            return Ok(());
        }
        Err("to_record requires the GradientSync and the module of the optimizer's last step")
    }
}

fn unreadable(error: impl std::fmt::Display) -> CommError {
    CommError::Sharded(format!("its record cannot be read: {error}"))
}

/// Encodes the state of a part. The names of tensors and scalars have no prefix.
fn pack<S: RecordState>(state: &S) -> Result<Vec<u8>, String> {
    let mut sink = StateSink::default();
    state.state_flatten("", &mut sink);
    let tensors = sink.tensors.into_iter().map(|(name, data)| {
        let (bytes, shape, dtype) = data.into_parts();
        burn_pack::Tensor::new(name, dtype, shape, None, bytes)
    });
    let writer = Writer::new(tensors.collect());
    let writer = sink.scalars.iter().fold(writer, |writer, (name, value)| writer.with_scalar(name, *value));
    writer.into_bytes().map(|bytes| bytes.to_vec()).map_err(|error| error.to_string())
}

/// Receives the state of `rank`'s part of a parameter.
fn received(sync: &GradientSync, rank: usize) -> Result<Vec<u8>, CommError> {
    let mut length = [0; 8];
    receive_from(&sync.world, &mut length, rank)?;
    let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
    receive_from(&sync.world, &mut bytes, rank)?;
    Ok(bytes)
}

/// The whole state so far, as Burn records it.
#[derive(Default)]
struct Whole {
    tensors: Vec<burn_pack::Tensor>,
    scalars: Vec<(String, Scalar)>,
}

impl Whole {
    /// Adds the state of the parameter with this id. `parts` are the states of its parts, in the order of
    /// their ranges; empty if a part has no state.
    fn add(&mut self, id: u64, spec: &ParamSpec, parts: Vec<Vec<u8>>) -> Result<(), String> {
        if parts.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let mut tensors: Vec<(String, DType, Vec<u8>)> = Vec::new();
        for (at, part) in parts.into_iter().enumerate() {
            let reader =
                Reader::from_bytes(Bytes::from_bytes_vec(part)).map_err(|error| error.to_string())?;
            if at == 0 {
                let scalars = reader.scalars().iter().map(|(name, value)| (format!("{id}.{name}"), *value));
                self.scalars.extend(scalars);
            }
            for tensor in reader.into_tensors().map_err(|error| error.to_string())? {
                let (name, dtype, _, _, bytes) = tensor.into_parts().map_err(|error| error.to_string())?;
                match tensors.iter_mut().find(|(known, ..)| *known == name) {
                    Some((.., whole)) => whole.extend_from_slice(&bytes),
                    None => tensors.push((name, dtype, bytes.to_vec())),
                }
            }
        }
        self.scalars.push((format!("{id}.{RANK}"), Scalar::from(spec.shape.len())));
        for (name, dtype, bytes) in tensors {
            if matches!(dtype, DType::F16 | DType::BF16) {
                return Err(format!(
                    "the state of {} is in {dtype:?}, which Burn loads as F32, and then the next step fails: keep \
                     the parameters in f32",
                    spec.name
                ));
            }
            if bytes.len() != spec.range.len() * dtype.size() {
                return Err(format!("{name} of the state of {} differs between its parts", spec.name));
            }
            let (name, bytes) = (format!("{id}.{name}"), Bytes::from_bytes_vec(bytes));
            self.tensors.push(burn_pack::Tensor::new(name, dtype, spec.shape.clone(), Some(id), bytes));
        }
        Ok(())
    }

    fn write(self) -> Result<Bytes, burn::store::RecordError> {
        let writer = Writer::new(self.tensors);
        let writer =
            self.scalars.iter().fold(writer, |writer, (name, value)| writer.with_scalar(name, *value));
        Ok(writer.into_bytes()?)
    }
}

/// Returns the ids of the float parameters of `module`, in visit order.
pub(super) fn ids_of<M: Module>(module: &M) -> Vec<u64> {
    struct Ids(Vec<u64>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id.val());
        }
    }
    let mut ids = Ids(Vec::new());
    module.visit(&mut ids);
    ids.0
}
