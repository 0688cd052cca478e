//! The values of pages, decoded by the crate `parquet`.
//!
//! A reader of the crate asks for pages itself and gives back values. A text of a dictionary would then be a text again in
//! each row, to be hashed again. So the pages are handed to a reader one by one, and a column has two of them: one for the
//! pages with values, and one for those that name entries of a dictionary. The second one believes in a column of whole
//! numbers, whose dictionary is 0, 1, 2, …: what it gives back are the places of the entries.

use ::parquet::basic::{Encoding, Type as PhysicalType};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::{
    BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type, Int96Type,
};
use ::parquet::errors::Result as ParquetResult;
use ::parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, Type};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::ops::Range;
use std::sync::Arc;

use crate::columnar::kind::ColumnValue;
use crate::columnar::output::ColumnOutput;
use crate::columnar::{FileResult, fail};

/// Rows decoded at once: their values stay in the processor's nearer caches.
pub(super) const PORTION: usize = 1024;

/// The levels of the entries that were decoded last.
#[derive(Debug, Default)]
pub(super) struct EntryLevels {
    pub(super) repetition: Vec<i16>,
    pub(super) definition: Vec<i16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecodedCounts {
    pub(super) values: usize,
    /// Values, and places without one.
    pub(super) entries: usize,
}

pub(super) enum PageDecoder {
    Bool(TypedDecoder<BoolType>),
    Int32(TypedDecoder<Int32Type>),
    Int64(TypedDecoder<Int64Type>),
    Int96(TypedDecoder<Int96Type>),
    Float(TypedDecoder<FloatType>),
    Double(TypedDecoder<DoubleType>),
    Bytes(TypedDecoder<ByteArrayType>),
    Fixed(TypedDecoder<FixedLenByteArrayType>),
}

/// A reader of the crate with the pages that it is given, and what it decoded last.
pub(super) struct TypedDecoder<T: DataType> {
    pages: Sender<Page>,
    reader: ColumnReaderImpl<T>,
    values: Vec<T::T>,
}

pub(super) type PlaceDecoder = TypedDecoder<Int32Type>;

/// Calls something for whichever type the values have.
macro_rules! each {
    ($decoder:expr, $typed:ident => $call:expr) => {
        match $decoder {
            PageDecoder::Bool($typed) => $call,
            PageDecoder::Int32($typed) => $call,
            PageDecoder::Int64($typed) => $call,
            PageDecoder::Int96($typed) => $call,
            PageDecoder::Float($typed) => $call,
            PageDecoder::Double($typed) => $call,
            PageDecoder::Bytes($typed) => $call,
            PageDecoder::Fixed($typed) => $call,
        }
    };
}

impl PageDecoder {
    pub(super) fn new(column: &ColumnDescPtr) -> Self {
        match column.physical_type() {
            PhysicalType::BOOLEAN => Self::Bool(TypedDecoder::new(column)),
            PhysicalType::INT32 => Self::Int32(TypedDecoder::new(column)),
            PhysicalType::INT64 => Self::Int64(TypedDecoder::new(column)),
            PhysicalType::INT96 => Self::Int96(TypedDecoder::new(column)),
            PhysicalType::FLOAT => Self::Float(TypedDecoder::new(column)),
            PhysicalType::DOUBLE => Self::Double(TypedDecoder::new(column)),
            PhysicalType::BYTE_ARRAY => Self::Bytes(TypedDecoder::new(column)),
            PhysicalType::FIXED_LEN_BYTE_ARRAY => Self::Fixed(TypedDecoder::new(column)),
        }
    }

    pub(super) fn push(&self, page: Page) {
        each!(self, typed => typed.push(page));
    }

    pub(super) fn decode(&mut self, rows: usize, levels: &mut EntryLevels) -> FileResult<DecodedCounts> {
        each!(self, typed => typed.decode(rows, levels))
    }

    pub(super) fn skip(&mut self, rows: usize) -> FileResult<()> {
        each!(self, typed => typed.skip(rows))
    }

    /// Gives decoded values to `out`; with `rows` each is a row.
    pub(super) fn give<O: ColumnOutput>(&self, values: Range<usize>, rows: bool, out: &mut O) {
        self.each_value(values, |value| {
            out.value(value);
            if rows {
                out.end_row();
            }
        });
    }

