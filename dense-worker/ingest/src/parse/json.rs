//! The columns of a JSON object that a job uses.
//!
//! A column is a key, or the path to a key of an object inside: `user.id` is the key `id` of the object `user`, unless there
//! is a key `user.id`. The text of a number is that in the file, so that the ids of JSON and CSV files agree.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::parse::bad::{FieldFault, quoted_text};

const OBJECT: &str = "a JSON object";

/// The values of the newest line. The memory is used again for each line.
#[derive(Clone, Debug)]
pub(crate) struct JsonFields {
    columns: Arc<[String]>,
    paths: Arc<KeyNode>,
    values: ParsedValues,
}

#[derive(Debug, Default)]
struct KeyNode {
    column: Option<usize>,
    children: Vec<(String, KeyNode)>,
}

#[derive(Clone, Debug, Default)]
struct ParsedValues {
    text: Vec<u8>,
    cells: Vec<JsonCell>,
    items: Vec<(u32, u32)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum JsonCell {
    /// `null`, or there is no such key.
    #[default]
    Missing,
    /// A text without its quotes, or a number as it is written.
    Text((u32, u32)),
    Bool(bool),
    /// The values of an array; `null` is an empty text.
    List(Range<usize>),
}

impl JsonFields {
    pub(crate) fn new(columns: Vec<String>) -> Self {
        let mut paths = KeyNode::default();
        columns.iter().enumerate().for_each(|(index, column)| paths.insert(column, index));
        Self { columns: columns.into(), paths: Arc::new(paths), values: ParsedValues::default() }
    }

    pub(crate) fn read(&mut self, line: &[u8]) -> Result<(), Box<FieldFault>> {
        self.values.text.clear();
        self.values.items.clear();
        self.values.cells.clear();
        self.values.cells.resize(self.columns.len(), JsonCell::Missing);
        let mut json = serde_json::Deserializer::from_slice(line);
        let object = ObjectSeed { node: &self.paths, columns: &self.columns, values: &mut self.values };
        object.deserialize(&mut json).and_then(|()| json.end()).map_err(|error| json_fault(line, &error))
    }

    fn text(&self, (start, end): (u32, u32)) -> &[u8] {
        &self.values.text[start as usize..end as usize]
    }

    /// The text of a single value; empty if it is missing, `None` for an array.
    pub(super) fn single_text(&self, column: usize) -> Option<&[u8]> {
        match &self.values.cells[column] {
            JsonCell::Missing => Some(b""),
            JsonCell::Text(range) => Some(self.text(*range)),
            JsonCell::Bool(truth) => Some(if *truth { b"true" } else { b"false" }),
            JsonCell::List(_) => None,
        }
    }

    pub(super) fn truth_value(&self, column: usize) -> Option<bool> {
        if let JsonCell::Bool(truth) = self.values.cells[column] { Some(truth) } else { None }
    }

    /// The values of an array; none of anything else.
    pub(super) fn list_texts(&self, column: usize) -> impl Iterator<Item = &[u8]> {
        let list = if let JsonCell::List(range) = &self.values.cells[column] { range.clone() } else { 0..0 };
        self.values.items[list].iter().map(move |range| self.text(*range))
    }
}

fn json_fault(line: &[u8], error: &serde_json::Error) -> Box<FieldFault> {
    // The line is always the first one.
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    let found = format!("{reason} in {}{}", quoted_text(line), line_hint(line, error.column()));
    FieldFault::new(error.column().saturating_sub(1), OBJECT, found)
}

/// What to do about a line that other programs write. `column` is where it stops being JSON, from 1.
fn line_hint(line: &[u8], column: usize) -> &'static str {
    let starts = |names: &[&[u8]]| {
        // The error is at the first letter, or behind it.
        (column.saturating_sub(2)..=column)
            .filter_map(|at| line.get(at..))
            .any(|rest| names.iter().any(|name| rest.starts_with(name)))
    };
    if starts(&[b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf"]) {
        " (JSON has no NaN and no Infinity: write null)"
    } else if starts(&[b"None", b"True", b"False"]) {
        " (JSON has null, true and false: write it with json.dumps)"
    } else if line.first() == Some(&b'[') {
        " (write an object on each line: `jq -c '.[]' FILE`)"
    } else {
        ""
    }
}

impl KeyNode {
    fn insert(&mut self, path: &str, column: usize) {
        self.child(path).column = Some(column);
        if let Some((first, rest)) = path.split_once('.') {
            self.child(first).insert(rest, column);
        }
    }

