//! The values of an array, by how they are stored. Performance-critical: no allocation per value.
//!
//! What a value means is its column's kind: a date and a number of days are stored alike.

use ::arrow_array::cast::AsArray;
use ::arrow_array::types::ByteArrayType;
use ::arrow_array::{Array, ArrayRef, BinaryViewArray, GenericByteArray};
use ::arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, ScalarBuffer, i256};
use ::arrow_schema::DataType;

use crate::columnar::fault::{Result, fail};
use crate::columnar::kind::ColumnValue;

const DAY_MILLIS: i64 = 86_400_000;

/// An array whose values are not other arrays.
#[derive(Debug)]
pub(super) struct ArrayValues {
    pub(super) nulls: Option<NullBuffer>,
    pub(super) stored: StoredValues,
    pub(super) count: usize,
}

#[derive(Debug)]
pub(super) enum StoredValues {
    Null,
    Bool(BooleanBuffer),
    Whole(WholeNumbers),
    /// The bits of a number.
    F16(ScalarBuffer<u16>),
    F32(ScalarBuffer<f32>),
    F64(ScalarBuffer<f64>),
    I128(ScalarBuffer<i128>),
    I256(ScalarBuffer<i256>),
    /// Milliseconds of whole days.
    Days(ScalarBuffer<i64>),
    Texts(ScalarBuffer<i32>, Buffer),
    LongTexts(ScalarBuffer<i64>, Buffer),
    Views(BinaryViewArray),
    /// Each of so many bytes.
    Fixed(usize, Buffer),
    /// Where each value is among the values of a dictionary.
    Entries(WholeNumbers, Box<ArrayValues>),
}

#[derive(Debug)]
pub(super) enum WholeNumbers {
    I8(ScalarBuffer<i8>),
    I16(ScalarBuffer<i16>),
    I32(ScalarBuffer<i32>),
    I64(ScalarBuffer<i64>),
    U8(ScalarBuffer<u8>),
    U16(ScalarBuffer<u16>),
    U32(ScalarBuffer<u32>),
    U64(ScalarBuffer<u64>),
}

