//! Hashes of a spec. They show whether an edit restarts the run or is applied while it trains.

use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use crate::crd::{HybridJobSpec, PodSettings};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecHash {
    /// Of the fields from which an attempt is made.
    pub template: String,
    /// Of the same fields without those that are applied while an attempt runs.
    pub fixed: String,
}

impl SpecHash {
    #[must_use]
    pub fn new(spec: &HybridJobSpec) -> Self {
        let mut fixed = spec.clone();
        fixed.embedding_servers.pod = PodSettings::default();
        Self { template: template(spec), fixed: template(&fixed) }
    }

    /// The spec may have other numbers than the attempt started with: they are changed without another attempt.
    #[must_use]
    pub fn during_attempt(spec: &HybridJobSpec, servers: i32, workers: i32) -> Self {
        Self::new(&spec.clone().with_numbers(servers, workers))
    }
}

/// Hash of the fields from which an attempt is made. How the run ends, its monitoring and its bounds of workers are not part of it.
fn template(spec: &HybridJobSpec) -> String {
    let mut made_from = json!({
        "job": spec.job,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "imagePullSecrets": spec.image_pull_secrets,
        "coordinator": spec.coordinator,
        "embeddingServers": spec.embedding_servers,
        "denseWorkers": spec.dense_workers,
        "volumes": spec.volumes,
        "output": spec.output,
        "scheduling": spec.scheduling,
        "serviceAccountName": spec.service_account_name,
        "podSecurityContext": spec.pod_security_context,
    });
    // Without absent fields: a field that a later operator adds restarts no run.
    if let Some(fields) = made_from.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    format!("{:016x}", xxh3_64(made_from.to_string().as_bytes()))
}