    fn child(&mut self, key: &str) -> &mut Self {
        let place = self.children.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
            self.children.push((key.to_owned(), Self::default()));
            self.children.len() - 1
        });
        &mut self.children[place].1
    }

    fn get(&self, key: &str) -> Option<&Self> {
        self.children.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }
}

struct ObjectSeed<'a> {
    node: &'a KeyNode,
    columns: &'a [String],
    values: &'a mut ParsedValues,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OBJECT)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(node) = map.next_key_seed(KeySeed(self.node))? {
            let Some(node) = node else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let raw: &RawValue = map.next_value()?;
            self.values.put_value(node, self.columns, raw).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}

struct KeySeed<'a>(&'a KeyNode);

impl<'de, 'a> DeserializeSeed<'de> for KeySeed<'a> {
    type Value = Option<&'a KeyNode>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for KeySeed<'a> {
    type Value = Option<&'a KeyNode>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.get(key))
    }
}

impl ParsedValues {
    fn put_value(&mut self, node: &KeyNode, columns: &[String], raw: &RawValue) -> Result<(), String> {
        let text = raw.get();
        if text.starts_with('{') && !node.children.is_empty() {
            let object = ObjectSeed { node, columns, values: self };
            let mut json = serde_json::Deserializer::from_str(text);
            return object.deserialize(&mut json).map_err(|error| error.to_string());
        }
        let Some(column) = node.column else { return Ok(()) };
        self.cells[column] = match text.as_bytes() {
            [b'{', ..] => return Err(format!("column \"{}\" is an object", columns[column])),
            [b'[', ..] => self.parse_list(text).ok_or_else(|| {
                format!(
                    "column \"{}\" is an array of other things than texts, numbers and truth values",
                    columns[column]
                )
            })?,
            _ => self.parse_scalar(text).ok_or_else(|| format!("column \"{}\" is no text", columns[column]))?,
        };
        Ok(())
    }

    fn parse_list(&mut self, text: &str) -> Option<JsonCell> {
        let values: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let start = self.items.len();
        for value in values {
            match self.parse_scalar(value.get())? {
                JsonCell::Missing => self.items.push((0, 0)),
                JsonCell::Text(range) => self.items.push(range),
                JsonCell::Bool(truth) => {
                    let range = self.keep_text(if truth { b"true" } else { b"false" });
                    self.items.push(range);
                }
                JsonCell::List(_) => return None,
            }
        }
        Some(JsonCell::List(start..self.items.len()))
    }

    fn parse_scalar(&mut self, text: &str) -> Option<JsonCell> {
        Some(match text.as_bytes() {
            b"null" => JsonCell::Missing,
            b"true" => JsonCell::Bool(true),
            b"false" => JsonCell::Bool(false),
            [b'"', plain @ .., b'"'] if memchr::memchr(b'\\', plain).is_none() => JsonCell::Text(self.keep_text(plain)),
            [b'"', ..] => JsonCell::Text(self.keep_text(serde_json::from_str::<String>(text).ok()?.as_bytes())),
            [b'{' | b'[', ..] => return None,
            number => JsonCell::Text(self.keep_text(number)),
        })
    }

