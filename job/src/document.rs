//! TOML text as a tree in which every value knows its position, so that messages can point at the line.

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{JobProblem, SourcePlace, SourceText};

#[derive(Clone, Debug)]
pub(crate) struct TomlNode {
    pub(crate) value: TomlValue,
    /// Its position. For a table that a header opens, the position of the header.
    pub(crate) at: SourcePlace,
}

#[derive(Clone, Debug)]
pub(crate) enum TomlValue {
    Boolean(bool),
    /// Saturated at the limits of i128, far outside every range.
    Integer(i128),
    Float(f64),
    Text(String),
    Datetime,
    List(Vec<TomlNode>),
    Table(Vec<KeyEntry>),
}

#[derive(Clone, Debug)]
pub(crate) struct KeyEntry {
    pub(crate) key: String,
    pub(crate) key_at: SourcePlace,
    pub(crate) node: TomlNode,
}

/// The path of a value in the tree, shown as `features.numeric[3].column`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPath(Vec<PathStep>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Key(String),
    Index(usize),
}

impl KeyPath {
    pub(crate) fn key(&self, key: &str) -> Self {
        self.then(PathStep::Key(key.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.then(PathStep::Index(index))
    }

    fn then(&self, step: PathStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

/// `a.b` as keys, for paths in the code.
impl From<&str> for KeyPath {
    fn from(dotted: &str) -> Self {
        Self(dotted.split('.').map(|key| PathStep::Key(key.to_owned())).collect())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if position == 0 => f.write_str(key)?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

impl TomlNode {
    /// Fails with every place where the text is not TOML.
    pub(crate) fn parse(source: &Arc<SourceText>) -> Result<Self, Vec<JobProblem>> {
        if let Some(at) = too_deep(source.text()) {
            let place = SourcePlace { source: Arc::clone(source), span: at..at + 1 };
            let problem = JobProblem::new(format!("more than {} nested brackets: this is not a job file", DEEPEST));
            return Err(vec![
                problem.at_place(place, "nested too deep").help("see docs/job-file.md for what a job file has"),
            ]);
        }
        let (table, errors) = DeTable::parse_recoverable(source.text());
        if errors.is_empty() {
            return Ok(table_node(source, table.span(), table.get_ref()));
        }
        let problem = |error: &toml::de::Error| {
            let place = SourcePlace { source: Arc::clone(source), span: error.span().unwrap_or(0..0) };
            JobProblem::new(format!("not TOML: {}", error.message())).at_place(place, "here")
        };
        Err(errors.iter().map(problem).collect())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let TomlValue::Table(entries) = &self.value else { return None };
        entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    pub(crate) fn find(&self, path: &KeyPath) -> Option<&Self> {
        path.0.iter().try_fold(self, Self::child)
    }

    /// The position of a path, or of its nearest written ancestor. For the whole document, its start.
    pub(crate) fn place(&self, path: &KeyPath) -> SourcePlace {
        let mut node = self;
        for (depth, step) in path.0.iter().enumerate() {
            match node.child(step) {
                Some(child) => node = child,
                None if depth == 0 => return SourcePlace { span: 0..0, ..self.at.clone() },
                None => break,
            }
        }
        node.at.clone()
    }

    fn child(&self, step: &PathStep) -> Option<&Self> {
        match (step, &self.value) {
            (PathStep::Key(key), _) => self.get(key),
            (PathStep::Index(index), TomlValue::List(items)) => items.get(*index),
            (PathStep::Index(_), _) => None,
        }
    }

    /// The type of the value in a user's words, with article.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            TomlValue::Boolean(_) => "a boolean",
            TomlValue::Integer(_) => "an integer",
            TomlValue::Float(_) => "a number",
            TomlValue::Text(_) => "text",
            TomlValue::Datetime => "a date",
            TomlValue::List(_) => "a list",
            TomlValue::Table(_) => "a table",
        }
    }

    /// The tree as JSON, without positions, for serde.
    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            TomlValue::Boolean(value) => Json::from(*value),
            TomlValue::Integer(value) => i64::try_from(*value).map_or(Json::Null, Json::from),
            TomlValue::Float(value) => Json::from(*value),
            TomlValue::Text(value) => Json::from(value.as_str()),
            TomlValue::Datetime => Json::Null,
            TomlValue::List(items) => items.iter().map(Self::to_json).collect(),
            TomlValue::Table(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect()
            }
        }
    }
}

fn node(source: &Arc<SourceText>, value: &Spanned<DeValue<'_>>) -> TomlNode {
    let converted = match value.get_ref() {
        DeValue::String(text) => TomlValue::Text(text.to_string()),
        DeValue::Integer(integer) => {
            TomlValue::Integer(i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i128::MAX))
        }
        DeValue::Float(float) => TomlValue::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(boolean) => TomlValue::Boolean(*boolean),
        DeValue::Datetime(_) => TomlValue::Datetime,
        DeValue::Array(items) => TomlValue::List(items.iter().map(|item| node(source, item)).collect()),
        DeValue::Table(table) => return table_node(source, value.span(), table),
    };
    TomlNode { value: converted, at: SourcePlace { source: Arc::clone(source), span: value.span() } }
}

fn table_node(source: &Arc<SourceText>, span: std::ops::Range<usize>, table: &DeTable<'_>) -> TomlNode {
    let place = |span| SourcePlace { source: Arc::clone(source), span };
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| KeyEntry {
        key: ToString::to_string(key.get_ref() as &std::borrow::Cow<'_, str>),
        key_at: place(key.span()),
        node: node(source, value),
    };
    let mut entries: Vec<KeyEntry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_at.span.start);
    TomlNode { value: TomlValue::Table(entries), at: place(span) }
}

/// Depth of nested brackets. A parser that recovers from errors would follow all of them.
const DEEPEST: usize = 64;

/// Text behind a `#` counts as a comment. Brackets in strings count, because an unclosed string must not hide the rest.
fn too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut is_comment) = (0_usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => is_comment = false,
            b'#' => is_comment = true,
            _ if is_comment => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> TomlNode {
        TomlNode::parse(&SourceText::job_file("job.toml", text)).unwrap()
    }

    fn text_at(node: &TomlNode, path: &KeyPath) -> String {
        node.place(path).text().to_owned()
    }

    #[test]
    fn values_become_json() {
        let text =
            "a = 0x1F\nb = [1_0, 2.5, true, 'x']\nc.d = { e = \"\\u00e9\" }\nf = 1979-05-27\n[[g]]\nh = 1\n[[g]]\n";
        let expected = json!({
            "a": 31, "b": [10, 2.5, true, "x"], "c": {"d": {"e": "é"}}, "f": null, "g": [{"h": 1}, {}],
        });
        assert_eq!(parse(text).to_json(), expected);
    }

    #[test]
    fn keys_keep_the_order_of_the_file() {
        let TomlValue::Table(entries) = parse("z = 1\nm = 2\na = 3\n").value else { panic!("no table") };
        assert_eq!(entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["z", "m", "a"]);
    }

    #[test]
    fn a_path_leads_to_its_text_or_to_its_nearest_written_ancestor() {
        let document = parse("[data]\nlist = ['é', { key = 12 }]\n");
        let list = KeyPath::from("data.list");
        assert_eq!(text_at(&document, &list.index(0)), "'é'");
        assert_eq!(text_at(&document, &list.index(1).key("key")), "12");
        assert_eq!(text_at(&document, &list.index(1).key("other")), "{ key = 12 }");
        assert_eq!(text_at(&document, &list.index(7).key("x")), "['é', { key = 12 }]");
        assert_eq!(text_at(&document, &list.key("x")), "['é', { key = 12 }]");
        assert_eq!(text_at(&document, &KeyPath::from("data.none")), "[data]");
        assert_eq!(document.place(&KeyPath::from("none")).span, 0..0);
        assert!(document.find(&KeyPath::from("data.none")).is_none());
        assert!(document.find(&list.index(1)).is_some());
    }

    #[test]
    fn every_place_that_is_not_toml_is_reported() {
        let problems = TomlNode::parse(&SourceText::job_file("job.toml", "a = \nb = 1\nc = [1,\n")).unwrap_err();
        let lines: BTreeSet<_> = problems.iter().filter_map(|problem| Some(problem.location()?.1)).collect();
        assert!(lines.is_superset(&BTreeSet::from([1, 3])), "{problems:?}");
        let twice = TomlNode::parse(&SourceText::job_file("job.toml", "a = 1\na = 2\n")).unwrap_err();
        assert_eq!(twice[0].location(), Some(("job.toml", 2, 1)));
    }

    #[test]
    fn brackets_are_accepted_up_to_a_depth() {
        assert_eq!(too_deep(&"[".repeat(DEEPEST)), None);
        assert_eq!(too_deep(&format!("a = {}", "[".repeat(1_000_000))), Some(4 + DEEPEST));
        assert_eq!(too_deep(&"{[]}".repeat(1_000_000)), None);
        assert_eq!(too_deep(&"# of [0, 1)\n".repeat(1_000)), None);
    }
}
