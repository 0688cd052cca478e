//! Judges an attempt: whether it has ended, how, and which pod is the cause.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use zagros_plumbing::exit_codes;

use crate::crd::{AttemptFailure, ExitCodes};
use crate::memory::elapsed_time;
use crate::names::PodRole;
use crate::observe::{JobEnd, JobState, ObservedObjects, PodState};

/// How long other exit codes are waited for after the first Job failed: the first failure that is seen is rarely the cause.
const GRACE: Duration = Duration::from_secs(15);

/// Reasons of an indexed Job in which one index failed as often as it may.
const GIVEN_UP: [&str; 2] = ["MaxFailedIndexesExceeded", "FailedIndexes"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptVerdict {
    Going,
    /// It ends. The cause is known after this time.
    Settling(Duration),
    Succeeded,
    Exhausted {
        cause: AttemptFailure,
    },
    Failed {
        cause: AttemptFailure,
        retryable: bool,
    },
}

/// Looks at the Jobs and at the ends of containers.
pub(super) fn judge_attempt(
    attempt: i32,
    observed: &ObservedObjects,
    codes: &ExitCodes,
    now: Timestamp,
) -> AttemptVerdict {
    let ends = [&observed.coordinator, &observed.workers].map(|job| job.as_ref().and_then(|job| job.end.as_ref()));
    if ends.iter().all(|end| matches!(end, Some(JobEnd::Complete { .. }))) || is_finished_without_some(observed) {
        return AttemptVerdict::Succeeded;
    }
    if let Some(cause) = exhausted(attempt, observed, codes) {
        return AttemptVerdict::Exhausted { cause };
    }
    // Waiting does not mend a wrong job file or missing data.
    let hopeless = culprit(observed, codes).filter(|pod| !is_retryable(pod, codes));
    let failures = ends.iter().flatten().filter_map(|end| match end {
        JobEnd::Failed { at, message, .. } => Some((*at, message.as_str())),
        // A restarted worker cannot join without a coordinator.
        JobEnd::Complete { at } => observed.lost_worker(None).map(|_| (*at, "the run ended without a worker")),
    });
    let Some((since, message)) = failures.min_by_key(|(at, _)| *at) else {
        return hopeless.map_or(AttemptVerdict::Going, |pod| failed(attempt, pod, codes));
    };
    let left = GRACE.saturating_sub(elapsed_time(since, now));
    let is_over = [&observed.coordinator, &observed.workers].into_iter().all(|job| !is_running(job));
    if hopeless.is_none() && !is_over && !left.is_zero() {
        return AttemptVerdict::Settling(left);
    }
    match culprit(observed, codes) {
        Some(pod) => failed(attempt, pod, codes),
        None => AttemptVerdict::Failed { cause: lost(attempt, observed, message), retryable: true },
    }
}

/// Coordinator and worker 0, which reports and saves, have ended well: the run continued without another worker
/// (`cluster.min_workers`), or lost it after the last step.
fn is_finished_without_some(observed: &ObservedObjects) -> bool {
    let is_led = matches!(observed.coordinator, Some(JobState { end: Some(JobEnd::Complete { .. }), .. }));
    let Some(workers) = observed.workers.as_ref().filter(|workers| is_led && workers.first_is_done) else {
        return false;
    };
    matches!(workers.end, Some(JobEnd::Failed { .. })) || observed.lost_worker(None).is_some()
}

fn exhausted(attempt: i32, observed: &ObservedObjects, codes: &ExitCodes) -> Option<AttemptFailure> {
    let end = observed.workers.as_ref()?.end.as_ref();
    let is_given_up = matches!(end, Some(JobEnd::Failed { reason, .. }) if GIVEN_UP.contains(&reason.as_str()));
    let pod = culprit(observed, codes).filter(|pod| is_given_up && pod.role == PodRole::Worker)?;
    let is_own_doing = is_retryable(pod, codes) && echo(pod) == 0;
    is_own_doing.then(|| blame(attempt, pod))
}

/// Whether pods of a Job may still report how they ended.
fn is_running(job: &Option<JobState>) -> bool {
    job.as_ref().is_some_and(|job| job.end.is_none() || job.is_ending)
}

/// First a code that no retry can mend, then a death of its own, then "another process was gone". Of several such pods,
/// the first to end.
fn culprit<'a>(observed: &'a ObservedObjects, codes: &ExitCodes) -> Option<&'a PodState> {
    let rank = |pod: &PodState| {
        let end_time = pod.exit.as_ref().and_then(|exit| exit.at);
        (is_retryable(pod, codes), echo(pod), end_time.unwrap_or(Timestamp::MAX))
    };
    let ended = observed.pods.iter().filter(|pod| pod.exit.is_some() && !pod.has_recovered());
    ended.min_by_key(|pod| rank(pod))
}

/// How likely the end of another pod caused this one.
fn echo(pod: &PodState) -> u8 {
    match pod.exit.as_ref().map(|exit| exit.code) {
        Some(130 | 143) => 2,
        Some(4) => 1,
        _ => 0,
    }
}

