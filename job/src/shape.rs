//! The schema of the job file for the checks and the reference page.
//!
//! It is read from the JSON schema that `schemars` derives from [`crate::file::JobFile`], as far as the derive goes.
//! Anything else becomes [`ValueShape::Anything`], which a test rules out.

use std::fmt;

use serde_json::{Map, Value as Json};

use crate::file;
use crate::settings::size;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueShape {
    Boolean,
    /// A whole number in an inclusive range.
    Integer {
        min: i128,
        max: i128,
    },
    /// A finite number.
    Number(NumberBounds),
    /// A text with a least number of characters.
    Text {
        min_length: u64,
        form: TextForm,
    },
    Words(Vec<WordChoice>),
    /// A list with a least and a most number of items.
    List {
        item: Box<ValueShape>,
        min: u64,
        max: u64,
    },
    /// A table with these keys and no other.
    Table(Vec<TableField>),
    /// A table with keys of the user's choice.
    Named(Box<ValueShape>),
    /// A table whose `kind` decides its other keys. Without `kind` it is the default kind, if there is one.
    Tagged {
        variants: Vec<TaggedVariant>,
        default: Option<String>,
    },
    /// One of several shapes with different TOML types.
    Either(Vec<ValueShape>),
    /// A part of the schema that this module cannot read.
    Anything,
}

/// What a text must be, by `x-form` in the schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TextForm {
    Any,
    /// A number of bytes with a unit.
    Size,
    /// Numbers of so many hexadecimal digits each.
    Digits(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NumberBounds {
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) above: Option<f64>,
    pub(crate) below: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WordChoice {
    pub(crate) word: String,
    pub(crate) doc: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaggedVariant {
    pub(crate) kind: String,
    pub(crate) doc: String,
    pub(crate) fields: Vec<TableField>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableField {
    pub(crate) name: String,
    pub(crate) doc: String,
    pub(crate) required: bool,
    /// Its value if it is not given, unless `doc` gives a default in words.
    pub(crate) default: Option<Json>,
    /// What another value means for a run that resumes, if the key says so ([`crate::ChangeEffect`]).
    pub(crate) change: Option<String>,
    pub(crate) shape: ValueShape,
}

/// The key that names the variant of a tagged table.
pub(crate) const TAG: &str = "kind";

pub(crate) fn job_shape() -> ValueShape {
    let schema = file::job_schema();
    SchemaReader { definitions: schema.get("$defs").and_then(Json::as_object) }.shape(&schema)
}

/// The JSON schema of the job file, pretty-printed, for editors that check TOML against one.
pub fn schema_json() -> String {
    format!("{:#}\n", file::job_schema())
}

impl ValueShape {
    /// The key of this name, of any kind of a tagged table.
    pub(crate) fn field(&self, name: &str) -> Option<&TableField> {
        let named = |fields: &[TableField]| fields.iter().position(|field| field.name == name);
        match self {
            Self::Table(fields) => named(fields).map(|index| &fields[index]),
            Self::Tagged { variants, .. } => {
                variants.iter().find_map(|variant| named(&variant.fields).map(|index| &variant.fields[index]))
            }
            Self::Either(shapes) => shapes.iter().find_map(|shape| shape.field(name)),
            _ => None,
        }
    }
}

impl TextForm {
    fn from_schema(property: &Json) -> Self {
        match property.get("x-form").and_then(Json::as_str) {
            Some("size") => Self::Size,
            Some("digits-8") => Self::Digits(8),
            Some("digits-16") => Self::Digits(16),
            _ => Self::Any,
        }
    }

    pub(crate) fn fits(self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Size => size::is_in_range(text),
            Self::Digits(count) => {
                text.len().is_multiple_of(count) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            }
        }
    }
}

impl NumberBounds {
    pub(crate) fn contains(&self, number: f64) -> bool {
        number.is_finite()
            && self.min.is_none_or(|min| number >= min)
            && self.max.is_none_or(|max| number <= max)
            && self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
    }
}

/// The shape in a user's words, to follow "expected".
impl fmt::Display for ValueShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("true or false"),
            Self::Integer { min, max } if *max >= i128::from(i64::MAX) => write!(f, "an integer from {min}"),
            Self::Integer { min, max } => write!(f, "an integer from {min} to {max}"),
            Self::Number(bounds) => write!(f, "a number{bounds}"),
            Self::Text { form: TextForm::Any, .. } => f.write_str("text"),
            Self::Text { form: TextForm::Size, .. } => {
                f.write_str("a number of bytes from 64 KiB with a unit, such as \"2GiB\" or \"500 MB\"")
            }
            Self::Text { form: TextForm::Digits(count), .. } => write!(f, "numbers of {count} hexadecimal digits"),
            Self::Words(choices) => {
                write!(f, "one of ")?;
                list(f, choices.iter().map(|choice| format!("\"{}\"", choice.word)))
            }
            Self::List { item, .. } => write!(f, "a list, each item {item}"),
            Self::Table(_) => f.write_str("a table"),
            Self::Named(_) => f.write_str("tables by name"),
            Self::Tagged { variants, .. } => {
                write!(f, "a table with {TAG} ")?;
                list(f, variants.iter().map(|variant| format!("\"{}\"", variant.kind)))
            }
            Self::Either(shapes) => list(f, shapes.iter().map(ToString::to_string)),
            Self::Anything => f.write_str("a value"),
        }
    }
}

