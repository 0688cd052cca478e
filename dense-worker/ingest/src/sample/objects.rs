//! Columns of lines that are JSON objects.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use zagros_zip::number_from;

use super::{LIST_SEPARATOR, RowSample, SampledColumn, SampledRows, ValueForm, shortened};
use crate::IngestError;
use crate::formats::DataContent;
use crate::parse::bad::quoted_text;

/// The columns of the objects of a sample. `path` is named in errors.
pub(super) fn sample_rows(path: &Path, sample: RowSample) -> Result<RowSample, IngestError> {
    let SampledRows::Lines(lines) = &sample.rows else { return Ok(sample) };
    let mut columns = ObjectColumns::default();
    for (row, line) in number_from(0, lines) {
        match serde_json::from_str(line) {
            Ok(Value::Object(object)) => object.into_iter().for_each(|(key, value)| columns.put_value(row, key, value)),
            _ => return Err(no_object(path, line)),
        }
    }
    let (columns, unusable) = columns.finish(lines.len());
    let rows = SampledRows::Columns { format: DataContent::Jsonl, columns, unusable };
    Ok(RowSample { rows, ..sample })
}

fn no_object(path: &Path, line: &str) -> IngestError {
    let reason = if line.trim_start().starts_with('[') {
        "it is one JSON array; write an object on each line (`jq -c '.[]' FILE`)".to_owned()
    } else {
        let line = quoted_text(line.as_bytes());
        format!("its first line is a JSON object, and a line here or in a file beside it is no JSON object: {line}")
    };
    IngestError::bad_file(path, reason)
}

/// Columns as their keys occur.
#[derive(Default)]
struct ObjectColumns {
    places: HashMap<String, usize>,
    found: Vec<FoundColumn>,
}

#[derive(Default)]
struct FoundColumn {
    name: String,
    texts: Vec<String>,
    numbers: usize,
    bools: usize,
    texts_or_lists: [usize; 2],
    has_objects: bool,
}

impl ObjectColumns {
    fn put_value(&mut self, row: usize, name: String, value: Value) {
        match value {
            Value::Object(object) => {
                return object.into_iter().for_each(|(key, value)| self.put_value(row, format!("{name}.{key}"), value));
            }
            Value::Null => return self.find_or_add(name).fill_up_to(row),
            _ => {}
        }
        let column = self.find_or_add(name);
        column.fill_up_to(row);
        match value {
            Value::Number(number) => {
                column.numbers += 1;
                column.texts.push(number.to_string());
            }
            Value::Bool(truth) => {
                column.bools += 1;
                column.texts.push(truth.to_string());
            }
            Value::String(text) => {
                column.texts_or_lists[0] += 1;
                column.texts.push(shortened(text.as_bytes()));
            }
            Value::Array(items) => column.push_list(&items),
            Value::Null | Value::Object(_) => {}
        }
    }

    fn find_or_add(&mut self, name: String) -> &mut FoundColumn {
        let next = self.found.len();
        let place = *self.places.entry(name).or_insert_with_key(|name| {
            self.found.push(FoundColumn { name: name.clone(), ..FoundColumn::default() });
            next
        });
        &mut self.found[place]
    }

    fn finish(self, rows: usize) -> (Vec<SampledColumn>, Vec<(String, String)>) {
        let (mut columns, mut unusable) = (Vec::new(), Vec::new());
        for mut column in self.found {
            column.fill_up_to(rows);
            if column.has_objects {
                unusable.push((column.name, "it is an array of objects or arrays".to_owned()));
            } else {
                let form = column.value_form();
                columns.push(SampledColumn { name: column.name, form, texts: column.texts });
            }
        }
        (columns, unusable)
    }
}

impl FoundColumn {
    /// Empty texts for the rows before `row`. A key that occurs twice in an object keeps its first value.
    fn fill_up_to(&mut self, row: usize) {
        self.texts.resize(row, String::new());
    }

    fn push_list(&mut self, items: &[Value]) {
        self.texts_or_lists[1] += 1;
        self.has_objects |= items.iter().any(|item| item.is_object() || item.is_array());
        let text = |item: &Value| match item {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(item.to_string()),
            _ => None,
        };
        let texts: Vec<String> = items.iter().filter_map(text).collect();
        self.texts.push(shortened(texts.join(&LIST_SEPARATOR.to_string()).as_bytes()));
    }

    fn value_form(&self) -> ValueForm {
        let [texts, lists] = self.texts_or_lists;
        match (texts, lists, self.numbers, self.bools) {
            (_, 1.., ..) => ValueForm::List,
            (0, 0, 1.., 0) => ValueForm::Number,
            (0, 0, 0, 1..) => ValueForm::Bool,
            _ => ValueForm::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(lines: &[&str]) -> Result<RowSample, IngestError> {
        let rows = SampledRows::Lines(lines.iter().map(|line| (*line).to_owned()).collect());
        sample_rows(
            Path::new("rows.jsonl"),
            RowSample { files: 1, names: Vec::new(), is_whole: true, is_spread: true, rows },
        )
    }

    #[test]
    fn keys_become_columns_and_objects_inside_become_paths() {
        let found = columns(&[
            r#"{"y":1,"user":{"id":"u1","age":30},"tags":["a","b"],"paid":true}"#,
            r#"{"y":0,"user":{"id":"u2"},"tags":[],"items":[{"id":1}]}"#,
            r#"{"user":{"age":1.5},"tags":null,"paid":false,"y":1}"#,
        ]);
        let SampledRows::Columns { format, columns, unusable } = found.unwrap().rows else { panic!("lines") };
        assert_eq!((format, unusable[0].0.as_str()), (DataContent::Jsonl, "items"));
        let found: Vec<_> =
            columns.iter().map(|column| (column.name.as_str(), column.form, column.texts.join(";"))).collect();
        let expected = [
            ("y", ValueForm::Number, "1;0;1"),
            ("user.id", ValueForm::Text, "u1;u2;"),
            ("user.age", ValueForm::Number, "30;;1.5"),
            ("tags", ValueForm::List, "a\u{1f}b;;"),
            ("paid", ValueForm::Bool, "true;;false"),
        ];
        assert_eq!(found, expected.map(|(name, form, texts)| (name, form, texts.to_owned())));
    }

    #[test]
    fn one_array_and_lines_that_are_no_objects_are_refused() {
        assert!(columns(&["[{\"y\":1},"]).unwrap_err().to_string().contains("it is one JSON array"));
        assert!(columns(&["{\"y\":1}", "1,2"]).unwrap_err().to_string().contains("is no JSON object: \"1,2\""));
    }
}
