//! What is computed of tensors. Names are libtorch's; one that ends with `_` changes its tensor.
#![expect(unsafe_code, reason = "calls the shim over libtorch")]

use std::borrow::Borrow;
use std::ptr;

use zagros_shim::call;

use crate::device::TensorDevice;
use crate::error::TorchError;
use crate::scalar_type::ScalarType;
use crate::sys::{self, Change, OfNumbers, OfOne, OfSizes, OfTwo};
use crate::tensor::{Tensor, make};

type Made = Result<Tensor, TorchError>;

impl Tensor {
    fn of_one(&self, operator: OfOne) -> Made {
        // SAFETY: each such operator reads its tensor, and makes one.
        make(|out, why, room| unsafe { operator(self.raw(), out, why, room) })
    }

    fn of_two(&self, operator: OfTwo, other: &Self) -> Made {
        // SAFETY: each such operator reads its tensors, and makes one.
        make(|out, why, room| unsafe { operator(self.raw(), other.raw(), out, why, room) })
    }

    fn of_numbers(&self, operator: OfNumbers, [a, b, c]: [i64; 3]) -> Made {
        // SAFETY: each such operator reads its tensor, and makes one.
        make(|out, why, room| unsafe { operator(self.raw(), a, b, c, out, why, room) })
    }

    fn of_sizes(&self, operator: OfSizes, sizes: &[i64]) -> Made {
        // SAFETY: each such operator reads its tensor and the sizes, and makes a tensor.
        make(|out, why, room| unsafe { operator(self.raw(), sizes.as_ptr(), sizes.len(), out, why, room) })
    }

    fn change(&self, operator: Change, others: [Option<&Self>; 2]) -> Result<(), TorchError> {
        let [y, z] = others.map(|other| other.map_or(ptr::null(), |other| other.raw().cast_const()));
        // SAFETY: each caller gives as many tensors as its operator reads; all live for the call.
        Ok(call(|why, room| unsafe { operator(self.raw(), y, z, why, room) })?)
    }

