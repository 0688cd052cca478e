//! Rights of pods and containers: those of the restricted Pod Security profile, unless the user gives others.

use k8s_openapi::api::core::v1::{Capabilities, PodSecurityContext, SeccompProfile, SecurityContext};

use crate::host_access::has_all_rights;

/// A user that is neither root nor a user of the node.
const USER: i64 = 65532;

/// Security of a pod. The user may say who the pod runs as. The rest of the profile stays.
pub(super) fn of_pod(given: Option<&PodSecurityContext>) -> PodSecurityContext {
    let ours = || PodSecurityContext {
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        ..PodSecurityContext::default()
    };
    let who = given.cloned().unwrap_or_else(ours);
    let profile = || SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None };
    PodSecurityContext {
        run_as_non_root: who.run_as_non_root.or(Some(true)),
        // The group that reads the run's secret.
        fs_group: who.fs_group.or(who.run_as_group),
        seccomp_profile: who.seccomp_profile.clone().or_else(|| Some(profile())),
        fs_group_change_policy: who.fs_group_change_policy.clone().or_else(|| Some("OnRootMismatch".to_owned())),
        ..who
    }
}

pub(super) fn of_container(given: Option<&SecurityContext>, pod: Option<&PodSecurityContext>) -> SecurityContext {
    let given = given.cloned().unwrap_or_default();
    let none = || Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None };
    let capabilities = given
        .capabilities
        .clone()
        .map_or_else(none, |one| Capabilities { drop: one.drop.or_else(|| none().drop), add: one.add });
    // Kubernetes refuses a container that has all rights and may not gain any.
    let has_all = has_all_rights(&given);
    SecurityContext {
        allow_privilege_escalation: given.allow_privilege_escalation.or(Some(has_all)),
        run_as_non_root: given.run_as_non_root.or_else(|| pod?.run_as_non_root).or(Some(true)),
        read_only_root_filesystem: given.read_only_root_filesystem.or(Some(true)),
        capabilities: Some(capabilities),
        ..given
    }
}
