//! What would give a HybridJob its nodes: folders of their disks, and containers with all rights.
//!
//! Who may create HybridJobs need not be allowed to create pods, so the operator refuses these unless it runs with
//! `--allow-host-access` (docs/security.md).

use k8s_openapi::api::core::v1::SecurityContext;

use crate::crd::{HybridJobSpec, PodSettings};
use crate::validate::{SpecProblem, problem};

/// Adds them to the problems of the spec, and fails with all.
pub fn refuse_host_access<T>(
    spec: &HybridJobSpec,
    is_allowed: bool,
    valid: Result<T, Vec<SpecProblem>>,
) -> Result<T, Vec<SpecProblem>> {
    let mut problems = if is_allowed { Vec::new() } else { host_access(spec) };
    if problems.is_empty() {
        return valid;
    }
    problems.extend(valid.err().unwrap_or_default());
    Err(problems)
}

fn host_access(spec: &HybridJobSpec) -> Vec<SpecProblem> {
    let refused = |field: String, what: &str| {
        let message = format!(
            "{what}, which this operator refuses: do without, or ask who runs it for --allow-host-access (docs/security.md)"
        );
        problem(field, message)
    };
    let folders = spec.volumes.iter().enumerate().filter(|(_, volume)| volume.source.host_path.is_some());
    let folders = folders.map(|(index, _)| format!("spec.volumes[{index}].source.hostPath"));
    let roles = [
        ("coordinator", &spec.coordinator.pod),
        ("embeddingServers", &spec.embedding_servers.pod),
        ("denseWorkers", &spec.dense_workers.pod),
    ];
    let containers = roles.into_iter().flat_map(|(role, pod)| privileged(&format!("spec.{role}.pod"), pod));
    let folders = folders.map(|field| refused(field, "gives the pods a folder of their node"));
    folders.chain(containers.map(|field| refused(field, "gives a container all rights on its node"))).collect()
}

fn privileged(path: &str, pod: &PodSettings) -> Vec<String> {
    let own = (format!("{path}.containerSecurityContext"), pod.container_security_context.as_ref());
    let sidecars = pod.sidecars.iter().enumerate();
    let sidecars = sidecars
        .map(|(index, one)| (format!("{path}.sidecars[{index}].securityContext"), one.security_context.as_ref()));
    let all = std::iter::once(own).chain(sidecars);
    all.filter(|(_, rights)| rights.is_some_and(has_all_rights)).map(|(field, _)| field).collect()
}

/// Whether a container may do what root of its node may.
pub(crate) fn has_all_rights(rights: &SecurityContext) -> bool {
    const ALL: [&str; 4] = ["ALL", "CAP_ALL", "SYS_ADMIN", "CAP_SYS_ADMIN"];
    let added = rights.capabilities.iter().filter_map(|capabilities| capabilities.add.as_ref()).flatten();
    rights.privileged == Some(true) || added.into_iter().any(|one| ALL.contains(&one.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{hybrid_job, merge};

    fn fields(change: &Value) -> Vec<String> {
        let mut spec = serde_json::to_value(hybrid_job().spec).unwrap();
        merge(&mut spec, change);
        host_access(&serde_json::from_value(spec).unwrap()).into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn folders_of_nodes_and_privileged_containers_are_refused_by_their_field() {
        assert_eq!(fields(&json!({})), Vec::<String>::new());
        let volumes = json!([
            {"mountPath": "/data", "source": {"claimName": "criteo"}},
            {"mountPath": "/node", "source": {"hostPath": {"path": "/"}}},
        ]);
        assert_eq!(fields(&json!({ "volumes": volumes })), ["spec.volumes[1].source.hostPath"]);
        let adds = |name: &str| json!({"containerSecurityContext": {"capabilities": {"add": [name]}}});
        let sidecar = json!({"name": "s", "image": "i", "securityContext": {"privileged": true}});
        for (role, pod, field) in [
            ("coordinator", json!({"containerSecurityContext": {"privileged": true}}), "containerSecurityContext"),
            ("embeddingServers", adds("SYS_ADMIN"), "containerSecurityContext"),
            ("embeddingServers", adds("ALL"), "containerSecurityContext"),
            ("denseWorkers", json!({ "sidecars": [sidecar] }), "sidecars[0].securityContext"),
        ] {
            assert_eq!(fields(&json!({role: {"pod": pod}})), [format!("spec.{role}.pod.{field}")]);
        }
        // The capability that RDMA needs gives a container no access to the node.
        assert_eq!(fields(&json!({"denseWorkers": {"pod": adds("IPC_LOCK")}})), Vec::<String>::new());
    }

    #[test]
    fn an_allowed_one_is_valid_and_a_refused_one_has_its_other_problems_too() {
        let mut spec = hybrid_job().spec;
        spec.volumes[0].source = serde_json::from_value(json!({"hostPath": {"path": "/mnt"}})).unwrap();
        assert_eq!(refuse_host_access(&spec, true, Ok(())), Ok(()));
        assert_eq!(refuse_host_access(&spec, false, Ok(())).unwrap_err().len(), 1);
        let other = Err::<(), _>(vec![problem("spec.image", "is missing")]);
        assert_eq!(refuse_host_access(&spec, false, other).unwrap_err().len(), 2);
    }
}