impl ArrayValues {
    pub(super) fn new(array: &ArrayRef) -> Result<Self> {
        let stored = match array.data_type() {
            DataType::Null => StoredValues::Null,
            DataType::Boolean => StoredValues::Bool(array.as_boolean().values().clone()),
            DataType::Date64 => StoredValues::Days(number_buffer(array)),
            DataType::Float16 => StoredValues::F16(number_buffer(array)),
            DataType::Float32 => StoredValues::F32(number_buffer(array)),
            DataType::Float64 => StoredValues::F64(number_buffer(array)),
            DataType::Decimal128(..) => StoredValues::I128(number_buffer(array)),
            DataType::Decimal256(..) => StoredValues::I256(number_buffer(array)),
            DataType::Utf8 => text_values(array.as_string::<i32>(), StoredValues::Texts),
            DataType::LargeUtf8 => text_values(array.as_string::<i64>(), StoredValues::LongTexts),
            DataType::Binary => text_values(array.as_binary::<i32>(), StoredValues::Texts),
            DataType::LargeBinary => text_values(array.as_binary::<i64>(), StoredValues::LongTexts),
            DataType::Utf8View => StoredValues::Views(array.as_string_view().clone().to_binary_view()),
            DataType::BinaryView => StoredValues::Views(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(width) => {
                StoredValues::Fixed(width.unsigned_abs() as usize, array.as_fixed_size_binary().values().clone())
            }
            DataType::Dictionary(key, _) => {
                let entries = array.as_any_dictionary().values();
                if matches!(entries.data_type(), DataType::Dictionary(..)) {
                    return fail("a dictionary of dictionaries");
                }
                let Some(keys) = whole_numbers(array, key) else {
                    return fail(format!("a dictionary whose places are of the type {key}"));
                };
                StoredValues::Entries(keys, Box::new(Self::new(entries)?))
            }
            other => match whole_numbers(array, other) {
                Some(numbers) => StoredValues::Whole(numbers),
                None => return fail(format!("values of the type {other}")),
            },
        };
        Ok(Self { nulls: array.nulls().cloned(), stored, count: array.len() })
    }

    #[inline]
    pub(super) fn is_null(&self, index: usize) -> bool {
        match (&self.nulls, &self.stored) {
            (Some(nulls), _) if nulls.is_null(index) => true,
            (_, StoredValues::Null) => true,
            (_, StoredValues::Entries(keys, entries)) => entries.is_null(keys.entry_place(index)),
            _ => false,
        }
    }

    pub(super) fn has_no_null(&self) -> bool {
        self.nulls.as_ref().is_none_or(|nulls| nulls.null_count() == 0)
            && match &self.stored {
                StoredValues::Null => false,
                StoredValues::Entries(_, entries) => entries.has_no_null(),
                _ => true,
            }
    }

    #[inline]
    pub(super) fn with_value<R>(&self, index: usize, take: impl FnOnce(ColumnValue<'_>) -> R) -> R {
        let int = |value: i64| ColumnValue::Int(value);
        match &self.stored {
            StoredValues::Null => take(ColumnValue::Bytes(b"")),
            StoredValues::Bool(values) => take(int(i64::from(values.value(index)))),
            StoredValues::Whole(values) => take(int(values.get(index))),
            StoredValues::F16(values) => take(ColumnValue::Bytes(&values[index].to_le_bytes())),
            StoredValues::F32(values) => take(ColumnValue::Float(f64::from(values[index]))),
            StoredValues::F64(values) => take(ColumnValue::Float(values[index])),
            StoredValues::I128(values) => take(ColumnValue::Bytes(&values[index].to_be_bytes())),
            StoredValues::I256(values) => take(ColumnValue::Bytes(&values[index].to_be_bytes())),
            StoredValues::Days(values) => take(int(values[index].div_euclid(DAY_MILLIS))),
            StoredValues::Texts(ends, bytes) => {
                take(ColumnValue::Bytes(&bytes[ends[index] as usize..ends[index + 1] as usize]))
            }
            StoredValues::LongTexts(ends, bytes) => {
                take(ColumnValue::Bytes(&bytes[ends[index] as usize..ends[index + 1] as usize]))
            }
            StoredValues::Views(values) => take(ColumnValue::Bytes(values.value(index))),
            StoredValues::Fixed(width, bytes) => take(ColumnValue::Bytes(&bytes[index * width..(index + 1) * width])),
            StoredValues::Entries(keys, entries) => entries.with_value(keys.entry_place(index), take),
        }
    }
}

impl WholeNumbers {
    /// A number that is there; one of 64 bits without sign by its bits.
    #[inline]
    pub(super) fn get(&self, index: usize) -> i64 {
        match self {
            Self::I8(numbers) => i64::from(numbers[index]),
            Self::I16(numbers) => i64::from(numbers[index]),
            Self::I32(numbers) => i64::from(numbers[index]),
            Self::I64(numbers) => numbers[index],
            Self::U8(numbers) => i64::from(numbers[index]),
            Self::U16(numbers) => i64::from(numbers[index]),
            Self::U32(numbers) => i64::from(numbers[index]),
            Self::U64(numbers) => numbers[index].cast_signed(),
        }
    }

    /// A number that is the place of an entry in a dictionary.
    #[inline]
    pub(super) fn entry_place(&self, index: usize) -> usize {
        self.get(index) as usize
    }
}

fn number_buffer<T: ArrowNativeType>(array: &ArrayRef) -> ScalarBuffer<T> {
    let data = array.to_data();
    ScalarBuffer::new(data.buffers()[0].clone(), data.offset(), data.len())
}

fn text_values<T: ByteArrayType>(
    array: &GenericByteArray<T>,
    stored: impl FnOnce(ScalarBuffer<T::Offset>, Buffer) -> StoredValues,
) -> StoredValues {
    stored(array.offsets().inner().clone(), array.values().clone())
}

/// The numbers of an array, or the places of a dictionary, which are stored as `kind`; `None` if these are no whole
/// numbers.
fn whole_numbers(array: &ArrayRef, kind: &DataType) -> Option<WholeNumbers> {
    Some(match kind {
        DataType::Int8 => WholeNumbers::I8(number_buffer(array)),
        DataType::Int16 => WholeNumbers::I16(number_buffer(array)),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(..) => {
            WholeNumbers::I32(number_buffer(array))
        }
        DataType::Int64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Decimal64(..) => WholeNumbers::I64(number_buffer(array)),
        DataType::UInt8 => WholeNumbers::U8(number_buffer(array)),
        DataType::UInt16 => WholeNumbers::U16(number_buffer(array)),
        DataType::UInt32 => WholeNumbers::U32(number_buffer(array)),
        DataType::UInt64 => WholeNumbers::U64(number_buffer(array)),
        _ => return None,
    })
}
