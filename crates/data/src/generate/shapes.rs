//! Outlines, surfaces and colours of the objects that [`super::objects`] draws.

use std::f32::consts::TAU;

use super::chance::Chance;

/// Red, green and blue, each in [0, 1].
pub type Colour = [f32; 3];

/// Names of the outlines. They are also the classes of the data set.
pub const NAMES: [&str; 10] =
    ["disc", "square", "triangle", "flower", "cross", "ring", "crescent", "bar", "angle", "dumbbell"];

/// Returns the signed distance of the point (x, y) from an outline. The distance is negative inside the
/// outline. `shape` is the index of the outline in [`NAMES`]. The radius of outlines is about 1. The distance
/// is exact only near the edge, which is enough for antialiasing.
pub fn outside(shape: usize, x: f32, y: f32) -> f32 {
    let round = |x: f32, y: f32| (x * x + y * y).sqrt();
    let boxed = |x: f32, y: f32| x.abs().max(y.abs());
    match shape {
        0 => round(x, y) - 0.9,
        1 => boxed(x, y) - 0.8,
        2 => (-y).max(0.866 * x + 0.5 * y).max(-0.866 * x + 0.5 * y) - 0.55,
        3 => round(x, y) - (0.7 + 0.28 * libm::cosf(5.0 * libm::atan2f(y, x))),
        4 => (x.abs() - 0.3).max(y.abs() - 1.0).min((y.abs() - 0.3).max(x.abs() - 1.0)),
        5 => (round(x, y) - 0.72).abs() - 0.23,
        6 => (round(x, y) - 1.0).max(0.75 - round(x - 0.45, y)),
        7 => (x.abs() - 1.1).max(y.abs() - 0.36),
        8 => (boxed(x, y) - 0.85).max((x + 0.2).min(0.2 - y)),
        _ => {
            (round(x - 0.6, y) - 0.45).min(round(x + 0.6, y) - 0.45).min((x.abs() - 0.6).max(y.abs() - 0.14))
        }
    }
}

/// Number of surface patterns.
pub const SURFACES: usize = 5;

/// A surface: a pattern that mixes two colours, with its scale and direction.
pub struct Surface {
    pattern: usize,
    colours: [Colour; 2],
    /// Angular frequency of the pattern along x and y, in radians per pixel.
    pace: [f32; 2],
    phase: [f32; 2],
}

impl Surface {
    /// Chooses a surface with this pattern at random. Its first colour has the hue `hue`, and its second
    /// colour is lighter or darker.
    pub fn new(pattern: usize, hue: f32, chance: &mut Chance) -> Self {
        let first = colour(hue, chance.between(0.25, 0.95), chance.between(0.3, 1.0));
        let shift = chance.between(0.25, 0.6) * if chance.happens(0.5) { 1.0 } else { -1.0 };
        let second = first.map(|part| (part + shift).clamp(0.0, 1.0));
        let angle = chance.between(0.0, TAU);
        let fine = chance.between(1.1, 2.2);
        Self {
            pattern,
            colours: [first, second],
            pace: [fine * libm::cosf(angle), fine * libm::sinf(angle)],
            phase: [chance.between(0.0, TAU), chance.between(0.0, TAU)],
        }
    }

    /// Returns the colour at the pixel (x, y).
    pub fn at(&self, x: f32, y: f32, chance: &mut Chance) -> Colour {
        let along = libm::sinf(self.pace[0] * x + self.pace[1] * y + self.phase[0]);
        let across = libm::sinf(self.pace[0] * y - self.pace[1] * x + self.phase[1]);
        let second: f32 = match self.pattern {
            0 => 0.15 + 0.1 * along,
            1 => 0.5 + 1.5 * along,
            2 => 0.5 + 2.0 * along * across,
            3 => along + across - 0.4,
            _ => chance.between(0.0, 1.0),
        };
        mix(self.colours[0], self.colours[1], second.clamp(0.0, 1.0))
    }
}

/// Interpolates linearly. The result is `a` if `part` is 0, and `b` if `part` is 1.
pub fn mix(a: Colour, b: Colour, part: f32) -> Colour {
    [0, 1, 2].map(|i| a[i] + part * (b[i] - a[i]))
}

/// Converts a colour from HSV to RGB. `hue` repeats with period 1. `saturation` and `brightness` are from 0
/// to 1.
pub fn colour(hue: f32, saturation: f32, brightness: f32) -> Colour {
    // Each channel is a clamped triangle wave of the hue. The three waves are shifted against each other by a
    // third of the colour circle.
    [0.0, 2.0 / 3.0, 1.0 / 3.0].map(|lag| {
        let phase = hue + lag - (hue + lag).floor();
        let tent = ((6.0 * phase - 3.0).abs() - 1.0).clamp(0.0, 1.0);
        brightness * (1.0 - saturation * (1.0 - tent))
    })
}
