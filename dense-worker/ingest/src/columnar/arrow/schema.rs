//! The columns of an Arrow schema by their names, and what their values mean.
//!
//! Names are those of the same columns in a Parquet file: a column inside a struct is named by its path, `user.id`, and what a
//! list adds has no part in the name: `tags` is a list of texts, and `items.price` is the prices of a list of items.

use std::collections::BTreeSet;

use ::arrow_schema::{DataType, Field, Schema, TimeUnit};

use crate::columnar::kind::ValueKind;

/// Columns inside columns.
const MOST_DEPTH: usize = 32;

/// The name by which a field says that its bytes are a UUID.
const UUID: (&str, &str) = ("ARROW:extension:name", "arrow.uuid");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrowLeaf {
    pub(super) name: String,
    /// The field of the schema that it is in, from 0.
    pub(crate) field: usize,
    /// For each struct on the way, which of its fields.
    pub(super) steps: Vec<usize>,
    pub(crate) is_list: bool,
    /// What the values mean, or why they cannot be read.
    pub(super) kind: Result<ValueKind, String>,
}

pub(super) fn schema_leaves(schema: &Schema) -> Vec<ArrowLeaf> {
    let mut leaves = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        let start = ArrowLeaf {
            name: String::new(),
            field: index,
            steps: Vec::new(),
            is_list: false,
            kind: Ok(ValueKind::Text),
        };
        visit_field(field, start, true, 0, &mut leaves);
    }
    leaves
}

/// Adds the columns of a field. `here` is what is known above it, and `named` says whether its name is part of the path.
fn visit_field(field: &Field, mut here: ArrowLeaf, named: bool, depth: usize, leaves: &mut Vec<ArrowLeaf>) {
    if named {
        let dot = if here.name.is_empty() { "" } else { "." };
        here.name = format!("{}{dot}{}", here.name, field.name());
    }
    if depth > MOST_DEPTH {
        here.kind = Err(format!("it has columns inside columns, more than {MOST_DEPTH}"));
        return leaves.push(here);
    }
    match field.data_type() {
        DataType::Struct(fields) => {
            for (index, child) in fields.iter().enumerate() {
                let mut below = here.clone();
                below.steps.push(index);
                visit_field(child, below, true, depth + 1, leaves);
            }
        }
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => {
            here.is_list = true;
            visit_field(item, here, false, depth + 1, leaves);
        }
        _ => {
            here.kind = field_kind(field);
            leaves.push(here);
        }
    }
}

/// What the values of a field mean; `Err` says why it cannot be read, and what to do.
fn field_kind(field: &Field) -> Result<ValueKind, String> {
    let is_uuid = field.metadata().get(UUID.0).is_some_and(|name| name == UUID.1);
    Ok(match field.data_type() {
        DataType::Boolean => ValueKind::Bool,
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Duration(_) => {
            ValueKind::Integer
        }
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => ValueKind::Unsigned(32),
        DataType::UInt64 => ValueKind::Unsigned(64),
        DataType::Float16 => ValueKind::Half,
        DataType::Float32 => ValueKind::Single,
        DataType::Float64 => ValueKind::Double,
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => match u32::try_from(*scale) {
            Ok(scale) if scale <= 38 => ValueKind::Decimal(scale),
            _ => return Err(format!("it holds decimals of scale {scale}; write them with a scale from 0 to 38")),
        },
        DataType::Date32 | DataType::Date64 => ValueKind::Date,
        DataType::Time32(unit) | DataType::Time64(unit) => ValueKind::Time(parts_of_second(*unit)),
        DataType::Timestamp(unit, _) => ValueKind::Timestamp(parts_of_second(*unit)),
        DataType::FixedSizeBinary(16) if is_uuid => ValueKind::Uuid,
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => ValueKind::Text,
        DataType::Null => ValueKind::Nothing,
        DataType::Dictionary(_, values) => field_kind(&Field::new("", values.as_ref().clone(), true))?,
        other => {
            return Err(format!("it holds values of the type {other}, which are not read; write it as another type"));
        }
    })
}

fn parts_of_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

pub(super) fn collect_dictionaries(field: ::arrow_ipc::Field<'_>, depth: usize, found: &mut BTreeSet<i64>) {
    found.extend(field.dictionary().map(|dictionary| dictionary.id()));
    if depth < MOST_DEPTH {
        field.children().into_iter().flatten().for_each(|child| collect_dictionaries(child, depth + 1, found));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::arrow_schema::Fields;

    use super::*;

    fn found(fields: Vec<Field>) -> Vec<ArrowLeaf> {
        schema_leaves(&Schema::new(fields))
    }

    #[test]
    fn columns_inside_columns_are_named_by_their_path() {
        let item = DataType::Struct(Fields::from(vec![
            Field::new("id", DataType::Int32, true),
            Field::new("prices", DataType::new_list(DataType::Float32, true), true),
        ]));
        let entries = DataType::Struct(Fields::from(vec![
            Field::new("key", DataType::Utf8, false),
            Field::new("value", DataType::Int64, true),
        ]));
        let leaves = found(vec![
            Field::new("click", DataType::Boolean, false),
            Field::new("user", item.clone(), true),
            Field::new("items", DataType::new_large_list(item, true), true),
            Field::new("seen", DataType::Map(Arc::new(Field::new("entries", entries, false)), false), true),
        ]);
        let names: Vec<_> = leaves.iter().map(|leaf| (leaf.name.as_str(), leaf.field, leaf.is_list)).collect();
        let values = [("click", 0, false), ("user.id", 1, false), ("user.prices", 1, true)];
        let items = [("items.id", 2, true), ("items.prices", 2, true), ("seen.key", 3, true), ("seen.value", 3, true)];
        assert_eq!(names, [&values[..], &items].concat());
        assert_eq!(leaves[4].steps, [1]);
    }

    #[test]
    fn a_type_without_meaning_or_nested_too_deep_has_a_reason() {
        let deep = (0..40).fold(DataType::Int8, |kind, _| DataType::new_list(kind, true));
        for (kind, reason) in [
            (DataType::Interval(::arrow_schema::IntervalUnit::DayTime), "Interval"),
            (DataType::Decimal128(10, -2), "scale -2"),
            (deep, "more than 32"),
        ] {
            let leaf = found(vec![Field::new("column", kind, true)]).remove(0);
            assert!(leaf.kind.as_ref().unwrap_err().contains(reason), "{leaf:?}");
        }
        let code = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        assert_eq!(found(vec![Field::new("code", code, true)])[0].kind, Ok(ValueKind::Text));
    }
}
