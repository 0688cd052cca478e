//! The checks that an API server makes when a HybridJob is written: the definition's schema, then its rules.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use kube_cel::{CompiledSchema, Validator, apply_defaults, compile_schema};
use regex::Regex;
use serde_json::{Map, Value, json};

use super::SCHEMA;

static RULES: LazyLock<CompiledSchema> = LazyLock::new(|| compile_schema(&SCHEMA));

/// Each as `field: what is wrong`.
pub(crate) fn admission_refusals(object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut own = apply_defaults(&SCHEMA, object);
    // The schema does not contain the fields that every object of Kubernetes has.
    for field in ["apiVersion", "kind", "metadata"] {
        own.as_object_mut().and_then(|fields| fields.shift_remove(field));
    }
    let mut problems = schema_problems(&SCHEMA, &own);
    // The rules read fields without a check of their own, so the schema's checks come first.
    if problems.is_empty() {
        let checked = Validator::new().validate_compiled(&RULES, object, old);
        let errors = checked.err().map(kube_cel::ValidationErrors::into_vec).unwrap_or_default();
        // If a rule of the whole object names a field, the path starts with a dot.
        let refusals =
            errors.iter().map(|error| problem(error.field_path.trim_start_matches('.'), error.message.as_str()));
        problems.extend(refusals);
    }
    problems
}

/// Keywords that a structural schema does not use (`$ref`, `anyOf`, …) are ignored.
pub(crate) fn schema_problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    check(schema, value, "", &mut problems);
    problems
}

fn check(schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(expected) = wrong_type(schema, value) {
        problems.push(problem(path, format!("is {}, expected {expected}", shown(value))));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        problems.push(problem(path, format!("is {}, expected one of {}", shown(value), Value::from(allowed.clone()))));
    }
    match value {
        Value::String(text) => check_text(schema, text, path, problems),
        Value::Number(number) => check_number(schema, number.as_f64().unwrap_or(f64::NAN), path, problems),
        Value::Array(items) => check_items(schema, items, path, problems),
        Value::Object(fields) => check_fields(schema, fields, path, problems),
        Value::Null | Value::Bool(_) => {}
    }
}

fn wrong_type<'a>(schema: &'a Value, value: &Value) -> Option<&'a str> {
    if schema["x-kubernetes-int-or-string"] == true {
        return (!value.is_string() && !value.is_number()).then_some("integer or string");
    }
    let expected = schema["type"].as_str()?;
    let is_right = match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => false,
    };
    (!is_right).then_some(expected)
}

fn check_text(schema: &Value, text: &str, path: &str, problems: &mut Vec<String>) {
    let length = text.chars().count();
    bounds(schema, ["minLength", "maxLength"], length, "characters", path, problems);
    if let Some(pattern) = schema["pattern"].as_str() {
        match compiled(pattern) {
            Ok(regex) if regex.is_match(text) => {}
            Ok(_) => problems.push(problem(path, format!("is \"{text}\", expected to match {pattern}"))),
            Err(error) => {
                problems.push(problem(path, format!("the pattern {pattern} of the schema is not valid: {error}")))
            }
        }
    }
}

/// The expression of a pattern, compiled once: that takes longer than all matches of a check.
fn compiled(pattern: &str) -> Result<Arc<Regex>, regex::Error> {
    static COMPILED: Mutex<BTreeMap<String, Arc<Regex>>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = compiled.get(pattern) {
        return Ok(Arc::clone(known));
    }
    let regex = Arc::new(Regex::new(pattern)?);
    compiled.insert(pattern.to_owned(), Arc::clone(&regex));
    Ok(regex)
}

fn check_number(schema: &Value, number: f64, path: &str, problems: &mut Vec<String>) {
    let limit = |key: &str| schema[key].as_f64();
    if let Some(least) = limit("minimum").filter(|least| number < *least) {
        problems.push(problem(path, format!("is {number}, expected at least {least}")));
    }
    if let Some(most) = limit("maximum").filter(|most| number > *most) {
        problems.push(problem(path, format!("is {number}, expected at most {most}")));
    }
}

