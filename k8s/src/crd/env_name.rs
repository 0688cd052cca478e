//! Sources of environment variables that the job does not name one by one.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::pattern;

/// A Secret as a source of variables.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvName {
    /// Name of a Secret of the same namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = pattern::NAME))]
    pub secret_name: String,
}
