//! The conditions that a definition must meet before an API server admits it, which `kube-cel` does not check:
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/>.

use kube_cel::{Validator, apply_defaults};
use regex::Regex;
use serde_json::Value;

use super::admission::schema_problems;

/// `$ref`, `patternProperties`, `readOnly` and others are forbidden. `anyOf` and similar ones are restricted, and not
/// needed.
const KNOWN: &str = "
    additionalProperties default description enum format items maxItems maxLength maxProperties maximum minItems
    minLength minProperties minimum nullable pattern properties required title type x-kubernetes-embedded-resource
    x-kubernetes-int-or-string x-kubernetes-list-map-keys x-kubernetes-list-type x-kubernetes-map-type x-kubernetes-
    preserve-unknown-fields x-kubernetes-validations exclusiveMinimum exclusiveMaximum
";

fn structural(schema: &Value) -> Vec<String> {
    let of_place = |place: &SchemaPlace| {
        broken_by(&place.schema).into_iter().map(|rule| format!("{}: {rule}", place.path)).collect::<Vec<_>>()
    };
    places(schema).iter().flat_map(of_place).collect()
}

fn broken_by(schema: &Value) -> Vec<String> {
    let is = |key: &str| schema[key] == true;
    let type_ = schema["type"].as_str().unwrap_or_default();
    let may_lack_type = is("x-kubernetes-int-or-string") || is("x-kubernetes-preserve-unknown-fields");
    let has_both = !schema["properties"].is_null() && !schema["additionalProperties"].is_null();
    let is_mixed = !type_.is_empty() || is("x-kubernetes-preserve-unknown-fields");
    let rules = [
        (type_.is_empty() && !may_lack_type, "type is missing"),
        (type_ == "array" && !schema["items"].is_object(), "an array has items"),
        (has_both, "properties and additionalProperties exclude each other"),
        (schema["additionalProperties"] == false, "additionalProperties must not be false"),
        (is("x-kubernetes-int-or-string") && is_mixed, "int-or-string has no type and keeps no unknown fields"),
    ];
    let mut broken: Vec<String> =
        rules.iter().filter(|(is_broken, _)| *is_broken).map(|one| one.1.to_owned()).collect();
    let is_known = |key: &str| KNOWN.split_whitespace().any(|known| known == key);
    let unknown = schema.as_object().unwrap().keys().filter(|key| !is_known(key));
    broken.extend(unknown.map(|key| format!("{key} is forbidden")));
    if !["", "object", "array", "string", "integer", "number", "boolean"].contains(&type_) {
        broken.push(format!("type {type_} is none"));
    }
    if let Some(Err(error)) = schema["pattern"].as_str().map(Regex::new) {
        broken.push(format!("pattern: {error}"));
    }
    broken.extend(broken_list(schema));
    broken
}

/// Checks that a list with keys has keys that every item has.
fn broken_list(schema: &Value) -> Vec<String> {
    let Some(kind) = schema["x-kubernetes-list-type"].as_str() else {
        let has_keys = !schema["x-kubernetes-list-map-keys"].is_null();
        return if has_keys { vec!["list-map-keys need list-type map".to_owned()] } else { Vec::new() };
    };
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let items = &schema["items"];
    let is_sure = |key: &&str| {
        let is_required = items["required"].as_array().into_iter().flatten().any(|name| name == *key);
        items["properties"][*key].is_object() && (is_required || !items["properties"][*key]["default"].is_null())
    };
    match kind {
        _ if schema["type"] != "array" => vec!["list-type is for arrays".to_owned()],
        "map" if keys.is_empty() => vec!["list-type map has list-map-keys".to_owned()],
        "map" if !keys.iter().all(is_sure) => vec![format!("list-map-keys {keys:?} are not required or defaulted")],
        "map" | "set" | "atomic" => Vec::new(),
        other => vec![format!("list-type {other} is none")],
    }
}

/// The defaults that the schema would refuse as a user's values, by its types and bounds and by its rules.
fn wrong_defaults(schema: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for SchemaPlace { path, schema, .. } in
        places(schema).into_iter().filter(|place| !place.schema["default"].is_null())
    {
        let default = &schema["default"];
        let filled = apply_defaults(&schema, default);
        for value in [default, &filled] {
            wrong.extend(schema_problems(&schema, value).iter().map(|problem| format!("{path}: default: {problem}")));
        }
        let by_rules = Validator::new().validate(&schema, &filled, None).err();
        let errors = by_rules.iter().flat_map(|errors| errors.iter());
        wrong.extend(errors.map(|error| format!("{path}: default: {error}")));
    }
    wrong
}

#[test]
fn the_schema_is_structural() {
    assert_eq!(structural(&super::schema()), Vec::<String>::new());
}

#[test]
fn every_default_meets_its_own_schema() {
    let schema = super::schema();
    assert!(places(&schema).iter().filter(|place| !place.schema["default"].is_null()).count() > 10);
    assert_eq!(wrong_defaults(&schema), Vec::<String>::new());
}

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
        let child = |name: &str, schema: &Value, times: u64| SchemaPlace {
            path: format!("{path}{name}"),
            schema: schema.clone(),
            cardinality: cardinality.saturating_mul(times),
        };
        let properties = schema["properties"].as_object().into_iter().flatten();
        let named = properties.map(|(name, property)| child(&format!(".{name}"), property, 1));
        let many = [("[]", &schema["items"]), ("{}", &schema["additionalProperties"])].into_iter();
        let many = many.filter(|(_, below)| below.is_object()).map(|(name, below)| child(name, below, size(schema)));
        let below: Vec<SchemaPlace> = named.chain(many).collect();
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
