//! Checks a document against the shape of the job file, and goes on after a problem, so that one run shows all of them.

use crate::document::{KeyEntry, KeyPath, TomlNode, TomlValue};
use crate::error::{JobProblem, SourcePlace};
use crate::shape::{TAG, TableField, TaggedVariant, TextForm, ValueShape, WordChoice};
use crate::suggest;

/// A document without problems deserialises into [`crate::file::JobFile`]: a tagged table without a tag gets the
/// default one.
pub(crate) fn check_shape(root: &mut TomlNode, shape: &ValueShape) -> Vec<JobProblem> {
    let mut checker = ShapeChecker { problems: Vec::new() };
    let start = root.at.clone();
    checker.value(root, shape, &KeyPath::default(), &SourcePlace { span: 0..0, ..start });
    checker.problems
}

struct ShapeChecker {
    problems: Vec<JobProblem>,
}

impl ShapeChecker {
    /// `name_at` is the key to point at when something inside the table is missing.
    fn value(&mut self, node: &mut TomlNode, shape: &ValueShape, path: &KeyPath, name_at: &SourcePlace) {
        match (shape, &mut node.value) {
            (ValueShape::Table(fields), TomlValue::Table(entries)) => self.table(entries, fields, path, name_at),
            (ValueShape::Tagged { variants, default }, TomlValue::Table(entries)) => {
                self.tagged(entries, variants, default.as_deref(), path, name_at);
            }
            (ValueShape::Named(shape), TomlValue::Table(entries)) => {
                for entry in entries {
                    self.value(&mut entry.node, shape, &path.key(&entry.key), &entry.key_at);
                }
            }
            (ValueShape::List { item, .. }, TomlValue::List(items)) => {
                for (index, node) in items.iter_mut().enumerate() {
                    let place = node.at.clone();
                    self.value(node, item, &path.index(index), &place);
                }
                self.scalar(node, shape, path);
            }
            (ValueShape::Either(shapes), TomlValue::Table(entries)) if has_only_unknown_keys(entries, shapes) => {
                let names: Vec<&str> = keys_of_tables(shapes).collect();
                entries.iter().for_each(|entry| self.unknown_key(entry, &names, path));
            }
            (ValueShape::Either(shapes), _) => match chosen_shape(node, shapes) {
                Some(shape) => self.value(node, shape, path, name_at),
                None => self.wrong_type(node, shape, path),
            },
            _ => self.scalar(node, shape, path),
        }
    }

    fn table(&mut self, entries: &mut [KeyEntry], fields: &[TableField], path: &KeyPath, name_at: &SourcePlace) {
        for field in fields.iter().filter(|field| field.required) {
            if entries.iter().all(|entry| entry.key != field.name) {
                self.missing(&field.name, &field.doc, &field.shape, path, name_at);
            }
        }
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        for entry in entries {
            match fields.iter().find(|field| field.name == entry.key) {
                Some(field) => self.value(&mut entry.node, &field.shape, &path.key(&entry.key), &entry.key_at),
                None => self.unknown_key(entry, &names, path),
            }
        }
    }

    fn tagged(
        &mut self,
        entries: &mut Vec<KeyEntry>,
        variants: &[TaggedVariant],
        default: Option<&str>,
        path: &KeyPath,
        name_at: &SourcePlace,
    ) {
        // A default kind without keys does not explain those that are there.
        let takes_keys = |kind: &str| variants.iter().any(|variant| variant.kind == kind && !variant.fields.is_empty());
        if let (None, Some(kind)) = (position(entries, TAG), default)
            && (entries.is_empty() || takes_keys(kind))
        {
            entries.insert(0, implied(TAG, kind, name_at));
        }
        let Some(position) = position(entries, TAG) else {
            return self.missing(TAG, "", &kinds(variants), path, name_at);
        };
        let mut tag = entries.remove(position);
        self.value(&mut tag.node, &kinds(variants), &path.key(TAG), name_at);
        if let Some(variant) = variants.iter().find(|variant| is_text(&tag.node, &variant.kind)) {
            self.table(entries, &variant.fields, path, name_at);
        }
        entries.insert(0, tag);
    }