    /// Tensors side by side along a dimension.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn cat<T: Borrow<Self>>(parts: &[T], dimension: i64) -> Made {
        let parts: Vec<_> = parts.iter().map(|part| part.borrow().raw().cast_const()).collect();
        // SAFETY: the tensors live for the call, and the list is read before it returns.
        make(|out, why, room| unsafe { sys::zagros_tensor_cat(parts.as_ptr(), parts.len(), dimension, out, why, room) })
    }

    /// x·Wᵀ + b, for a weight of `[outputs, inputs]`.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn linear(&self, weight: &Self, bias: Option<&Self>) -> Made {
        let bias = bias.map_or(ptr::null(), |bias| bias.raw().cast_const());
        // SAFETY: the tensors live for the call; the bias may be null.
        make(|out, why, room| unsafe { sys::zagros_tensor_linear(self.raw(), weight.raw(), bias, out, why, room) })
    }

    /// Every value times a number.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn times(&self, factor: f64) -> Made {
        // SAFETY: the tensor lives for the call.
        make(|out, why, room| unsafe { sys::zagros_tensor_times(self.raw(), factor, out, why, room) })
    }

    /// What `index` lists of a dimension.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn index_select(&self, dimension: i64, index: &Self) -> Made {
        // SAFETY: the tensors live for the call.
        make(|out, why, room| unsafe {
            sys::zagros_tensor_index_select(self.raw(), dimension, index.raw(), out, why, room)
        })
    }

    /// Zeros of its size and type, where it is.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn zeros_like(&self) -> Made {
        self.of_one(sys::zagros_tensor_zeros_like)
    }

    /// The same values, of which backward knows nothing.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn detach(&self) -> Made {
        self.of_one(sys::zagros_tensor_detach)
    }

    /// Itself, or a copy whose values follow each other.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn contiguous(&self) -> Made {
        self.of_one(sys::zagros_tensor_contiguous)
    }

    /// Its gradient, which is not defined before a backward gave it one.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn grad(&self) -> Made {
        self.of_one(sys::zagros_tensor_grad)
    }

    /// A matrix transposed, as a view.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn t(&self) -> Made {
        self.of_one(sys::zagros_tensor_t)
    }

    /// max(x, 0).
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn relu(&self) -> Made {
        self.of_one(sys::zagros_tensor_relu)
    }

    /// x².
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn square(&self) -> Made {
        self.of_one(sys::zagros_tensor_square)
    }

    /// The sum of all values.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn sum(&self) -> Made {
        self.of_one(sys::zagros_tensor_sum)
    }

    /// x + y.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn add(&self, other: &Self) -> Made {
        self.of_two(sys::zagros_tensor_add, other)
    }

    /// x − y.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn sub(&self, other: &Self) -> Made {
        self.of_two(sys::zagros_tensor_sub, other)
    }

    /// x ⊙ y.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn mul(&self, other: &Self) -> Made {
        self.of_two(sys::zagros_tensor_mul, other)
    }

    /// The product of two matrices.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn mm(&self, other: &Self) -> Made {
        self.of_two(sys::zagros_tensor_mm, other)
    }

    /// The product of each pair of matrices of two batches.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn bmm(&self, other: &Self) -> Made {
        self.of_two(sys::zagros_tensor_bmm, other)
    }

    /// The mean binary cross-entropy of logits against labels of 0 or 1, nats.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn cross_entropy_with_logits(&self, labels: &Self) -> Made {
        self.of_two(sys::zagros_tensor_cross_entropy, labels)
    }

    /// Itself, or a copy with values of that type.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn to_kind(&self, of: ScalarType) -> Made {
        self.of_numbers(sys::zagros_tensor_to_type, [of.number().into(), 0, 0])
    }

    /// Itself, or a copy on that device.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn to_device(&self, device: TensorDevice) -> Made {
        self.of_numbers(sys::zagros_tensor_to_device, [device.number()?.into(), 0, 0])
    }

    /// A view of `length` indices of a dimension.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn narrow(&self, dimension: i64, start: i64, length: i64) -> Made {
        self.of_numbers(sys::zagros_tensor_narrow, [dimension, start, length])
    }

    /// A view of one index of a dimension, which is gone.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn select(&self, dimension: i64, index: i64) -> Made {
        self.of_numbers(sys::zagros_tensor_select, [dimension, index, 0])
    }

    /// A view in which two dimensions have changed places.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn transpose(&self, one: i64, other: i64) -> Made {
        self.of_numbers(sys::zagros_tensor_transpose, [one, other, 0])
    }

    /// One dimension in place of those from `first` to `last`.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn flatten(&self, first: i64, last: i64) -> Made {
        self.of_numbers(sys::zagros_tensor_flatten, [first, last, 0])
    }

    /// A view with one more dimension, of size 1.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn unsqueeze(&self, dimension: i64) -> Made {
        self.of_numbers(sys::zagros_tensor_unsqueeze, [dimension, 0, 0])
    }

    /// A view without a dimension of size 1.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn squeeze(&self, dimension: i64) -> Made {
        self.of_numbers(sys::zagros_tensor_squeeze, [dimension, 0, 0])
    }

    /// Sums over a dimension, which stays with size 1 or is gone.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn sum_of(&self, dimension: i64, stays: bool) -> Made {
        self.of_numbers(sys::zagros_tensor_sum_of, [dimension, stays.into(), 0])
    }

    /// The same values with another size: a view where that is possible, else a copy.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn reshape(&self, size: impl AsRef<[i64]>) -> Made {
        self.of_sizes(sys::zagros_tensor_reshape, size.as_ref())
    }

    /// A view with another size.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn view(&self, size: impl AsRef<[i64]>) -> Made {
        self.of_sizes(sys::zagros_tensor_view, size.as_ref())
    }

    /// Takes the other's values, converted where they are of another type or on another device.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn copy_(&mut self, from: &Self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_copy_, [Some(from), None])
    }

    /// x += y.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn add_(&mut self, other: &Self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_add_, [Some(other), None])
    }

    /// x += a·b.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn addmm_(&mut self, a: &Self, b: &Self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_addmm_, [Some(a), Some(b)])
    }

    /// `out` = x·y, in the memory that `out` has.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn mm_out(&self, out: &mut Self, other: &Self) -> Result<(), TorchError> {
        out.change(sys::zagros_tensor_mm_out, [Some(self), Some(other)])
    }

    /// x = 0.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn zero_(&mut self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_zero_, [None, None])
    }

    /// Gives it the other's memory. Whoever holds it sees that.
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn set_data(&mut self, other: &Self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_set_data, [Some(other), None])
    }

    /// From now on operators on it are recorded, and backward gives it a gradient.
    ///
    /// # Errors
    /// When it is made of others, or of whole numbers.
    pub fn require_grad(&mut self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_track, [None, None])
    }

    /// Adds the slopes of its only value to the gradients of what it was made of.
    ///
    /// # Errors
    /// When nothing was recorded, or it has several values.
    pub fn backward(&self) -> Result<(), TorchError> {
        self.change(sys::zagros_tensor_backward, [None, None])
    }
}

#[cfg(test)]
mod tests;
