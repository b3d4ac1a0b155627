//! Tests of the augmentations: each kind, and that they are deterministic.

use super::*;

const SHAPE: [usize; 3] = [3, 32, 32];

fn image(seed: u64) -> Vec<u8> {
    crate::generate::objects::draw(seed, crate::Split::Train, 0).0.to_vec()
}

fn changed(kinds: &str, seed: u64, epoch: u64, sample: u64) -> Vec<u8> {
    let mut bytes = image(1);
    kinds.parse::<Augmentation>().unwrap().apply(&mut bytes, SHAPE, seed, epoch, sample);
    bytes
}

#[test]
fn names_are_read_in_any_order_and_written_in_a_fixed_one() {
    let parsed: Augmentation = "rotate, flip".parse().unwrap();
    assert_eq!(parsed.to_string(), "flip,rotate");
    assert_ne!(parsed, Augmentation::default());
    let json = serde_json::to_string(&parsed).unwrap();
    assert_eq!(json, "\"flip,rotate\"");
    for (text, problem) in [("", "choose from"), ("flip,blur", "\"blur\""), ("flip,flip", "twice")] {
        let message = text.parse::<Augmentation>().unwrap_err();
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn augmentation_depends_on_seed_epoch_and_sample_only() {
    let all = "crop,flip,jitter,rotate";
    let base = changed(all, 1, 2, 3);
    assert_eq!(base, changed(all, 1, 2, 3));
    for other in [changed(all, 2, 2, 3), changed(all, 1, 3, 3), changed(all, 1, 2, 4)] {
        assert_ne!(base, other);
    }
    // Images of a seed must not change from version to version. An FNV-1a checksum detects such a change.
    let mut ramp: Vec<u8> = (0..3072).map(|at| (at * 7 % 251) as u8).collect();
    all.parse::<Augmentation>().unwrap().apply(&mut ramp, SHAPE, 1, 2, 3);
    let sum = ramp.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(sum, 0x9002_ac28_f58b_ca6b);
}

#[test]
fn each_augmentation_is_independent_of_the_others() {
    for sample in 0..20 {
        let mut both = changed("crop", 1, 1, sample);
        "flip".parse::<Augmentation>().unwrap().apply(&mut both, SHAPE, 1, 1, sample);
        assert_eq!(both, changed("crop,flip", 1, 1, sample));
    }
}

#[test]
fn crops_are_shifts_by_up_to_four_pixels_with_zero_padding() {
    let original = image(1);
    let mut seen = std::collections::HashSet::new();
    for sample in 0..600 {
        let crop = changed("crop", 1, 0, sample);
        let fits = |down: i32, right: i32| {
            (0..3072).all(|at| {
                let (plane, row, column) = (at / 1024, at as i32 / 32 % 32 + down, at as i32 % 32 + right);
                let inside = (0..32).contains(&row) && (0..32).contains(&column);
                let from = if inside { original[plane * 1024 + (row * 32 + column) as usize] } else { 0 };
                crop[at] == from
            })
        };
        let shifts = (-4..=4).flat_map(|down| (-4..=4).map(move |right| (down, right)));
        seen.insert(shifts.into_iter().find(|&(down, right)| fits(down, right)).expect("a shift"));
    }
    assert_eq!(seen.len(), 81, "every shift occurs");
}

#[test]
fn half_of_the_images_are_flipped() {
    let mut mirrored = image(1);
    mirrored.chunks_exact_mut(32).for_each(<[u8]>::reverse);
    let count = (0..400).filter(|&sample| changed("flip", 5, 0, sample) == mirrored).count();
    let still = (0..400).filter(|&sample| changed("flip", 5, 0, sample) == image(1)).count();
    assert_eq!(count + still, 400);
    assert!((160..240).contains(&count), "{count}");
}

#[test]
fn jitter_applies_its_factors() {
    let pixel = |bytes: [u8; 3], factors: [i32; 3]| {
        let mut image = bytes.to_vec();
        jitter(&mut image, [3, 1, 1], factors);
        [image[0], image[1], image[2]]
    };
    assert_eq!(pixel([10, 100, 250], [256, 256, 256]), [10, 100, 250]);
    assert_eq!(pixel([10, 100, 250], [128, 256, 256]), [5, 50, 125]);
    assert_eq!(pixel([10, 100, 250], [512, 256, 256]), [20, 200, 255]);
    // Grey is 90: (77 * 10 + 150 * 100 + 29 * 250) / 256.
    assert_eq!(pixel([10, 100, 250], [256, 0, 256]), [90, 90, 90]);
    assert_eq!(pixel([10, 100, 250], [256, 256, 128]), [50, 95, 170]);
    let mut grey = vec![0, 100, 200];
    jitter(&mut grey, [1, 1, 3], [256, 128, 0]);
    assert_eq!(grey, [50, 100, 150]);
}

#[test]
fn rotations_keep_the_centre_and_go_both_ways() {
    let mut still = image(1);
    rotate(&mut still, SHAPE, 0.0);
    assert_eq!(still, image(1));
    // A rotation by 90 degrees moves whole pixels: rows become columns.
    let mut quarter: Vec<u8> = (0..9).collect();
    rotate(&mut quarter, [1, 3, 3], std::f32::consts::FRAC_PI_2);
    let back: Vec<u8> = [6, 3, 0, 7, 4, 1, 8, 5, 2].to_vec();
    let forth: Vec<u8> = [2, 5, 8, 1, 4, 7, 0, 3, 6].to_vec();
    assert!(quarter == back || quarter == forth, "{quarter:?}");
    // Rotate images of a horizontal bar at half height. The right end of the bar goes up in some samples and
    // down in others.
    let mut bar = vec![0; 1024];
    bar[16 * 32..17 * 32].fill(255);
    let ends: Vec<bool> = (0..40)
        .map(|sample| {
            let mut rotated = bar.clone();
            "rotate".parse::<Augmentation>().unwrap().apply(&mut rotated, [1, 32, 32], 3, 0, sample);
            let mass = |rows: std::ops::Range<usize>| -> u32 {
                rows.map(|row| u32::from(rotated[row * 32 + 30])).sum()
            };
            assert!(mass(16 - 5..16 + 6) > 0 || rotated[16 * 32 + 30] > 0, "at most 15 degrees");
            mass(0..16) > mass(17..32)
        })
        .collect();
    assert!(ends.contains(&true) && ends.contains(&false));
}

#[test]
fn images_of_any_size_and_number_of_channels_are_changed() {
    for shape in [[1, 5, 9], [2, 29, 4], [4, 3, 7], [3, 1, 1], [1, 2, 64]] {
        let size = shape.iter().product::<usize>();
        for change in ["crop", "flip", "jitter", "rotate", "crop,flip,jitter,rotate"] {
            for sample in 0..24 {
                let mut image: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
                change.parse::<Augmentation>().unwrap().apply(&mut image, shape, 1, 0, sample);
            }
        }
    }
    // Each channel is mirrored separately.
    let mut image = [1, 2, 3, 4, 5, 6, 7, 8];
    flip(&mut image, [2, 1, 4]);
    assert_eq!(image, [4, 3, 2, 1, 8, 7, 6, 5]);
}
