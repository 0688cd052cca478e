//! How pods are found, who may reach them, and which evictions are allowed: the specs of the objects, as Kubernetes
//! writes them.

use serde_json::{Value, json};

use super::BuildPlan;
use crate::names::{ADMIN_PORT, MANAGER, PodRole, ROLE_LABEL, job_labels};

/// Gives each pod of a role a name. Unready pods have one too: members find each other in order to become ready.
pub(super) fn service(plan: &BuildPlan<'_>, role: PodRole) -> Value {
    let port = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP", "targetPort": name });
    json!({
        "clusterIP": "None",
        "ports": [port("data", role.data_port()), port("http", ADMIN_PORT)],
        "publishNotReadyAddresses": true,
        "selector": plan.attempt.role_labels(role),
    })
}

/// Coordinator and servers are reached at their data ports by the members of the run, and the coordinator by the
/// operator too. Pods of the cluster reach health and metrics: the rest needs the token of the run.
pub(super) fn policy(plan: &BuildPlan<'_>) -> Value {
    let roles = [PodRole::Coordinator, PodRole::Server];
    let data = roles.map(|role| tcp(role.data_port()));
    let from_members = json!({ "from": [pods(plan, &PodRole::ALL)], "ports": data });
    // Pods of the operator, in whichever namespace it runs. The label alone opens no port: each call needs a proof of the
    // run.
    let operator = json!({ "matchLabels": { "app.kubernetes.io/name": MANAGER } });
    let from_operator = json!({
        "from": [{ "namespaceSelector": {}, "podSelector": operator }],
        "ports": [tcp(PodRole::Coordinator.data_port())],
    });
    of_roles(plan, &roles, vec![from_members, from_operator])
}

/// Workers are reached by the other workers alone, whose library has no proof and chooses its ports.
pub(super) fn worker_policy(plan: &BuildPlan<'_>) -> Value {
    let roles = [PodRole::Worker];
    of_roles(plan, &roles, vec![json!({ "from": [pods(plan, &roles)] })])
}

fn of_roles(plan: &BuildPlan<'_>, roles: &[PodRole], mut ingress: Vec<Value>) -> Value {
    // Everyone reaches health and metrics.
    ingress.push(json!({ "from": [{ "namespaceSelector": {} }], "ports": [tcp(ADMIN_PORT)] }));
    json!({ "ingress": ingress, "podSelector": selects(plan, roles), "policyTypes": ["Ingress"] })
}

fn tcp(port: u16) -> Value {
    json!({ "port": port, "protocol": "TCP" })
}

fn pods(plan: &BuildPlan<'_>, roles: &[PodRole]) -> Value {
    json!({ "podSelector": selects(plan, roles) })
}

fn selects(plan: &BuildPlan<'_>, roles: &[PodRole]) -> Value {
    let names: Vec<&str> = roles.iter().map(|role| role.short_name()).collect();
    json!({
        "matchExpressions": [{ "key": ROLE_LABEL, "operator": "In", "values": names }],
        "matchLabels": job_labels(&plan.attempt.job),
    })
}

/// A pod that comes back alone may be evicted, one at a time. Where a loss restarts the whole group, none is.
fn may_move(plan: &BuildPlan<'_>, role: PodRole) -> bool {
    match role {
        PodRole::Coordinator | PodRole::Server => plan.job.is_durable(),
        PodRole::Worker => plan.replaces_workers(),
    }
}

/// Whether workers have a budget of their own. Kubernetes evicts no pod that has two budgets.
pub(super) fn has_worker_budget(plan: &BuildPlan<'_>) -> bool {
    may_move(plan, PodRole::Worker) != may_move(plan, PodRole::Server)
}

/// Of coordinator and servers, and of workers where the same holds for them: one pod of the whole run at a time. It is
/// a number, because a Job has no scale of which it could be a share.
pub(super) fn disruption_budget(plan: &BuildPlan<'_>) -> Value {
    budget(plan, if has_worker_budget(plan) { &PodRole::ALL[..2] } else { &PodRole::ALL[..] })
}

pub(super) fn budget(plan: &BuildPlan<'_>, roles: &[PodRole]) -> Value {
    let pods: i32 = roles.iter().map(|role| plan.job.replicas(*role)).sum();
    let evicted = i32::from(roles.iter().all(|role| may_move(plan, *role)));
    json!({
        "minAvailable": pods - evicted,
        "selector": selects(plan, roles),
        // Pods that are not ready do not count: the nodes of a broken run may be drained.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    })
}