fn is_retryable(pod: &PodState, codes: &ExitCodes) -> bool {
    pod.exit.as_ref().is_none_or(|exit| codes.retryable.contains(&exit.code))
}

fn failed(attempt: i32, pod: &PodState, codes: &ExitCodes) -> AttemptVerdict {
    AttemptVerdict::Failed { cause: blame(attempt, pod), retryable: is_retryable(pod, codes) }
}

fn blame(attempt: i32, pod: &PodState) -> AttemptFailure {
    let exit_code = pod.exit.as_ref().map(|exit| exit.code);
    AttemptFailure { attempt, pod: Some(pod.name.clone()), exit_code, at: None, message: end_of(pod) }
}

/// How a pod ended: `ctr-1-worker-0 ended with 137 (killed): …`.
pub(super) fn end_of(pod: &PodState) -> String {
    let Some(exit) = &pod.exit else { return format!("{} ended", pod.name) };
    let detail = if exit.message.is_empty() { String::new() } else { format!(": {}", exit.message) };
    format!("{} ended with {} ({}){detail}", pod.name, exit.code, exit_words(exit.code, &exit.reason))
}

/// No container reported anything: the pod was deleted, or its node is gone.
fn lost(attempt: i32, observed: &ObservedObjects, message: &str) -> AttemptFailure {
    let gone = observed.pods.iter().find_map(|pod| pod.departure.as_ref().map(|node| (pod, node)));
    let (pod, message) = match gone {
        Some((pod, node)) => (Some(pod.name.clone()), format!("{} was lost with {node} or deleted", pod.name)),
        None => (None, format!("a pod was deleted or its node was lost ({message})")),
    };
    AttemptFailure { attempt, pod, exit_code: None, at: None, message }
}

