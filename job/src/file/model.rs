//! `[model]` as it is written: the network, and what makes its widths.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings::{Job, Model, Parametrization};

/// The dense network, and the keys that all kinds of networks have.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ModelFile {
    /// Weights of the dense network, instead of its widths: a number with k, m, b or t, like `13m`. The network's recipe gives depth and widths
    /// (docs/how-to/size.md), and the resolved job has these. `--size` sets the key. Not for a TorchScript module. Default: none, the widths
    /// count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub(crate) size: Option<String>,
    /// Whether `embedding.dim` follows `size` too: 8 below 1m, 16 below 10m, 32 below 1b, 64 below 100b, then 128.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) size_embeddings: bool,
    /// Width of the network at which learning rate and first weights are what the job says. At another width they follow µP (Yang et al. 2022), so
    /// that one learning rate is right for all widths. The width is that of the first hidden layer of the main MLP. 0 switches µP off. Default:
    /// 128 with `size`, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_048_576))]
    pub(crate) mup_base_width: Option<u32>,
    /// The network.
    #[serde(flatten)]
    pub(crate) network: Model,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ModelFile {
    /// With widths in place of a size.
    pub(crate) fn from_job(job: &Job) -> Self {
        let mup_base_width = match job.parametrization {
            Parametrization::Standard => None,
            Parametrization::Mup { base_width } => Some(base_width),
        };
        Self { size: None, size_embeddings: false, mup_base_width, network: job.model.clone() }
    }
}
