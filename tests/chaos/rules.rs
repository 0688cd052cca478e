//! How a job is changed so that its rows can be checked exactly, and which faults its run survives.

use std::time::Duration;

use zagros_job::{AdmissionPolicy, Initializer, Job, Optimizer, RateSchedule, TableSettings, WeightType};
use zagros_shell::Failure;
use zagros_shell::launch::{RoleName, WorkerLoss};

use crate::FaultKind;
use crate::link::LinkName;
use crate::schedule::FaultTarget;

/// Changes to any job: its tables learn so that each row is minus the sum of its gradients.
const EXACT: [&str; 11] = [
    "embedding.optimizer={ kind = \"sgd\", lr = 1.0 }",
    "embedding.init={ kind = \"zero\" }",
    "embedding.schedule={ kind = \"constant\" }",
    "embedding.admission={ kind = \"always\" }",
    "embedding.element=f32",
    "embedding.clip_value=0",
    "embedding.clip_norm=0",
    "embedding.weight_bound=0",
    "embedding.eviction={}",
    "cluster.wire=f32",
    "output.save_model=true",
];

/// The folder of the runs below the job's `output.folder`. `zagros up` never resumes them.
const FOLDER: &str = "chaos";

/// Steps between two checkpoints of a run that goes back to the newest one, unless the job says.
const CHECKPOINT_EVERY: u32 = 20;

/// The keys that `zagros-chaos` sets in a job, as `KEY=VALUE`.
pub(crate) fn job_changes(job: &Job) -> Vec<String> {
    let mut changes: Vec<String> = EXACT.iter().map(|&change| change.to_owned()).collect();
    changes.push(format!("output.folder={}", job.output.folder.join(FOLDER).display()));
    if !job.cluster.durability.has_log() {
        changes.push("cluster.durability=process".to_owned());
    }
    if WorkerLoss::from_job(job) == WorkerLoss::SetsRunBack && job.checkpoint.every_steps.is_none() {
        changes.push(format!("checkpoint.every_steps={CHECKPOINT_EVERY}"));
    }
    changes
}

/// Refuses a job whose rows cannot be checked although it was changed.
pub(crate) fn check(job: &Job) -> Result<(), Failure> {
    let refuse = |what: String, help: &str| Err(Failure::usage(what, help));
    for table in &job.tables {
        if let Some(key) = inexact(&table.settings) {
            let what =
                format!("the rows of table `{}` cannot be checked exactly: it has a `{key}` of its own", table.name);
            return refuse(what, &format!("remove `{key}` from [tables.{}] in a copy of the job file", table.name));
        }
    }
    Ok(())
}

/// A key of a table by which its rows are no exact sums.
fn inexact(table: &TableSettings) -> Option<&'static str> {
    let TableSettings { optimizer, init, schedule, admission, element, clip_value, clip_norm, weight_bound, .. } =
        table;
    let is_sgd = *optimizer == Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
    let rules = [
        (is_sgd, "optimizer"),
        (*init == Initializer::Zero, "init"),
        (*schedule == RateSchedule::Constant, "schedule"),
        (*admission == AdmissionPolicy::Always, "admission"),
        (*element == WeightType::F32, "element"),
        (*clip_value == 0.0, "clip_value"),
        (*clip_norm == 0.0, "clip_norm"),
        (*weight_bound == 0.0, "weight_bound"),
    ];
    rules.into_iter().find(|(is_exact, _)| !is_exact).map(|(_, key)| key)
}

