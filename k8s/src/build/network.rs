//! How pods are found, who may reach them, and which evictions are allowed.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;

use super::BuildPlan;
use crate::names::{ADMIN_PORT, MANAGER, PodRole, ROLE_LABEL, job_labels};

/// Gives each pod of a role a name. Unready pods have one too: members find each other in order to become ready.
pub(super) fn service(plan: &BuildPlan<'_>, role: PodRole) -> Service {
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    };
    Service {
        metadata: plan.metadata(plan.attempt.service_name(role)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(plan.attempt.role_labels(role)),
            ports: Some(vec![port("data", role.data_port()), port("http", ADMIN_PORT)]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Coordinator and servers are reached at their data ports by the members of the run, and the coordinator by the
/// operator too. Pods of the cluster reach health and metrics: the rest needs the token of the run.
pub(super) fn policy(plan: &BuildPlan<'_>, metadata: ObjectMeta) -> NetworkPolicy {
    let roles = [PodRole::Coordinator, PodRole::Server];
    let data = roles.map(|role| tcp(role.data_port())).to_vec();
    let from_members = NetworkPolicyIngressRule { from: Some(vec![pods(plan, &PodRole::ALL)]), ports: Some(data) };
    let control = vec![tcp(PodRole::Coordinator.data_port())];
    let from_operator = NetworkPolicyIngressRule { from: Some(vec![operator()]), ports: Some(control) };
    of_roles(plan, metadata, &roles, vec![from_members, from_operator])
}

/// Pods of the operator, in whichever namespace it runs. The label alone opens no port: each call needs a proof of the run.
fn operator() -> NetworkPolicyPeer {
    let labels = [("app.kubernetes.io/name".to_owned(), MANAGER.to_owned())];
    let pods = LabelSelector { match_labels: Some(labels.into()), ..LabelSelector::default() };
    let anywhere = Some(LabelSelector::default());
    NetworkPolicyPeer { namespace_selector: anywhere, pod_selector: Some(pods), ip_block: None }
}

/// Workers are reached by the other workers alone, whose library has no proof and chooses its ports.
pub(super) fn worker_policy(plan: &BuildPlan<'_>, metadata: ObjectMeta) -> NetworkPolicy {
    let roles = [PodRole::Worker];
    let from_workers = NetworkPolicyIngressRule { from: Some(vec![pods(plan, &roles)]), ports: None };
    of_roles(plan, metadata, &roles, vec![from_workers])
}

fn of_roles(
    plan: &BuildPlan<'_>,
    metadata: ObjectMeta,
    roles: &[PodRole],
    mut from_members: Vec<NetworkPolicyIngressRule>,
) -> NetworkPolicy {
    let everyone =
        NetworkPolicyPeer { namespace_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() };
    let to_admin = NetworkPolicyIngressRule { from: Some(vec![everyone]), ports: Some(vec![tcp(ADMIN_PORT)]) };
    from_members.push(to_admin);
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selects(plan, roles)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(from_members),
            egress: None,
        }),
    }
}

fn tcp(port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(i32::from(port))),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    }
}

fn pods(plan: &BuildPlan<'_>, roles: &[PodRole]) -> NetworkPolicyPeer {
    NetworkPolicyPeer { pod_selector: Some(selects(plan, roles)), ..NetworkPolicyPeer::default() }
}

fn selects(plan: &BuildPlan<'_>, roles: &[PodRole]) -> LabelSelector {
    let of_roles = LabelSelectorRequirement {
        key: ROLE_LABEL.to_owned(),
        operator: "In".to_owned(),
        values: Some(roles.iter().map(|role| role.short_name().to_owned()).collect()),
    };
    LabelSelector { match_labels: Some(job_labels(&plan.attempt.job)), match_expressions: Some(vec![of_roles]) }
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
pub(super) fn disruption_budget(plan: &BuildPlan<'_>, metadata: ObjectMeta) -> PodDisruptionBudget {
    let roles = if has_worker_budget(plan) { &PodRole::ALL[..2] } else { &PodRole::ALL[..] };
    budget(plan, metadata, roles)
}

pub(super) fn budget(plan: &BuildPlan<'_>, metadata: ObjectMeta, roles: &[PodRole]) -> PodDisruptionBudget {
    let pods: i32 = roles.iter().map(|role| plan.job.replicas(*role)).sum();
    let evicted = i32::from(roles.iter().all(|role| may_move(plan, *role)));
    PodDisruptionBudget {
        metadata,
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(pods - evicted)),
            selector: Some(selects(plan, roles)),
            // Pods that are not ready do not count: the nodes of a broken run may be drained.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}
