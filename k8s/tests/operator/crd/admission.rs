//! The checks that an API server makes when a HybridJob is written: the definition's schema, then its rules.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{LazyLock, Mutex, PoisonError};

use kube_cel::{CompiledSchema, Validator, apply_defaults, compile_schema};
use regex::Regex;
use serde_json::{Map, Value};

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
        problems.push(problem(path, format!("is {value}, expected {expected}")));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        let allowed = Value::from(allowed.clone());
        problems.push(problem(path, format!("is {value}, expected one of {allowed}")));
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
    bounds(schema, ["minLength", "maxLength"], text.chars().count(), "characters", path, problems);
    if let Some(pattern) = schema["pattern"].as_str().filter(|pattern| !compiled(pattern).is_match(text)) {
        problems.push(problem(path, format!("is \"{text}\", expected to match {pattern}")));
    }
}

/// The expression of a pattern, compiled once: that takes longer than all matches of a check.
fn compiled(pattern: &str) -> Regex {
    static COMPILED: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).unwrap()).clone()
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
    let [least, most] = keys.map(|key| schema[key].as_u64());
    let range = least.unwrap_or(0)..=most.unwrap_or(u64::MAX);
    if !range.contains(&u64::try_from(count).unwrap()) {
        problems.push(problem(path, format!("has {count} {what}, expected {range:?}")));
    }
}

fn problem(field: impl Display, message: impl Display) -> String {
    format!("{field}: {message}")
}