/// ` from 0 to 1`, ` above 0 and below 1`.
impl fmt::Display for NumberBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lower = self.min.map(|min| ("from", min)).or(self.above.map(|above| ("above", above)));
        let (to, below) = match lower {
            Some(("from", _)) => ("to", "to below"),
            Some(_) => ("and up to", "and below"),
            None => ("up to", "below"),
        };
        let upper = self.max.map(|max| (to, max)).or(self.below.map(|bound| (below, bound)));
        for (word, bound) in lower.into_iter().chain(upper) {
            let tiny_or_huge = bound != 0.0 && !(1e-3..1e9).contains(&bound.abs());
            if tiny_or_huge { write!(f, " {word} {bound:e}")? } else { write!(f, " {word} {bound}")? }
        }
        Ok(())
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = String>) -> fmt::Result {
    f.write_str(&items.collect::<Vec<_>>().join(" or "))
}

/// Reads a schema with the help of its definitions.
struct SchemaReader<'a> {
    definitions: Option<&'a Map<String, Json>>,
}

impl SchemaReader<'_> {
    fn shape(&self, schema: &Json) -> ValueShape {
        let schema = self.dereference(schema);
        if let Some(options) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) {
            return self.alternatives(options);
        }
        match type_of(schema) {
            Some("boolean") => ValueShape::Boolean,
            Some("integer") => ValueShape::Integer {
                min: integer(schema, "minimum", i64::MIN),
                max: integer(schema, "maximum", i64::MAX),
            },
            Some("number") => ValueShape::Number(bounds(schema)),
            Some("string") => words(std::slice::from_ref(schema))
                .unwrap_or_else(|| ValueShape::Text { min_length: count(schema, "minLength", 0), form: TextForm::Any }),
            Some("array") => self.list(schema),
            Some("object") => self.table(schema),
            _ => ValueShape::Anything,
        }
    }

    fn dereference<'s>(&'s self, schema: &'s Json) -> &'s Json {
        let name = schema.get("$ref").and_then(Json::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
        name.zip(self.definitions).and_then(|(name, definitions)| definitions.get(name)).unwrap_or(schema)
    }

    /// Optional keys have `null` as an alternative, but TOML has no null.
    fn alternatives(&self, options: &[Json]) -> ValueShape {
        let options: Vec<Json> = options.iter().filter(|option| type_of(option) != Some("null")).cloned().collect();
        if let [only] = options.as_slice() {
            return self.shape(only);
        }
        if let Some(words) = words(&options) {
            return words;
        }
        let variants: Option<Vec<TaggedVariant>> = options.iter().map(|option| self.variant(option)).collect();
        match variants {
            Some(variants) => ValueShape::Tagged { variants, default: None },
            None => ValueShape::Either(options.iter().map(|option| self.shape(option)).collect()),
        }
    }

    fn variant(&self, schema: &Json) -> Option<TaggedVariant> {
        let kind = schema.pointer(&format!("/properties/{TAG}/const"))?.as_str()?.to_owned();
        let fields = self.fields(schema).into_iter().filter(|field| field.name != TAG).collect();
        Some(TaggedVariant { kind, doc: doc(schema), fields })
    }

    fn list(&self, schema: &Json) -> ValueShape {
        let item = Box::new(schema.get("items").map_or(ValueShape::Anything, |item| self.shape(item)));
        ValueShape::List { item, min: count(schema, "minItems", 0), max: count(schema, "maxItems", u64::MAX) }
    }

    fn table(&self, schema: &Json) -> ValueShape {
        match schema.get("additionalProperties") {
            Some(of @ Json::Object(_)) => ValueShape::Named(Box::new(self.shape(of))),
            _ => ValueShape::Table(self.fields(schema)),
        }
    }

    fn fields(&self, schema: &Json) -> Vec<TableField> {
        let required = |name: &str| {
            let names = schema.get("required").and_then(Json::as_array);
            names.is_some_and(|names| names.iter().any(|required| required == name))
        };
        let properties = schema.get("properties").and_then(Json::as_object);
        let field = |(name, property): (&String, &Json)| self.field(name, property, required(name));
        properties.into_iter().flatten().map(field).collect()
    }

    fn field(&self, name: &str, property: &Json, required: bool) -> TableField {
        let default = property.get("default").filter(|default| !default.is_null()).cloned();
        let mut shape = self.shape(property);
        if let ValueShape::Text { form, .. } = &mut shape {
            *form = TextForm::from_schema(property);
        }
        if let ValueShape::Tagged { default: kind, .. } = &mut shape {
            *kind = default.as_ref().and_then(|value| Some(value.get(TAG)?.as_str()?.to_owned()));
        }
        let change = property.get("x-change").and_then(Json::as_str).map(str::to_owned);
        TableField { name: name.to_owned(), doc: doc(property), required, default, change, shape }
    }
}

