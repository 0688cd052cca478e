//! Rolling update of the embedding servers: one after another, while the run trains.
//!
//! Kubernetes restarts the pods of a StatefulSet from the highest index down to the *partition*, and no pod below it. The operator
//! lowers the partition by one when all servers are ready and the coordinator counts each of them as alive:
//!
//! ```text
//!  servers 0 1 2, partition 3: none       2 is restarted at 2     2 is back: 1 is restarted at 1     …     0, then 3 again
//! ```
//!
//! Between two updates the partition is the number of servers. A changed template is thus applied without a restart, and
//! the next look begins with the highest index.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

/// Annotation of the servers' StatefulSet with the hash of its template as the operator made it.
pub const TEMPLATE_ANNOTATION: &str = "zagros.dev/template";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerFacts {
    pub set: Option<ServerSet>,
    pub pods: Vec<ServerPod>,
    /// How many of them the coordinator counts as alive, if it said so just now.
    pub alive: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSet {
    /// Hash of its template, by the operator.
    pub template: Option<String>,
    /// Pods of this index and above are restarted.
    pub partition: i32,
    pub is_seen: bool,
    /// Revision of the template that pods should have, and whether all have it.
    pub revision: Option<String>,
    pub is_updating: bool,
    /// Size of the disk of each server. It never changes.
    pub disk: Option<Quantity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPod {
    pub index: i32,
    pub revision: Option<String>,
    pub is_ready: bool,
}

impl ServerSet {
    #[must_use]
    pub fn from_set(set: &StatefulSet) -> Self {
        let (spec, status) = (set.spec.clone().unwrap_or_default(), set.status.clone().unwrap_or_default());
        let partition = spec.update_strategy.and_then(|strategy| strategy.rolling_update?.partition);
        let claim = spec.volume_claim_templates.unwrap_or_default().into_iter().next();
        Self {
            template: set.annotations().get(TEMPLATE_ANNOTATION).cloned(),
            partition: partition.unwrap_or(0),
            is_seen: status.observed_generation >= set.metadata.generation,
            is_updating: status.current_revision != status.update_revision,
            revision: status.update_revision,
            disk: claim.and_then(|claim| claim.spec?.resources?.requests?.remove("storage")),
        }
    }
}

impl ServerFacts {
    #[must_use]
    pub fn partition(&self, servers: i32, template: &str) -> i32 {
        let Some(set) = self.set.as_ref().filter(|set| set.template.as_deref() == Some(template)) else {
            return servers;
        };
        if !set.is_seen {
            return set.partition;
        }
        if !set.is_updating {
            return servers;
        }
        match self.next(servers, set) {
            // A pod that was restarted or is being restarted would get its old template again at a higher partition.
            Some(index) if set.partition <= index || self.may_restart(index, servers) => index,
            Some(index) => index + 1,
            None => 0,
        }
    }

    /// The highest index whose server has not the new template; below it all have the old one.
    fn next(&self, servers: i32, set: &ServerSet) -> Option<i32> {
        let is_new = |index: &i32| {
            self.pods.iter().any(|pod| pod.index == *index && pod.revision.is_some() && pod.revision == set.revision)
        };
        (0..servers).rev().find(|index| !is_new(index))
    }

    /// Whether all other servers are ready and alive. If this one is not, its restart interrupts nothing.
    fn may_restart(&self, index: i32, servers: i32) -> bool {
        let others = self.pods.iter().filter(|pod| pod.index != index && pod.is_ready).count();
        let is_up = self.pods.iter().any(|pod| pod.index == index && pod.is_ready);
        let expected = servers - 1 + i32::from(is_up);
        i32::try_from(others).unwrap_or(i32::MAX) >= servers - 1 && self.alive.is_some_and(|alive| alive >= expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three servers. Each pod is (has the new template, is ready).
    fn facts(pods: [Option<(bool, bool)>; 3], partition: i32, alive: Option<i32>) -> ServerFacts {
        let pod = |(index, pod): (usize, &Option<(bool, bool)>)| {
            let index = i32::try_from(index).unwrap();
            let revision = |is_new: bool| Some(if is_new { "new" } else { "old" }.to_owned());
            pod.map(|(is_new, is_ready)| ServerPod { index, revision: revision(is_new), is_ready })
        };
        let (template, revision) = (Some("t".to_owned()), Some("new".to_owned()));
        let set = ServerSet { template, partition, is_seen: true, revision, is_updating: true, disk: None };
        ServerFacts { set: Some(set), pods: pods.iter().enumerate().filter_map(pod).collect(), alive }
    }

    const OLD: Option<(bool, bool)> = Some((false, true));
    const NEW: Option<(bool, bool)> = Some((true, true));

    #[test]
    fn servers_are_restarted_one_after_another_from_the_highest_index() {
        for (pods, partition, alive, expected, what) in [
            ([OLD, OLD, OLD], 3, Some(3), 2, "all are back: the highest index goes first"),
            ([OLD, OLD, OLD], 3, None, 3, "the coordinator was not asked just now"),
            ([OLD, OLD, OLD], 3, Some(2), 3, "the coordinator waits for one"),
            ([OLD, Some((false, false)), OLD], 3, Some(3), 3, "one is not ready"),
            ([OLD, OLD, OLD], 2, None, 2, "asked for, and not restarted yet"),
            ([OLD, OLD, Some((false, false))], 3, Some(2), 2, "it does not work, and the new template may mend it"),
            ([OLD, OLD, None], 2, Some(3), 2, "its pod is gone for now"),
            ([OLD, OLD, Some((true, false))], 2, Some(2), 2, "it reads its log"),
            ([OLD, OLD, NEW], 2, None, 2, "it is back, and the coordinator was not asked"),
            ([OLD, OLD, NEW], 2, Some(3), 1, "the next one"),
            ([OLD, None, NEW], 1, Some(2), 1, "the next one is gone for now"),
            ([NEW, NEW, NEW], 0, Some(3), 0, "Kubernetes has not noted the end"),
        ] {
            assert_eq!(facts(pods, partition, alive).partition(3, "t"), expected, "{what}");
        }
    }

    #[test]
    fn nobody_is_restarted_by_a_template_that_kubernetes_does_not_know_yet() {
        // Another change in the middle of an update: it starts anew with the highest index.
        assert_eq!(facts([OLD, OLD, NEW], 1, Some(3)).partition(3, "another"), 3);
        assert_eq!(ServerFacts::default().partition(3, "t"), 3, "the StatefulSet does not exist");
        let mut unseen = facts([OLD, OLD, OLD], 3, Some(3));
        unseen.set.as_mut().unwrap().is_seen = false;
        assert_eq!(unseen.partition(3, "t"), 3);
        let mut updated = facts([NEW, NEW, NEW], 0, Some(3));
        updated.set.as_mut().unwrap().is_updating = false;
        assert_eq!(updated.partition(3, "t"), 3);
    }
}
