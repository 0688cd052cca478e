//! Jobs for tests, from text.

use std::path::Path;

use crate::document::TomlNode;
use crate::error::{JobProblem, SourceText};
use crate::settings::Job;
use crate::{Overrides, check, shape};

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

/// The document, and the problems that the schema alone finds.
pub(crate) fn checked(text: &str) -> (TomlNode, Vec<String>) {
    let mut document = TomlNode::parse(&SourceText::job_file("job.toml", text)).unwrap();
    let problems = check::check_shape(&mut document, &shape::job_shape());
    (document, messages(&problems))
}

fn messages(problems: &[JobProblem]) -> Vec<String> {
    problems.iter().map(|problem| problem.message().to_owned()).collect()
}
