//! Which faults come in which order: a function of the seed alone.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use zagros_shell::launch::RoleName;

use crate::link::LinkName;

/// One fault in this many hits two processes or links at once.
const BOTH: u32 = 6;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedFault {
    pub(crate) number: usize,
    pub(crate) kind: FaultKind,
    pub(crate) targets: Vec<FaultTarget>,
    /// Pause before it: from the moment at which every worker has recovered from the fault before.
    pub(crate) pause: Duration,
    /// How long it lasts; zero for a fault of one moment.
    pub(crate) lasts: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct ScheduleRules {
    pub(crate) seed: u64,
    pub(crate) every: Duration,
    pub(crate) kinds: Vec<FaultKind>,
    pub(crate) targets: BTreeMap<FaultKind, Vec<FaultTarget>>,
    pub(crate) longest: Duration,
}

impl ScheduleRules {
    pub(crate) fn faults(&self, count: usize) -> Vec<PlannedFault> {
        let mut random = Pcg64::seed_from_u64(self.seed);
        (1..=count).map(|number| self.fault(number, &mut random)).collect()
    }

    fn fault(&self, number: usize, random: &mut Pcg64) -> PlannedFault {
        let pause = self.every.mul_f64(random.random_range(0.5..1.5));
        let kind = *self.kinds.choose(random).unwrap_or(&FaultKind::Kill);
        let how_many = if random.random_ratio(1, BOTH) { 2 } else { 1 };
        let all = self.targets.get(&kind).map_or(&[][..], Vec::as_slice);
        let mut targets: Vec<FaultTarget> = all.choose_multiple(random, how_many).copied().collect();
        // The dense network lives in the workers: if all of them are lost, the run resumes from a checkpoint.
        let workers = |of: &[FaultTarget]| {
            of.iter().filter(|target| matches!(target.role(), Some(RoleName::DenseWorker(_)))).count()
        };
        if workers(&targets) > 1 && workers(&targets) == workers(all) {
            targets.truncate(1);
        }
        targets.sort_by_key(|target| all.iter().position(|other| other == target));
        let share = random.random_range(0.1..1.0);
        let lasts = if kind.lasts() { self.longest.mul_f64(share) } else { Duration::ZERO };
        PlannedFault { number, kind, targets, pause, lasts }
    }
}

impl PlannedFault {
    pub(crate) fn target_names(&self) -> String {
        let names: Vec<String> = self.targets.iter().map(|target| target.display()).collect();
        names.join(" and ")
    }

    pub(crate) fn what(&self) -> String {
        let what = match self.kind {
            FaultKind::Kill => "kill -9",
            FaultKind::Stop => "stop",
            FaultKind::Disk => "disk full",
            FaultKind::Slow => "slow link",
            FaultKind::Partition => "partition",
            FaultKind::Break => "break link",
            FaultKind::Late => "late requests",
            FaultKind::Scale => "scale to",
        };
        if self.kind.lasts() { format!("{what}, {:.1} s", self.lasts.as_secs_f64()) } else { what.to_owned() }
    }
}

/// What a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultTarget {
    Process(RoleName),
    Link(LinkName),
    Servers(u32),
}

impl FaultTarget {
    pub(crate) fn display(self) -> String {
        match self {
            Self::Process(role) => role.display_name(),
            Self::Link(link) => link.display(),
            Self::Servers(count) => format!("{count} embedding servers"),
        }
    }

    /// The process that may be started again because of the fault: one that is cut off from the coordinator ends itself.
    pub(crate) fn role(self) -> Option<RoleName> {
        match self {
            Self::Process(role) | Self::Link(LinkName::Coordinator(role)) => Some(role),
            Self::Link(LinkName::Server(_)) | Self::Servers(_) => None,
        }
    }

    pub(crate) fn group(self) -> String {
        match self {
            Self::Process(role) => role.word_and_index().0.to_owned(),
            Self::Link(LinkName::Server(_)) => "workers ↔ server".to_owned(),
            Self::Link(LinkName::Coordinator(role)) => format!("{} ↔ coordinator", role.word_and_index().0),
            Self::Servers(_) => "servers".to_owned(),
        }
    }
}

/// What is known of a fault that was made.
#[derive(Clone, Debug)]
pub(crate) struct FaultRecord {
    pub(crate) fault: PlannedFault,
    /// Since the first round began.
    pub(crate) at: Duration,
    /// When each process that was killed had its successor.
    pub(crate) back: Option<Duration>,
    /// When every worker had made a step that was looked up after the fault. `None` if the run ended before.
    pub(crate) next_step: Option<Duration>,
    /// Steps that were made while the coordinator was away.
    pub(crate) steps_without_coordinator: Option<u64>,
}

impl FaultRecord {
    pub(crate) fn new(fault: PlannedFault, at: Duration) -> Self {
        Self { fault, at, back: None, next_step: None, steps_without_coordinator: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum FaultKind {
    /// The process is killed: `kill -9`.
    Kill,
    /// The process stands still for a while: SIGSTOP, then SIGCONT.
    Stop,
    /// The process cannot write to files for a while.
    Disk,
    /// The link is slow for a while.
    Slow,
    /// The link passes nothing for a while, and gives neither end an error.
    Partition,
    /// All connections of the link end at once. Answers that were under way are lost, so requests are repeated.
    Break,
    /// All connections of the link end, and requests that were under way arrive later, after their repetitions.
    Late,
    /// The run gets another number of embedding servers. Buckets move while the next fault is made.
    Scale,
}

impl FaultKind {
    pub(crate) fn lasts(self) -> bool {
        !matches!(self, Self::Kill | Self::Break | Self::Scale)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(seed: u64) -> ScheduleRules {
        ScheduleRules {
            seed,
            every: Duration::from_secs(2),
            kinds: FaultKind::value_variants().to_vec(),
            targets: all([RoleName::Coordinator, RoleName::EmbeddingServer(0), RoleName::EmbeddingServer(1)]),
            longest: Duration::from_secs(4),
        }
    }

    /// The same targets for each kind.
    fn all<const N: usize>(roles: [RoleName; N]) -> BTreeMap<FaultKind, Vec<FaultTarget>> {
        let kinds = FaultKind::value_variants().iter().copied();
        kinds.map(|kind| (kind, roles.map(FaultTarget::Process).to_vec())).collect()
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
        for kind in FaultKind::value_variants().iter().copied() {
            assert!(faults.iter().filter(|fault| fault.kind == kind).count() > 10, "{kind}");
        }
        for target in &rules(1).targets[&FaultKind::Kill] {
            assert!(faults.iter().filter(|fault| fault.targets.contains(target)).count() > 30, "{target:?}");
        }
        let workers = [RoleName::DenseWorker(0), RoleName::DenseWorker(1)];
        let two = ScheduleRules { targets: all(workers), ..rules(1) }.faults(200);
        assert!(two.iter().all(|fault| fault.targets.len() == 1), "all workers are hit at once");
        let both = faults.iter().filter(|fault| fault.targets.len() == 2).count();
        assert!((10..70).contains(&both), "{both}");
        let pauses = Duration::from_secs(1)..Duration::from_secs(3);
        assert!(faults.iter().all(|fault| pauses.contains(&fault.pause)));
        assert!(faults.iter().all(|fault| fault.kind.lasts() != fault.lasts.is_zero()));
    }
}
