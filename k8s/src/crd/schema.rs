//! The definition as it is installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::HybridJob;

/// The custom resource definition.
#[must_use]
pub fn definition() -> CustomResourceDefinition {
    HybridJob::crd()
}

/// The definition as YAML, with a line that says where it comes from.
///
/// # Errors
/// When the definition cannot be written, which would be a bug.
pub fn definition_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let yaml = serde_saphyr::to_string(&definition())?;
    Ok(format!(
        "# Generated from k8s/src/crd: `UPDATE_DOCS=1 cargo test --release -p zagros-operator --test crd`.\n{yaml}"
    ))
}
