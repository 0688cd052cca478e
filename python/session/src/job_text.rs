//! The job of tables without a network: given as JSON by another language, written as the TOML that all roles read.

use std::path::Path;

use serde_json::Value;
use zagros_job::{Job, Overrides};

use crate::SessionError;

/// It is not checked beyond its form: [`parse_job`] does that. Fails for a value that TOML has not, such as null.
pub fn job_toml(json: &str) -> Result<String, SessionError> {
    let wrong = |error: &dyn std::fmt::Display| SessionError::JobText(error.to_string());
    let job: Value = serde_json::from_str(json).map_err(|error| wrong(&error))?;
    if !job.is_object() {
        return Err(wrong(&"it is no table"));
    }
    toml::to_string(&job).map_err(|error| wrong(&error))
}

/// Fails with all problems of the job.
pub fn parse_job(text: &str, name: &str) -> Result<Job, SessionError> {
    Ok(Job::parse(text, Path::new(name), &Overrides::none())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_in_json_is_the_job_in_toml() {
        let json = r#"{"data": {"format": "criteo", "train": "a"}, "tables": {"C1": {"dim": 4}},
                       "embedding": {"dim": 8}, "model": {"kind": "ffnn", "hidden": [1]}}"#;
        let job = parse_job(&job_toml(json).unwrap(), "x.toml").unwrap();
        assert_eq!((job.tables[0].dim, job.tables[1].dim), (4, 8));
    }

    #[test]
    fn what_is_no_job_is_refused_in_words() {
        for wrong in ["[1]", "{", r#"{"train": null}"#] {
            let said = job_toml(wrong).unwrap_err().to_string();
            assert!(said.starts_with("the settings are no job: "), "{said}");
        }
        let said = parse_job("[tables.C1]\ndims = 4\n", "mine").unwrap_err().to_string();
        assert!(said.contains("mine") && said.contains("`dim`"), "{said}");
    }
}
