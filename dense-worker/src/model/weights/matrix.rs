//! Memory for libtorch's products and this crate's loops. It is made once and used in every step.

use tch::{Device, Kind, Tensor};

use crate::model::{ModelError, int};

/// Floats per cache line. libtorch's products write rows faster that start at one.
pub(crate) const LINE: usize = 16;

/// A row-major matrix of f32. Only the views that its methods return share that memory, and they end
/// before it is next used as a slice.
#[derive(Debug)]
pub(crate) struct Matrix {
    tensor: Tensor,
    pub(crate) columns: usize,
    /// Floats from one row's start to the next.
    pub(crate) stride: usize,
}

impl Matrix {
    /// A matrix without space between rows.
    pub(crate) fn dense(rows: usize, columns: usize) -> Result<Self, ModelError> {
        Self::new(rows, columns, columns)
    }

    /// A matrix whose rows each start at a cache line, counted from the first row.
    pub(crate) fn aligned(rows: usize, columns: usize) -> Result<Self, ModelError> {
        Self::new(rows, columns, columns.next_multiple_of(LINE))
    }

    /// As [`Self::dense`], in memory that other matrices use at other times: a matrix without space between rows, at least as large.
    pub(crate) fn within_memory(memory: &Self, rows: usize, columns: usize) -> Result<Self, ModelError> {
        let all = memory.tensor.f_view([-1])?;
        let tensor = all.f_narrow(0, 0, int(rows * columns))?.f_view([int(rows), int(columns)])?;
        Ok(Self { tensor, columns, stride: columns })
    }

    fn new(rows: usize, columns: usize, stride: usize) -> Result<Self, ModelError> {
        let tensor = Tensor::f_zeros([int(rows), int(stride)], (Kind::Float, Device::Cpu))?;
        Ok(Self { tensor, columns, stride })
    }

    /// Writes numeric values, `width` a row, and behind them `[rows, …]` of others.
    pub(crate) fn put_side_by_side(&mut self, rows: usize, (numeric, width): (&[f32], usize), others: &[f32]) {
        let (stride, rest) = (self.stride, self.columns - width);
        for (row, into) in self.values_mut(rows).chunks_exact_mut(stride).enumerate() {
            let (head, tail) = into.split_at_mut(width);
            head.copy_from_slice(&numeric[row * width..][..width]);
            tail[..rest].copy_from_slice(&others[row * rest..][..rest]);
        }
    }

    /// Copies the columns from `start` on to `into`, `[rows, columns − start]`.
    pub(crate) fn copy_from_column(&self, start: usize, rows: usize, into: &mut [f32]) {
        let width = self.columns - start;
        for (row, values) in self.values(rows).chunks_exact(self.stride).enumerate() {
            into[row * width..][..width].copy_from_slice(&values[start..][..width]);
        }
    }

    /// `[rows, columns]`, the first `rows` rows, for libtorch to read or write.
    pub(crate) fn rows(&self, rows: usize) -> Result<Tensor, ModelError> {
        Ok(self.tensor.f_narrow(0, 0, int(rows))?.f_narrow(1, 0, int(self.columns))?)
    }

    /// For libtorch to read or write.
    pub(crate) fn all_rows(&self) -> Result<Tensor, ModelError> {
        Ok(self.tensor.f_narrow(1, 0, int(self.columns))?)
    }

    /// Includes the space between rows.
    pub(crate) fn values(&self, rows: usize) -> &[f32] {
        &values(&self.tensor)[..rows * self.stride]
    }

    pub(crate) fn values_mut(&mut self, rows: usize) -> &mut [f32] {
        &mut values_mut(&mut self.tensor)[..rows * self.stride]
    }
}

/// Of a contiguous f32 tensor on the processor.
pub(crate) fn values(tensor: &Tensor) -> &[f32] {
    check(tensor);
    #[expect(
        unsafe_code,
        reason = "tch lends no slice of a tensor, and a copy of every activation costs a tenth of a step"
    )]
    // SAFETY: the tensor is defined, contiguous, of f32 and in this process's memory, so its numel() values follow its
    // data pointer, which is aligned for f32; they live as long as the handle, which the slice borrows. Nothing
    // writes to them meanwhile: all users are in this module, on one thread, and ask libtorch for nothing while they hold it.
    unsafe {
        std::slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

pub(crate) fn values_mut(tensor: &mut Tensor) -> &mut [f32] {
    check(tensor);
    #[expect(unsafe_code, reason = "as above")]
    // SAFETY: as above; and nothing else reads them meanwhile.
    unsafe {
        std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<f32>(), tensor.numel())
    }
}

fn check(tensor: &Tensor) {
    let plain = tensor.is_contiguous() && tensor.kind() == Kind::Float && tensor.device() == Device::Cpu;
    assert!(plain && tensor.numel() > 0, "not a plain f32 tensor: {tensor:?}");
}
