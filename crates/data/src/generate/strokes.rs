//! Pen strokes of the generated digits: skeletons of each digit in several styles, their random distortion,
//! and their placement in the image.

use super::chance::Chance;
use super::digits::SIDE;

/// A point, x to the right and y down.
pub type Point = [f32; 2];

/// The knots of one stroke, in hundredths of the digit's height. Each knot is written `x_yyy`: 38_100 is x
/// 0.38, y 1. The curve through the knots is smooth except where a knot is repeated: a repeated knot makes a
/// corner.
type Stroke = &'static [u32];

/// The strokes of one style of a digit.
type Style = &'static [Stroke];

/// Number of straight segments between two knots. Each segment is at most about two pixels long.
const PIECES: usize = 6;

/// Minimum distance in pixels between a stroke and the edge of the image. It leaves room for the pen's
/// pressure, its soft edge and the blur.
const MARGIN: f32 = 2.75;

/// The styles of each digit, indexed by the digit.
const STYLES: [&[Style]; 10] = [
    // 0: a closed oval; a narrow oval whose end overlaps its beginning; a wide
    // oval with a small gap.
    &[
        &[&[38_000, 12_018, 3_052, 14_086, 36_100, 60_084, 70_050, 60_014, 38_000]],
        &[&[48_004, 20_012, 6_045, 14_084, 36_098, 58_080, 64_042, 50_010, 30_002, 22_010]],
        &[&[40_003, 10_022, 4_060, 24_095, 56_092, 72_055, 62_015, 36_006]],
    ],
    // 1: a plain stroke, upright; a plain stroke, slanted; with a serif;
    // with a serif and a foot.
    &[
        &[&[10_000, 9_050, 8_100]],
        &[&[26_000, 14_048, 1_100]],
        &[&[2_022, 20_000, 20_000, 20_050, 19_100]],
        &[&[4_020, 20_000, 20_000, 20_050, 20_100], &[2_100, 20_099, 38_100]],
    ],
    // 2: a corner at the bottom left; a loop at the bottom left; a pointed
    // head and a straight base.
    &[
        &[&[6_022, 22_003, 50_002, 62_024, 46_054, 4_098, 4_098, 34_096, 66_098]],
        &[&[6_020, 24_002, 50_004, 58_028, 42_062, 18_092, 4_096, 4_082, 20_080, 44_096, 70_092]],
        &[&[2_024, 30_000, 56_014, 48_048, 6_092, 6_092, 66_090]],
    ],
    // 3: two bows with a corner between; a flat top; a small loop between
    // the bows.
    &[
        &[&[6_012, 30_000, 54_014, 44_040, 22_048, 22_048, 52_056, 60_078, 38_099, 4_090]],
        &[&[4_002, 54_002, 54_002, 24_042, 24_042, 54_052, 60_078, 36_100, 2_090]],
        &[&[8_010, 36_000, 54_018, 38_042, 18_050, 26_044, 52_058, 58_082, 32_100, 2_088]],
    ],
    // 4: open, with a corner; closed; open, in one stroke.
    &[
        &[&[6_004, 4_028, 2_052, 2_052, 34_054, 64_050], &[56_000, 52_050, 50_100]],
        &[&[46_002, 22_034, 1_064, 1_064, 34_064, 68_062], &[46_002, 47_050, 48_100]],
        &[&[4_002, 4_034, 20_052, 46_044, 56_004, 56_004, 54_050, 50_100]],
    ],
    // 5: the top bar as a separate stroke; one stroke with two corners;
    // one stroke without corners.
    &[
        &[&[14_002, 11_022, 8_042, 8_042, 34_034, 58_052, 56_082, 30_100, 2_090], &[14_002, 36_002, 60_000]],
        &[&[60_002, 38_004, 16_004, 16_004, 10_040, 10_040, 40_040, 58_064, 44_094, 4_096]],
        &[&[58_002, 28_005, 11_024, 22_042, 48_058, 52_084, 28_100, 2_092]],
    ],
    // 6: a stem that bends into the bowl; a steep stem and a small bowl; a
    // hooked stem and a wide bowl.
    &[
        &[&[46_000, 16_028, 4_066, 18_097, 44_094, 54_070, 38_052, 10_068]],
        &[&[30_000, 8_044, 4_078, 24_100, 48_086, 44_062, 22_058, 6_076]],
        &[&[54_006, 26_010, 6_050, 12_090, 38_100, 56_078, 44_054, 14_062]],
    ],
    // 7: two straight lines; with a bar; with a serif; a wavy top and a
    // bent stem.
    &[
        &[&[2_006, 30_005, 60_004, 60_004, 38_050, 22_100]],
        &[&[2_006, 30_005, 60_004, 60_004, 38_050, 22_100], &[18_052, 36_050, 56_050]],
        &[&[4_018, 6_004, 6_004, 30_005, 58_004, 58_004, 40_042, 30_100]],
        &[&[1_008, 30_010, 60_002, 60_002, 44_030, 28_064, 26_100]],
    ],
    // 8: one stroke that crosses itself; two rings; one stroke, open
    // at the top.
    &[
        &[&[52_010, 28_000, 8_018, 26_044, 52_066, 46_094, 20_098, 4_078, 24_052, 50_028, 50_008]],
        &[&[28_000, 8_020, 28_046, 50_022, 28_000], &[28_046, 2_074, 28_100, 58_074, 28_046]],
        &[&[56_006, 30_002, 12_020, 32_046, 54_072, 36_098, 8_088, 12_062, 44_038, 58_012]],
    ],
    // 9: a straight tail; a tail that curls to the left; a slanted tail.
    &[
        &[&[52_010, 28_002, 4_024, 20_048, 46_036, 54_008, 54_008, 52_050, 46_100]],
        &[&[54_010, 28_000, 4_024, 22_048, 48_036, 55_010, 55_010, 56_054, 44_092, 12_096]],
        &[&[56_020, 34_000, 6_020, 14_046, 40_042, 56_018, 56_018, 40_060, 24_100]],
    ],
];

