//! Bytes to tensors: a batch is normalised when it is used, and not before.

use burn::tensor::{Device, Tensor, TensorData};

use super::Description;

/// Turns bytes into normalised floats: `(byte / 255 - mean) / std`, by a table
/// per channel that holds what that expression gives in f32, operation by
/// operation as PyTorch computes it.
#[derive(Debug)]
pub struct Normalizer {
    shape: [usize; 3],
    tables: Vec<[f32; 256]>,
}

impl Normalizer {
    /// The tables for a data set.
    pub fn new(description: &Description) -> Self {
        let table =
            |(&mean, &std): (&f32, &f32)| std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std);
        Self {
            shape: description.shape,
            tables: description.mean.iter().zip(&description.std).map(table).collect(),
        }
    }

    /// Normalised values of whole samples, in the samples' own layout.
    pub fn values(&self, bytes: &[u8]) -> Vec<f32> {
        let plane = self.shape[1] * self.shape[2];
        let mut values = Vec::with_capacity(bytes.len());
        for (channel, bytes) in bytes.chunks_exact(plane).enumerate() {
            let table = &self.tables[channel % self.tables.len()];
            values.extend(bytes.iter().map(|&byte| table[usize::from(byte)]));
        }
        values
    }

    /// Normalised values of whole samples `[batch, channels, height, width]` on
    /// `device`.
    pub fn images(&self, bytes: &[u8], device: &Device) -> Tensor<4> {
        let [channels, height, width] = self.shape;
        let samples = bytes.len() / (channels * height * width);
        let data = TensorData::new(self.values(bytes), [samples, channels, height, width]);
        Tensor::from_data(data, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_tables_of_their_own() {
        let normalizer = Normalizer::new(&Description {
            kind: "idx".into(),
            shape: [2, 1, 2],
            classes: 10,
            mean: vec![0.0, 0.5],
            std: vec![1.0, 0.25],
        });
        let values = normalizer.values(&[0, 255, 0, 255, 51, 51, 51, 51]);
        assert_eq!(values[..4], [0.0, 1.0, -2.0, 2.0]);
        assert_eq!(values[4], 0.2);
        assert_eq!(values[6], (0.2 - 0.5) / 0.25);
    }
}
