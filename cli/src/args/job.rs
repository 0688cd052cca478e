//! The arguments of each command that takes a job.

use std::path::PathBuf;

use clap::Args;

/// A job file and changes to it.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobArgs {
    /// The job file (TOML); every key is described in docs/job-file.md.
    #[arg(value_name = "JOB")]
    pub(crate) job: PathBuf,
    /// Change a key: `--set train.seed=3` (again for more). Environment: ZAGROS__TRAIN__SEED=3.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Weights of the dense network, `590k`, `13m` or `1.3b`, in place of its widths (instead of model.size).
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
}

impl JobArgs {
    /// All changes of keys. `--size` wins over `--set`.
    pub(crate) fn sets(&self) -> Vec<String> {
        // Quoted, so that no text is a number.
        let size = self.size.iter().map(|size| format!("model.size={}", serde_json::Value::from(size.as_str())));
        self.sets.iter().cloned().chain(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        job: JobArgs,
    }

    #[test]
    fn a_size_is_one_more_setting() {
        let sets = |arguments: &[&str]| {
            let all = ["zagros", "job.toml"].iter().chain(arguments);
            Command::try_parse_from(all).unwrap().job.sets()
        };
        assert_eq!(sets(&[]), [""; 0]);
        assert_eq!(sets(&["--size", "13m", "--set", "train.seed=3"]), ["train.seed=3", "model.size=\"13m\""]);
    }
}
