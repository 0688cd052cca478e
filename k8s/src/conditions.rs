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

#[derive(Debug)]
pub struct StatusConditions<'a> {
    status: &'a mut HybridJobStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl<'a> StatusConditions<'a> {
    pub fn new(status: &'a mut HybridJobStatus, generation: Option<i64>, now: Timestamp) -> Self {
        Self { status, generation, now }
    }

    pub fn set(&mut self, type_: &str, holds: bool, reason: &str, message: impl Into<String>) -> &mut Self {
        let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
        let conditions = &mut self.status.conditions;
        let position = conditions.iter().position(|one| one.type_ == type_);
        let unchanged = position.filter(|place| conditions[*place].status == status);
        let since = unchanged.map_or(Time(self.now), |place| conditions[place].last_transition_time.clone());
        let condition = JobCondition {
            type_: type_.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: since,
            observed_generation: self.generation,
        };
        match position {
            Some(place) => conditions[place] = condition,
            None => conditions.push(condition),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change() {
        let mut status = HybridJobStatus::default();
        let timestamp = |seconds| Timestamp::from_second(seconds).unwrap();
        StatusConditions::new(&mut status, Some(1), timestamp(10)).set(READY, false, "Starting", "0 of 3");
        StatusConditions::new(&mut status, Some(1), timestamp(20))
            .set(READY, false, "Starting", "1 of 3")
            .set(VALID, true, "Ok", "");
        assert_eq!(status.conditions[0].last_transition_time, Time(timestamp(10)));
        assert_eq!(status.conditions[0].message, "1 of 3");
        StatusConditions::new(&mut status, Some(2), timestamp(30)).set(READY, true, "Ready", "3 of 3");
        assert_eq!(status.conditions[0].last_transition_time, Time(timestamp(30)));
        assert_eq!((status.conditions.len(), status.conditions[0].observed_generation), (2, Some(2)));
    }
}
