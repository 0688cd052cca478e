//! What can be wrong with a described cluster, and why a simulated run did not end.

use zagros_cost::CostError;

#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The text is no TOML of the expected form.
    #[error("{what}: {reason}")]
    Form {
        what: String,
        /// What is wrong, and what may be meant.
        reason: String,
    },
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error("[{table}] has {key} = {value}, which {why}")]
    Value {
        table: &'static str,
        key: &'static str,
        /// As it is written.
        value: String,
        why: &'static str,
    },
    /// There is neither a job nor a described workload.
    #[error("nothing says what is trained: name a job file, or add a [workload] table to the machines file")]
    NoWorkload,
    #[error("both a job file and a [workload] table say what is trained: remove one of them")]
    TwoWorkloads,
    #[error("`{key}` cannot be varied{hint}")]
    UnknownAxis { key: String, hint: String },
    #[error("--what-if {text}: write a key and its values, such as staleness=0,1,4")]
    Axis { text: String },
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

impl SimError {
    /// A text that serde refused, with what may be meant by an unknown key.
    pub(crate) fn form(what: impl Into<String>, error: &toml::de::Error) -> Self {
        Self::Form { what: what.into(), reason: suggest(error.message()) }
    }

    /// The same with a suggestion, where a key is unknown.
    pub(crate) fn of_cost(error: CostError) -> Self {
        match error {
            CostError::Form { what, reason } => Self::Form { what: what.to_owned(), reason: suggest(&reason) },
            error => Self::Cost(error),
        }
    }
}

/// Adds what an unknown key may mean: serde names the known ones.
fn suggest(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((found, known)) if message.contains("unknown field") || message.contains("unknown variant") => {
            match zagros_job::nearest_name(found, known) {
                Some(near) => format!("{}: did you mean `{near}`?", message.trim_end()),
                None => message.trim_end().to_owned(),
            }
        }
        _ => message.trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_answered_with_the_nearest_known_one() {
        let shown = suggest("unknown field `stapes`, expected one of `seed`, `steps`\n");
        assert_eq!(shown, "unknown field `stapes`, expected one of `seed`, `steps`: did you mean `steps`?");
        assert_eq!(suggest("unknown field `zzz`, expected `seed`"), "unknown field `zzz`, expected `seed`");
        assert_eq!(suggest("invalid type: `a`"), "invalid type: `a`");
    }
}
