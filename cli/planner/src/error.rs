//! What can be wrong with described machines, and why a simulated run did not end.

use std::ops::RangeInclusive;

#[derive(Debug, thiserror::Error)]
pub enum PlannerError {
    /// The text is no TOML of the expected form.
    #[error("{what}: {reason}")]
    Form {
        what: String,
        /// What is wrong, and what may be meant.
        reason: String,
    },
    /// A value that no machine and no run has.
    #[error("{0}")]
    Value(String),
    #[error("no group of machines has {role}s: give one `{role}s = 1`")]
    NoRole { role: &'static str },
    /// The network is not one of ours.
    #[error(
        "a TorchScript module is not opened for a plan, so nothing is known of its arithmetic; plan with a built-in network of about its size"
    )]
    UnknownNetwork,
    /// There is neither a job nor a described workload.
    #[error("nothing says what is trained: name a job file, or add a [workload] table to the machines file")]
    NoWorkload,
    #[error("both a job file and a [workload] table say what is trained: remove one of them")]
    TwoWorkloads,
    /// The mode does not go on after a loss.
    #[error(
        "the loss of a process is simulated in mode hybrid, and this run is in mode {mode}: run without --failures, or simulate \
         --set train.mode=hybrid (`mode = \"hybrid\"` of [workload])"
    )]
    NoFailures { mode: &'static str },
    /// The state machines wait for something that never comes.
    #[error(
        "the simulated run stands still after {seconds:.1} s and {steps} steps: {why}; this is a defect, please report it"
    )]
    Stuck {
        seconds: f64,
        /// Steps of the first worker.
        steps: u64,
        why: String,
    },
}

impl PlannerError {
    /// A text that serde refused, with what may be meant by an unknown key: serde names the known ones.
    pub(crate) fn form(what: impl Into<String>, reason: &str) -> Self {
        Self::Form { what: what.into(), reason: suggest(reason) }
    }

    /// `place` is a table of the file, or a group of machines.
    pub(crate) fn value(place: &str, key: &str, value: impl std::fmt::Display, why: &str) -> Self {
        Self::Value(format!("{place} has {key} = {value}, which {why}"))
    }
}

/// Refuses the first of these keys whose value is out of its range, with the reason that is given for it.
pub(crate) fn check_ranges(
    place: &str,
    values: &[(&'static str, f64, RangeInclusive<f64>, &'static str)],
) -> Result<(), PlannerError> {
    match values.iter().find(|(_, value, range, _)| !range.contains(value)) {
        Some((key, value, _, why)) => Err(PlannerError::value(place, key, value, why)),
        None => Ok(()),
    }
}

/// Adds what an unknown key may mean.
fn suggest(message: &str) -> String {
    let message = message.trim_end();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let is_unknown = message.contains("unknown field") || message.contains("unknown variant");
    let near = quoted.split_first().filter(|_| is_unknown);
    match near.and_then(|(found, known)| zagros_job::nearest_name(found, known)) {
        Some(near) => format!("{message}: did you mean `{near}`?"),
        None => message.to_owned(),
    }
}
