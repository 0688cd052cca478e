//! An asynchronous worker does not come to a barrier, and no replacement comes: the others name it and end (invariants
//! AS-1 and WT-1).

use std::sync::OnceLock;

use tokio::task::AbortHandle;
use zagros_collective::InProcess;
use zagros_coordinator_client::control_plane::ControlAnswer;
use zagros_protocol::control::barrier_response::State;
use zagros_protocol::control::*;

use super::rejoin::join_in_time;
use super::*;

/// What becomes of the worker when it votes for the end of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VoteFault {
    /// Its process is gone.
    Killed,
    /// Its process lives, and its vote never arrives.
    Lost,
}

/// The coordinator as the worker with the fault reaches it.
struct FaultyVotes {
    control: Arc<LocalCoordinator>,
    fault: VoteFault,
    victim: OnceLock<AbortHandle>,
}

impl ControlPlane for FaultyVotes {
    fn name(&self) -> &str {
        self.control.name()
    }

    fn barrier(&self, request: BarrierRequest) -> ControlAnswer<'_, BarrierResponse> {
        if request.vote.as_ref().is_none_or(|vote| vote.reason() != BarrierReason::EpochEnd) {
            return self.control.barrier(request);
        }
        if self.fault == VoteFault::Killed {
            self.victim.get().expect("a victim").abort();
        }
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(BarrierResponse { state: Some(State::Wait(BarrierWait::default())) })
        })
    }

    delegate_calls! {
        join(JoinRequest) -> JoinResponse,
        heartbeat(HeartbeatRequest) -> HeartbeatResponse,
        leave(LeaveRequest) -> LeaveResponse,
        placement(PlacementRequest) -> PlacementResponse,
        group(GroupRequest) -> GroupResponse,
        assign(AssignRequest) -> AssignResponse,
        position(PositionRequest) -> PositionResponse,
        transforms(TransformsRequest) -> TransformsResponse,
        complete(CompleteRequest) -> CompleteResponse,
        report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
        status(StatusRequest) -> StatusResponse,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_worker_that_is_killed_at_a_barrier_or_stays_away_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = ["cluster.timeout_seconds=2", "cluster.lease_seconds=1"];
    let job = job(folder.path(), &[&["train.mode=async", "cluster.workers=2"], &bounds[..]].concat());
    for fault in [VoteFault::Killed, VoteFault::Lost] {
        let cluster = WorkerCluster::start(&job).await;
        let faulty = Arc::new(FaultyVotes { control: cluster.control.clone(), fault, victim: OnceLock::new() });
        let rendezvous = Arc::new(InProcess::default());
        let start = |index, control: Arc<dyn ControlPlane>| {
            let worker = Worker {
                control,
                index,
                rendezvous: Some(rendezvous.clone()),
                registry: Registry::new(),
                ..cluster.worker(job.clone(), Arc::new(SilentObserver), Shutdown::new())
            };
            tokio::spawn(worker.run())
        };
        let mut first = start(0, cluster.control.clone());
        let mut second = start(1, faulty.clone());
        faulty.victim.set(second.abort_handle()).expect("set once");
        let error = join_in_time(&mut first).await.unwrap().unwrap_err();
        assert_eq!(error.exit_class(), ExitClass::Cluster, "{error}");
        let reported = error.to_string();
        match fault {
            VoteFault::Killed => {
                assert!(reported.contains("dense worker 1"), "{reported}");
                assert!(join_in_time(&mut second).await.is_err_and(|error| error.is_cancelled()));
            }
            VoteFault::Lost => {
                // The next group forms without it no more than this one did.
                assert!(reported.starts_with("dense worker 1 gone or late: "), "{reported}");
                // The run is over: the worker that stayed away ends too.
                join_in_time(&mut second).await.unwrap().unwrap_err();
            }
        }
    }
}