fn exit_words(code: i32, reason: &str) -> &'static str {
    match code {
        137 if reason == "OOMKilled" => "it used more memory than its limit",
        126..=128 => "the container could not run zagros",
        code => exit_codes::code_meaning(code).unwrap_or("unknown code"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, timestamp};
    use crate::observe::PodExit;

    fn pod(name: &str, role: PodRole, code: i32, seconds: i64) -> PodState {
        let (reason, message) = ("Error".to_owned(), "why".to_owned());
        let exit = (code != 0).then(|| PodExit { code, reason, message, at: Some(timestamp(seconds)) });
        PodState { exit, ..fixture::pod(name, role) }
    }

    fn job(end: Option<JobEnd>) -> Option<JobState> {
        Some(JobState { end, ..JobState::default() })
    }

    fn complete(seconds: i64) -> Option<JobEnd> {
        Some(JobEnd::Complete { at: timestamp(seconds) })
    }

    fn broken(seconds: i64) -> Option<JobEnd> {
        ended("BackoffLimitExceeded", seconds)
    }

    fn ended(reason: &str, seconds: i64) -> Option<JobEnd> {
        Some(JobEnd::Failed { at: timestamp(seconds), reason: reason.to_owned(), message: reason.to_owned() })
    }

    fn objects(coordinator: Option<JobState>, workers: Option<JobState>, pods: Vec<PodState>) -> ObservedObjects {
        ObservedObjects { coordinator, workers, pods, ..ObservedObjects::default() }
    }

    fn verdict(observed: &ObservedObjects, now: i64) -> AttemptVerdict {
        judge_attempt(1, observed, &ExitCodes::default(), timestamp(now))
    }

    fn blamed(verdict: AttemptVerdict) -> (String, bool) {
        let AttemptVerdict::Failed { cause, retryable } = verdict else { panic!("{verdict:?}") };
        (cause.message, retryable)
    }

    #[test]
    fn a_run_is_complete_when_coordinator_and_workers_are() {
        let mut seen =
            ObservedObjects { coordinator: job(complete(0)), workers: job(None), ..ObservedObjects::default() };
        assert_eq!(verdict(&seen, 0), AttemptVerdict::Going);
        seen.workers = job(complete(0));
        assert_eq!(verdict(&seen, 0), AttemptVerdict::Succeeded);
        assert_eq!(verdict(&ObservedObjects::default(), 0), AttemptVerdict::Going);
    }

    /// The pod that stopped for a reason of its own is the cause, and not those that only say that another has failed.
    #[test]
    fn the_cause_is_named_and_not_its_consequence() {
        let coordinator = |seconds| pod("c", PodRole::Coordinator, 4, seconds);
        let mut killed = pod("s2", PodRole::Server, 137, 9);
        killed.exit.as_mut().unwrap().reason = "OOMKilled".to_owned();
        let data = [pod("w1", PodRole::Worker, 4, 11), pod("w0", PodRole::Worker, 3, 12)];
        let of_memory = "s2 ended with 137 (it used more memory than its limit): why";
        for (pods, cause, may_restart) in [
            ([&[coordinator(10)][..], &data].concat(), "w0 ended with 3 (data is missing or malformed): why", false),
            (vec![coordinator(8), killed, pod("w0", PodRole::Worker, 143, 7)], of_memory, true),
        ] {
            let seen = objects(job(broken(10)), job(broken(12)), pods);
            assert_eq!(blamed(verdict(&seen, 13)), (cause.to_owned(), may_restart));
        }
    }

    #[test]
    fn exit_codes_of_others_are_awaited_for_a_short_time() {
        let pods = vec![pod("c", PodRole::Coordinator, 4, 10)];
        let seen = objects(job(broken(10)), job(None), pods);
        assert_eq!(verdict(&seen, 12), AttemptVerdict::Settling(Duration::from_secs(13)));
        assert!(blamed(verdict(&seen, 25)).0.starts_with("c ended with 4"));
    }

    /// The kubelet restarts a server that cannot read its job for ever, so no Job ever fails.
    #[test]
    fn a_permanent_exit_code_of_a_server_ends_the_attempt_at_once() {
        let seen = objects(job(None), None, vec![pod("s0", PodRole::Server, 2, 5)]);
        assert!(!blamed(verdict(&seen, 6)).1);
        let seen = objects(job(None), None, vec![pod("s0", PodRole::Server, 4, 5)]);
        assert_eq!(verdict(&seen, 6), AttemptVerdict::Going);
    }

    #[test]
    fn a_pod_without_a_code_was_lost_with_its_node() {
        let mut gone = pod("w0", PodRole::Worker, 0, 0);
        gone.departure = Some("n7".to_owned());
        let mut seen = ObservedObjects { workers: job(broken(10)), pods: vec![gone], ..ObservedObjects::default() };
        assert_eq!(blamed(verdict(&seen, 40)), ("w0 was lost with n7 or deleted".to_owned(), true));
        seen.pods.clear();
        assert!(blamed(verdict(&seen, 40)).0.contains("BackoffLimitExceeded"));
    }

    /// Kubernetes restarts the worker, and the others wait: nothing has failed yet.
    #[test]
    fn a_worker_that_is_replaced_fails_nothing() {
        let pods = vec![pod("w0", PodRole::Worker, 137, 5)];
        let mut seen = objects(job(None), job(None), pods);
        assert_eq!(verdict(&seen, 1000), AttemptVerdict::Going);
        // The run ended without the worker, so its replacement cannot join.
        seen.coordinator = job(complete(1000));
        assert_eq!(verdict(&seen, 1005), AttemptVerdict::Settling(Duration::from_secs(10)));
        assert_eq!(blamed(verdict(&seen, 1015)), ("w0 ended with 137 (killed): why".to_owned(), true));
    }

    /// The model is saved. Another attempt would start from nothing.
    #[test]
    fn a_run_that_ended_well_without_a_worker_is_done() {
        let pods = vec![pod("w1", PodRole::Worker, 137, 995)];
        let workers = Some(JobState { first_is_done: true, failed: 1, ..JobState::default() });
        let mut seen = objects(job(complete(1000)), workers, pods);
        assert_eq!(verdict(&seen, 1001), AttemptVerdict::Succeeded);
        seen.workers.as_mut().unwrap().end = ended("FailedIndexes", 1002);
        assert_eq!(verdict(&seen, 1003), AttemptVerdict::Succeeded);
        seen.coordinator = job(None);
        assert_ne!(verdict(&seen, 1003), AttemptVerdict::Succeeded);
    }

    #[test]
    fn a_worker_that_was_replaced_before_is_not_named_as_the_cause() {
        let pods = vec![pod("w0", PodRole::Worker, 137, 5), pod("w0b", PodRole::Worker, 4, 101)];
        let coordinator = pod("c", PodRole::Coordinator, 1, 100);
        let pods = [pods, vec![coordinator]].concat();
        let seen = objects(job(broken(100)), job(None), pods);
        assert!(blamed(verdict(&seen, 200)).0.starts_with("w0 ended with 137"));
        assert!(
            blamed(verdict(&seen.clone().without_replaced(Some(timestamp(60))), 200)).0.starts_with("c ended with 1 ")
        );
    }

    #[test]
    fn a_worker_that_fails_again_and_again_is_given_up() {
        let pods = vec![pod("w0", PodRole::Worker, 139, 50), pod("w1", PodRole::Worker, 143, 52)];
        let workers = job(ended("MaxFailedIndexesExceeded", 51));
        let mut seen = objects(job(None), workers, pods);
        let AttemptVerdict::Exhausted { cause } = verdict(&seen, 52) else { panic!("given up") };
        assert_eq!((cause.pod.as_deref(), cause.exit_code), (Some("w0"), Some(139)));
        // The worker found no coordinator, because that had died: the worker is not the cause.
        seen.pods = vec![pod("c", PodRole::Coordinator, 137, 49), pod("w0", PodRole::Worker, 4, 50)];
        seen.coordinator = job(broken(49));
        assert!(blamed(verdict(&seen, 70)).0.starts_with("c ended with 137"));
    }
}