fn doc(schema: &Json) -> String {
    schema.get("description").and_then(Json::as_str).unwrap_or_default().replace('\n', " ")
}

fn type_of(schema: &Json) -> Option<&str> {
    match schema.get("type")? {
        Json::Array(types) => types.iter().filter_map(Json::as_str).find(|name| *name != "null"),
        name => name.as_str(),
    }
}

fn words(options: &[Json]) -> Option<ValueShape> {
    let choice = |option: &Json| Some(WordChoice { word: option.get("const")?.as_str()?.to_owned(), doc: doc(option) });
    options.iter().map(choice).collect::<Option<Vec<_>>>().map(ValueShape::Words)
}

fn integer(schema: &Json, key: &str, otherwise: i64) -> i128 {
    let number = schema.get(key);
    let signed = number.and_then(Json::as_i64).map(i128::from);
    signed.or_else(|| number.and_then(Json::as_u64).map(i128::from)).unwrap_or(i128::from(otherwise))
}

fn count(schema: &Json, key: &str, otherwise: u64) -> u64 {
    schema.get(key).and_then(Json::as_u64).unwrap_or(otherwise)
}

fn bounds(schema: &Json) -> NumberBounds {
    let bound = |key| schema.get(key).and_then(Json::as_f64);
    NumberBounds {
        min: bound("minimum"),
        max: bound("maximum"),
        above: bound("exclusiveMinimum"),
        below: bound("exclusiveMaximum"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::job_fields as fields;

    #[test]
    fn every_key_is_understood_and_documented_and_has_its_range_and_a_default_or_is_needed() {
        let fields = fields();
        assert!(fields.len() > 60, "{}", fields.len());
        for (path, field) in fields {
            assert!(!format!("{:?}", field.shape).contains("Anything"), "{path}: {:?}", field.shape);
            assert!(field.doc.len() > 10 && field.doc.ends_with('.'), "{path} needs a sentence: {:?}", field.doc);
            let in_words = field.doc.contains("Default:");
            assert!(field.required || field.default.is_some() || in_words, "{path} says no default");
            assert!(!(field.default.is_some() && in_words), "{path} says its default twice");
            match field.shape {
                ValueShape::Integer { min, max } => {
                    assert!(min > i128::from(i64::MIN) && max <= i128::from(i64::MAX), "{path}")
                }
                ValueShape::Number(bounds) => assert!(bounds != NumberBounds::default(), "{path}"),
                ValueShape::Words(choices) => {
                    let are_documented = choices.iter().all(|choice| choice.doc.ends_with('.'));
                    assert!(choices.len() > 1 && are_documented, "{path}: {choices:?}");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn bounds_hold_no_nan_and_no_infinity() {
        let unit = NumberBounds { min: Some(0.0), below: Some(1.0), ..NumberBounds::default() };
        assert!(unit.contains(0.0) && !unit.contains(1.0) && !unit.contains(-0.1));
        assert!(!NumberBounds::default().contains(f64::NAN) && !NumberBounds::default().contains(f64::INFINITY));
    }
}
