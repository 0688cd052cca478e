//! `[checkpoint]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run leaves behind while it trains, for `zagros train` or `zagros up` to go on from when it was interrupted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Checkpoint {
    /// Seconds between checkpoints; 0 for none by time.
    #[schemars(range(min = 0.0, max = 31_536_000.0))]
    pub(crate) every_seconds: f64,
    /// Steps between checkpoints, which makes a run of mode `sync` cut at the same steps every time; in mode `async` steps of
    /// the first worker, which has the others come. Default: none by steps.
    #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64))]
    pub(crate) every_steps: Option<u64>,
    /// Folder that checkpoints and kept states are written to, in one of the run's name: a path that every role reaches,
    /// or `s3://bucket/prefix` in an S3-compatible store. Credentials and endpoint are taken from the environment
    /// of every role: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP. A relative
    /// path starts at the current directory. Default: `checkpoints` in the run folder.
    #[schemars(length(min = 1))]
    pub(crate) folder: Option<String>,
    /// Newest checkpoints that are kept, each with all rows and the state of every optimiser. 0 makes none at all, also
    /// not when the run is interrupted.
    #[schemars(range(max = 1000))]
    pub(crate) keep: u32,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every_seconds: 600.0, every_steps: None, folder: None, keep: 2 }
    }
}
