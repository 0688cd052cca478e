//! A tensor: how it is made, what it is, and its values.
#![expect(unsafe_code, reason = "calls the shim over libtorch")]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

use zagros_shim::call;

use crate::device::TensorDevice;
use crate::error::TorchError;
use crate::scalar_type::{Element, ScalarType};
use crate::sys::{self, RawTensor};

/// More dimensions than any tensor here has.
const MOST_DIMENSIONS: usize = 16;

/// A handle of libtorch's. Views and shallow clones share its memory.
pub struct Tensor(NonNull<RawTensor>);

// SAFETY: a handle is bound to no thread, and libtorch counts a tensor's handles atomically. As it is not Sync, one thread at
// a time calls this one.
unsafe impl Send for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the shim made the handle, and it is freed once.
        unsafe { sys::zagros_tensor_free(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor[{:?}, {:?}]", self.size(), self.kind())
    }
}

/// Makes a call that gives a tensor.
pub(crate) fn make(
    operator: impl FnOnce(*mut *mut RawTensor, *mut c_char, usize) -> c_int,
) -> Result<Tensor, TorchError> {
    let mut out = ptr::null_mut();
    call(|why, room| operator(&raw mut out, why, room))?;
    NonNull::new(out).map(Tensor).ok_or_else(|| TorchError { reason: "no tensor was made".to_owned() })
}

impl Tensor {
    /// Zeros of this size.
    ///
    /// # Errors
    /// In libtorch's words, such as when there is no memory.
    pub fn zeros(size: impl AsRef<[i64]>, (of, device): (ScalarType, TensorDevice)) -> Result<Self, TorchError> {
        let (size, of, device) = (size.as_ref(), of.number(), device.number()?);
        // SAFETY: the sizes are read before the call returns.
        make(|out, why, room| unsafe {
            sys::zagros_tensor_zeros(size.as_ptr(), size.len(), of, device, out, why, room)
        })
    }

    /// A copy of these values, `[values.len()]`, in the processor's memory.
    ///
    /// # Errors
    /// In libtorch's words, such as when there is no memory.
    pub fn from_slice<T: Element>(values: &[T]) -> Result<Self, TorchError> {
        let size = [i64::try_from(values.len()).unwrap_or(i64::MAX)];
        Self::of_bytes((values.as_ptr().cast(), size_of_val(values)), &size, T::TYPE)
    }

    /// A tensor of this size whose values have these bytes, in the processor's memory.
    ///
    /// # Errors
    /// When there are more or fewer bytes than the size implies.
    pub fn from_bytes(bytes: &[u8], size: &[i64], of: ScalarType) -> Result<Self, TorchError> {
        Self::of_bytes((bytes.as_ptr(), bytes.len()), size, of)
    }

    fn of_bytes((bytes, length): (*const u8, usize), size: &[i64], of: ScalarType) -> Result<Self, TorchError> {
        // SAFETY: the bytes, which the callers' slices hold, and the sizes are read before the call returns.
        make(|out, why, room| unsafe {
            sys::zagros_tensor_of_bytes(bytes, length, size.as_ptr(), size.len(), of.number(), out, why, room)
        })
    }

    /// The tensor of a handle that another shim made.
    ///
    /// # Safety
    /// The handle is libtorch's `at::Tensor*`, made with `new`, and nobody else frees it.
    #[must_use]
    pub unsafe fn from_ptr(handle: NonNull<c_void>) -> Self {
        Self(handle.cast())
    }

