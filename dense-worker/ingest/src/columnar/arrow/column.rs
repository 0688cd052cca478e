//! The rows of one column of a record batch, in portions of any size. Performance-critical: no allocation per row.
//!
//! A column is an array of values, inside as many structs and lists as its name has parts:
//!
//! ```text
//! items: list<struct<price: float>>    Lists ──► Fields ──► Values
//! ```

use ::arrow_array::cast::AsArray;
use ::arrow_array::types::ByteArrayType;
use ::arrow_array::{Array, ArrayRef, BinaryViewArray, GenericByteArray};
use ::arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, ScalarBuffer, i256};
use ::arrow_schema::DataType;

use super::schema::ArrowLeaf;
use crate::columnar::kind::ColumnValue;
use crate::columnar::output::ColumnOutput;
use crate::columnar::{FileResult, catch_panics, fail};

/// Rows that name entries of a dictionary and are given at once.
const PORTION: usize = 1024;

#[derive(Debug)]
pub(crate) struct ArrowColumn {
    node: ArrayNode,
    rows: usize,
    at: usize,
    /// Whether the output has the entries of the dictionary.
    is_remembered: bool,
}

/// An array that leads to the values of the column.
#[derive(Debug)]
enum ArrayNode {
    Values(ArrayValues),
    Fields(Option<NullBuffer>, Box<ArrayNode>),
    Lists(Option<NullBuffer>, ListEnds, Box<ArrayNode>),
}

/// Where an element is, and whether the output has the entries of the dictionary.
#[derive(Clone, Copy)]
struct ElementPlace {
    remembered: bool,
    in_list: bool,
}

impl ElementPlace {
    fn null<O: ColumnOutput>(self, out: &mut O) {
        if self.in_list { out.null_item() } else { out.null() }
    }
}

#[derive(Debug)]
enum ListEnds {
    Short(ScalarBuffer<i32>),
    Long(ScalarBuffer<i64>),
    /// Each has so many values.
    Fixed(usize),
}

impl ArrowColumn {
    /// The column `leaf` of the field with the values of `array`.
    pub(crate) fn new(leaf: &ArrowLeaf, array: &ArrayRef) -> FileResult<Self> {
        let node = catch_panics(|| ArrayNode::new(array, &leaf.steps))?;
        Ok(Self { node, rows: array.len(), at: 0, is_remembered: false })
    }

    /// Goes on behind the next `skipped` rows, and gives the `rows` rows after them to `out`.
    pub(crate) fn read_slice<O: ColumnOutput>(&mut self, skipped: usize, rows: usize, out: &mut O) -> FileResult<()> {
        let start = self.at.saturating_add(skipped);
        let end = start.saturating_add(rows);
        if end > self.rows {
            return fail("it has fewer rows than its record batch");
        }
        catch_panics(|| {
            self.remember(out);
            match &self.node {
                ArrayNode::Values(values) if self.is_remembered => give_entries(values, start, end, out),
                ArrayNode::Values(values) => {
                    give_values(values, start, end, out);
                    Ok(())
                }
                node => (start..end).try_for_each(|row| {
                    node.give(row, ElementPlace { remembered: self.is_remembered, in_list: false }, out)?;
                    out.end_row();
                    Ok(())
                }),
            }
        })?;
        self.at = end;
        Ok(())
    }

    /// Gives the entries of a dictionary to `out`, unless the rows are fewer: then each row is converted by itself.
    fn remember<O: ColumnOutput>(&mut self, out: &mut O) {
        let StoredValues::Entries(_, entries) = &self.node.values().stored else { return };
        let count = entries.count;
        if self.is_remembered || count > self.rows.min(i32::MAX as usize) {
            return;
        }
        out.forget();
        // An entry that is null is never named: its rows are null.
        (0..count).for_each(|entry| entries.with_value(entry, |value| out.remember(value)));
        self.is_remembered = true;
    }
}

