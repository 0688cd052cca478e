//! From the values of a JSON object to a row. The parts of an object have no order, so a value in the wrong place is a
//! fault of the whole line: of its first field.

use memchr::memmem::Finder;
use zagros_zip::{ZipEq, number_from};

use crate::category::reading::CrossId;
use crate::parse::bad::{FieldFault, quoted_text};
use crate::parse::json::{JsonFields, JsonList, JsonValue};
use crate::parse::label::{LabelTexts, expected_weight, sample_weight};
use crate::parse::numbers::NumberCell;
use crate::parse::row::{CategoryReader, PartReader, RowParser};
use crate::parse::sink::RowSink;
use crate::read::layout::ColumnPositions;

impl RowParser {
    pub(super) fn read_object<S: RowSink>(
        &self,
        object: &JsonFields,
        positions: &ColumnPositions,
        labels: &mut [f32],
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        for field in &positions.keys {
            let text = object.get(*field).text();
            sink.key(text.ok_or_else(|| FieldFault::new(0, "a single value in each key column", "an array"))?);
        }
        for (target, field) in number_from(0, &positions.labels) {
            labels[target] = read_label(&self.targets[target], object.get(*field))?;
        }
        let weight = self.read_json_weight(object, positions)?;
        let mut number = 0;
        for (cell, field) in self.numeric.iter().zip_eq(&positions.numeric) {
            let value = object.get(*field);
            if let Some(form) = &cell.form {
                let values = self.list_items(value, &form.separator);
                number = cell.put_vector(form.width, values, &self.missing, (number, &mut *sink))?;
            } else {
                sink.numeric(number, self.read_number(cell, value)?);
                number += 1;
            }
        }
        self.read_cells(object, positions, sink)?;
        if let Some(field) = positions.group.filter(|_| self.groups) {
            let array = || FieldFault::new(0, "a single value in the column of eval.group_by", "an array");
            let text = object.get(field).text().ok_or_else(array)?;
            sink.group(self.missing.present_text(text));
        }
        sink.commit(labels, weight);
        Ok(())
    }

    fn read_json_weight(
        &self,
        object: &JsonFields,
        positions: &ColumnPositions,
    ) -> Result<Option<f32>, Box<FieldFault>> {
        let (Some(column), Some(field)) = (&self.weight, positions.weight) else { return Ok(None) };
        let fault = |found: String| FieldFault::new(0, expected_weight(column), found);
        let text = object.get(field).text().ok_or_else(|| fault("an array".to_owned()))?;
        sample_weight(self.missing.present_text(text)).map(Some).ok_or_else(|| fault(quoted_text(text)))
    }

    fn read_number(&self, cell: &NumberCell, value: JsonValue<'_>) -> Result<Option<f64>, Box<FieldFault>> {
        let help = "; give the feature `width` to use arrays";
        let text = value.text().ok_or_else(|| FieldFault::new(0, cell.expected() + help, "an array"))?;
        match value {
            JsonValue::Bool(truth) if !self.missing.is_missing(text) => Ok(Some(f64::from(u8::from(truth)))),
            _ => cell.parse_number(text, &self.missing),
        }
    }

    fn read_cells<S: RowSink>(
        &self,
        object: &JsonFields,
        positions: &ColumnPositions,
        sink: &mut S,
    ) -> Result<(), Box<FieldFault>> {
        let mut fields = positions.categorical.iter();
        let mut next = || fields.next().map_or(JsonValue::Missing, |field| object.get(*field));
        for (feature, cell) in self.categorical.iter().enumerate() {
            match cell {
                CategoryReader::One(part) => sink.id(feature, self.read_part(part, next())?),
                CategoryReader::Cross(parts) => {
                    let mut cross = CrossId::default();
                    for part in parts {
                        cross.add(self.read_part(part, next())?);
                    }
                    sink.id(feature, cross.finish());
                }
                CategoryReader::Many(separator) => {
                    let values = self.list_items(next(), separator).filter(|value| !value.is_empty());
                    values.for_each(|value| sink.value(feature, value));
                    sink.end_bag(feature);
                }
                CategoryReader::Weighted(separator, weights) => {
                    let [ids, values] = [next(), next()].map(|value| self.list_items(value, separator));
                    weights.read_pairs(ids, values, |id, weight| sink.weighted_id(feature, id, weight))?;
                    sink.end_bag(feature);
                }
            }
        }
        Ok(())
    }

    fn read_part(&self, part: &PartReader, value: JsonValue<'_>) -> Result<u64, Box<FieldFault>> {
        let array = || FieldFault::new(0, "a single value; give the feature `pooling` to use arrays", "an array");
        self.id_of(part, value.text().ok_or_else(array)?)
    }

