//! A matrix that borrows its values from a slice, where they are stored by row or by column.

/// A matrix of f32 values, or of 16-bit floating-point values that are stored as their bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a, T = f32> {
    /// The values by row, or by column if `transposed`.
    pub values: &'a [T],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Whether the values are stored by column.
    pub transposed: bool,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix stored by row.
    ///
    /// # Panics
    /// If there are not `rows * columns` values.
    pub fn new(values: &'a [T], [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(values.len(), rows * columns, "values of a {rows} x {columns} matrix");
        Self { values, rows, columns, transposed: false }
    }

    /// Returns a matrix of other values, with the same size and stored in the same order.
    ///
    /// # Panics
    /// If there are not `rows * columns` values.
    pub fn with<U>(self, values: &[U]) -> Matrix<'_, U> {
        let Self { rows, columns, transposed, .. } = self;
        Matrix { transposed, ..Matrix::new(values, [rows, columns]) }
    }

    /// The transposed matrix, without a copy.
    pub fn transpose(self) -> Self {
        Self { rows: self.columns, columns: self.rows, transposed: !self.transposed, ..self }
    }
}
