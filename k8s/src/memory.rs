//! The operator's memory of a job between two looks. It ends with the operator; the next one then applies or asks once
//! more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::cache::JobKey;
use crate::error::Error;
use crate::judge::elapsed_time;
use crate::run_secret::RunAccess;
use crate::validate::{JobText, SpecProblem, ValidJob};

pub const ASK: Duration = Duration::from_secs(15);
/// An object is applied again after this time, because another client may have changed an object that is not watched.
const REPAIR: Duration = Duration::from_secs(300);
/// First pause after a failure. It doubles for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct OperatorMemory {
    jobs: Mutex<HashMap<JobKey, JobMemory>>,
}

#[derive(Debug, Default)]
pub struct JobMemory {
    uid: Option<String>,
    requests: HashMap<String, RememberedRequest>,
    /// The attempt whose coordinator was asked last, and when.
    asked: Option<(i32, Timestamp)>,
    config: Option<(i32, String)>,
    /// What opens the ports of the run.
    pub(crate) access: Option<RunAccess>,
    /// The last spec that was checked, and what the check found.
    pub(crate) checked: Option<(CheckedSpec, Result<ValidJob, Vec<SpecProblem>>)>,
    failures: Option<RetryPause>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedSpec {
    pub generation: Option<i64>,
    pub attempt: i32,
    pub text: JobText,
}

/// What became of a request: its object was applied and then had this generation, if its kind has any, or was refused.
#[derive(Clone, Debug)]
pub enum RememberedRequest {
    Applied { hash: u64, generation: Option<i64>, at: Timestamp },
    Refused { hash: u64, error: Error, pause: RetryPause },
}

/// The failures in a row, and until when nothing is tried.
#[derive(Clone, Copy, Debug)]
pub struct RetryPause {
    count: u32,
    until: Timestamp,
}

impl RetryPause {
    fn following(before: Option<Self>, now: Timestamp) -> Self {
        let count = before.map_or(0, |pause| pause.count.saturating_add(1));
        let pause = FIRST_PAUSE.saturating_mul(1 << count.min(16)).min(LONGEST_PAUSE);
        Self { count, until: now.checked_add(pause).unwrap_or(Timestamp::MAX) }
    }

    fn left(self, now: Timestamp) -> Option<Duration> {
        (self.until > now).then(|| elapsed_time(now, self.until))
    }
}

impl OperatorMemory {
    /// Accesses the memory of a job. Another job of the same name has another `uid`, so nothing is remembered of it.
    pub fn with_job<T>(&self, job: &JobKey, uid: Option<&str>, look: impl FnOnce(&mut JobMemory) -> T) -> T {
        let mut jobs = self.jobs();
        let memory = jobs.entry(job.clone()).or_default();
        if uid.is_some() && memory.uid.as_deref() != uid {
            *memory = JobMemory { uid: uid.map(str::to_owned), failures: memory.failures, ..JobMemory::default() };
        }
        look(memory)
    }

    pub fn forget_job(&self, job: &JobKey) {
        self.jobs().remove(job);
    }