/// Returns the strokes of `digit` in a random style, as polylines in units of the digit's height. Knots are
/// moved at random by about `jitter`. The ends of a stroke are moved by about twice the distance, as in
/// handwriting.
pub fn trace(digit: usize, jitter: f32, chance: &mut Chance) -> Vec<Vec<Point>> {
    let styles = STYLES[digit];
    let style = styles[chance.below(styles.len())];
    style.iter().map(|stroke| line(&knots(stroke, jitter, chance))).collect()
}

fn knots(stroke: Stroke, jitter: f32, chance: &mut Chance) -> Vec<Point> {
    let mut out: Vec<Point> = Vec::with_capacity(stroke.len());
    for (i, &knot) in stroke.iter().enumerate() {
        let corner = i > 0 && stroke[i - 1] == knot;
        let point = match out.last() {
            Some(&before) if corner => before,
            _ => {
                let end = i == 0 || i + 1 == stroke.len();
                let off = if end { 2.0 * jitter } else { jitter };
                [
                    (knot / 1000) as f32 / 100.0 + chance.normal(off),
                    (knot % 1000) as f32 / 100.0 + chance.normal(off),
                ]
            }
        };
        out.push(point);
    }
    out
}

/// Computes a Catmull-Rom spline through the knots, as a polyline. The curve between two knots depends also
/// on the knot after the two. A corner is a repeated knot: the knot after a corner is the corner itself. The
/// curve therefore does not bend before it reaches a corner.
fn line(knots: &[Point]) -> Vec<Point> {
    let mut out = vec![knots[0]];
    for i in 1..knots.len() {
        let (from, to) = (knots[i - 1], knots[i]);
        if from == to {
            continue;
        }
        let before = knots[i.saturating_sub(2)];
        let after = knots[(i + 1).min(knots.len() - 1)];
        for piece in 1..=PIECES {
            let t = piece as f32 / PIECES as f32;
            out.push([0, 1].map(|axis| {
                let (a, b, c, d) = (before[axis], from[axis], to[axis], after[axis]);
                let bend = 2.0 * a - 5.0 * b + 4.0 * c - d;
                let twist = 3.0 * b - a - 3.0 * c + d;
                b + 0.5 * t * (c - a + t * (bend + t * twist))
            }));
        }
    }
    out
}