    /// The values of an array, missing ones empty, or the parts of a text.
    fn list_items<'a>(
        &'a self,
        value: JsonValue<'a>,
        separator: &'a Finder<'static>,
    ) -> impl Iterator<Item = &'a [u8]> {
        let (list, text) = match value {
            JsonValue::List(list) => (Some(list), &b""[..]),
            other => (None, other.text().unwrap_or_default()),
        };
        let present = |text: &'a [u8]| self.missing.present_text(text);
        list.into_iter().flat_map(JsonList::iter).map(present).chain(self.missing.split_values(text, separator, false))
    }
}

/// The value of a label. `true` is also 1, and `false` 0.
fn read_label(target: &LabelTexts, value: JsonValue<'_>) -> Result<f32, Box<FieldFault>> {
    let text = value.text().ok_or_else(|| FieldFault::new(0, target.expected.as_str(), "an array"))?;
    let of_truth = if let JsonValue::Bool(truth) = value { target.truth_value(truth) } else { None };
    of_truth.map_or_else(|| target.read(text, 0), Ok)
}

#[cfg(test)]
mod tests {
    use zagros_job::{ColumnarFormat, Format, Job};

    use super::*;
    use crate::parse::sink::BatchSink;
    use crate::{Batch, DataPart, fixture, hash_value};

    fn job() -> Job {
        let mut job = fixture::delimited(|_| ());
        job.data.format = Format::Jsonl(ColumnarFormat { missing: vec!["?".into()] });
        job
    }

    fn parse(job: &Job, text: &str) -> (Batch, Vec<String>) {
        let mut sink = BatchSink::new(&job.features, DataPart::All);
        let positions = ColumnPositions { group: Some(2), ..fixture::positions(job) };
        let outcome = RowParser::new(job, DataPart::All).parse((text.as_bytes(), 0), &positions, &mut sink);
        let bad = if outcome.bad.count > 0 { vec![outcome.bad.to_string()] } else { Vec::new() };
        (sink.rows, bad)
    }

    #[test]
    fn objects_make_the_rows_that_the_same_lines_of_a_csv_make() {
        let objects = "{\"click\":0,\"age\":\"?\",\"city\":\"?\",\"tags\":[\"a\",\"b\",\"a\"]}\n\
                       {\"tags\":null,\"click\":true,\"age\":2.5,\"city\":\"Basel\",\"else\":{}}\n\n\
                       {\"click\":\"0\",\"age\":\"3\",\"city\":12.50,\"tags\":\"c|d\"}\n";
        let lines = "0,?,?,a|b|a\n1,2.5,Basel,\n0,3,12.50,c|d\n";
        let (rows, bad) = parse(&job(), objects);
        assert_eq!(bad, [""; 0]);
        assert_eq!(rows, parse(&fixture::delimited(|_| ()), lines).0);
        assert_eq!(rows.categorical[0].sample_ids(2), [hash_value(b"12.50")]);
    }

    #[test]
    fn a_malformed_object_says_what_was_expected() {
        let bad = |text| parse(&job(), text).1.concat();
        assert_eq!(
            bad("{\"click\":2}\n"),
            "0:1: expected \"1\" (positive) or \"0\" (negative) in label column \"click\", found \"2\""
        );
        assert_eq!(bad("{\"click\":1,\"age\":\"old\"}\n"), "0:1: expected a number in column \"age\", found \"old\"");
        assert_eq!(
            bad("{\"click\":1,\"age\":[1]}\n"),
            "0:1: expected a number in column \"age\"; give the feature `width` to use arrays, found an array"
        );
        assert!(bad("{\"click\":1,\"city\":[\"x\"]}\n").contains("give the feature `pooling` to use arrays"));
        assert!(bad("[1,2]\n").starts_with("0:1: expected a JSON object, found invalid type: sequence"));
        let (rows, _) = parse(&job(), "{\"click\":1,\"age\":\"x\",\"tags\":[\"a\"]}\n{\"click\":1}\n");
        assert_eq!((rows.size, rows.numeric.as_slice()), (1, &[-1.0][..]));
    }

    #[test]
    fn a_group_is_a_single_value() {
        let mut job = job();
        job.eval.group_by = Some("city".into());
        let (rows, _) = parse(&job, "{\"click\":1,\"city\":\"Bern\"}\n{\"click\":1}\n");
        assert_eq!(rows.groups, [hash_value(b"Bern"), hash_value(b"")]);
    }
}
