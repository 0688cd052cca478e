//! Which faults come in which order: a function of the seed alone.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use zagros_launch::RoleName;

use crate::FaultKind;

/// One fault in this many hits two processes at once.
const BOTH: u32 = 6;

/// A fault that is to come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedFault {
    /// Number in the schedule, from 1.
    pub(crate) number: usize,
    pub(crate) kind: FaultKind,
    pub(crate) targets: Vec<RoleName>,
    /// Pause before it: from the moment at which every worker has recovered from the fault before.
    pub(crate) pause: Duration,
    /// How long it lasts; zero for a fault of one moment.
    pub(crate) lasts: Duration,
}

/// What the schedule may use.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleRules {
    pub(crate) seed: u64,
    /// Mean pause between two faults.
    pub(crate) every: Duration,
    pub(crate) kinds: Vec<FaultKind>,
    /// Processes that may be hit.
    pub(crate) targets: Vec<RoleName>,
    /// The longest stop of a process.
    pub(crate) longest_stop: Duration,
}

impl ScheduleRules {
    /// The first `count` faults.
    pub(crate) fn faults(&self, count: usize) -> Vec<PlannedFault> {
        let mut random = Pcg64::seed_from_u64(self.seed);
        (1..=count).map(|number| self.fault(number, &mut random)).collect()
    }

    fn fault(&self, number: usize, random: &mut Pcg64) -> PlannedFault {
        let pause = self.every.mul_f64(random.random_range(0.5..1.5));
        let kind = *self.kinds.choose(random).unwrap_or(&FaultKind::Kill);
        let how_many = if random.random_ratio(1, BOTH) { 2 } else { 1 };
        let mut targets: Vec<RoleName> = self.targets.choose_multiple(random, how_many).copied().collect();
        // The dense network lives in the workers: if all of them are lost, the run resumes from a checkpoint.
        let is_worker = |role: &&RoleName| matches!(role, RoleName::DenseWorker(_));
        let (hit, all) = (targets.iter().filter(is_worker).count(), self.targets.iter().filter(is_worker).count());
        if hit > 1 && hit == all {
            targets.truncate(1);
        }
        targets.sort_by_key(|role| role.word_and_index());
        let share = random.random_range(0.1..1.0);
        let lasts = match kind {
            FaultKind::Kill => Duration::ZERO,
            FaultKind::Stop => self.longest_stop.mul_f64(share),
        };
        PlannedFault { number, kind, targets, pause, lasts }
    }
}

impl PlannedFault {
    /// The processes that it hits, in words.
    pub(crate) fn on(&self) -> String {
        let names: Vec<String> = self.targets.iter().map(|role| role.display()).collect();
        names.join(" and ")
    }

    /// What is done, in words.
    pub(crate) fn what(&self) -> String {
        match self.kind {
            FaultKind::Kill => "kill -9".to_owned(),
            FaultKind::Stop => format!("stop for {:.1} s", self.lasts.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(seed: u64) -> ScheduleRules {
        ScheduleRules {
            seed,
            every: Duration::from_secs(2),
            kinds: FaultKind::ALL.to_vec(),
            targets: vec![RoleName::Coordinator, RoleName::EmbeddingServer(0), RoleName::EmbeddingServer(1)],
            longest_stop: Duration::from_secs(4),
        }
    }

    #[test]
    fn a_seed_repeats_the_schedule_and_another_does_not() {
        let faults = rules(7).faults(100);
        assert_eq!(faults, rules(7).faults(100));
        assert_eq!(faults[..20], rules(7).faults(20));
        assert_ne!(faults, rules(8).faults(100));
    }

    #[test]
    fn every_kind_and_every_process_has_its_turn_and_some_faults_hit_two() {
        let faults = rules(1).faults(200);
        for kind in FaultKind::ALL {
            assert!(faults.iter().filter(|fault| fault.kind == kind).count() > 30, "{kind}");
        }
        for role in rules(1).targets {
            assert!(faults.iter().filter(|fault| fault.targets.contains(&role)).count() > 30, "{role:?}");
        }
        let workers = [RoleName::DenseWorker(0), RoleName::DenseWorker(1)];
        let two = ScheduleRules { targets: workers.to_vec(), ..rules(1) }.faults(200);
        assert!(two.iter().all(|fault| fault.targets.len() == 1), "all workers are hit at once");
        let both = faults.iter().filter(|fault| fault.targets.len() == 2).count();
        assert!((10..70).contains(&both), "{both}");
        assert!(
            faults.iter().all(|fault| fault.pause >= Duration::from_secs(1) && fault.pause < Duration::from_secs(3))
        );
        assert!(faults.iter().all(|fault| (fault.kind == FaultKind::Stop) != fault.lasts.is_zero()));
    }
}