    #[inline]
    fn each_value(&self, values: Range<usize>, mut take: impl FnMut(ColumnValue<'_>)) {
        use ColumnValue::{Bytes, Float, Int};
        match self {
            Self::Bool(typed) => typed.values[values].iter().for_each(|value| take(Int(i64::from(*value)))),
            Self::Int32(typed) => typed.values[values].iter().for_each(|value| take(Int(i64::from(*value)))),
            Self::Int64(typed) => typed.values[values].iter().for_each(|value| take(Int(*value))),
            Self::Int96(typed) => typed.values[values].iter().for_each(|value| take(Int(value.to_nanos()))),
            Self::Float(typed) => typed.values[values].iter().for_each(|value| take(Float(f64::from(*value)))),
            Self::Double(typed) => typed.values[values].iter().for_each(|value| take(Float(*value))),
            Self::Bytes(typed) => typed.values[values].iter().for_each(|value| take(Bytes(value.data()))),
            Self::Fixed(typed) => typed.values[values].iter().for_each(|value| take(Bytes(value.data()))),
        }
    }

    /// Gives the entries of a dictionary to `out`, and says how many there are.
    pub(super) fn decode_dictionary<O: ColumnOutput>(
        column: &ColumnDescriptor,
        page: Page,
        out: &mut O,
    ) -> FileResult<usize> {
        let Page::DictionaryPage { buf, num_values, encoding, .. } = page else { return Ok(0) };
        if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
            return fail(format!("a dictionary with the encoding {encoding}"));
        }
        if column.physical_type() == PhysicalType::BOOLEAN {
            return fail("truth values in a dictionary");
        }
        out.forget();
        // Written as the values of a column without levels.
        let required = ColumnDescriptor::new(column.self_type_ptr(), 0, 0, column.path().clone());
        let mut decoder = Self::new(&Arc::new(required));
        let (plain, levels) = (Encoding::PLAIN, Encoding::RLE);
        decoder.push(Page::DataPage {
            buf,
            num_values,
            encoding: plain,
            def_level_encoding: levels,
            rep_level_encoding: levels,
            statistics: None,
        });
        let mut left = num_values as usize;
        while left > 0 {
            let DecodedCounts { values, .. } = decoder.decode(left.min(PORTION), &mut EntryLevels::default())?;
            if values == 0 {
                return fail(format!("a dictionary that has {left} entries less than its header says"));
            }
            decoder.each_value(0..values, |value| out.remember(value));
            left -= values;
        }
        Ok(num_values as usize)
    }
}

impl PlaceDecoder {
    /// Decodes the places in a dictionary of so many entries, of a column with the levels of `column`.
    pub(super) fn new_for_dictionary(column: &ColumnDescriptor, entries: usize) -> FileResult<Self> {
        let number = Type::primitive_type_builder("entry", PhysicalType::INT32).build()?;
        let (definition, repetition) = (column.max_def_level(), column.max_rep_level());
        let places = Self::new(&Arc::new(ColumnDescriptor::new(
            Arc::new(number),
            definition,
            repetition,
            column.path().clone(),
        )));
        let buf: Vec<u8> = (0..entries as u32).flat_map(u32::to_le_bytes).collect();
        places.push(Page::DictionaryPage {
            buf: Bytes::from(buf),
            num_values: entries as u32,
            encoding: Encoding::PLAIN,
            is_sorted: true,
        });
        Ok(places)
    }

    /// Gives decoded places to `out`; with `rows` each is a row.
    pub(super) fn give<O: ColumnOutput>(&self, values: Range<usize>, rows: bool, out: &mut O) -> FileResult<()> {
        let places = &self.values[values];
        if rows {
            return out.entries(places).or_else(fail);
        }
        places.iter().try_for_each(|place| out.entry(*place as usize)).or_else(fail)
    }
}

impl<T: DataType> TypedDecoder<T> {
    fn new(column: &ColumnDescPtr) -> Self {
        let (pages, given) = unbounded();
        let reader = ColumnReaderImpl::new(Arc::clone(column), Box::new(GivenPages(given)));
        Self { pages, reader, values: Vec::new() }
    }

    /// The next page to decode. The one before must be decoded to its end.
    pub(super) fn push(&self, page: Page) {
        // The reader has the other end.
        let _ = self.pages.send(page);
    }

    /// Decodes at most so many rows of the page.
    pub(super) fn decode(&mut self, rows: usize, levels: &mut EntryLevels) -> FileResult<DecodedCounts> {
        self.values.clear();
        levels.repetition.clear();
        levels.definition.clear();
        let EntryLevels { repetition, definition } = levels;
        let (_, values, entries) =
            self.reader.read_records(rows, Some(definition), Some(repetition), &mut self.values)?;
        Ok(DecodedCounts { values, entries })
    }

    pub(super) fn skip(&mut self, rows: usize) -> FileResult<()> {
        match self.reader.skip_records(rows)? {
            skipped if skipped == rows => Ok(()),
            _ => fail("a page has fewer values than its header says"),
        }
    }
}

struct GivenPages(Receiver<Page>);

impl Iterator for GivenPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.try_recv().ok().map(Ok)
    }
}

impl PageReader for GivenPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        self.next().transpose()
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        // Whatever it has: whether it is decoded is decided before it is given.
        let any = PageMetadata { num_rows: None, num_levels: None, is_dict: false };
        Ok(Some(any).filter(|_| !self.0.is_empty()))
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        Ok(())
    }

    /// The code that gives the pages finds the rows in their levels.
    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        Ok(false)
    }
}
