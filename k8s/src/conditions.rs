//! Conditions of a status: each type once, with the time of its last change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::crd::{ConditionStatus, HybridJobStatus, JobCondition};

/// The operator can carry out the spec.
pub const VALID: &str = "Valid";
pub const READY: &str = "Ready";
/// The operator's last work succeeded.
pub const RECONCILED: &str = "Reconciled";
/// The run has as many embedding servers as the spec says.
pub const SCALED: &str = "Scaled";
/// The job waits because of `runPolicy.suspend`.
pub const SUSPENDED: &str = "Suspended";
pub const COMPLETE: &str = "Complete";
pub const FAILED: &str = "Failed";

impl HybridJobStatus {
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&JobCondition> {
        self.conditions.iter().find(|one| one.type_ == type_)
    }

    pub fn set_condition(&mut self, mut condition: JobCondition) {
        match self.conditions.iter_mut().find(|one| one.type_ == condition.type_) {
            Some(known) => {
                if known.status == condition.status {
                    condition.last_transition_time = known.last_transition_time.clone();
                }
                *known = condition;
            }
            None => self.conditions.push(condition),
        }
    }

    /// What Kubernetes refused last, until the operator's work succeeds.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        let refused = self.condition(RECONCILED).filter(|one| one.status == ConditionStatus::False);
        refused.map(|one| one.message.as_str())
    }
}

impl JobCondition {
    #[must_use]
    pub fn new(type_: &str, holds: bool, reason: &str, message: &str, generation: Option<i64>, now: Timestamp) -> Self {
        Self {
            type_: type_.to_owned(),
            status: if holds { ConditionStatus::True } else { ConditionStatus::False },
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(now),
            observed_generation: generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change() {
        let mut status = HybridJobStatus::default();
        let mut set = |type_: &str, holds: bool, message: &str, seconds: i64| {
            let now = Timestamp::from_second(seconds).unwrap();
            status.set_condition(JobCondition::new(type_, holds, "Reason", message, Some(seconds), now));
            let known = status.condition(type_).unwrap();
            assert_eq!((known.message.as_str(), known.observed_generation), (message, Some(seconds)));
            (known.last_transition_time.0.as_second(), status.conditions.len())
        };
        assert_eq!(set(READY, false, "0 of 3", 10), (10, 1));
        assert_eq!(set(READY, false, "1 of 3", 20), (10, 1));
        assert_eq!(set(VALID, true, "", 20), (20, 2));
        assert_eq!(set(READY, true, "3 of 3", 30), (30, 2));
    }
}
