//! Decisions about another number of dense workers (ADR 22).

use super::*;
use crate::crd::ServerScaling;

/// New workers have no pods yet, and are not lost. A worker of four that train is lost once its pod is gone.
#[test]
fn a_worker_that_has_not_joined_is_not_lost() {
    let mut case = DecisionCase::running();
    case.rejoins = true;
    let worker = |index: i32| pod(&format!("ctr-1-worker-{index}-x7k2p"), PodRole::Worker);
    case.observed.pods = vec![worker(0), worker(1)];
    let known =
        |workers| Some(ServerScaling { servers: 3, wanted: 3, workers, workers_wanted: 4, ..Default::default() });
    case.workers = WorkerScale { wanted: 4, started: 2, known: known(2) };
    assert!(case.step().status.workers_lost.is_none());
    case.workers.known = known(4);
    assert!(case.step().status.workers_lost.is_some());
}

/// A worker that is not wanted any more is asked to end: nothing follows from how it does.
#[test]
fn a_worker_that_leaves_is_judged_by_nobody() {
    for (wanted, is_lost) in [(2, true), (1, false)] {
        let mut case = DecisionCase::running();
        case.rejoins = true;
        let known = ServerScaling { servers: 3, wanted: 3, workers: 2, workers_wanted: wanted, ..Default::default() };
        case.workers = WorkerScale { wanted, started: 2, known: Some(known) };
        let end_time = Some(Timestamp::from_second(case.now).unwrap());
        let exit = PodExit { code: 143, reason: "Error".to_owned(), message: String::new(), at: end_time };
        let left = PodState { exit: Some(exit), ..pod("ctr-1-worker-1-x7k2p", PodRole::Worker) };
        case.observed.pods = vec![pod("ctr-1-worker-0-x7k2p", PodRole::Worker), left];
        assert_eq!(case.step().status.workers_lost.is_some(), is_lost, "{wanted} are wanted");
    }
}
