//! Several dense workers in one process: what they train together is what one trains alone.

use futures::future::join_all;
use zagros_collective::Rendezvous;
use zagros_fakes::InProcess;
use zagros_plumbing::Deadline;
use zagros_protocol::control::ServerEntry;
use zagros_protocol::datapath::{Access, Encoding, LookupRequest};
use zagros_protocol::packed::{decode_values, encode_ids};
use zagros_protocol::{Segment, Segments, TableId};
use zagros_zip::number_from;

use super::*;

pub(super) struct WorkerPart {
    input: WorkerInput,
    shutdown: Shutdown,
    observer: Arc<dyn Observer>,
}

impl WorkerPart {
    pub(super) fn of_files() -> Self {
        Self { input: WorkerInput::Files, shutdown: Shutdown::new(), observer: Arc::new(ObserverList::default()) }
    }

    pub(super) fn of_batches(batches: Vec<Batch>) -> Self {
        Self { input: WorkerInput::Preloaded(Arc::new(batches)), ..Self::of_files() }
    }
}

/// So many workers of the job's files.
pub(super) fn all_of_files(workers: u32) -> Vec<WorkerPart> {
    (0..workers).map(|_| WorkerPart::of_files()).collect()
}

/// Trains in a fresh cluster, a worker per part: how each ended, the first one's steps, and its run folder.
pub(super) async fn train_parts(
    job: Job,
    parts: Vec<WorkerPart>,
) -> (Vec<Result<RunSummary, WorkerError>>, Arc<RecordedEvents>, RunFolder) {
    train_parts_on(&WorkerCluster::start(&job).await, job, parts).await
}

/// As [`train_parts`], in a cluster that is there still afterwards.
async fn train_parts_on(
    cluster: &WorkerCluster,
    job: Job,
    parts: Vec<WorkerPart>,
) -> (Vec<Result<RunSummary, WorkerError>>, Arc<RecordedEvents>, RunFolder) {
    assert_eq!(job.cluster.workers as usize, parts.len());
    let rendezvous = Arc::new(InProcess::default());
    let recording = Arc::new(RecordedEvents::default());
    let run = RunFolder::create(&job, &[]).unwrap();
    let workers = number_from(0, parts).map(|(index, part)| {
        let mut observers = vec![part.observer];
        if index == 0 {
            observers.push(recording.clone());
        }
        let worker = Worker {
            rendezvous: Some(rendezvous.clone()),
            observer: Arc::new(ObserverList(observers)),
            shutdown: part.shutdown,
            ..cluster.worker_in(&run, &job, index)
        };
        worker.run_on(part.input)
    });
    let ended = tokio::time::timeout(LATE, join_all(workers)).await.expect("the workers hang");
    (ended, recording, run)
}

/// Trains on the job's files with so many workers; the first one's summary.
pub(super) async fn train_with(workers: u32, mut job: Job) -> (RunSummary, Arc<RecordedEvents>, RunFolder) {
    job.cluster.workers = workers;
    let (ended, recorded, run) = train_parts(job, all_of_files(workers)).await;
    let summaries: Vec<RunSummary> = ended.into_iter().map(Result::unwrap).collect();
    for other in &summaries {
        let end = |summary: &RunSummary| (summary.steps, summary.samples, summary.evaluation);
        assert_eq!(end(other), end(&summaries[0]));
    }
    (summaries.into_iter().next().unwrap(), recorded, run)
}

