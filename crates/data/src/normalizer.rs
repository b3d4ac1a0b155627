//! Converts samples, as they are on disk, to normalised f32 values, the input of a network.

use crate::{Description, Element};

/// Converts samples, as they are on disk, to f32 values. The values are normalised with the means and
/// standard deviations of the data set.
///
/// A sample that is an image consists of bytes. Each byte becomes `(byte / 255 - mean) / std`. Each channel
/// has a table of these values, with one value for each byte. Each operation is rounded to f32, as in
/// PyTorch.
///
/// A sample that is a feature vector consists of floats, which are cast to f32. They become `(float - mean) /
/// std` if the data set has a mean and a standard deviation for each feature. Otherwise they are not
/// normalised.
#[derive(Debug)]
pub struct Normalizer {
    shape: [usize; 3],
    element: Element,
    /// The normalised value of each byte, for each channel. Empty if samples are floats.
    tables: Vec<[f32; 256]>,
    /// Mean and standard deviation of each feature. Empty if samples are bytes, or if floats are not
    /// normalised.
    features: Vec<[f32; 2]>,
}

impl Normalizer {
    /// Creates a normalizer for the samples that `description` describes.
    pub fn new(description: &Description) -> Self {
        let table =
            |(&mean, &std): (&f32, &f32)| std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std);
        let moments = description.mean.iter().zip(&description.std);
        let is_bytes = description.element == Element::U8;
        Self {
            shape: description.shape,
            element: description.element,
            tables: moments.clone().filter(|_| is_bytes).map(table).collect(),
            features: moments.filter(|_| !is_bytes).map(|(&mean, &std)| [mean, std]).collect(),
        }
    }

    /// Returns channels, height and width of a sample.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Returns the normalised values of one or more whole samples, in the order of `bytes`.
    pub fn values(&self, bytes: &[u8]) -> Vec<f32> {
        let plane = self.shape[1] * self.shape[2];
        let mut values = Vec::with_capacity(bytes.len() / self.element.bytes());
        if self.element != Element::U8 {
            self.element.cast(bytes, &mut values);
            return self.floats(values);
        }
        for (channel, bytes) in bytes.chunks_exact(plane).enumerate() {
            let table = &self.tables[channel % self.tables.len()];
            values.extend(bytes.iter().map(|&byte| table[usize::from(byte)]));
        }
        values
    }

    /// Normalises one or more whole samples of floats. Returns `values` unchanged if floats are not
    /// normalised.
    pub fn floats(&self, mut values: Vec<f32>) -> Vec<f32> {
        if self.features.is_empty() {
            return values;
        }
        for sample in values.chunks_exact_mut(self.features.len()) {
            sample
                .iter_mut()
                .zip(&self.features)
                .for_each(|(value, [mean, std])| *value = (*value - mean) / std);
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataFormat;

    #[test]
    fn each_channel_has_its_own_table() {
        let normalizer = Normalizer::new(&Description {
            kind: DataFormat::Idx,
            shape: [2, 1, 2],
            element: Element::U8,
            classes: 10,
            class_names: Vec::new(),
            mean: vec![0.0, 0.5],
            std: vec![1.0, 0.25],
        });
        let values = normalizer.values(&[0, 255, 0, 255, 51, 51, 51, 51]);
        assert_eq!(values[..4], [0.0, 1.0, -2.0, 2.0]);
        assert_eq!(values[4], 0.2);
        assert_eq!(values[6], (0.2 - 0.5) / 0.25);
    }

    #[test]
    fn float_samples_are_cast_and_not_scaled() {
        let normalizer = Normalizer::new(&Description {
            kind: DataFormat::Npy,
            shape: [1, 1, 3],
            element: Element::F64,
            classes: 2,
            class_names: Vec::new(),
            mean: Vec::new(),
            std: Vec::new(),
        });
        let numbers = [1.0f64, -2.0, 0.5, 4.0, 5.0, 6.0];
        let values = normalizer.values(numbers.map(f64::to_le_bytes).as_flattened());
        assert_eq!(values, numbers.map(|number| number as f32));
    }
}