impl ArrayNode {
    fn new(array: &ArrayRef, steps: &[usize]) -> FileResult<Self> {
        let nulls = array.nulls().cloned();
        Ok(match array.data_type() {
            DataType::Struct(_) => {
                let Some((step, rest)) = steps.split_first() else { return fail("a column of columns") };
                Self::Fields(nulls, Box::new(Self::new(array.as_struct().column(*step), rest)?))
            }
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                let ends = ListEnds::Short(lists.offsets().inner().clone());
                Self::Lists(nulls, ends, Box::new(Self::new(lists.values(), steps)?))
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                let ends = ListEnds::Long(lists.offsets().inner().clone());
                Self::Lists(nulls, ends, Box::new(Self::new(lists.values(), steps)?))
            }
            DataType::FixedSizeList(..) => {
                let lists = array.as_fixed_size_list();
                let ends = ListEnds::Fixed(lists.value_length().unsigned_abs() as usize);
                Self::Lists(nulls, ends, Box::new(Self::new(lists.values(), steps)?))
            }
            DataType::Map(..) => {
                let maps = array.as_map();
                let ends = ListEnds::Short(maps.offsets().inner().clone());
                let entries: ArrayRef = std::sync::Arc::new(maps.entries().clone());
                Self::Lists(nulls, ends, Box::new(Self::new(&entries, steps)?))
            }
            _ => Self::Values(ArrayValues::new(array)?),
        })
    }

    fn values(&self) -> &ArrayValues {
        match self {
            Self::Values(values) => values,
            Self::Fields(_, below) | Self::Lists(_, _, below) => below.values(),
        }
    }

    /// Gives the values of an element to `out`: one, or those of a list.
    fn give<O: ColumnOutput>(&self, index: usize, place: ElementPlace, out: &mut O) -> FileResult<()> {
        let (nulls, below) = match self {
            Self::Values(values) if values.is_null(index) => {
                place.null(out);
                return Ok(());
            }
            Self::Values(ArrayValues { stored: StoredValues::Entries(keys, _), .. }) if place.remembered => {
                return out.entry(keys.entry_place(index)).or_else(fail);
            }
            Self::Values(values) => {
                values.with_value(index, |value| out.value(value));
                return Ok(());
            }
            Self::Fields(nulls, below) | Self::Lists(nulls, _, below) => (nulls, below),
        };
        let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(index));
        let Self::Lists(_, ends, _) = self else {
            if is_null {
                place.null(out);
                return Ok(());
            }
            return below.give(index, place, out);
        };
        let (start, end) = if is_null { (0, 0) } else { ends.bounds(index) };
        if start == end {
            // There is no list, or an empty one.
            out.null();
        }
        (start..end).try_for_each(|index| below.give(index, ElementPlace { in_list: true, ..place }, out))
    }
}

impl ListEnds {
    #[inline]
    fn bounds(&self, index: usize) -> (usize, usize) {
        match self {
            Self::Short(ends) => (ends[index] as usize, ends[index + 1] as usize),
            Self::Long(ends) => (ends[index] as usize, ends[index + 1] as usize),
            Self::Fixed(length) => (index * length, (index + 1) * length),
        }
    }
}

fn give_values<O: ColumnOutput>(values: &ArrayValues, start: usize, end: usize, out: &mut O) {
    let has_no_null = values.has_no_null();
    for row in start..end {
        if !has_no_null && values.is_null(row) {
            out.null();
        } else {
            values.with_value(row, |value| out.value(value));
        }
        out.end_row();
    }
}

fn give_entries<O: ColumnOutput>(values: &ArrayValues, start: usize, end: usize, out: &mut O) -> FileResult<()> {
    let StoredValues::Entries(keys, _) = &values.stored else { return fail("no dictionary") };
    if values.has_no_null() {
        return give_full(keys, start, end, out);
    }
    for row in start..end {
        if values.is_null(row) {
            out.null();
        } else {
            out.entry(keys.entry_place(row)).or_else(fail)?;
        }
        out.end_row();
    }
    Ok(())
}

/// Gives rows that all have an entry.
fn give_full<O: ColumnOutput>(keys: &WholeNumbers, start: usize, end: usize, out: &mut O) -> FileResult<()> {
    let mut places = [0_i32; PORTION];
    let mut row = start;
    while row < end {
        let here = (end - row).min(PORTION);
        // A dictionary that is remembered has no more entries than its record batch has rows.
        (0..here).for_each(|index| places[index] = keys.entry_place(row + index) as i32);
        out.entries(&places[..here]).or_else(fail)?;
        row += here;
    }
    Ok(())
}

const DAY_MILLIS: i64 = 86_400_000;

/// An array whose values are not other arrays.
#[derive(Debug)]
struct ArrayValues {
    nulls: Option<NullBuffer>,
    stored: StoredValues,
    count: usize,
}

#[derive(Debug)]
enum StoredValues {
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
enum WholeNumbers {
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
    fn new(array: &ArrayRef) -> FileResult<Self> {
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
    fn is_null(&self, index: usize) -> bool {
        match (&self.nulls, &self.stored) {
            (Some(nulls), _) if nulls.is_null(index) => true,
            (_, StoredValues::Null) => true,
            (_, StoredValues::Entries(keys, entries)) => entries.is_null(keys.entry_place(index)),
            _ => false,
        }
    }

    fn has_no_null(&self) -> bool {
        self.nulls.as_ref().is_none_or(|nulls| nulls.null_count() == 0)
            && match &self.stored {
                StoredValues::Null => false,
                StoredValues::Entries(_, entries) => entries.has_no_null(),
                _ => true,
            }
    }

    #[inline]
    fn with_value<R>(&self, index: usize, take: impl FnOnce(ColumnValue<'_>) -> R) -> R {
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
    fn get(&self, index: usize) -> i64 {
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

    #[inline]
    fn entry_place(&self, index: usize) -> usize {
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
