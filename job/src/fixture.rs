//! Jobs for tests, from text.

use std::path::Path;

use zagros_zip::ZipEq;

use crate::document::TomlNode;
use crate::error::{JobProblem, SourceText};
use crate::settings::Job;
use crate::shape::{self, TableField, ValueShape};
use crate::{Overrides, check};

/// Columns `y`, `a`, `b`, `c` and `n`; features come from the caller.
pub(crate) const DELIMITED: &str =
    "[data]\nformat = 'delimited'\ntrain = 'a.csv'\ncolumns = ['y', 'a', 'b', 'c', 'n']\n[model]\nkind = 'ffnn'\n";

/// Criteo's layout, with defaults only.
pub(crate) const CRITEO: &str = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";

pub(crate) fn job(base: &str, rest: &str) -> Job {
    Job::parse(&format!("{base}{rest}"), Path::new("/jobs/ads.toml"), &Overrides::none()).unwrap()
}

pub(crate) fn problems(base: &str, rest: &str) -> Vec<String> {
    let found = Job::parse(&format!("{base}{rest}"), Path::new("/jobs/ads.toml"), &Overrides::none());
    messages(found.unwrap_err().problems())
}

/// Each row is `keys => messages`: a job with these keys has these problems, and none if the message is `fine`. `; ` stands for the end of
/// a line, ` & ` is between two messages, and one `…` in a message is any text.
pub(crate) fn assert_problems(base: &str, rows: &str) {
    assert_problems_with(base, str::to_owned, rows);
}

/// As [`assert_problems`], with what `text` makes of the keys.
pub(crate) fn assert_problems_with(base: &str, text: impl Fn(&str) -> String, rows: &str) {
    for row in rows.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (keys, expected) = row.split_once("=> ").unwrap();
        let text = format!("{base}{}\n", text(&keys.trim_end().replace("; ", "\n")));
        let made = Job::parse(&text, Path::new("/jobs/ads.toml"), &Overrides::none());
        let found = made.map_or_else(|errors| messages(errors.problems()), |_| vec!["fine".to_owned()]);
        let expected: Vec<&str> = expected.split(" & ").collect();
        let is_expected = |(found, expected): (&String, &&str)| match expected.split_once('…') {
            Some((start, rest)) => found.starts_with(start) && found.contains(rest),
            None => found == expected,
        };
        assert!(found.len() == expected.len() && found.iter().zip_eq(&expected).all(is_expected), "{row}: {found:?}");
    }
}

/// The job is the same after it was written and read again.
pub(crate) fn assert_reloads(job: &Job) {
    let again = Job::parse(&job.to_toml(), Path::new("/elsewhere/job.toml"), &Overrides::none());
    assert_eq!(again.unwrap(), *job);
}

/// A network of the user's.
pub(crate) fn module() -> String {
    format!("[model]\nkind = 'torchscript'\nfile = 'net.pt'\nsha256 = '{}'\ntrust = true\n", "ab".repeat(32))
}

/// Every key of the job file with its path, such as `job.embedding.optimizer(adagrad).lr`.
pub(crate) fn job_fields() -> Vec<(String, TableField)> {
    let mut fields = Vec::new();
    add_fields(&shape::job_shape(), "job", &mut fields);
    fields
}

fn add_fields(shape: &ValueShape, path: &str, found: &mut Vec<(String, TableField)>) {
    let mut add = |prefix: &str, fields: &[TableField]| {
        for field in fields {
            let path = format!("{prefix}.{}", field.name);
            found.push((path.clone(), field.clone()));
            add_fields(&field.shape, &path, found);
        }
    };
    match shape {
        ValueShape::Table(fields) => add(path, fields),
        ValueShape::Tagged { variants, .. } => {
            variants.iter().for_each(|variant| add(&format!("{path}({})", variant.kind), &variant.fields));
        }
        ValueShape::Named(item) | ValueShape::List { item, .. } => add_fields(item, &format!("{path}[]"), found),
        ValueShape::Either(shapes) => shapes.iter().for_each(|shape| add_fields(shape, path, found)),
        _ => {}
    }
}

/// The document, and the problems that the schema alone finds.
pub(crate) fn checked(text: &str) -> (TomlNode, Vec<String>) {
    let mut document = TomlNode::parse(&SourceText::job_file("job.toml", text)).unwrap();
    let problems = check::check_shape(&mut document, &shape::job_shape());
    (document, messages(&problems))
}

fn messages(problems: &[JobProblem]) -> Vec<String> {
    problems.iter().map(|problem| problem.message().to_owned()).collect()
}
