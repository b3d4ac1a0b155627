//! Checks the instructions of all levels against the portable ones.

use super::*;
use crate::kernels::testing::Random;

/// Runs every instruction on the same words.
struct All<'a> {
    words: &'a [[i32; LANES]; LANES],
    results: &'a mut Vec<Block>,
}

impl Task for All<'_> {
    #[inline(always)]
    fn run<W: Words>(self, words: W) {
        let loaded = self.words.map(|word| words.load(&bytemuck::cast(word)));
        let [a, b, c, d, ..] = loaded;
        let five = words.splat(5);
        let mut results = vec![
            a,
            words.splat(-7),
            words.dot(a, b, c),
            words.max(a, b),
            words.min(a, b),
            words.shift_left(a, five),
            words.scale(a, b, c, five),
            words.pack([a, b, c, d]),
        ];
        let mut square = loaded;
        words.transpose(&mut square);
        results.extend(square);
        for word in results {
            let mut block = Block([0; LANES]);
            words.store(word, &mut block);
            words.store(words.load(&block), &mut block);
            self.results.push(block);
            let mut bytes = [0; LANES];
            words.store_bytes(word, &mut bytes);
            self.results.push(Block(bytes.map(u32::from)));
        }
    }
}

#[test]
fn instructions_of_all_levels_equal_the_portable_ones() {
    let mut random = Random(11);
    let extremes = [0, 1, -1, 255, 256, 32767, 32768, -32768, -32769, i32::MAX, i32::MIN, -2_139_062_144];
    for round in 0..200 {
        let words = [[(); LANES]; LANES].map(|word| {
            word.map(|()| match random.below(3) {
                0 => extremes[random.below(extremes.len())],
                1 => random.below(600) as i32 - 200,
                _ => (random.below(1 << 31) as i32) << 1 ^ random.below(1 << 31) as i32,
            })
        });
        let results = |instructions: Instructions| {
            let mut results = Vec::new();
            instructions.run(All { words: &words, results: &mut results });
            results.iter().map(|block| block.0).collect::<Vec<_>>()
        };
        let expected = results(Instructions::Portable);
        for level in Level::available() {
            let instructions = Instructions::for_level(level);
            let found = results(instructions);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "result {i} of {}, round {round}", instructions.name());
            }
        }
    }
}