/// Samples `start .. start + size` of an endless data set.
pub(super) fn samples(start: u64, size: u64) -> Batch {
    let mixed = |sample: u64| sample.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let all = start..start + size;
    let bag = CategoryIds {
        ids: all.clone().flat_map(|sample| [mixed(sample) % 11, mixed(sample) % 5]).collect(),
        offsets: Some((0..=size as u32).map(|sample| 2 * sample).collect()),
        ..CategoryIds::default()
    };
    Batch {
        size: size as usize,
        labels: all.clone().map(|sample| f32::from(mixed(sample) % 17 > 8)).collect(),
        numeric: all.clone().flat_map(|sample| [sample as f32 % 3.0 - 1.0, mixed(sample) as f32 % 7.0 / 7.0]).collect(),
        categorical: vec![
            CategoryIds { ids: all.map(|sample| mixed(sample) % 17).collect(), ..CategoryIds::default() },
            bag.clone(),
            bag,
        ],
        ..Batch::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_with_parts_of_a_batch_make_the_steps_of_one_with_all_of_it() {
    const STEPS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    // Without staleness, and with updates that add up: what is pushed in two parts is what is pushed in one.
    let sets = ["train.mode=sync", "train.epochs=1", "embedding.optimizer={kind='sgd', lr=0.2}"];
    let job_with = |workers: &str| job(folder.path(), &[&sets[..], &[workers]].concat());
    let batches = |from: u64, size: u64| (0..STEPS).map(|step| samples(step * 8 + from, size)).collect();
    let (alone, expected, _) =
        train_parts(job_with("cluster.workers=1"), vec![WorkerPart::of_batches(batches(0, 8))]).await;
    let parts = vec![WorkerPart::of_batches(batches(0, 5)), WorkerPart::of_batches(batches(5, 3))];
    let (together, found, _) = train_parts(job_with("cluster.workers=2"), parts).await;
    assert_eq!((expected.steps().len(), found.steps().len()), (STEPS as usize, STEPS as usize));
    assert_near_losses(&expected, &found, 1e-5, "alone and together");
    let counted = |recorded: &RecordedEvents| recorded.steps().iter().map(|step| step.samples).collect::<Vec<_>>();
    assert_eq!(counted(&expected), counted(&found));
    let (first, last) = (expected.steps()[0].loss, expected.steps()[STEPS as usize - 1].loss);
    assert!((first - last).abs() > 1e-3, "nothing was learned: {first}, {last}");
    assert_eq!(alone[0].as_ref().unwrap().rows, together[0].as_ref().unwrap().rows);
}

/// The rows of four values that a job's only server reads of ids.
pub(super) async fn read_rows(server: &dyn Shard, table: u32, ids: &[u64]) -> Vec<f32> {
    let segment = Segment { table: TableId(table), rows: ids.len() as u32, dim: 4 };
    let request = LookupRequest {
        generation: 1,
        segments: Segments::new(vec![segment]).pack().into(),
        ids: encode_ids(ids).into(),
        access: Access::Read as i32,
        encoding: Encoding::F32 as i32,
        ..LookupRequest::default()
    };
    let answer = server.lookup(request, Deadline::from_now(Duration::from_secs(60))).await.unwrap();
    let mut values = vec![f32::NAN; 4 * ids.len()];
    decode_values(&answer.rows, answer.encoding, &mut values).unwrap();
    values
}

/// The Euclidean norm of all rows that the job's only server has in a table, of `ids` first ids.
async fn norm(cluster: &WorkerCluster, table: u32, ids: u64) -> f32 {
    let entry = ServerEntry { index: 0, ..ServerEntry::default() };
    let server = (cluster.connect)(&entry).unwrap();
    let values = read_rows(&*server, table, &(0..ids).collect::<Vec<_>>()).await;
    values.iter().map(|value| value * value).sum::<f32>().sqrt()
}

/// One worker with batches of 64 against two with the halves of these batches. Some rows are in both halves, others in one.
#[tokio::test(flavor = "multi_thread")]
async fn rows_decay_as_much_with_two_workers_as_with_one() {
    const STEPS: u64 = 40;
    let decaying = [
        "{kind='sgd', lr=0.2, l2=0.05}",
        "{kind='adagrad', lr=0.1, l2=0.05}",
        "{kind='adamw', lr=0.01, weight_decay=0.2}",
    ];
    for optimizer in decaying {
        let folder = tempfile::tempdir().unwrap();
        let (optimizer, init) =
            (format!("embedding.optimizer={optimizer}"), "embedding.init={kind='uniform', bound=1.0}");
        let norms = async |parts: Vec<WorkerPart>| {
            let mut job = job(folder.path(), &["train.mode=sync", "train.epochs=1", init, &optimizer]);
            job.cluster.workers = parts.len() as u32;
            let cluster = WorkerCluster::start(&job).await;
            let (ended, ..) = train_parts_on(&cluster, job, parts).await;
            ended.into_iter().for_each(|ended| drop(ended.unwrap()));
            [norm(&cluster, 0, 17).await, norm(&cluster, 1, 11).await]
        };
        let half = |step: u64, part: u64| samples((2 * step + part) * HALF, HALF);
        let whole = WorkerPart::of_batches((0..STEPS).map(|step| samples(2 * step * HALF, 2 * HALF)).collect());
        let halves = [0, 1].map(|part| WorkerPart::of_batches((0..STEPS).map(|step| half(step, part)).collect()));
        let (alone, together) = (norms(vec![whole]).await, norms(Vec::from(halves)).await);
        println!("{optimizer}: norms {alone:?} of one worker, {together:?} of two");
        for (alone, together) in alone.iter().zip_eq(together) {
            assert!((together / alone - 1.0).abs() < 0.001, "{optimizer}: {alone} of one worker, {together} of two");
        }
    }
}

/// Samples of a worker in a step: so few that many rows are in one half alone.
const HALF: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn all_workers_end_after_the_steps_asked_for_or_when_one_is_asked_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let (short, ..) = train_with(2, job(folder.path(), &["train.max_steps=7"])).await;
    assert_eq!((short.steps, short.outcome), (7, TrainingOutcome::Finished));
    let shutdown = Shutdown::new();
    let asked = WorkerPart { observer: Arc::new(StopAfter(5, shutdown.clone())), shutdown, ..WorkerPart::of_files() };
    let two = job(folder.path(), &["cluster.workers=2"]);
    let (ended, _, run) = train_parts(two, vec![WorkerPart::of_files(), asked]).await;
    for summary in ended {
        let summary = summary.unwrap();
        assert_eq!(summary.outcome, TrainingOutcome::Interrupted);
        assert!((5..=7).contains(&summary.steps), "{}", summary.steps);
    }
    assert!(run.model_folder().join("manifest.json").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_with_a_batch_that_is_no_number_is_skipped_by_all_where_the_job_says_so() {
    // With a step to leave out that a worker makes without a batch, too.
    for (mode, bad_step) in [("sync", 4), ("hybrid", 4), ("hybrid", 8)] {
        let folder = tempfile::tempdir().unwrap();
        let mode = format!("train.mode={mode}");
        let two = job(folder.path(), &[&mode, "train.non_finite=skip", "train.epochs=1", "cluster.workers=2"]);
        // Its last two are empty: then this worker has none.
        let good: Vec<Batch> = (0..9).map(|step| samples(step * 8, if step < 7 { 8 } else { 0 })).collect();
        let mut bad: Vec<Batch> = (0..9).map(|step| samples(step * 8, 8)).collect();
        bad[bad_step].numeric[0] = f32::NAN;
        let (ended, ..) = train_parts(two, vec![WorkerPart::of_batches(good), WorkerPart::of_batches(bad)]).await;
        for summary in ended.into_iter().map(Result::unwrap) {
            assert_eq!((summary.steps, summary.skipped_steps), (9, 1), "{mode}");
            let of_step = if bad_step < 7 { 16 } else { 8 };
            assert_eq!(summary.samples, (7 + 9) * 8 - of_step, "{mode}");
            assert!(summary.loss.is_finite());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_without_a_row_among_them_are_refused_as_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let head = rows(0);
    for (text, sets, reported) in [
        (head, vec![], "no rows (only empty lines"),
        (rows(3), vec!["data.test_fraction=0.999999"], "3 rows read, none in the train part"),
    ] {
        for workers in [1, 2] {
            let mut job = job_over(text.clone(), folder.path(), &sets);
            job.cluster.workers = workers;
            job.features.numeric.iter_mut().for_each(|column| column.standardise = Scaling::NO);
            let (ended, ..) = train_parts(job, all_of_files(workers)).await;
            for error in ended.into_iter().map(Result::unwrap_err) {
                assert_eq!(error.exit_class(), ExitClass::Data, "{error}");
                assert!(error.to_string().contains(reported) && error.to_string().contains("train.csv"), "{error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_data_of_one_worker_is_reported_by_all() {
    let folder = tempfile::tempdir().unwrap();
    // The second split of sixteen is worker 1's alone, and lies behind the rows that are checked before the first step.
    let text = rows(40_000);
    let middle = text[..text.len() * 3 / 32].rfind('\n').unwrap() + 1;
    let text = format!("{}1,old,5,c1,1,2\n{}", &text[..middle], &text[middle..]);
    let sets = ["train.mode=sync", "features.numeric=['age']", "data.shuffle_rows=0", "cluster.workers=2"];
    let two = job_over(text, folder.path(), &sets);
    let (ended, ..) = train_parts(two, vec![WorkerPart::of_files(), WorkerPart::of_files()]).await;
    let errors: Vec<WorkerError> = ended.into_iter().map(Result::unwrap_err).collect();
    assert_eq!(errors[1].exit_class(), ExitClass::Data);
    assert!(errors[1].to_string().contains("train.csv:"), "{}", errors[1]);
    assert!(matches!(&errors[0], WorkerError::Stopped { reason } if reason.contains("train.csv:")), "{}", errors[0]);
}

/// Each worker read all files before it joined.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_worker_alone_measures_the_columns_and_all_train_on_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    let three = job(folder.path(), &["train.max_steps=2", "cluster.workers=3"]);
    let recordings: Vec<_> = (0..3).map(|_| Arc::new(RecordedEvents::default())).collect();
    let part = |recording: &Arc<RecordedEvents>| WorkerPart { observer: recording.clone(), ..WorkerPart::of_files() };
    let (ended, _, run) = train_parts(three, recordings.iter().map(part).collect()).await;
    ended.into_iter().for_each(|summary| drop(summary.unwrap()));
    let measures = |recording: &Arc<RecordedEvents>| recording.0.lock().unwrap().contains(&WorkerEvent::Fitting);
    assert_eq!(recordings.iter().map(measures).collect::<Vec<_>>(), [true, false, false]);
    let resolved = Job::load(&run.job_file(), &Overrides::none()).unwrap();
    assert!(matches!(resolved.features.numeric[1].standardise, Scaling::Given(_)));
}

/// The limit held for each stream anew: for each worker, and for each epoch.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_rows_are_counted_over_all_workers_and_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let text = rows(40_000);
    // Eight bad rows, behind those that are checked before the first step, in splits of both workers.
    let mut lines: Vec<&str> = text.lines().collect();
    (0..8).for_each(|bad| lines.insert(10_000 + bad * 3_500, "1,old,5,c1,1,2"));
    let text = lines.join("\n") + "\n";
    let sets = |most: u64, epochs: u64| {
        let limits = [format!("data.max_bad_rows={most}"), format!("train.epochs={epochs}")];
        let sets = ["train.batch_size=1000", "features.numeric=['age']", "data.test_fraction=0.1"];
        job_over(text.clone(), folder.path(), &[&[&*limits[0], &limits[1]][..], &sets].concat())
    };
    for workers in [1, 2] {
        let (enough, ..) = train_with(workers, sets(16, 2)).await;
        assert_eq!(enough.outcome, TrainingOutcome::Finished);
        for (most, epochs) in [(6, 1), (12, 2)] {
            let mut job = sets(most, epochs);
            job.cluster.workers = workers;
            let (ended, ..) = train_parts(job, all_of_files(workers)).await;
            let errors: Vec<_> = ended.into_iter().map(Result::unwrap_err).collect();
            let reported = format!("data.max_bad_rows allows {most};");
            assert!(errors.iter().all(|error| error.to_string().contains(&reported)), "{errors:?}");
            assert!(errors.iter().any(|error| error.exit_class() == ExitClass::Data), "{errors:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_comes_is_named_and_so_is_one_that_cannot_reach_others() {
    let folder = tempfile::tempdir().unwrap();
    let two = job(folder.path(), &["cluster.timeout_seconds=1", "cluster.workers=2"]);
    let failed = async |rendezvous: Option<Arc<dyn Rendezvous>>| {
        let cluster = WorkerCluster::start(&two).await;
        let alone = cluster.worker(&two, Arc::new(ObserverList::default()));
        let worker = Worker { rendezvous, ..alone };
        tokio::time::timeout(LATE, worker.run()).await.expect("the worker hangs").unwrap_err()
    };
    assert!(failed(None).await.to_string().contains("start the run with `zagros up`"));
    let error = failed(Some(Arc::new(InProcess::default()))).await;
    assert_eq!(error.exit_class(), ExitClass::Cluster);
    assert!(error.to_string().contains("dense worker 1 has not joined"), "{error}");
}
