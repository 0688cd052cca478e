//! Tensors as DLPack capsules: what Python's libraries for tensors give to each other without a copy.
//!
//! The layout is that of `DLManagedTensor` in DLPack 0.8 (<https://dmlc.github.io/dlpack/latest/c_api.html>), which
//! every library still speaks. A capsule that no library has taken is called `dltensor`.
#![expect(unsafe_code, reason = "reads and makes structures of C behind a capsule's pointer")]

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::wrong_type;

const NAME: &CStr = c"dltensor";
/// Memory that this processor reads: its own, and the same with pages that a GPU may read too.
const HOST: [i32; 2] = [1, 3];

#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    kind: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedTensor {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// A number that tensors have: its DLPack code (0 signed, 1 unsigned, 2 float) and bits.
pub(crate) trait TensorNumber: Copy + Send + 'static {
    const CODES: &'static [u8];
    const NAME: &'static str;
}

impl TensorNumber for u64 {
    /// Torch has no unsigned 64-bit numbers to speak of: the bits of signed ones are taken as they are.
    const CODES: &'static [u8] = &[1, 0];
    const NAME: &'static str = "int64 or uint64";
}

impl TensorNumber for i64 {
    const CODES: &'static [u8] = &[0];
    const NAME: &'static str = "int64";
}

impl TensorNumber for f32 {
    const CODES: &'static [u8] = &[2];
    const NAME: &'static str = "float32";
}

/// The values of a contiguous tensor in this processor's memory, as long as its capsule lives.
pub(crate) fn values<'a, T: TensorNumber>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<&'a [T]> {
    let pointer = capsule.pointer_checked(Some(NAME))?.cast::<ManagedTensor>();
    // SAFETY: a capsule of this name holds a `DLManagedTensor`, which lives as long as the capsule unless a library takes it,
    // and then the capsule has another name.
    let tensor = unsafe { &pointer.as_ref().tensor };
    if !HOST.contains(&tensor.device_type) {
        let device = tensor.device_type;
        return Err(wrong_type(format!("a tensor on the device of type {device} was given; move it to the CPU")));
    }
    if !T::CODES.contains(&tensor.kind) || usize::from(tensor.bits) != 8 * size_of::<T>() || tensor.lanes != 1 {
        let (name, found) = (T::NAME, format!("code {}, {} bits", tensor.kind, tensor.bits));
        return Err(wrong_type(format!("a tensor of {name} is needed, and one of another type was given ({found})")));
    }
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or_default();
    // SAFETY: a tensor has so many sizes, and as many strides unless it has none.
    let (shape, strides) = unsafe { (array(tensor.shape, dimensions), array(tensor.strides, dimensions)) };
    let length: i64 = shape.iter().product();
    // The strides of a tensor without elements say nothing.
    if length == 0 || tensor.data.is_null() {
        return Ok(&[]);
    }
    if !is_contiguous(shape, strides) {
        return Err(wrong_type(format!("a tensor of shape {shape:?} is not contiguous; call contiguous() on it")));
    }
    // SAFETY: the offset stays inside of the tensor's memory, which holds `length` elements of this type from there on.
    let data = unsafe { tensor.data.cast::<u8>().add(tensor.byte_offset as usize).cast::<T>() };
    if !data.is_aligned() {
        return Err(wrong_type("the memory of a tensor is not aligned; clone it".to_owned()));
    }
    // SAFETY: as above; the capsule is borrowed for as long as the slice.
    Ok(unsafe { std::slice::from_raw_parts(data, length as usize) })
}

/// # Safety
/// `pointer` is null, or leads to `length` numbers that live as long as `'a`.
unsafe fn array<'a>(pointer: *const i64, length: usize) -> &'a [i64] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(pointer, length) }
}

/// A tensor without strides is contiguous. The stride of a dimension of one element says nothing.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    (0..strides.len()).rev().all(|dimension| {
        let fits = shape[dimension] <= 1 || strides[dimension] == expected;
        expected *= shape[dimension].max(1);
        fits
    })
}

/// A tensor, its shape and its values, in one allocation that the tensor's deleter frees.
struct OwnedTensor<T> {
    managed: ManagedTensor,
    shape: Vec<i64>,
    _values: Vec<T>,
}

/// A capsule that owns `values` as a tensor of this shape, without a copy.
pub(crate) fn capsule<'py, T: TensorNumber>(
    py: Python<'py>,
    mut values: Vec<T>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyCapsule>> {
    debug_assert_eq!(shape.iter().product::<usize>(), values.len());
    let tensor = RawTensor {
        data: values.as_mut_ptr().cast(),
        device_type: HOST[0],
        device_id: 0,
        dimensions: shape.len() as i32,
        kind: T::CODES[0],
        bits: 8 * size_of::<T>() as u8,
        lanes: 1,
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let managed = ManagedTensor { tensor, context: null_mut(), deleter: Some(delete::<T>) };
    let shape = shape.iter().map(|size| *size as i64).collect();
    let owned = Box::into_raw(Box::new(OwnedTensor { managed, shape, _values: values }));
    // SAFETY: `owned` comes from a box and is not shared yet.
    let pointer = unsafe {
        (*owned).managed.tensor.shape = (*owned).shape.as_mut_ptr();
        (*owned).managed.context = owned.cast();
        NonNull::new_unchecked(&raw mut (*owned).managed)
    };
    // SAFETY: the pointer stays valid until the deleter is called: by the library that takes the tensor, otherwise by `forget`.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer.cast(), NAME, Some(forget)) }
}

unsafe extern "C" fn delete<T>(managed: *mut ManagedTensor) {
    // SAFETY: the context is the box of this tensor, and a deleter is called once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<OwnedTensor<T>>()) });
}

/// The destructor of a capsule: frees a tensor that no library has taken.
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule that is not in use any more. If it still has its name, its tensor is here.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 0 {
            return;
        }
        let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<ManagedTensor>();
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    }
}