fn check_items(schema: &Value, items: &[Value], path: &str, problems: &mut Vec<String>) {
    bounds(schema, ["minItems", "maxItems"], items.len(), "items", path, problems);
    for (index, item) in items.iter().enumerate() {
        check(&schema["items"], item, &format!("{path}[{index}]"), problems);
    }
    if schema["x-kubernetes-list-type"] == "map" {
        check_keys(&schema["x-kubernetes-list-map-keys"], items, path, problems);
    }
}

fn check_keys(keys: &Value, items: &[Value], path: &str, problems: &mut Vec<String>) {
    let names: Vec<&str> = keys.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let key_of = |item: &Value| names.iter().map(|name| item[*name].clone()).collect::<Vec<_>>();
    for (index, item) in items.iter().enumerate() {
        if items[..index].iter().any(|before| key_of(before) == key_of(item)) {
            let message = format!("repeats the {} of an earlier item", names.join(" and "));
            problems.push(problem(format!("{path}[{index}]"), message));
        }
    }
}

fn check_fields(schema: &Value, fields: &Map<String, Value>, path: &str, problems: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    bounds(schema, ["minProperties", "maxProperties"], fields.len(), "entries", path, problems);
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            problems.push(problem(below(name), "is missing"));
        }
    }
    for (name, value) in fields {
        let own = &schema["properties"][name];
        let others = &schema["additionalProperties"];
        match () {
            () if own.is_object() => check(own, value, &below(name), problems),
            () if others.is_object() => check(others, value, &below(name), problems),
            () if *others == true || schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            () => problems.push(problem(below(name), "is not a known field")),
        }
    }
}

fn bounds(schema: &Value, keys: [&str; 2], count: usize, what: &str, path: &str, problems: &mut Vec<String>) {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let [least, most] = keys.map(|key| schema[key].as_u64());
    if least.is_some_and(|least| count < least) || most.is_some_and(|most| count > most) {
        let range = match (least, most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, most) => format!("at most {}", most.unwrap_or_default()),
        };
        problems.push(problem(path, format!("has {count} {what}, expected {range}")));
    }
}

/// A value, shortened to a line.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= MOST { text } else { text.chars().take(MOST).chain("…".chars()).collect() }
}

fn problem(field: impl Display, message: impl Display) -> String {
    format!("{field}: {message}")
}

#[test]
fn each_violation_of_the_schema_is_reported_with_its_path() {
    let schema = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "maxLength": 3, "pattern": "^[a-z]+$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "kinds": {"type": "array", "maxItems": 1, "items": {"type": "string", "enum": ["a", "b"]}},
        "amounts": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}},
        "note": {"type": "string", "nullable": true},
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let good = json!({"name": "abc", "count": 9, "kinds": ["a"], "amounts": {"cpu": 2, "memory": "1Gi"}, "note": null,
        "anything": {"x": 1}});
    assert_eq!(schema_problems(&schema, &good), Vec::<String>::new());
    for (value, expected) in [
        (json!({}), "name: is missing"),
        (json!({"name": "abcd"}), "name: has 4 characters, expected at most 3"),
        (json!({"name": "A"}), "name: is \"A\", expected to match ^[a-z]+$"),
        (json!({"name": "a", "count": 0}), "count: is 0, expected at least 1"),
        (json!({"name": "a", "count": 10}), "count: is 10, expected at most 9"),
        (json!({"name": "a", "count": "1"}), "count: is \"1\", expected integer"),
        (json!({"name": "a", "count": null}), "count: is null, expected integer"),
        (json!({"name": "a", "kinds": ["c"]}), "kinds[0]: is \"c\", expected one of [\"a\",\"b\"]"),
        (json!({"name": "a", "kinds": ["a", "b"]}), "kinds: has 2 items, expected at most 1"),
        (json!({"name": "a", "amounts": {"cpu": true}}), "amounts.cpu: is true, expected integer or string"),
        (json!({"name": "a", "nmae": 1}), "nmae: is not a known field"),
    ] {
        assert_eq!(schema_problems(&schema, &value), [expected]);
    }
}
