//! Every row of every epoch is trained on by someone of the run: what the coordinator has booked is compared with what
//! workers have read. The order of a file is not kept.

use std::sync::atomic::AtomicU32;

use zagros_coordinator_client::control_plane::ControlAnswer;
use zagros_protocol::control::*;

use super::rejoin::{RejoinRun, finished, job_with, unharmed};
use super::*;

/// What goes wrong with the first split that the worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitMishap {
    None,
    /// The coordinator's answer is lost on its way, and the worker asks again.
    AnswerLost,
    /// Another process speaks in the worker's name: it takes a split and says that it has read it.
    Forged,
}

/// A coordinator between which and the worker something goes wrong.
struct FaultyControl {
    control: Arc<dyn ControlPlane>,
    mishap: SplitMishap,
    asked: AtomicU32,
}

impl FaultyControl {
    async fn first_split_is_taken(&self, request: AssignRequest) {
        // A question of its own.
        let another = AssignRequest { question: 0, ..request };
        let Some(assign_response::Work::Split(split)) = self.control.assign(another).await.unwrap().work else {
            return;
        };
        if self.mishap == SplitMishap::Forged {
            let AssignRequest { member, incarnation, epoch, .. } = request;
            self.control
                .complete(CompleteRequest { member, incarnation, epoch, splits: vec![split.id], bad_rows: vec![] })
                .await
                .unwrap();
        }
    }
}

impl ControlPlane for FaultyControl {
    fn assign(&self, request: AssignRequest) -> ControlAnswer<'_, AssignResponse> {
        Box::pin(async move {
            if self.mishap != SplitMishap::None && self.asked.fetch_add(1, Ordering::AcqRel) == 0 {
                self.first_split_is_taken(request).await;
            }
            self.control.assign(request).await
        })
    }

    delegate_calls! { barrier(BarrierRequest) -> BarrierResponse }
}

async fn train_with(mishap: SplitMishap) -> Result<RunSummary, WorkerError> {
    let folder = tempfile::tempdir().unwrap();
    // Several splits of a mebibyte.
    let job = job_over(rows(100_000), folder.path(), &["train.batch_size=1000", "train.staleness=2"]);
    let cluster = WorkerCluster::start(&job).await;
    let control = Arc::new(FaultyControl { control: cluster.control.clone(), mishap, asked: AtomicU32::new(0) });
    let worker = Worker { control, ..cluster.worker(&job, Arc::new(ObserverList::default())) };
    tokio::time::timeout(LATE, worker.run()).await.expect("the run hangs")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_whose_assignment_was_lost_on_its_way_is_read_all_the_same() {
    let whole = train_with(SplitMishap::None).await.unwrap();
    let healed = train_with(SplitMishap::AnswerLost).await.unwrap();
    assert_eq!(healed.samples, whole.samples);
    assert_eq!(healed.epochs.iter().map(|epoch| epoch.samples).sum::<u64>(), whole.samples);
}

/// Each worker would wait for the split that the other holds, in the coordinator's view.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_whose_assignments_were_lost_do_not_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let run = RejoinRun::new(job_with(folder.path(), 2, &["train.epochs=1"])).await;
    let lossy = |worker: Worker| {
        let (control, mishap) = (worker.control.clone(), SplitMishap::AnswerLost);
        Worker { control: Arc::new(FaultyControl { control, mishap, asked: AtomicU32::new(0) }), ..worker }
    };
    let workers = [0, 1].map(|index| run.start_changed(index, Vec::new(), lossy));
    let (_, whole) = unharmed(job_with(tempfile::tempdir().unwrap().path(), 2, &["train.epochs=1"])).await;
    for mut worker in workers {
        assert_eq!(finished(&mut worker).await.samples, whole.samples);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_which_another_process_took_a_split_does_not_finish() {
    let error = train_with(SplitMishap::Forged).await.unwrap_err();
    assert_eq!(error.exit_class(), ExitClass::Cluster);
    let reported = "epoch 1: 1 splits were reported complete in the name of dense worker 0, which never read them";
    assert!(error.to_string().starts_with(reported), "{error}");
}

/// Two workers have read the rows of an epoch; its measures are of both.
#[tokio::test(flavor = "multi_thread")]
async fn the_measures_of_an_epoch_are_of_the_rows_of_all_workers() {
    let folder = tempfile::tempdir().unwrap();
    let run = RejoinRun::new(job_with(folder.path(), 2, &[])).await;
    let [mut first, mut second] = [0, 1].map(|index| run.start(index, Vec::new()));
    let (first, second) = (finished(&mut first).await, finished(&mut second).await);
    assert_eq!(first.epochs, second.epochs);
    assert_eq!(first.epochs.iter().map(|epoch| epoch.samples).sum::<u64>(), first.samples);
}

/// All rows with one label, then all with the other.
fn sorted_rows(count: u64) -> String {
    let text = rows(count);
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let (positive, negative): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with('1'));
    [vec![header], negative, positive].concat().join("\n") + "\n"
}

async fn auc(sets: &[&str]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let sets = [&["train.batch_size=200", "train.epochs=1", "data.test_fraction=0.1"], sets].concat();
    let (summary, _, _) = train(job_over(sorted_rows(20_000), folder.path(), &sets)).await;
    summary.unwrap().evaluation.unwrap().auc.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_sorted_by_label_trains_like_a_shuffled_one() {
    let (shuffled, windows, as_in_file) =
        (auc(&[]).await, auc(&["data.shuffle_rows=2000"]).await, auc(&["data.shuffle_rows=0"]).await);
    assert!(shuffled > 0.9 && windows > shuffled - 0.05, "AUC {shuffled}, in windows of a tenth of the file {windows}");
    assert!(as_in_file < shuffled - 0.1, "the file order is kept no more: AUC {as_in_file}");
}