    fn keep_text(&mut self, text: &[u8]) -> (u32, u32) {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(text);
        (start, self.text.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    fn read(columns: &[&str], line: &str) -> Result<Vec<String>, String> {
        let mut fields = JsonFields::new(columns.iter().map(|column| (*column).to_owned()).collect());
        fields.read(line.as_bytes()).map_err(|fault| format!("{}: found {}", fault.column, fault.found))?;
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        let list = |column| format!("{:?}", fields.list_texts(column).map(text).collect::<Vec<_>>());
        let show = |column| fields.single_text(column).map_or_else(|| list(column), text);
        Ok((0..columns.len()).map(show).collect())
    }

    #[test]
    fn every_kind_of_value() {
        let line = r#" {"a": "x,\"y\"\n", "b": -1.50e3, "c": true, "d": null, "more": {"a": [1]}, "e": ["u", 7, null, false], "f": []} "#;
        let columns = ["a", "b", "c", "d", "e", "f", "g"];
        assert_eq!(
            read(&columns, line).unwrap(),
            ["x,\"y\"\n", "-1.50e3", "true", "", "[\"u\", \"7\", \"\", \"false\"]", "[]", ""]
        );
    }

    #[test]
    fn paths_lead_into_objects() {
        let columns = ["user.id", "user.geo.city", "user"];
        assert_eq!(
            read(&columns[..2], r#"{"user":{"id":7,"geo":{"city":"Bern","zip":3000}}}"#).unwrap(),
            ["7", "Bern"]
        );
        assert_eq!(read(&columns[..2], r#"{"user.id":8,"user":{"geo.city":"Basel"}}"#).unwrap(), ["8", "Basel"]);
        assert_eq!(read(&columns[..2], r#"{"user":null}"#).unwrap(), ["", ""]);
        assert_eq!(read(&columns, r#"{"user":"me"}"#).unwrap(), ["", "", "me"]);
    }

    #[test]
    fn what_is_no_object_is_described() {
        let bad = |line: &str| read(&["a"], line).unwrap_err();
        let array = "1: found invalid type: sequence, expected a JSON object in \"[1]\" (write an object on each line: `jq -c '.[]' FILE`)";
        assert_eq!(bad("[1]"), array);
        for none in ["NaN", "Infinity", "-Infinity"] {
            let text = bad(&format!("{{\"b\":1,\"a\":{none}}}"));
            assert!(text.contains("JSON has no NaN and no Infinity: write null"), "{text}");
        }
        assert!(bad(r#"{"a":1"#).starts_with("6: found EOF while parsing an object"), "{}", bad(r#"{"a":1"#));
        for (line, expected) in [
            (r#"{"a": True}"#, "json.dumps"),
            (r#"{"a":1} x"#, "trailing characters"),
            (r#"{"a":{"b":1}}"#, "column \"a\" is an object"),
            (r#"{"a":[[1]]}"#, "column \"a\" is an array of other things"),
            ("1,2,x", "invalid type: integer"),
        ] {
            assert!(bad(line).contains(expected), "{}", bad(line));
        }
    }

    proptest! {
        /// Texts and numbers come back as serde_json reads them into a tree.
        #[test]
        fn values_are_those_of_the_tree(values in prop::collection::vec(prop_oneof![
            any::<String>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from),
            Just(serde_json::Value::Null),
        ], 1..6)) {
            let names: Vec<String> = (0..values.len()).map(|index| format!("c{index}")).collect();
            let object: serde_json::Map<_, _> = names.iter().cloned().zip_eq(values.clone()).collect();
            let line = serde_json::Value::Object(object).to_string();
            let columns: Vec<&str> = names.iter().map(String::as_str).collect();
            let expected: Vec<String> = values.iter().map(|value| match value {
                serde_json::Value::Null => String::new(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            }).collect();
            prop_assert_eq!(read(&columns, &line).unwrap(), expected);
        }

        #[test]
        fn any_bytes_are_an_object_or_a_fault(line in prop::collection::vec(prop_oneof![
            Just(b'{'), Just(b'}'), Just(b'"'), Just(b':'), Just(b','), Just(b'['), Just(b']'), Just(b'a'), Just(b'\\'), Just(b'1'), any::<u8>(),
        ], 0..40)) {
            let _ = JsonFields::new(vec!["a".into(), "a.b".into()]).read(&line);
        }
    }
}
