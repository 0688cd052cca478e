//! The functions of `shim/tensor.cpp`. Each that has `why` answers 0, or another number with the
//! reason in it.
#![expect(unsafe_code, reason = "declares the shim over libtorch")]

use std::ffi::{c_char, c_int, c_void};

/// libtorch's handle of a tensor.
#[repr(C)]
pub(crate) struct RawTensor {
    _opaque: [u8; 0],
}

type Given = *const RawTensor;
type Made = *mut *mut RawTensor;
type Why = *mut c_char;

/// Makes a tensor of one.
pub(crate) type OfOne = unsafe extern "C" fn(Given, Made, Why, usize) -> c_int;
/// Makes a tensor of two.
pub(crate) type OfTwo = unsafe extern "C" fn(Given, Given, Made, Why, usize) -> c_int;
/// Makes a tensor of one and whole numbers, of which some operators need fewer.
pub(crate) type OfNumbers = unsafe extern "C" fn(Given, i64, i64, i64, Made, Why, usize) -> c_int;
/// Makes a tensor of one and as many sizes as are stated.
pub(crate) type OfSizes = unsafe extern "C" fn(Given, *const i64, usize, Made, Why, usize) -> c_int;
/// Changes the first tensor. The others are null where the operator has no use for them.
pub(crate) type Change = unsafe extern "C" fn(*mut RawTensor, Given, Given, Why, usize) -> c_int;

// Each is a [`OfOne`].
unsafe extern "C" {
    pub(crate) fn zagros_tensor_zeros_like(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_detach(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_contiguous(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_grad(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_t(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_relu(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_square(x: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_sum(x: Given, out: Made, why: Why, room: usize) -> c_int;
}

// Each is a [`OfTwo`].
unsafe extern "C" {
    pub(crate) fn zagros_tensor_add(x: Given, y: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_sub(x: Given, y: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_mul(x: Given, y: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_mm(x: Given, y: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_bmm(x: Given, y: Given, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_cross_entropy(x: Given, y: Given, out: Made, why: Why, room: usize) -> c_int;
}

// Each is a [`OfNumbers`].
unsafe extern "C" {
    pub(crate) fn zagros_tensor_to_type(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_to_device(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_narrow(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_select(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_transpose(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_flatten(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_unsqueeze(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_squeeze(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_sum_of(x: Given, a: i64, b: i64, c: i64, out: Made, why: Why, room: usize) -> c_int;
}

// Each is a [`OfSizes`].
unsafe extern "C" {
    pub(crate) fn zagros_tensor_reshape(
        x: Given,
        sizes: *const i64,
        count: usize,
        out: Made,
        why: Why,
        room: usize,
    ) -> c_int;
    pub(crate) fn zagros_tensor_view(
        x: Given,
        sizes: *const i64,
        count: usize,
        out: Made,
        why: Why,
        room: usize,
    ) -> c_int;
}

// Each is a [`Change`].
unsafe extern "C" {
    pub(crate) fn zagros_tensor_copy_(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_add_(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_addmm_(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_mm_out(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_zero_(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_set_data(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_track(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_backward(x: *mut RawTensor, y: Given, z: Given, why: Why, room: usize) -> c_int;
}

unsafe extern "C" {
    pub(crate) fn zagros_tensor_free(x: *mut RawTensor);
    pub(crate) fn zagros_tensor_share(x: Given) -> *mut RawTensor;
    pub(crate) fn zagros_tensor_defined(x: Given) -> bool;
    pub(crate) fn zagros_tensor_requires_grad(x: Given) -> bool;
    pub(crate) fn zagros_tensor_is_contiguous(x: Given) -> bool;
    pub(crate) fn zagros_tensor_type(x: Given) -> c_int;
    pub(crate) fn zagros_tensor_device(x: Given) -> c_int;
    pub(crate) fn zagros_tensor_numel(x: Given) -> usize;
    pub(crate) fn zagros_tensor_nbytes(x: Given) -> usize;
    pub(crate) fn zagros_tensor_sizes(x: Given, sizes: *mut i64, room: usize) -> usize;
    pub(crate) fn zagros_tensor_data(x: Given, out: *mut *mut c_void, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_zeros(
        sizes: *const i64,
        count: usize,
        of: c_int,
        device: c_int,
        out: Made,
        why: Why,
        room: usize,
    ) -> c_int;
    pub(crate) fn zagros_tensor_of_bytes(
        bytes: *const u8,
        length: usize,
        sizes: *const i64,
        count: usize,
        of: c_int,
        out: Made,
        why: Why,
        room: usize,
    ) -> c_int;
    pub(crate) fn zagros_tensor_read(x: Given, bytes: *mut u8, length: usize, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_value(x: Given, out: *mut f64, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_cat(
        parts: *const Given,
        count: usize,
        dimension: i64,
        out: Made,
        why: Why,
        room: usize,
    ) -> c_int;
    pub(crate) fn zagros_tensor_times(x: Given, factor: f64, out: Made, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_tensor_linear(x: Given, weight: Given, bias: Given, out: Made, why: Why, room: usize)
    -> c_int;
    pub(crate) fn zagros_tensor_index_select(
        x: Given,
        dimension: i64,
        index: Given,
        out: Made,
        why: Why,
        room: usize,
    ) -> c_int;
    pub(crate) fn zagros_grad_mode(on: bool) -> bool;
    pub(crate) fn zagros_set_threads(threads: c_int, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_seed(seed: u64, why: Why, room: usize) -> c_int;
    pub(crate) fn zagros_cuda_devices(out: *mut c_int, why: Why, room: usize) -> c_int;
}
