//! Dropout whose masks are a function of the seed, the step and the sample's
//! index in the step's batch over all ranks: they depend neither on the number
//! of ranks nor on interruptions of the run.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// Position of a rank's batch in the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlace {
    /// The run's seed.
    pub seed: u64,
    /// Steps before this one.
    pub step: u64,
    /// Index of the first sample in the step's batch over all ranks.
    pub first: usize,
    /// Stride between the indices of consecutive samples: the number of ranks.
    pub stride: usize,
}

/// Sets features to 0 with a probability and scales the others up, so that
/// means are unchanged: Srivastava et al., "Dropout" (2014).
#[derive(Module, Debug)]
pub struct Dropout {
    probability: f64,
}

impl Dropout {
    /// Dropout with a probability from 0 to less than 1; `None` for 0.
    pub fn new(probability: f64) -> Option<Self> {
        (probability > 0.0).then_some(Self { probability })
    }

    /// `x` `[batch, features]` with some features dropped if the batch has a
    /// `place` in a training, and unchanged otherwise: in evaluation.
    pub fn forward(&self, x: Tensor<2>, place: Option<&BatchPlace>) -> Tensor<2> {
        let Some(place) = place else { return x };
        let [batch, features] = x.dims();
        let mask = TensorData::new(self.mask(place, batch, features), [batch, features]);
        let mask = Tensor::<2>::from_data(mask, &x.device()).cast(x.dtype());
        x * mask
    }

    /// 0 for features that are dropped, `1 / (1 - probability)` for the others.
    fn mask(&self, place: &BatchPlace, batch: usize, features: usize) -> Vec<f32> {
        let kept = (1.0 / (1.0 - self.probability)) as f32;
        let limit = (self.probability * 2f64.powi(32)) as u32;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&place.seed.to_le_bytes());
        key[8..16].copy_from_slice(&place.step.to_le_bytes());
        // Independent of other random streams of the seed.
        key[16..23].copy_from_slice(b"dropout");
        let mut rng = ChaCha8Rng::from_seed(key);
        let mut mask = Vec::with_capacity(batch * features);
        for sample in 0..batch {
            rng.set_stream((place.first + sample * place.stride) as u64);
            rng.set_word_pos(0);
            mask.extend((0..features).map(|_| if rng.next_u32() < limit { 0.0 } else { kept }));
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    const ALONE: BatchPlace = BatchPlace { seed: 7, step: 3, first: 0, stride: 1 };

    fn mask(place: BatchPlace, batch: usize) -> Vec<f32> {
        Dropout { probability: 0.3 }.mask(&place, batch, 100)
    }

    #[test]
    fn the_share_and_the_scale_are_those_asked_for() {
        let mask = mask(ALONE, 200);
        let dropped = mask.iter().filter(|&&factor| factor == 0.0).count();
        // 20,000 draws of 0.3: four standard deviations are 260.
        assert!(dropped.abs_diff(6000) < 260, "{dropped} of 20000");
        assert!(mask.iter().all(|&factor| factor == 0.0 || factor == 1.0 / 0.7));
    }

    #[test]
    fn ranks_share_the_masks_that_one_alone_would_draw() {
        let alone = mask(ALONE, 6);
        for (rank, rows) in [[0, 2, 4], [1, 3, 5]].into_iter().enumerate() {
            let own = mask(BatchPlace { first: rank, stride: 2, ..ALONE }, 3);
            let expected: Vec<f32> = rows.iter().flat_map(|row| alone[row * 100..][..100].to_vec()).collect();
            assert_eq!(own, expected, "rank {rank}");
        }
    }

    #[test]
    fn seeds_steps_and_samples_have_masks_of_their_own() {
        let rows = mask(ALONE, 2);
        assert_ne!(rows[..100], rows[100..]);
        assert_ne!(rows, mask(BatchPlace { step: 4, ..ALONE }, 2));
        assert_ne!(rows, mask(BatchPlace { seed: 8, ..ALONE }, 2));
        assert_eq!(rows, mask(ALONE, 2));
    }

    #[test]
    fn a_test_drops_nothing() {
        let x = Tensor::<2>::ones([2, 5], &Device::flex());
        let dropout = Dropout::new(0.5).expect("a probability above 0");
        assert_eq!(dropout.forward(x.clone(), None).into_data(), x.clone().into_data());
        assert_ne!(dropout.forward(x.clone(), Some(&ALONE)).into_data(), x.into_data());
        assert!(Dropout::new(0.0).is_none());
    }
}
