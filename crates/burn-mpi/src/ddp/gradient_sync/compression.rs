//! The compression of a [`GradientSync`], and its state.

use super::{GradientSync, PANICKED, WITH_SHARES};
use crate::compress::{Compression, CompressionState};
use crate::ddp::compressed::Compressor;
use crate::{CommError, module};

impl GradientSync {
    /// Compresses gradients by `compression` from now on, in place of the compression of the options. All
    /// ranks must call it, between steps.
    ///
    /// # Errors
    /// - [`CommError::Compression`] with [`SyncOptions::shard`](crate::SyncOptions::shard).
    /// - [`SharedError::Diverged`](crate::SharedError::Diverged) if the names of the ranks' compressions
    ///   differ; other errors come from the transport.
    /// - [`CommError::Interrupted`] after a backward that panicked.
    pub fn compress_with(&mut self, compression: Box<dyn Compression>) -> Result<(), CommError> {
        self.world.check_equal("compression", &compression.name())?;
        if self.options.shard {
            return Err(CommError::Compression(WITH_SHARES.to_owned()));
        }
        let has_peers = self.world.size() > 1;
        let buckets = self.buckets()?;
        buckets.compressor = has_peers.then(|| Compressor::new(compression, &buckets.plan));
        Ok(())
    }

    /// Returns the state of the compression between two steps: with it, the program's own state and
    /// [`arrival`](Self::arrival), a later run continues with the same bits. `None` without a compression,
    /// and with one rank, which sends nothing.
    pub fn compression_state(&self) -> Option<CompressionState> {
        Some(self.buckets.as_ref()?.compressor.as_ref()?.compression.state())
    }

    /// Continues with the state of a compression with the same options, which
    /// [`compression_state`](Self::compression_state) returned on this rank. All ranks must call it, between
    /// steps.
    ///
    /// PowerSGD depends on the sum of [`CompressionState::own`] over ranks alone. For another number of
    /// ranks, add the values of all ranks, restore the sum on one rank, and zeros on the others. With one
    /// rank, nothing is restored, because nothing is compressed.
    ///
    /// # Errors
    /// On all ranks, if the state of a rank does not fit the module and the compression, if there is no
    /// compression, or if [`CompressionState::shared`] differs between ranks. Other errors come from the
    /// transport.
    pub fn restore_compression(&mut self, state: CompressionState) -> Result<(), CommError> {
        let digest = module::digest(bytemuck::cast_slice(&state.shared));
        let compressor = self.buckets.as_mut().ok_or(PANICKED)?.compressor.as_mut();
        let restored = match compressor {
            Some(compressor) => compressor.compression.restore(state),
            None if self.world.size() == 1 => Ok(()),
            None => Err("gradients are not compressed".to_owned()),
        };
        self.world.agree(restored.map_err(CommError::Compression))?;
        self.world.check_equal("shared state of the compression", &digest)
    }
}
