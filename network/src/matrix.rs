//! Memory for the values of a step, made once and used in every step, and views of it.

/// Floats of a cache line. Products write rows faster that start at one.
pub const LINE: usize = 16;

#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Values that start at a cache line.
#[derive(Debug, Default)]
pub struct AlignedValues {
    lines: Vec<Line>,
    length: usize,
}

/// A row-major matrix of f32.
#[derive(Debug, Default)]
pub struct Matrix {
    values: AlignedValues,
    pub columns: usize,
    /// Floats from one row's start to the next.
    pub stride: usize,
}

/// Rows of a matrix, or of a part of its columns, or transposed.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// From the first value on.
    pub values: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

/// As [`View`], to be written; not transposed.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub values: &'a mut [f32],
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
}

impl AlignedValues {
    /// So many zeros.
    pub fn zeros(length: usize) -> Self {
        Self { lines: vec![Line([0.0; LINE]); length.div_ceil(LINE)], length }
    }

    /// Makes it at least so long. The values are anything then.
    pub(crate) fn grow(&mut self, length: usize) {
        if self.length < length {
            *self = Self::zeros(length);
        }
    }
}

impl std::ops::Deref for AlignedValues {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.length]
    }
}

impl std::ops::DerefMut for AlignedValues {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.length]
    }
}

impl Matrix {
    /// A matrix without space between rows.
    pub fn dense(rows: usize, columns: usize) -> Self {
        Self { values: AlignedValues::zeros(rows * columns), columns, stride: columns }
    }

    /// A matrix whose rows each start at a cache line.
    pub fn aligned(rows: usize, columns: usize) -> Self {
        let stride = columns.next_multiple_of(LINE);
        Self { values: AlignedValues::zeros(rows * stride), columns, stride }
    }

    /// The first `rows` rows.
    pub fn view(&self, rows: usize) -> View<'_> {
        View::strided(self.values(rows), (rows, self.columns), self.stride)
    }

    pub fn view_mut(&mut self, rows: usize) -> ViewMut<'_> {
        let (columns, stride) = (self.columns, self.stride);
        ViewMut { values: self.values_mut(rows), rows, columns, stride }
    }

    /// Includes the space between rows.
    pub fn values(&self, rows: usize) -> &[f32] {
        &self.values[..rows * self.stride]
    }

    pub fn values_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut self.values[..rows * self.stride]
    }
}

impl<'a> View<'a> {
    /// A matrix without space between rows.
    pub fn dense(values: &'a [f32], (rows, columns): (usize, usize)) -> Self {
        Self::strided(values, (rows, columns), columns)
    }

    pub fn strided(values: &'a [f32], (rows, columns): (usize, usize), stride: usize) -> Self {
        Self { values, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Whether all its elements lie within its values.
    pub fn is_within_values(&self) -> bool {
        let Self { values, rows, columns, row_stride, column_stride } = self;
        let last = rows.saturating_sub(1) * row_stride + columns.saturating_sub(1) * column_stride;
        *rows == 0 || *columns == 0 || last < values.len()
    }

    #[must_use]
    pub fn transposed(self) -> Self {
        let Self { values, rows, columns, row_stride, column_stride } = self;
        Self { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    #[must_use]
    pub fn narrow_columns(self, start: usize, columns: usize) -> Self {
        Self { values: self.values.get(start * self.column_stride..).unwrap_or_default(), columns, ..self }
    }

    #[must_use]
    pub fn narrow_rows(self, start: usize, rows: usize) -> Self {
        Self { values: self.values.get(start * self.row_stride..).unwrap_or_default(), rows, ..self }
    }
}

impl<'a> ViewMut<'a> {
    /// A matrix without space between rows.
    pub fn dense(values: &'a mut [f32], (rows, columns): (usize, usize)) -> Self {
        Self { values, rows, columns, stride: columns }
    }

    /// Whether all its elements lie within its values.
    pub fn is_within_values(&self) -> bool {
        View::strided(self.values, (self.rows, self.columns), self.stride).is_within_values()
    }

    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { values: self.values, rows: self.rows, columns: self.columns, stride: self.stride }
    }

    #[must_use]
    pub fn narrow_columns(self, start: usize, columns: usize) -> Self {
        Self { values: self.values.get_mut(start..).unwrap_or_default(), columns, ..self }
    }

    #[must_use]
    pub fn narrow_rows(self, start: usize, rows: usize) -> Self {
        Self { values: self.values.get_mut(start * self.stride..).unwrap_or_default(), rows, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_an_aligned_matrix_start_at_cache_lines() {
        let mut matrix = Matrix::aligned(3, 5);
        assert_eq!((matrix.stride, matrix.values(2).as_ptr().addr() % 64), (16, 0));
        let row = matrix.view_mut(3).narrow_rows(1, 2).narrow_columns(3, 2);
        row.values[..2].fill(7.0);
        assert_eq!(matrix.view(3).narrow_rows(1, 1).values[..5], [0.0, 0.0, 0.0, 7.0, 7.0]);
        let column = matrix.view(3).transposed().narrow_rows(4, 1);
        assert_eq!((column.values[16], column.columns, column.column_stride), (7.0, 3, 16));
    }
}