/// Slants, rotates and scales the lines. Then distorts the lines smoothly and elastically: a few long waves
/// shift every point. `slop` is 1 for average handwriting and larger for careless handwriting.
pub fn warp(lines: &mut [Vec<Point>], slop: f32, chance: &mut Chance) {
    let angle = chance.normal(0.1 * slop);
    let slant = 0.12 + chance.normal(0.16 * slop);
    let width = chance.between(0.75, 1.2);
    let (sin, cos) = (libm::sinf(angle), libm::cosf(angle));
    let waves: [Wave; 4] = std::array::from_fn(|_| Wave {
        push: [chance.normal(0.025 * slop), chance.normal(0.025 * slop)],
        pace: [chance.normal(4.0), chance.normal(4.0)],
        phase: chance.between(0.0, std::f32::consts::TAU),
    });
    for point in lines.iter_mut().flatten() {
        let y = point[1] - 0.5;
        let x = (point[0] - 0.3) * width - slant * y;
        *point = [x * cos - y * sin, x * sin + y * cos];
        let still = *point;
        for wave in &waves {
            let at = libm::sinf(wave.pace[0] * still[0] + wave.pace[1] * still[1] + wave.phase);
            point[0] += wave.push[0] * at;
            point[1] += wave.push[1] * at;
        }
    }
}

/// One wave of the elastic distortion.
struct Wave {
    /// Amplitude of the shift along x and y.
    push: [f32; 2],
    /// Angular frequency along each axis, in radians per unit.
    pace: [f32; 2],
    /// Phase at the middle of the digit.
    phase: f32,
}

/// Scales the lines to pixels and moves them to the centre of the image. If a pen of the radius `radius` then
/// draws the lines, the digit has the size of MNIST's digits. On average, its centre of mass is less than a
/// pixel from the image's centre.
pub fn scale_and_centre(lines: &mut [Vec<Point>], radius: f32, chance: &mut Chance) {
    let (mut low, mut high) = ([f32::MAX; 2], [f32::MIN; 2]);
    let (mut sum, mut length) = ([0.0; 2], 1e-6);
    for line in lines.iter() {
        for pair in line.windows(2) {
            let long = distance(pair[0], pair[1]);
            length += long;
            for axis in 0..2 {
                sum[axis] += long * 0.5 * (pair[0][axis] + pair[1][axis]);
                low[axis] = low[axis].min(pair[0][axis]).min(pair[1][axis]);
                high[axis] = high[axis].max(pair[0][axis]).max(pair[1][axis]);
            }
        }
    }
    let extent = (high[0] - low[0]).max(high[1] - low[1]).max(0.1);
    let scale = (chance.between(18.5, 20.5) - 2.0 * radius) / extent;
    let half = SIDE as f32 / 2.0;
    for axis in 0..2 {
        let margin = MARGIN + radius;
        let wanted = half + chance.normal(0.4) - scale * sum[axis] / length;
        let shift = wanted.min(SIDE as f32 - margin - scale * high[axis]).max(margin - scale * low[axis]);
        for point in lines.iter_mut().flatten() {
            point[axis] = scale * point[axis] + shift;
        }
    }
}

/// Returns the distance between two points.
pub fn distance(a: Point, b: Point) -> f32 {
    let (x, y) = (b[0] - a[0], b[1] - a[1]);
    (x * x + y * y).sqrt()
}
