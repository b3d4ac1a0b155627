//! The layout of matrices whose rows are vectors over channels: panels of two vectors,
//! which the products keep in registers, for each point of the transform.

use super::transform::PRODUCTS;

/// A matrix of `terms` rows of `vectors` vectors, once for each of the 36 points.
#[derive(Debug, Clone, Copy)]
pub struct Panels {
    /// Rows.
    pub terms: usize,
    /// Vectors of a row.
    pub vectors: usize,
}

/// Vectors of a panel; the last panel may have one.
pub const PANEL: usize = 2;

impl Panels {
    /// Vectors of all points.
    pub fn len(self) -> usize {
        self.count() * PRODUCTS * self.step()
    }

    /// Number of panels.
    pub fn count(self) -> usize {
        self.vectors.div_ceil(PANEL)
    }

    /// Vectors of this panel's rows.
    #[inline(always)]
    pub fn width(self, panel: usize) -> usize {
        PANEL.min(self.vectors - panel * PANEL)
    }

    /// First vector of a panel at a point.
    #[inline(always)]
    pub fn at(self, panel: usize, point: usize) -> usize {
        (panel * PRODUCTS + point) * self.step()
    }

    /// Vectors from one point to the next. The points of one row are written one
    /// after the other: one vector more than needed puts them in different sets of the
    /// cache.
    #[inline(always)]
    pub fn step(self) -> usize {
        self.terms * PANEL + 1
    }
}