    /// Forgets unknown jobs, once the memory holds many.
    pub fn forget_unknown(&self, known: usize, is_known: impl Fn(&JobKey) -> bool) {
        const SLACK: usize = 64;
        let mut jobs = self.jobs();
        if jobs.len() > known + SLACK {
            jobs.retain(|job, _| is_known(job));
        }
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobKey, JobMemory>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobMemory {
    /// What is known of a request with this content, while that holds.
    #[must_use]
    pub fn known_request(&self, request: &str, content: u64, now: Timestamp) -> Option<RememberedRequest> {
        let known = self.requests.get(request)?;
        let holds = match known {
            RememberedRequest::Applied { hash, at, .. } => *hash == content && elapsed_time(*at, now) < REPAIR,
            RememberedRequest::Refused { hash, pause, .. } => *hash == content && pause.left(now).is_some(),
        };
        holds.then(|| known.clone())
    }

    pub fn note_applied(&mut self, request: &str, hash: u64, generation: Option<i64>, at: Timestamp) {
        self.requests.insert(request.to_owned(), RememberedRequest::Applied { hash, generation, at });
    }

    /// Notes that objects were removed. `is_all`: of all attempts, so that what was applied is forgotten too.
    pub fn note_removed(&mut self, request: &str, is_all: bool) {
        self.requests.remove(request);
        if is_all {
            self.requests.retain(|_, request| matches!(request, RememberedRequest::Refused { .. }));
            self.config = None;
        }
    }

    /// Notes that a request was refused. It is made again after a pause, or with another content.
    pub fn note_refused(&mut self, request: &str, hash: u64, error: &Error, now: Timestamp) {
        let last_pause = self.requests.get(request).and_then(|known| match known {
            RememberedRequest::Refused { hash: last_hash, pause, .. } if *last_hash == hash => Some(*pause),
            _ => None,
        });
        let refused =
            RememberedRequest::Refused { hash, error: error.clone(), pause: RetryPause::following(last_pause, now) };
        self.requests.insert(request.to_owned(), refused);
    }

    #[must_use]
    pub fn next_retry(&self, now: Timestamp) -> Option<Duration> {
        let pauses = self.requests.values().filter_map(|request| match request {
            RememberedRequest::Refused { pause, .. } => pause.left(now),
            RememberedRequest::Applied { .. } => None,
        });
        pauses.min()
    }

    /// Whether to ask the coordinator of an attempt now. If so, notes that it was asked.
    pub fn take_turn_to_ask(&mut self, attempt: i32, now: Timestamp) -> bool {
        let is_due = self.asked.is_none_or(|(asked, at)| asked != attempt || elapsed_time(at, now) >= ASK);
        if is_due {
            self.asked = Some((attempt, now));
        }
        is_due
    }

    #[must_use]
    pub fn next_ask(&self, now: Timestamp) -> Duration {
        self.asked.map_or(ASK, |(_, at)| ASK.saturating_sub(elapsed_time(at, now))).max(FIRST_PAUSE)
    }

    #[must_use]
    pub fn known_config(&self, attempt: i32) -> Option<String> {
        self.config.as_ref().filter(|(of, _)| *of == attempt).map(|(_, text)| text.clone())
    }

    pub fn keep_config(&mut self, attempt: i32, text: &str) {
        self.config = Some((attempt, text.to_owned()));
    }

    /// What the check of a spec found, if it was the last that was checked.
    #[must_use]
    pub fn known_check(&self, spec: &CheckedSpec) -> Option<Result<ValidJob, Vec<SpecProblem>>> {
        let (known, found) = self.checked.as_ref()?;
        (known == spec && spec.generation.is_some()).then(|| found.clone())
    }

    /// The coordinator is asked at the next look, because its answer has changed.
    pub fn ask_again(&mut self) {
        self.asked = self.asked.map(|(attempt, _)| (attempt, Timestamp::UNIX_EPOCH));
    }

    /// Notes that a look failed. Returns the pause before the next.
    pub fn note_failure(&mut self, now: Timestamp) -> Duration {
        let pause = RetryPause::following(self.failures, now);
        self.failures = Some(pause);
        pause.left(now).unwrap_or(FIRST_PAUSE)
    }

    pub fn note_success(&mut self) {
        self.failures = None;
    }

    #[must_use]
    pub fn pause_left(&self, now: Timestamp) -> Option<Duration> {
        self.failures.and_then(|pause| pause.left(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::timestamp;

    #[test]
    fn an_object_is_applied_again_when_it_changes_and_after_a_while() {
        let mut memory = JobMemory::default();
        let is_known = |memory: &JobMemory, hash, now| {
            let known = memory.known_request("Service a", hash, timestamp(now));
            matches!(known, Some(RememberedRequest::Applied { generation: Some(7), .. }))
        };
        assert!(!is_known(&memory, 1, 0));
        memory.note_applied("Service a", 1, Some(7), timestamp(0));
        assert!(is_known(&memory, 1, 299) && !is_known(&memory, 2, 1) && !is_known(&memory, 1, 300));
    }

    #[test]
    fn a_refused_request_waits_longer_each_time_unless_it_changes() {
        let mut memory = JobMemory::default();
        let is_refused = |memory: &JobMemory, hash, now| {
            let known = memory.known_request("Service a", hash, timestamp(now));
            matches!(known, Some(RememberedRequest::Refused { error: Error::Unnamed, .. }))
        };
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..8 {
            memory.note_refused("Service a", 1, &Error::Unnamed, timestamp(now));
            assert!(is_refused(&memory, 1, now) && !is_refused(&memory, 2, now));
            waits.push(memory.next_retry(timestamp(now)).unwrap().as_secs());
            now += i64::try_from(waits[waits.len() - 1]).unwrap();
            assert!(!is_refused(&memory, 1, now));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        memory.note_refused("Service a", 2, &Error::Unnamed, timestamp(now));
        assert_eq!(memory.next_retry(timestamp(now)).unwrap().as_secs(), 1);
        memory.note_applied("Service a", 2, None, timestamp(now));
        assert_eq!(memory.next_retry(timestamp(now)), None);
    }

    #[test]
    fn a_coordinator_is_asked_every_fifteen_seconds_and_a_new_one_at_once() {
        let mut memory = JobMemory::default();
        assert!(memory.take_turn_to_ask(1, timestamp(0)));
        assert!(!memory.take_turn_to_ask(1, timestamp(14)));
        assert!(memory.take_turn_to_ask(1, timestamp(15)));
        assert!(memory.take_turn_to_ask(2, timestamp(16)));
        assert_eq!(memory.next_ask(timestamp(20)).as_secs(), 11);
        memory.ask_again();
        assert_eq!(memory.next_ask(timestamp(20)), FIRST_PAUSE);
        assert!(memory.take_turn_to_ask(2, timestamp(20)) && !memory.take_turn_to_ask(2, timestamp(21)));
    }

    #[test]
    fn another_job_of_the_same_name_is_not_known() {
        let memory = OperatorMemory::default();
        let job = JobKey { namespace: "ads".to_owned(), name: "ctr".to_owned() };
        memory.with_job(&job, Some("u1"), |memory| memory.keep_config(1, "text"));
        assert_eq!(memory.with_job(&job, Some("u1"), |memory| memory.known_config(1)), Some("text".to_owned()));
        assert_eq!(memory.with_job(&job, Some("u1"), |memory| memory.known_config(2)), None);
        assert_eq!(memory.with_job(&job, Some("u2"), |memory| memory.known_config(1)), None);
    }
}