    fn scalar(&mut self, node: &TomlNode, shape: &ValueShape, path: &KeyPath) {
        let fits = match (shape, &node.value) {
            (ValueShape::Boolean, TomlValue::Boolean(_)) | (ValueShape::Anything, _) => true,
            (ValueShape::Integer { min, max }, TomlValue::Integer(value)) => (min..=max).contains(&value),
            (ValueShape::Number(bounds), TomlValue::Integer(value)) => bounds.contains(*value as f64),
            (ValueShape::Number(bounds), TomlValue::Float(value)) => bounds.contains(*value),
            (ValueShape::Text { min_length, form }, TomlValue::Text(text)) => {
                text.chars().count() as u64 >= *min_length && form.fits(text)
            }
            (ValueShape::List { min, max, .. }, TomlValue::List(items)) => {
                (*min..=*max).contains(&(items.len() as u64))
            }
            (ValueShape::Words(choices), TomlValue::Text(word)) => {
                if choices.iter().any(|choice| choice.word == *word) {
                    return;
                }
                return self.unknown_word(node, word, choices, path);
            }
            _ => return self.wrong_type(node, shape, path),
        };
        if !fits {
            self.out_of_range(node, shape, path);
        }
    }

    fn missing(&mut self, key: &str, doc: &str, shape: &ValueShape, path: &KeyPath, name_at: &SourcePlace) {
        let problem = JobProblem::new(format!("missing key `{}`", path.key(key)));
        let help = format!("`{key}` is {shape}. {doc}");
        self.problems.push(problem.at_place(name_at.clone(), "needed here").help(help.trim_end().to_owned()));
    }

    fn unknown_key(&mut self, entry: &KeyEntry, names: &[&str], path: &KeyPath) {
        let problem = JobProblem::new(format!("unknown key `{}`", path.key(&entry.key)));
        let help = suggest::help_with_key(&entry.key, names);
        self.problems.push(problem.at_place(entry.key_at.clone(), "no such key").help(help));
    }

    fn unknown_word(&mut self, node: &TomlNode, word: &str, choices: &[WordChoice], path: &KeyPath) {
        let words: Vec<&str> = choices.iter().map(|choice| choice.word.as_str()).collect();
        let problem = JobProblem::new(format!("`{path}` has no choice \"{word}\""));
        let help = suggest::help_with_name(word, &words, "the choices are");
        let problem = problem.at_place(node.at.clone(), "no such choice").help(help);
        self.problems.push(problem.maybe_help(suggest::help_with_setting(node, path)));
    }

    fn wrong_type(&mut self, node: &TomlNode, shape: &ValueShape, path: &KeyPath) {
        let problem = JobProblem::new(format!("`{path}` is {}, expected {shape}", node.kind()));
        let quote = matches!(shape, ValueShape::Text { .. } | ValueShape::Words(_) | ValueShape::Either(_))
            && !matches!(node.value, TomlValue::List(_) | TomlValue::Table(_));
        let help = quote.then(|| format!("write text in quotes: \"{}\"", node.at.text()));
        let help = suggest::help_with_setting(node, path).or(help);
        self.problems.push(problem.at_place(node.at.clone(), format!("this is {}", node.kind())).maybe_help(help));
    }

    fn out_of_range(&mut self, node: &TomlNode, shape: &ValueShape, path: &KeyPath) {
        let expected = match shape {
            ValueShape::List { min, .. } if *min > 0 => {
                format!("at least {min} item{}", if *min == 1 { "" } else { "s" })
            }
            ValueShape::List { max, .. } => format!("at most {max} items"),
            ValueShape::Text { form: TextForm::Any, .. } => "text that is not empty".to_owned(),
            shape => shape.to_string(),
        };
        let problem = JobProblem::new(format!("`{path}` is out of range, expected {expected}"));
        self.problems.push(problem.at_place(node.at.clone(), "out of range"));
    }
}

fn position(entries: &[KeyEntry], key: &str) -> Option<usize> {
    entries.iter().position(|entry| entry.key == key)
}

fn implied(key: &str, text: &str, at: &SourcePlace) -> KeyEntry {
    let node = TomlNode { value: TomlValue::Text(text.to_owned()), at: at.clone() };
    KeyEntry { key: key.to_owned(), key_at: at.clone(), node }
}

fn kinds(variants: &[TaggedVariant]) -> ValueShape {
    let choice = |variant: &TaggedVariant| WordChoice { word: variant.kind.clone(), doc: variant.doc.clone() };
    ValueShape::Words(variants.iter().map(choice).collect())
}

fn is_text(node: &TomlNode, text: &str) -> bool {
    matches!(&node.value, TomlValue::Text(found) if found == text)
}

