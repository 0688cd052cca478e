//! The columns of a Parquet file by their names, and what their values mean.
//!
//! A column inside a group is named by its path: `user.id`. The two levels that a list adds have no part in the name: the
//! column `tags` is a list of texts, and `items.price` is the prices of a list of items.

use ::parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use ::parquet::schema::types::{ColumnDescriptor, Type};

use crate::columnar::fault::{Result, fail};
use crate::columnar::kind::ValueKind;

/// Groups inside groups.
const MOST_DEPTH: usize = 32;

/// Bytes of a value of a column whose values all have the same.
const MOST_VALUE_BYTES: i32 = 1 << 20;

pub(super) fn column_names(schema: &Type) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for node in schema.get_fields() {
        visit_node(node, &ParentNode::default(), 0, &mut names)?;
    }
    Ok(names)
}

#[derive(Clone, Debug, Default)]
struct ParentNode {
    path: Vec<String>,
    /// Levels below that are not named.
    unnamed: UnnamedLevels,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnnamedLevels {
    #[default]
    None,
    /// The repeated node of a list, and its only child.
    ListAndElement,
    /// The repeated node of a map.
    Entries,
    Element,
}

fn visit_node(node: &Type, parent: &ParentNode, depth: usize, names: &mut Vec<String>) -> Result<()> {
    if depth > MOST_DEPTH {
        return fail(format!("it has groups inside groups, more than {MOST_DEPTH}"));
    }
    let here = parent.child(node);
    if node.is_primitive() {
        names.push(here.path.join("."));
        return Ok(());
    }
    node.get_fields().iter().try_for_each(|child| visit_node(child, &here, depth + 1, names))
}

impl ParentNode {
    fn child(&self, node: &Type) -> Self {
        let (mut path, basic) = (self.path.clone(), node.get_basic_info());
        let is_repeated = basic.has_repetition() && basic.repetition() == Repetition::REPEATED;
        let unnamed = match self.unnamed {
            UnnamedLevels::ListAndElement if is_repeated && node.is_group() && node.get_fields().len() == 1 => {
                UnnamedLevels::Element
            }
            UnnamedLevels::ListAndElement | UnnamedLevels::Entries if is_repeated => UnnamedLevels::None,
            unnamed => {
                if unnamed != UnnamedLevels::Element {
                    path.push(node.name().to_owned());
                }
                match (basic.logical_type_ref(), basic.converted_type()) {
                    (Some(LogicalType::List), _) | (None, ConvertedType::LIST) => UnnamedLevels::ListAndElement,
                    (Some(LogicalType::Map), _) | (None, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => {
                        UnnamedLevels::Entries
                    }
                    _ => UnnamedLevels::None,
                }
            }
        };
        Self { path, unnamed }
    }
}

pub(super) fn column_kind(column: &ColumnDescriptor) -> Result<ValueKind> {
    let stored = column.physical_type();
    if stored == PhysicalType::FIXED_LEN_BYTE_ARRAY && !(1..=MOST_VALUE_BYTES).contains(&column.type_length()) {
        return fail(format!("it has {} bytes a value", column.type_length()));
    }
    let is_int = matches!(stored, PhysicalType::INT32 | PhysicalType::INT64);
    Ok(match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Unknown), _) => ValueKind::Nothing,
        (Some(LogicalType::Decimal(decimal)), _) => decimal_kind(decimal.scale)?,
        (None, ConvertedType::DECIMAL) => decimal_kind(column.type_scale())?,
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) if stored == PhysicalType::INT32 => ValueKind::Date,
        (Some(LogicalType::Time(time)), _) if is_int => ValueKind::Time(parts_of_second(&time.unit)),
        (Some(LogicalType::Timestamp(moment)), _) if is_int => ValueKind::Timestamp(parts_of_second(&moment.unit)),
        (None, ConvertedType::TIME_MILLIS) if is_int => ValueKind::Time(1_000),
        (None, ConvertedType::TIME_MICROS) if is_int => ValueKind::Time(1_000_000),
        (None, ConvertedType::TIMESTAMP_MILLIS) if is_int => ValueKind::Timestamp(1_000),
        (None, ConvertedType::TIMESTAMP_MICROS) if is_int => ValueKind::Timestamp(1_000_000),
        (Some(LogicalType::Uuid), _) if column.type_length() == 16 => ValueKind::Uuid,
        (Some(LogicalType::Float16), _) if column.type_length() == 2 => ValueKind::Half,
        (Some(LogicalType::Integer(integer)), _) if !integer.is_signed && is_int => unsigned_kind(stored),
        (None, ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64)
            if is_int =>
        {
            unsigned_kind(stored)
        }
        _ => plain_kind(stored),
    })
}

fn plain_kind(stored: PhysicalType) -> ValueKind {
    match stored {
        PhysicalType::BOOLEAN => ValueKind::Bool,
        PhysicalType::INT32 | PhysicalType::INT64 => ValueKind::Integer,
        // A timestamp of twelve bytes, which old writers use.
        PhysicalType::INT96 => ValueKind::Timestamp(1_000_000_000),
        PhysicalType::FLOAT => ValueKind::Single,
        PhysicalType::DOUBLE => ValueKind::Double,
        PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => ValueKind::Text,
    }
}

fn unsigned_kind(stored: PhysicalType) -> ValueKind {
    ValueKind::Unsigned(if stored == PhysicalType::INT32 { 32 } else { 64 })
}

fn decimal_kind(scale: i32) -> Result<ValueKind> {
    match u32::try_from(scale) {
        Ok(scale) if scale <= 38 => Ok(ValueKind::Decimal(scale)),
        _ => fail("a decimal with an impossible scale"),
    }
}

fn parts_of_second(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::MILLIS => 1_000,
        TimeUnit::MICROS => 1_000_000,
        TimeUnit::NANOS => 1_000_000_000,
    }
}
