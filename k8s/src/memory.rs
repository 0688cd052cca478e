//! The operator's memory of a job between two looks. It ends with the operator; the next one then applies or asks once
//! more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::cache::JobKey;
use crate::error::Error;
use crate::run_secret::RunAccess;
use crate::validate::{JobText, SpecProblem, ValidJob};

const ASK: Duration = Duration::from_secs(15);
/// An object is applied again after this time, because another client may have changed an object that is not watched.
const REPAIR: Duration = Duration::from_secs(300);
/// First pause after a failure. It doubles for each further one.
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct OperatorMemory {
    jobs: Mutex<HashMap<JobKey, JobMemory>>,
}

#[derive(Debug, Default)]
pub struct JobMemory {
    uid: Option<String>,
    pub(crate) requests: KnownRequests,
    /// The attempt whose coordinator was asked last, and when.
    asked: Option<(i32, Timestamp)>,
    pub(crate) access: Option<RunAccess>,
    /// Why the coordinator refused the numbers of this generation of the spec.
    pub(crate) scale_refusal: Option<(Option<i64>, String)>,
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

/// What became of requests, by their titles.
#[derive(Clone, Debug, Default)]
pub struct KnownRequests(HashMap<String, KnownRequest>);

#[derive(Clone, Debug)]
struct KnownRequest {
    hash: u64,
    answer: RequestAnswer,
}

#[derive(Clone, Debug)]
enum RequestAnswer {
    /// The object then had this generation, if its kind has any.
    Applied(Option<i64>, Timestamp),
    Refused(Error, RetryPause),
}

/// The failures in a row, and until when nothing is tried.
#[derive(Clone, Copy, Debug)]
struct RetryPause {
    count: u32,
    until: Timestamp,
}

impl RetryPause {
    fn following(previous: Option<Self>, now: Timestamp) -> Self {
        let count = previous.map_or(0, |pause| pause.count.saturating_add(1));
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

impl KnownRequests {
    fn find(&self, title: &str, hash: u64) -> Option<&RequestAnswer> {
        self.0.get(title).filter(|known| known.hash == hash).map(|known| &known.answer)
    }

    /// The generation of what was applied a short time ago, if its kind has any.
    pub fn applied_generation(&self, title: &str, hash: u64, now: Timestamp) -> Option<Option<i64>> {
        match self.find(title, hash)? {
            RequestAnswer::Applied(generation, since) => (elapsed_time(*since, now) < REPAIR).then_some(*generation),
            RequestAnswer::Refused(..) => None,
        }
    }

    /// Why a request was refused that is not to be made again yet.
    pub fn refusal(&self, title: &str, hash: u64, now: Timestamp) -> Option<Error> {
        match self.find(title, hash)? {
            RequestAnswer::Refused(error, pause) => pause.left(now).map(|_| error.clone()),
            RequestAnswer::Applied(..) => None,
        }
    }

    /// A refused request is made again after a pause, or with another content. One that failed otherwise is not remembered.
    pub fn note(&mut self, title: &str, hash: u64, answer: &Result<Option<i64>, Error>, now: Timestamp) {
        let answer = match answer {
            Ok(generation) => RequestAnswer::Applied(*generation, now),
            Err(error) if error.needs_a_person() => {
                let last_pause = match self.find(title, hash) {
                    Some(RequestAnswer::Refused(_, pause)) => Some(*pause),
                    _ => None,
                };
                RequestAnswer::Refused(error.clone(), RetryPause::following(last_pause, now))
            }
            Err(_) => return,
        };
        self.0.insert(title.to_owned(), KnownRequest { hash, answer });
    }

    pub fn next_retry(&self, now: Timestamp) -> Option<Duration> {
        let pauses = self.0.values().filter_map(|known| match &known.answer {
            RequestAnswer::Refused(_, pause) => pause.left(now),
            RequestAnswer::Applied(..) => None,
        });
        pauses.min()
    }
}

impl JobMemory {
    /// Forgets what was applied and read, because nothing of it is left.
    pub fn forget_applied(&mut self) {
        self.requests.0.retain(|_, known| matches!(known.answer, RequestAnswer::Refused(..)));
        self.checked = None;
    }

    /// Whether to ask the coordinator of an attempt now. If so, notes that it was asked.
    pub fn take_turn_to_ask(&mut self, attempt: i32, now: Timestamp) -> bool {
        let is_due = self.asked.is_none_or(|(asked, at)| asked != attempt || elapsed_time(at, now) >= ASK);
        if is_due {
            self.asked = Some((attempt, now));
        }
        is_due
    }

    pub fn next_ask(&self, now: Timestamp) -> Duration {
        self.asked.map_or(ASK, |(_, at)| ASK.saturating_sub(elapsed_time(at, now))).max(FIRST_PAUSE)
    }

    /// The job file of an attempt that has started, if it was checked before. It never changes.
    pub fn known_text(&self, attempt: i32) -> Option<JobText> {
        let (spec, _) = self.checked.as_ref()?;
        (spec.attempt == attempt && matches!(spec.text, JobText::OfAttempt(_))).then(|| spec.text.clone())
    }

    /// What the check of a spec found, if it was the last that was checked.
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

    pub fn pause_left(&self, now: Timestamp) -> Option<Duration> {
        self.failures.and_then(|pause| pause.left(now))
    }
}

pub(crate) fn elapsed_time(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::timestamp;

    #[test]
    fn an_object_is_applied_again_when_it_changes_and_after_a_while() {
        let mut requests = KnownRequests::default();
        requests.note("Service a", 1, &Ok(Some(7)), timestamp(0));
        let generation = |hash, now| requests.applied_generation("Service a", hash, timestamp(now));
        assert_eq!((generation(1, 299), generation(2, 1), generation(1, 300)), (Some(Some(7)), None, None));
    }

    #[test]
    fn a_refused_request_waits_longer_each_time_unless_it_changes() {
        let mut requests = KnownRequests::default();
        let status = kube::core::Status { code: 403, ..kube::core::Status::default() };
        let refused = Err(Error::failed_to("apply Service a")(kube::Error::Api(Box::new(status))));
        let is_refused =
            |requests: &KnownRequests, hash, now| requests.refusal("Service a", hash, timestamp(now)).is_some();
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..8 {
            requests.note("Service a", 1, &refused, timestamp(now));
            assert!(is_refused(&requests, 1, now) && !is_refused(&requests, 2, now));
            waits.push(requests.next_retry(timestamp(now)).unwrap().as_secs());
            now += i64::try_from(waits[waits.len() - 1]).unwrap();
            assert!(!is_refused(&requests, 1, now));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        requests.note("Service a", 2, &refused, timestamp(now));
        assert_eq!(requests.next_retry(timestamp(now)).unwrap().as_secs(), 1);
        // A failure that passes by itself leaves what is known.
        requests.note("Service a", 2, &Err(Error::Unnamed), timestamp(now));
        assert!(is_refused(&requests, 2, now));
        requests.note("Service a", 2, &Ok(None), timestamp(now));
        assert_eq!(requests.next_retry(timestamp(now)), None);
    }

    #[test]
    fn another_job_of_the_same_name_is_not_known() {
        let memory = OperatorMemory::default();
        let job = JobKey { namespace: "ads".to_owned(), name: "ctr".to_owned() };
        let may_ask = |uid: &str| memory.with_job(&job, Some(uid), |memory| memory.take_turn_to_ask(1, timestamp(0)));
        assert!(may_ask("u1") && !may_ask("u1") && may_ask("u2"));
    }
}