/// The keys of all tables among the shapes, which exclude each other.
fn keys_of_tables(shapes: &[ValueShape]) -> impl Iterator<Item = &str> {
    let fields =
        shapes.iter().filter_map(|shape| if let ValueShape::Table(fields) = shape { Some(fields) } else { None });
    fields.flatten().map(|field| field.name.as_str())
}

/// Whether nothing says which of several tables is meant.
fn has_only_unknown_keys(entries: &[KeyEntry], shapes: &[ValueShape]) -> bool {
    let is_several = shapes.iter().filter(|shape| matches!(shape, ValueShape::Table(_))).count() > 1;
    let is_known = |entry: &KeyEntry| keys_of_tables(shapes).any(|name| name == entry.key);
    is_several && !entries.is_empty() && !entries.iter().any(is_known)
}

/// The first shape of the value's type. For a table, the first that has one of its keys, if there is one.
fn chosen_shape<'a>(node: &TomlNode, shapes: &'a [ValueShape]) -> Option<&'a ValueShape> {
    let has_key = |shape: &&ValueShape| {
        let ValueShape::Table(fields) = shape else { return false };
        fields.iter().any(|field| node.get(&field.name).is_some())
    };
    shapes.iter().find(has_key).or_else(|| shapes.iter().find(|shape| same_type(node, shape)))
}

fn same_type(node: &TomlNode, shape: &ValueShape) -> bool {
    matches!(
        (shape, &node.value),
        (ValueShape::Boolean, TomlValue::Boolean(_))
            | (ValueShape::Text { .. } | ValueShape::Words(_), TomlValue::Text(_))
            | (ValueShape::Integer { .. } | ValueShape::Number(_), TomlValue::Integer(_))
            | (ValueShape::Number(_), TomlValue::Float(_))
            | (ValueShape::List { .. }, TomlValue::List(_))
            | (ValueShape::Table(_) | ValueShape::Named(_) | ValueShape::Tagged { .. }, TomlValue::Table(_))
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixture::{CRITEO, assert_problems, checked};

    #[test]
    fn values_have_the_kind_and_the_limits_of_their_keys() {
        let rows = r#"
            [train]; batch_size = 1         => fine
            [train]; batch_size = 1_048_576 => fine
            [train]; staleness = 0          => fine
            [train]; batch_size = 0         => …out of range
            [train]; batch_size = 1048577   => …out of range
            [train]; staleness = -1         => …out of range
            [train]; seed = 0x7fff_ffff_ffff_ffff => fine
            [train]; seed = 99999999999999999999999999999999999999999 => …out of range
            test_fraction = 0.5  => fine
            test_fraction = 1e-9 => fine
            test_fraction = 0.0  => …
            test_fraction = 1.0  => …
            test_fraction = nan  => …
            test_fraction = -inf => …
            [cluster]; timeout_seconds = 5 => fine
            [train]; epochs = 2.0 => `train.epochs` is a number, expected an integer from 1 to 10000
            [[train]]; seed = 1; [cluters] => `train` is a list, expected a table & unknown key `cluters`
            [tables.'odd name']; dims = 8  => unknown key `tables.odd name.dims`
        "#;
        assert_problems(CRITEO, rows);
        assert_eq!(checked(&format!("{CRITEO}[tables.'odd name']\ndim = 8\n")).1, [""; 0]);
    }

    #[test]
    fn a_table_without_kind_takes_the_default_one() {
        let (document, problems) = checked(&format!("{CRITEO}[embedding]\noptimizer = {{ lr = 0.5 }}\n"));
        assert_eq!(problems, [""; 0]);
        assert_eq!(document.to_json()["embedding"]["optimizer"], json!({"kind": "adagrad", "lr": 0.5}));
    }

    /// The keys depend on the kind, so an unknown kind is reported alone.
    #[test]
    fn items_and_kinds_are_checked_by_their_keys() {
        let rows = r#"
            [tables.C1]; init = { bound = 1 }     => missing key `tables.C1.init.kind`
            [model]; kind = 'dlmr'; hidden = 'x' => `model.kind` has no choice "dlmr"
            [train]; schedule = { decay = 5 }     => missing key `train.schedule.kind`
            [features]; numeric = ['I1', { column = 'I2', log = 1 }, 3, { log = true }] => `features.numeric[1].log` is an integer, expected true or false & `features.numeric[2]` is an integer, expected text or a table & missing key `features.numeric[3].column`
        "#;
        assert_problems(CRITEO, rows);
    }
}
