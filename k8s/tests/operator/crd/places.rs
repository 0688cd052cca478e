//! All nested schemas of a schema.

use serde_json::Value;

/// The largest request, in bytes.
pub(crate) const REQUEST: u64 = 3 << 20;

pub(crate) struct SchemaPlace {
    /// Its path by the names of properties: `.spec.volumes[]`.
    pub(crate) path: String,
    pub(crate) schema: Value,
    /// How many values an object may have at this path.
    pub(crate) cardinality: u64,
}

/// The schema itself and every nested one, outer ones first.
pub(crate) fn places(schema: &Value) -> Vec<SchemaPlace> {
    let mut found = vec![SchemaPlace { path: String::new(), schema: schema.clone(), cardinality: 1 }];
    let mut next = 0;
    while let Some(SchemaPlace { path, schema, cardinality }) = found.get(next) {
        let mut below = Vec::new();
        let child = |name: &str, schema: &Value, times: u64| SchemaPlace {
            path: format!("{path}{name}"),
            schema: schema.clone(),
            cardinality: cardinality.saturating_mul(times),
        };
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            below.push(child(&format!(".{name}"), property, 1));
        }
        if schema["items"].is_object() {
            below.push(child("[]", &schema["items"], size(schema)));
        }
        if schema["additionalProperties"].is_object() {
            below.push(child("{}", &schema["additionalProperties"], size(schema)));
        }
        found.extend(below);
        next += 1;
    }
    found
}

/// How large a value may be: bytes of a text, items of a list, entries of a map; 0 for other types.
pub(crate) fn size(schema: &Value) -> u64 {
    let bound = |key: &str| schema[key].as_u64();
    let is_text = schema["type"] == "string" || schema["x-kubernetes-int-or-string"] == true;
    let longest = |words: &Vec<Value>| words.iter().filter_map(Value::as_str).map(|word| word.len() as u64).max();
    match () {
        // A character takes up to four bytes.
        () if is_text => {
            let words = schema["enum"].as_array().and_then(longest);
            bound("maxLength").map(|most| 4 * most).or(words).unwrap_or(REQUEST)
        }
        () if schema["type"] == "array" => bound("maxItems").unwrap_or(REQUEST / 3),
        () if schema["additionalProperties"].is_object() => bound("maxProperties").unwrap_or(REQUEST / 7),
        () => 0,
    }
}
