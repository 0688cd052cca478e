//! `[eval]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How held-out rows are measured.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Eval {
    /// Column, a feature or not, whose equal values make a group of samples, such as `user_id`: held-out parts are then
    /// also measured by GAUC, the mean of the groups' AUCs weighted by their samples (Zhou et al. 2018). Default: none.
    #[schemars(length(min = 1))]
    pub(crate) group_by: Option<String>,
    /// Samples that are kept by group, 16 bytes each. Of more, whole groups are skipped by a hash of the group, half of
    /// them at a time, and the report says what share was looked at.
    #[schemars(range(min = 1, max = 10_000_000_000_u64))]
    pub(crate) group_samples: usize,
}

impl Default for Eval {
    fn default() -> Self {
        Self { group_by: None, group_samples: 10_000_000 }
    }
}
