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

use crate::names::PodRole;
use crate::observe::ObservedObjects;

/// The partition of the StatefulSet with this template. `alive` is how many servers the coordinator counts as alive, if it said so
/// just now.
pub(super) fn next_partition(run: &ObservedObjects, alive: Option<i32>, servers: i32, template: &str) -> i32 {
    let Some(set) = run.servers.as_ref().filter(|set| set.template.as_deref() == Some(template)) else {
        return servers;
    };
    if !set.is_seen {
        return set.partition;
    }
    if !set.is_updating {
        return servers;
    }
    let pod = |index: i32| run.pods.iter().find(|pod| pod.role == PodRole::Server && pod.index() == Some(index));
    let is_ready = |index: i32| pod(index).is_some_and(|pod| pod.is_ready);
    let is_old = |index: i32| pod(index).is_none_or(|pod| pod.revision.is_none() || pod.revision != set.revision);
    // Below the highest index whose server has not the new template, all have the old one.
    let Some(index) = (0..servers).rev().find(|index| is_old(*index)) else { return 0 };
    // If this server is not ready, its restart interrupts nothing.
    let expected = servers - 1 + i32::from(is_ready(index));
    let others_are_ready = (0..servers).all(|other| other == index || is_ready(other));
    let may_restart = others_are_ready && alive.is_some_and(|alive| alive >= expected);
    // A pod that was restarted or is being restarted would get its old template again at a higher partition.
    if set.partition <= index || may_restart { index } else { index + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::observe::ServerSet;

    /// Three servers. Each pod is (has the new template, is ready).
    fn run(pods: [Option<(bool, bool)>; 3], partition: i32) -> ObservedObjects {
        let pod = |(index, pod): (usize, &Option<(bool, bool)>)| {
            let (is_new, is_ready) = (*pod)?;
            let mut pod = fixture::pod(&format!("ctr-1-server-{index}"), PodRole::Server);
            (pod.revision, pod.is_ready) = (Some(if is_new { "new" } else { "old" }.to_owned()), is_ready);
            Some(pod)
        };
        let (template, revision) = (Some("t".to_owned()), Some("new".to_owned()));
        let set = ServerSet { template, partition, is_seen: true, revision, is_updating: true, disk: None };
        let pods = pods.iter().enumerate().filter_map(pod).collect();
        ObservedObjects { servers: Some(set), pods, ..ObservedObjects::default() }
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
            assert_eq!(next_partition(&run(pods, partition), alive, 3, "t"), expected, "{what}");
        }
    }

    #[test]
    fn nobody_is_restarted_by_a_template_that_kubernetes_does_not_know_yet() {
        // Another change in the middle of an update: it starts anew with the highest index.
        assert_eq!(next_partition(&run([OLD, OLD, NEW], 1), Some(3), 3, "another"), 3);
        assert_eq!(next_partition(&ObservedObjects::default(), None, 3, "t"), 3, "the StatefulSet does not exist");
        let mut unseen = run([OLD, OLD, OLD], 3);
        unseen.servers.as_mut().unwrap().is_seen = false;
        assert_eq!(next_partition(&unseen, Some(3), 3, "t"), 3);
        let mut updated = run([NEW, NEW, NEW], 0);
        updated.servers.as_mut().unwrap().is_updating = false;
        assert_eq!(next_partition(&updated, Some(3), 3, "t"), 3);
    }
}
