//! Generates random samples in memory, to benchmark training steps without a data set.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use crate::source::SplitReader;
use crate::{DataError, DataFormat, Description, Element, SampleSource, Split};

/// Random samples of one split.
#[derive(Clone, Copy)]
struct Noise {
    split: Split,
    samples: usize,
    values: usize,
    element: Element,
    classes: usize,
}

/// Returns a data set of random samples, with `samples` samples of `shape` in each split. The samples are
/// generated when they are read. Samples with a height above 1 are images of bytes. Other samples are f32
/// features.
pub fn noise(shape: [usize; 3], classes: usize, samples: usize) -> SampleSource {
    let is_image = shape[1] > 1;
    // Features are not normalised: they are drawn from -1 to 1.
    let moments = if is_image { vec![0.5; shape[0]] } else { Vec::new() };
    let element = if is_image { Element::U8 } else { Element::F32 };
    let description = Description {
        kind: DataFormat::Noise,
        element,
        class_names: (0..classes).map(|class| class.to_string()).collect(),
        mean: moments.clone(),
        std: moments,
        classes,
        shape,
    };
    let values = shape.iter().product();
    let split = |split| Noise { split, samples, values, element, classes };
    SampleSource::from_splits(description, Split::ALL.map(split))
}

impl Noise {
    fn rng(self, stream: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.split as u64);
        rng.set_stream(stream);
        rng
    }
}

impl SplitReader for Noise {
    fn len(&self) -> usize {
        self.samples
    }

    fn for_each(&self, limit: usize, visit: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataError> {
        let mut rng = self.rng(0);
        let mut image = vec![0u8; self.values];
        for sample in 0..limit.min(self.samples) {
            rng.fill_bytes(&mut image);
            match self.element {
                Element::U8 => visit(sample, &image),
                _ => {
                    let features = image.iter().map(|&byte| f32::from(byte) / 127.5 - 1.0);
                    let bytes: Vec<u8> = features.flat_map(f32::to_le_bytes).collect();
                    visit(sample, &bytes);
                }
            }
        }
        Ok(())
    }

    fn labels(&self, limit: usize) -> Result<Vec<u16>, DataError> {
        let mut rng = self.rng(1);
        let classes = self.classes as u32;
        Ok((0..limit.min(self.samples)).map(|_| (rng.next_u32() % classes) as u16).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_floats() {
        let source = noise([1, 1, 512], 20, 3);
        let mut values = Vec::new();
        let visit = &mut |_, bytes: &[u8]| source.description().element.cast(bytes, &mut values);
        source.for_each_sample(Split::Train, 3, visit).unwrap();
        assert_eq!(values.len(), 3 * 512);
        assert!(values.iter().all(|x| x.abs() <= 1.0) && values.iter().any(|x| x.fract() != 0.0));
    }

    #[test]
    fn noise_is_deterministic() {
        let collect = || {
            let source = noise([3, 4, 4], 10, 5);
            let mut images = Vec::new();
            source.for_each_sample(Split::Train, 9, &mut |_, bytes| images.extend_from_slice(bytes)).unwrap();
            (images, source.labels(Split::Train, 9).unwrap())
        };
        let (images, labels) = collect();
        assert_eq!((images.len(), labels.len()), (5 * 48, 5));
        assert!(labels.iter().all(|&label| label < 10));
        assert_eq!((images, labels), collect());
    }
}