/// What may be hit by a kind of fault, so that the run survives.
pub(crate) fn targets(job: &Job, kind: FaultKind) -> Vec<FaultTarget> {
    let servers = (0..job.cluster.servers).map(RoleName::EmbeddingServer);
    // Where the run does not outlast a lost dense worker, none is hit.
    let workers = if WorkerLoss::from_job(job) == WorkerLoss::EndsRun { 0 } else { job.cluster.workers };
    let workers = (0..workers).map(RoleName::DenseWorker);
    let inner = std::iter::once(RoleName::Coordinator).chain(servers);
    match kind {
        FaultKind::Kill | FaultKind::Stop => inner.chain(workers).map(FaultTarget::Process).collect(),
        // A worker writes files at the end and at checkpoints only.
        FaultKind::Disk => inner.map(FaultTarget::Process).collect(),
        FaultKind::Slow | FaultKind::Partition | FaultKind::Break | FaultKind::Late => {
            links(job, job.cluster.servers).into_iter().map(FaultTarget::Link).collect()
        }
        FaultKind::Scale => (job.cluster.servers..=most_servers(job)).map(FaultTarget::Servers).collect(),
    }
}

/// The most embedding servers that a run gets. It never has fewer than at first, so that the others can be killed at any time.
pub(crate) fn most_servers(job: &Job) -> u32 {
    job.cluster.servers + 2
}

pub(crate) fn links(job: &Job, servers: u32) -> Vec<LinkName> {
    let members = (0..servers).map(RoleName::EmbeddingServer);
    let members = members.chain((0..job.cluster.most_workers()).map(RoleName::DenseWorker));
    (0..servers).map(LinkName::Server).chain(members.map(LinkName::Coordinator)).collect()
}

pub(crate) fn longest_fault(job: &Job) -> Duration {
    job.cluster.lease.mul_f64(if WorkerLoss::from_job(job) == WorkerLoss::Replaced { 1.3 } else { 0.5 })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn job(more: &str, sets: &[String]) -> Job {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\nclip_norm = 2.0\n{more}");
        Job::parse(&text, Path::new("job.toml"), &Overrides::sets(sets.iter().map(String::as_str))).unwrap()
    }

    #[test]
    fn any_job_becomes_exact_and_has_logs_and_a_folder_of_its_own() {
        let plain = job("[cluster]\nworkers = 2\nservers = 2", &[]);
        assert!(check(&plain).is_err());
        let exact = job("[cluster]\nworkers = 2\nservers = 2", &job_changes(&plain));
        check(&exact).unwrap();
        assert!(exact.cluster.durability.has_log() && exact.output.folder.ends_with(FOLDER));
        assert_eq!(targets(&exact, FaultKind::Kill).len(), 5);
        assert_eq!(targets(&exact, FaultKind::Disk).len(), 3);
        assert_eq!(targets(&exact, FaultKind::Partition).len(), 2 + 4);
        assert_eq!(targets(&exact, FaultKind::Scale), [2, 3, 4].map(FaultTarget::Servers));
    }

    #[test]
    fn a_table_with_rules_of_its_own_is_named() {
        let own = "[tables.C1]\noptimizer = { kind = 'adagrad' }";
        let exact = job(own, &job_changes(&job(own, &[])));
        let refused = format!("{:?}", check(&exact).unwrap_err());
        assert!(refused.contains("table `C1`") && refused.contains("remove `optimizer`"), "{refused}");
    }

    #[test]
    fn workers_are_hit_where_the_run_outlasts_them_and_a_run_that_goes_back_has_checkpoints() {
        let job_of =
            |workers: u32, mode: &str| job(&format!("[cluster]\nworkers = {workers}\n[train]\nmode = '{mode}'"), &[]);
        let workers_hit = |job: &Job| {
            let hit = targets(job, FaultKind::Kill);
            hit.iter().filter(|target| matches!(target.role(), Some(RoleName::DenseWorker(_)))).count()
        };
        for (workers, mode, hit) in [(1, "hybrid", 0), (2, "hybrid", 2), (2, "sync", 2), (2, "async", 2)] {
            assert_eq!(workers_hit(&job_of(workers, mode)), hit, "{workers} {mode}");
        }
        let sync = job_of(2, "sync");
        assert!(longest_fault(&sync) < sync.cluster.lease, "a worker that loses its lease sets the run back");
        let has_checkpoints =
            |job: &Job| job_changes(job).iter().any(|change| change.starts_with("checkpoint.every_steps="));
        assert!(has_checkpoints(&sync) && !has_checkpoints(&job_of(2, "hybrid")));
    }
}
