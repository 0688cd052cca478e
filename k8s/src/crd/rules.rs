//! Rules of the definition: how Kubernetes writes names and amounts, and which edits are admitted while a run is under way.
//!
//! The template of existing pods cannot change: Kubernetes keeps a Job's template for good. An edit of such a field is
//! refused while the run is under way, and admitted before its first attempt, while it is suspended, and while it is
//! invalid. Embedding servers with a log are restarted one by one with another template; without a log they would lose
//! their rows. All other edits are applied at once, without a restart: also other numbers of servers, and of workers
//! within `elasticity`.

use kube::core::Rule;

/// Name of most objects: Secrets, claims, classes.
pub(super) const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
pub(super) const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
pub(super) const IMAGE: &str = r"^\S+$";
pub(super) const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// Key of a label, an annotation or a node's label, with or without a prefix.
pub(super) const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// Name of a variable, as every version of Kubernetes since 1.29 takes it.
pub(super) const VARIABLE: &str = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$";
/// An amount that is not negative: `2`, `500m`, `64Gi`, `1e3`.
pub(super) const AMOUNT: &str = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$";

/// Nothing of the run exists, or nothing of it is kept.
const EDITABLE: &str = "oldSelf.spec.runPolicy.suspend || !has(oldSelf.status) || !has(oldSelf.status.phase) || \
                        oldSelf.status.phase == 'Invalid'";

pub(super) fn fixed(field: &str, why: &str) -> Rule {
    rule(field, &format!("self.spec.{field} == oldSelf.spec.{field}"), why)
}

pub(super) fn fixed_option(field: &str, why: &str) -> Rule {
    let (new, old) = (format!("self.spec.{field}"), format!("oldSelf.spec.{field}"));
    rule(field, &format!("has({new}) ? has({old}) && {new} == {old} : !has({old})"), why)
}

/// A required field of the spec stays as it is, unless embedding servers come back with their rows.
pub(super) fn fixed_without_log(field: &str, why: &str) -> Rule {
    let has_log = "has(oldSelf.status) && has(oldSelf.status.recovery) && oldSelf.status.recovery == 'Log'";
    rule(field, &format!("({has_log}) || self.spec.{field} == oldSelf.spec.{field}"), why)
}

/// The number of workers stays as it is, unless the job is elastic.
pub(super) fn fixed_workers() -> Rule {
    let field = "denseWorkers.replicas";
    let holds = format!("has(self.spec.elasticity) || self.spec.{field} == oldSelf.spec.{field}");
    rule(field, &holds, "it changes only with elasticity, which says how many workers the run may have")
}

/// The lower bound of elasticity stays as it is, because the attempt's job file contains it.
pub(super) fn fixed_least_workers() -> Rule {
    let holds = "has(self.spec.elasticity) ? has(oldSelf.spec.elasticity) && \
                 self.spec.elasticity.minWorkers == oldSelf.spec.elasticity.minWorkers : !has(oldSelf.spec.elasticity)";
    rule("elasticity", holds, "the job file of the attempt holds minWorkers (maxWorkers may change)")
}

fn rule(field: &str, holds: &str, why: &str) -> Rule {
    let message =
        format!("spec.{field} is fixed while the run is not suspended: {why}; set runPolicy.suspend to true first");
    Rule::new(format!("{EDITABLE} || ({holds})")).message(message.as_str()).field_path(format!(".spec.{field}"))
}
