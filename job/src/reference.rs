//! The reference page of the job file, `docs/job-file.md`. It is written from the same shapes as the checks, by a test.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use crate::overrides::ENVIRONMENT_PREFIX;
use crate::shape::{self, TAG, TableField, TaggedVariant, ValueShape};

fn reference_page() -> String {
    let ValueShape::Table(sections) = shape::job_shape() else { return String::new() };
    let mut page = ReferencePage { text: introduction() };
    let (tables, keys): (Vec<&TableField>, Vec<&TableField>) =
        sections.iter().partition(|field| is_section(&field.shape));
    page.line(0, "\n## Top level\n");
    keys.iter().for_each(|field| page.field(field, 0));
    for section in tables {
        page.section(section);
    }
    page.text
}

fn introduction() -> String {
    format!(
        "# The job file\n\n\
        A job is one TOML file: which samples, which features, which model, who trains it. This page lists every key with\n\
        its range and default. It is written by the code that checks the file; do not edit it\n\
        (`UPDATE_DOCS=1 cargo test -p zagros-job reference` writes it). `examples/` holds job files to start from.\n\n\
        - An unknown key is an error, and every error of a file is reported at once, with its line.\n\
        - `zagros schema` prints these keys as a JSON schema, for editors that complete and check TOML.\n\
        - `--set train.seed=3` sets a key for one run; the value is TOML, or else taken as text. A table given as value\n  \
        (`--set 'model={{ kind = \"ffnn\" }}'`) replaces the whole table.\n\
        - The environment variable `{ENVIRONMENT_PREFIX}TRAIN__SEED=3` does the same; `--set` wins over it, both win over the file.\n\
        - Data paths in the file start at the file's folder; those given by `--set` or the environment, and the output\n  \
        folder, start at the current directory.\n\
        - The run folder holds the job as it was resolved, every default written out; it loads like any job.\n"
    )
}

struct ReferencePage {
    text: String,
}

impl ReferencePage {
    fn line(&mut self, indent: usize, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{:1$}{line}", "", indent * 2);
    }

    fn section(&mut self, section: &TableField) {
        let heading = match &section.shape {
            ValueShape::Named(_) => format!("[{}.<name>]", section.name),
            _ => format!("[{}]", section.name),
        };
        self.line(0, &format!("\n## `{heading}`\n\n{}\n", section.doc));
        self.children(&section.shape, 0);
    }

    fn field(&mut self, field: &TableField, indent: usize) {
        let default = match &field.default {
            Some(default) => format!(", default `{}`", toml(default)),
            None if field.required => ", needed".to_owned(),
            None => String::new(),
        };
        self.line(indent, &format!("- **`{}`**: {}{default}. {}", field.name, field.shape, field.doc));
        self.children(&field.shape, indent + 1);
    }

    fn children(&mut self, shape: &ValueShape, indent: usize) {
        match shape {
            ValueShape::Table(fields) => fields.iter().for_each(|field| self.field(field, indent)),
            ValueShape::Tagged { variants, .. } => {
                let shared = shared_fields(variants);
                shared.iter().for_each(|field| self.field(field, indent));
                variants.iter().for_each(|variant| self.variant(variant, &shared, indent));
            }
            ValueShape::Words(choices) => {
                choices
                    .iter()
                    .for_each(|choice| self.line(indent, &format!("- `\"{}\"`: {}", choice.word, choice.doc)));
            }
            ValueShape::List { item, .. } => self.children(item, indent),
            // A table and a list of such tables have the same keys.
            ValueShape::Either(shapes) => {
                let mut printed = Vec::new();
                for shape in shapes {
                    let mut part = Self { text: String::new() };
                    part.children(shape, indent);
                    if !printed.contains(&part.text) {
                        self.text += &part.text;
                        printed.push(part.text);
                    }
                }
            }
            // The keys of `[tables.<name>]` are those of `[embedding]`.
            _ => {}
        }
    }

    /// `shared` fields are written once for all kinds.
    fn variant(&mut self, variant: &TaggedVariant, shared: &[&TableField], indent: usize) {
        self.line(indent, &format!("- `{TAG} = \"{}\"`: {}", variant.kind, variant.doc));
        let own = variant.fields.iter().filter(|field| !shared.contains(field));
        own.for_each(|field| self.field(field, indent + 1));
    }
}

fn shared_fields(variants: &[TaggedVariant]) -> Vec<&TableField> {
    const MANY: usize = 8;
    let Some((first, others)) = variants.split_first().filter(|_| variants.len() >= MANY) else { return Vec::new() };
    let is_shared = |field: &&TableField| others.iter().all(|variant| variant.fields.contains(field));
    first.fields.iter().filter(is_shared).collect()
}

fn is_section(shape: &ValueShape) -> bool {
    matches!(shape, ValueShape::Table(_) | ValueShape::Named(_) | ValueShape::Tagged { .. })
}

/// A value as a user would write it.
fn toml(value: &Json) -> String {
    let all = |items: Vec<String>| items.join(", ");
    match value {
        Json::Array(items) => format!("[{}]", all(items.iter().map(toml).collect())),
        Json::Object(keys) => {
            format!("{{ {} }}", all(keys.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect()))
        }
        scalar => scalar.to_string(),
    }
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/job-file.md");
    let page = reference_page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/job-file.md differs from the code; write it with: UPDATE_DOCS=1 cargo test -p zagros-job reference"
    );
}