    /// The handle, libtorch's `at::Tensor*`, for another shim. It lives as long as `self`.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    pub(crate) fn raw(&self) -> *mut RawTensor {
        self.0.as_ptr()
    }

    /// Another handle of the same tensor.
    ///
    /// # Panics
    /// When there is no memory for a pointer.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        // SAFETY: the handle lives as long as self.
        Self(NonNull::new(unsafe { sys::zagros_tensor_share(self.raw()) }).expect("`new` gives an object"))
    }

    /// Whether there is a tensor: a gradient that nothing flowed into is none.
    #[must_use]
    pub fn defined(&self) -> bool {
        // SAFETY: the handle lives as long as self.
        unsafe { sys::zagros_tensor_defined(self.raw()) }
    }

    /// Whether backward gives it a gradient.
    #[must_use]
    pub fn requires_grad(&self) -> bool {
        // SAFETY: the handle lives as long as self.
        unsafe { sys::zagros_tensor_requires_grad(self.raw()) }
    }

    /// Whether its values follow each other in memory, the last dimension fastest.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the handle lives as long as self.
        unsafe { sys::zagros_tensor_is_contiguous(self.raw()) }
    }

    /// Type of its values.
    #[must_use]
    pub fn kind(&self) -> ScalarType {
        // SAFETY: the handle lives as long as self.
        ScalarType::of_number(unsafe { sys::zagros_tensor_type(self.raw()) })
    }

    /// Where its values are.
    #[must_use]
    pub fn device(&self) -> TensorDevice {
        // SAFETY: the handle lives as long as self.
        TensorDevice::of_number(unsafe { sys::zagros_tensor_device(self.raw()) })
    }

    /// How many values it has.
    #[must_use]
    pub fn numel(&self) -> usize {
        // SAFETY: the handle lives as long as self.
        unsafe { sys::zagros_tensor_numel(self.raw()) }
    }

    /// Its size, dimension after dimension.
    ///
    /// # Panics
    /// When it has more than 16 dimensions.
    #[must_use]
    pub fn size(&self) -> Vec<i64> {
        let mut sizes = [0; MOST_DIMENSIONS];
        // SAFETY: the handle lives as long as self; the shim writes no more than there is room for.
        let count = unsafe { sys::zagros_tensor_sizes(self.raw(), sizes.as_mut_ptr(), sizes.len()) };
        assert!(count <= MOST_DIMENSIONS, "a tensor of {count} dimensions");
        sizes[..count].to_vec()
    }

    /// Where its first value is; null for one without values.
    #[must_use]
    pub fn data_ptr(&self) -> *mut c_void {
        let mut data = ptr::null_mut();
        // SAFETY: the handle lives as long as self, data and why are ours.
        let found = call(|why, room| unsafe { sys::zagros_tensor_data(self.raw(), &raw mut data, why, room) });
        if found.is_ok() { data } else { ptr::null_mut() }
    }

    /// A copy of its values, the last dimension fastest; empty for a tensor that is not defined.
    ///
    /// # Errors
    /// When they are of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TorchError> {
        if !self.defined() {
            return Ok(Vec::new());
        }
        if self.kind() != T::TYPE {
            return Err(TorchError { reason: format!("{:?} was expected, found {self:?}", T::TYPE) });
        }
        let mut values = vec![T::default(); self.numel()];
        let bytes = (values.as_mut_ptr().cast(), size_of_val(values.as_slice()));
        // SAFETY: the bytes are those of `values`, of which every pattern is a value.
        unsafe { self.read(bytes)? };
        Ok(values)
    }

    /// A copy of its values' bytes, in the order of [`Self::to_vec`].
    ///
    /// # Errors
    /// In libtorch's words.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TorchError> {
        // SAFETY: the handle lives as long as self.
        let mut bytes = vec![0; unsafe { sys::zagros_tensor_nbytes(self.raw()) }];
        // SAFETY: the bytes are those of the vector.
        unsafe { self.read((bytes.as_mut_ptr(), bytes.len()))? };
        Ok(bytes)
    }

    /// # Safety
    /// So many bytes may be written to.
    unsafe fn read(&self, (bytes, length): (*mut u8, usize)) -> Result<(), TorchError> {
        let here = self.to_device(TensorDevice::Cpu)?.contiguous()?;
        // SAFETY: as this function's; the shim refuses another length.
        Ok(call(|why, room| unsafe { sys::zagros_tensor_read(here.raw(), bytes, length, why, room) })?)
    }

    /// Its only value.
    ///
    /// # Errors
    /// When it has another number of values.
    pub fn value(&self) -> Result<f64, TorchError> {
        let mut value = 0.0;
        // SAFETY: the handle lives as long as self, value and why are ours.
        call(|why, room| unsafe { sys::zagros_tensor_value(self.raw(), &raw mut value, why, room) })?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_in_row_major_order_whatever_the_strides() {
        let tensor = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap().reshape([2, 3]).unwrap();
        let transposed = tensor.t().unwrap();
        assert_eq!((transposed.size(), transposed.numel()), (vec![3, 2], 6));
        assert!(tensor.is_contiguous() && !transposed.is_contiguous());
        assert_eq!(transposed.to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(tensor.device(), TensorDevice::Cpu);
    }

    #[test]
    fn values_of_another_type_and_bytes_of_another_length_are_refused() {
        let tensor = Tensor::from_slice(&[1_i64, 2]).unwrap();
        let refused = tensor.to_vec::<f32>().unwrap_err().to_string();
        assert_eq!(refused, "Float was expected, found Tensor[[2], Int64]");
        assert_eq!(tensor.to_vec::<i64>().unwrap(), [1, 2]);
        let refused = Tensor::from_bytes(&[0; 7], &[2], ScalarType::Float).unwrap_err().to_string();
        assert!(refused.contains("8 bytes was to be made of 7"), "{refused}");
        assert_eq!(Tensor::from_bytes(&[1, 0], &[2], ScalarType::Bool).unwrap().to_bytes().unwrap(), [1, 0]);
        assert_eq!(tensor.to_bytes().unwrap().len(), 16);
        assert!(tensor.value().is_err(), "there are two values");
    }

    #[test]
    fn no_values_and_no_tensor_are_empty() {
        let empty = Tensor::zeros([0, 4], (ScalarType::Float, TensorDevice::Cpu)).unwrap();
        assert_eq!((empty.size(), empty.to_vec::<f32>().unwrap()), (vec![0, 4], Vec::new()));
        let undefined = empty.grad().unwrap();
        assert!(!undefined.defined() && empty.defined());
        assert_eq!((undefined.numel(), undefined.size(), undefined.to_vec::<f32>().unwrap()), (0, vec![], vec![]));
        assert_eq!(undefined.kind(), ScalarType::Other(-1));
    }
}
