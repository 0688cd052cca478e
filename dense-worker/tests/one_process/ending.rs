//! What a run leaves behind when it ends, and what is reported of its checkpoints meanwhile.

use tokio::runtime::Handle;
use zagros_protocol::RefusalKind;

use super::watched::ShardWatch;
use super::*;

/// A shard that saves, and cannot say what it holds.
struct MuteShard;

impl ShardWatch for MuteShard {
    fn refuses_to_describe(&self) -> Option<Refusal> {
        Some(Refusal::new(RefusalKind::Internal, "as the test wants"))
    }
}

const CHECKPOINTS: [&str; 3] = ["train.mode=sync", "checkpoint.every_steps=10", "checkpoint.every_seconds=0"];

/// Invariant CK-5: the model is there, the summary is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_after_the_save_takes_no_checkpoint_away() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), &CHECKPOINTS);
    let cluster = WorkerCluster::start(&job).await;
    let inner = Arc::clone(&cluster.connect);
    let connect: Connect = Arc::new(move |entry| {
        inner(entry).map(|shard| Arc::new(WatchedShard::new(shard, MuteShard)) as Arc<dyn Shard>)
    });
    let worker = Worker { connect, ..cluster.worker(&job, Arc::new(SilentObserver)) };
    let run = worker.folder.clone().unwrap();
    let failed = tokio::time::timeout(LATE, worker.run()).await.expect("the run hangs").unwrap_err();
    assert!(failed.to_string().contains("could not describe its tables"), "{failed}");
    assert!(run.model_folder().join("manifest.json").is_file() && !run.is_complete());
    assert!(resume_run(&job, &run).await.unwrap().complete && run.is_complete());
    assert!(ResumePoint::find_newest(&job, &run).unwrap().is_none());
}

/// States that are kept for the choice of the model go last too, where no model is saved.
#[tokio::test(flavor = "multi_thread")]
async fn kept_states_are_there_until_the_summary_is() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["data.validation_share=0.2", "train.early_stop={}", "output.save_model=false"];
    let job = job(folder.path(), &[&CHECKPOINTS[..], &sets].concat());
    let cluster = WorkerCluster::start(&job).await;
    let worker = cluster.worker(&job, Arc::new(SilentObserver));
    let run = worker.folder.clone().unwrap();
    std::fs::create_dir(run.summary_file()).unwrap();
    let failed = tokio::time::timeout(LATE, worker.run()).await.expect("the run hangs").unwrap_err();
    assert_eq!(failed.exit_class(), ExitClass::Storage, "{failed}");
    let kept = std::fs::read_dir(run.checkpoints_folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let kept: Vec<String> = kept.map(|name| name.into_string().unwrap()).collect();
    assert!(kept.iter().any(|name| name.starts_with("step-")), "{kept:?}");
    std::fs::remove_dir(run.summary_file()).unwrap();
    resume_run(&job, &run).await.unwrap();
    assert!(run.is_complete() && !run.checkpoints_folder().exists());
}

/// Holds training up after a step until the coordinator knows of the checkpoint before it.
struct UntilReported {
    control: Arc<LocalCoordinator>,
    reported: AtomicU64,
}

impl UntilReported {
    fn newest(&self) -> u64 {
        let status = Handle::current().block_on(self.control.status(StatusRequest {})).unwrap();
        let steps = status.members.iter().filter_map(|member| member.progress.as_ref());
        steps.map(|progress| progress.checkpoint_step).max().unwrap_or_default()
    }
}

impl Observer for UntilReported {
    fn observe(&self, event: &WorkerEvent) {
        // The next would be cut after step 20.
        if matches!(event, WorkerEvent::Step(report) if report.step == 15) {
            tokio::task::block_in_place(|| {
                let deadline = std::time::Instant::now() + LATE / 4;
                while self.newest() == 0 && std::time::Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.reported.store(self.newest(), Ordering::Release);
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_reported_once_it_is_there_and_not_with_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), &[&CHECKPOINTS[..], &["cluster.lease_seconds=1"]].concat());
    let cluster = WorkerCluster::start(&job).await;
    let observer = Arc::new(UntilReported { control: cluster.control.clone(), reported: AtomicU64::new(0) });
    let worker = cluster.worker(&job, observer.clone());
    worker.run().await.unwrap();
    assert_eq!(observer.reported.load(Ordering::Acquire), 10);
}
