//! Warns if light and dark are swapped in the pictures to predict, compared with the training set. An example
//! is dark ink on white paper, for a network that was trained on white digits on black.
//!
//! The network predicts a class for a swapped picture as for any other picture, so no other output shows the
//! mistake.

/// A picture counts as swapped only if its negative is closer to the training set's mean brightness than the
/// picture itself, by more than this value. Brightness is scaled to 0..1.
///
/// If the training set's mean is between 0.375 and 0.625, no picture can meet this condition. Sets of natural
/// pictures have such a mean, so networks that were trained on them never cause a warning. None of MNIST's
/// 70,000 digits meets the condition; the negative of every digit meets it.
const CLOSER: f32 = 0.25;
/// Minimum difference between a swapped picture's mean and the training set's mean, in standard deviations of
/// the training set.
const FAR: f32 = 1.5;
/// A warning needs at least one swapped picture in 10. Of natural pictures that were darkened to a mean of
/// 0.2, 1 % wrongly count as swapped.
const FEW: usize = 10;

/// Compares the brightness of the pictures to predict with the brightness of the training set.
#[derive(Debug)]
pub struct Brightness {
    /// Mean and standard deviation of the training set, averaged over channels. `None` if the mean is outside
    /// 0..1 or the deviation is not above 0; then no picture counts as swapped.
    learned: Option<[f32; 2]>,
    pictures: usize,
    swapped: usize,
    /// Name and mean of the first swapped picture.
    first: Option<(String, f32)>,
}

impl Brightness {
    /// Takes the mean and standard deviation of each channel of the training set, scaled to 0..1.
    pub fn of_training_set(mean: &[f32], std: &[f32]) -> Self {
        let average = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
        // The option `--mean` of `data import` may be any number, also outside 0..1.
        let learned = [average(mean), average(std)];
        let is_known = (0.0..=1.0).contains(&learned[0]) && learned[1] > 0.0;
        Self { learned: is_known.then_some(learned), pictures: 0, swapped: 0, first: None }
    }

    /// Counts a picture, given its bytes.
    pub fn look(&mut self, name: &str, bytes: &[u8]) {
        let Some([learned, deviation]) = self.learned else { return };
        let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
        let mean = sum as f32 / 255.0 / bytes.len().max(1) as f32;
        let [away, negative] = [mean, 1.0 - mean].map(|mean| (mean - learned).abs());
        self.pictures += 1;
        if away - negative > CLOSER && away > FAR * deviation {
            self.swapped += 1;
            self.first.get_or_insert_with(|| (name.to_owned(), mean));
        }
    }

    /// Returns the warning, or `None` if too few pictures are swapped.
    pub fn warning(&self) -> Option<String> {
        let [learned, _] = self.learned?;
        let (first, mean) = self.first.as_ref().filter(|_| self.swapped * FEW >= self.pictures)?;
        let [how, were, are] = if *mean > learned {
            ["brighter", "light-on-dark", "dark-on-light"]
        } else {
            ["darker", "dark-on-light", "light-on-dark"]
        };
        Some(format!(
            "{} of {} much {how} than the training pictures (mean brightness {learned:.2}; the first such picture, {first}, has \
             {mean:.2}): a network trained on {were} pictures does not recognise {are} pictures; invert the \
             pictures (PIL.ImageOps.invert), or train on {are} pictures",
            self.swapped,
            match self.pictures {
                1 => "1 picture is".to_owned(),
                pictures => format!("{pictures} pictures are"),
            }
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the warning for pictures in which all pixels have one value.
    fn warning(mean: &[f32], std: &[f32], pictures: &[u8]) -> Option<String> {
        let mut brightness = Brightness::of_training_set(mean, std);
        for (number, &value) in pictures.iter().enumerate() {
            brightness.look(&format!("{number}.png"), &[value; 9]);
        }
        brightness.warning()
    }

    #[test]
    fn swapped_light_and_dark_is_told_and_ordinary_pictures_are_not() {
        const DIGITS: [&[f32]; 2] = [&[0.1307], &[0.3081]];
        const NATURAL: [&[f32]; 2] = [&[0.49, 0.48, 0.45], &[0.25, 0.24, 0.26]];
        const PAPER: [&[f32]; 2] = [&[0.92], &[0.26]];
        let dark: Vec<u8> = vec![30; 11];
        let one_of_twelve = [&dark[..], &[240]].concat();
        for ([mean, std], pictures, expected) in [
            (DIGITS, &[30, 222, 240][..], Some(["2 of 3 ", "brighter"])),
            (DIGITS, &[222], Some(["1 of 1 ", "brighter"])),
            (DIGITS, &[7, 30, 100], None),
            (DIGITS, &one_of_twelve, None),
            (PAPER, &[10, 235], Some(["1 of 2 ", "darker"])),
            (PAPER, &[235, 160], None),
            (NATURAL, &[0, 20, 120, 235, 255], None),
            ([&[-0.5], &[0.5]], &[255], None),
            ([&[0.0], &[1.0]], &[255], None),
            ([&[], &[]], &[255], None),
        ] {
            let found = warning(mean, std, pictures);
            let is_right = match expected {
                Some([count, how]) => {
                    found.as_deref().is_some_and(|text| text.starts_with(count) && text.contains(how))
                }
                None => found.is_none(),
            };
            assert!(is_right, "{mean:?} {pictures:?}: {found:?}, not {expected:?}");
        }
        let text = warning(DIGITS[0], DIGITS[1], &[30, 255]).unwrap();
        for fact in ["1.png", "1.00", "0.13"] {
            assert!(text.contains(fact), "{fact}: {text}");
        }
    }
}
