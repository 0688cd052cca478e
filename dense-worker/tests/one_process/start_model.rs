//! Runs that start from the model of another: yesterday's rows and dense network, today's data. The rows of a saved model in this process
//! are those that an embedding server reads of it.

use std::collections::BTreeSet;

use zagros_ingest::{BatchStream, DataPart, find_files};
use zagros_protocol::control::{FileDigest, LoadRequest};
use zagros_scoring::{ModelRows, RowSource, SavedModel};

use super::resume::{EndedRun, RunBreak, STATES, learned, run};
use super::workers::read_rows;
use super::*;

/// The rows of both epochs come in the same order.
const IN_ORDER: &str = "data.shuffle_rows=0";

fn job_with(folder: &Path, more: &[&str]) -> Job {
    job_over(rows(4000), folder, &[&STATES[..], &[IN_ORDER], more].concat())
}

/// The job of a run that starts from the model of another.
fn next_job(first: &EndedRun, folder: &Path, more: &[&str]) -> Job {
    let from = format!("train.start_from={:?}", first.run.path());
    job_with(folder, &[&["train.epochs=1", from.as_str()], more].concat())
}

fn evaluation(ended: &EndedRun) -> Evaluation {
    ended.summary.as_ref().unwrap().evaluation.unwrap()
}

/// Step and rows of the model that a run has started from, and how it differs.
struct StartEvent {
    step: u64,
    rows: u64,
    differences: Vec<String>,
}

/// A run that starts from a model, and ends well.
async fn started(job: Job) -> (RunSummary, StartEvent) {
    let (trained, recorded, _) = train(job).await;
    (trained.unwrap(), start_event(&recorded))
}

async fn refused(job: Job) -> WorkerError {
    train(job).await.0.unwrap_err()
}

fn start_event(recorded: &RecordedEvents) -> StartEvent {
    let events = recorded.0.lock().unwrap();
    let event = events.iter().find_map(|event| match event {
        WorkerEvent::StartedFrom { step, rows, differences, .. } => {
            Some(StartEvent { step: *step, rows: *rows, differences: differences.clone() })
        }
        _ => None,
    });
    event.expect("it starts from the model")
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_on_is_as_another_epoch_of_the_same_run_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = run(job_with(folder.path(), &["train.epochs=2"]), None, RunBreak::Never).await;
    let first = run(job_with(folder.path(), &["train.epochs=1"]), None, RunBreak::Never).await;
    let job = |more: &[&str]| next_job(&first, folder.path(), &[&["train.start_steps=continue"], more].concat());
    for servers in ["cluster.servers=1", "cluster.servers=3"] {
        let second = run(job(&[servers]), None, RunBreak::Never).await;
        assert_eq!(learned(&second), learned(&whole), "{servers}");
        let steps = |ended: &EndedRun| ended.summary.as_ref().map(|summary| summary.steps);
        assert_eq!(steps(&second), steps(&whole));
        assert_eq!(second.losses.len() * 2, whole.losses.len());
    }
    // It is interrupted, and resumes.
    let half = run(job(&[]), None, RunBreak::Tidy(whole.losses.len() as u64 * 3 / 4)).await;
    assert!(half.losses.len() * 2 < whole.losses.len(), "{} steps", half.losses.len());
    let second = run(job(&[]), Some(&half.run), RunBreak::Never).await;
    assert_eq!(learned(&second), learned(&whole));

    // Steps count from 0 again: the schedule starts over.
    let (restarted, start) = started(next_job(&first, folder.path(), &[])).await;
    assert_eq!((start.step, start.differences.len()), (0, 0), "{:?}", start.differences);
    assert_eq!((restarted.steps * 2, start.rows), (whole.losses.len() as u64, first.summary.as_ref().unwrap().rows));
    assert!(restarted.evaluation.unwrap().logloss < evaluation(&first).logloss);
    assert_ne!(restarted.evaluation.unwrap(), evaluation(&whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_workers_start_from_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(job_with(folder.path(), &["train.epochs=1"]), None, RunBreak::Never).await;
    for steps in ["restart", "continue"] {
        let start_steps = format!("train.start_steps={steps}");
        let sets = ["cluster.workers=2", "cluster.servers=2", "train.mode=hybrid", start_steps.as_str()];
        let second = run(next_job(&first, folder.path(), &sets), None, RunBreak::Never).await;
        assert_eq!(second.outcomes, [TrainingOutcome::Finished; 2]);
        assert!(evaluation(&second).logloss < evaluation(&first).logloss, "{steps}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_one_of_the_two_has_is_dropped_or_begins_anew_with_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(job_with(folder.path(), &["train.epochs=1"]), None, RunBreak::Never).await;
    let other = "features.categorical=['city', 'age']";
    let (trained, start) = started(next_job(&first, folder.path(), &[other])).await;
    assert!(auc(&trained) > 0.6);
    let differences = [
        "table `tags` of the model is dropped: this job has none",
        "table `age` begins empty: the model has none",
        "layer `top.0` of the dense network begins anew",
    ];
    assert_eq!(start.differences, differences);
    // A model that was standardised so is trained on so, although the data is other data.
    let from = format!("train.start_from={:?}", first.run.path());
    let sets = [&STATES[..], &[IN_ORDER, "train.max_steps=1", &from]].concat();
    let (trained, _, run) = train(job_over(rows(4000).replace(",9", ","), folder.path(), &sets)).await;
    assert!(trained.is_ok(), "{trained:?}");
    assert_eq!(standardised(&run).0, standardised(&first.run).0);
}

const CITY_HASHED: &str = "features.categorical=[{column='city', hash_size=5}, {column='tags', separator='|', pooling='mean'}, \
    {column='liked', table='tags', separator='|'}]";
const CITIES: u64 = 17;

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_mean_something_else_get_new_rows_unless_they_are_to_keep_them() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(job_with(folder.path(), &["train.epochs=1"]), None, RunBreak::Never).await;
    let rows = first.summary.as_ref().unwrap().rows;
    for servers in ["cluster.servers=1", "cluster.servers=3"] {
        let (trained, start) = started(next_job(&first, folder.path(), &[CITY_HASHED, servers])).await;
        assert_eq!((start.rows, trained.rows), (rows - CITIES, rows - CITIES + 5), "{servers}");
        let anew = "table `city` begins empty: feature `city` makes its ids otherwise than in the model \
                    (train.start_changed = \"keep\" keeps the rows)";
        assert_eq!(start.differences, [anew]);
    }
    let (_, kept) = started(next_job(&first, folder.path(), &[CITY_HASHED, "train.start_changed=keep"])).await;
    assert_eq!((kept.rows, kept.differences.len()), (rows, 1), "{:?}", kept.differences);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_mean_something_else_get_new_layers_and_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(job_with(folder.path(), &["train.epochs=1"]), None, RunBreak::Never).await;
    let plain = "features.numeric=['age', {column='income', standardise=true}]";
    let (trained, recorded, run) = train(next_job(&first, folder.path(), &[plain])).await;
    trained.unwrap();
    let (old_mean, mean) = (standardised(&first.run).0, standardised(&run).0);
    assert!(old_mean < 20.0 && mean > 10_000.0, "not the mean of the logarithms: {mean}");
    let lines = start_event(&recorded).differences;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("feature `income` transforms its number otherwise"), "{lines:?}");
    assert_eq!(lines[1], "layer `bottom.0` of the dense network begins anew");
    let (_, kept) = started(next_job(&first, folder.path(), &[plain, "train.start_changed=keep"])).await;
    assert_eq!(kept.differences.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_there_or_has_rows_of_another_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = refused(job_with(folder.path(), &["train.start_from='nowhere'"])).await;
    assert!(nowhere.exit_class() == ExitClass::Data && nowhere.to_string().contains("nowhere"), "{nowhere}");
    let first = run(job_with(folder.path(), &["train.epochs=1"]), None, RunBreak::Never).await;
    let wider = refused(next_job(&first, folder.path(), &["embedding.dim=8"])).await;
    assert!(wider.to_string().contains("table `city` has dim 4 of f32"));
    let sets = ["train.mode=async", "cluster.workers=1"];
    let asynchronous = refused(next_job(&first, folder.path(), &sets)).await.to_string();
    assert!(asynchronous.contains("train.mode = \"hybrid\" starts from this model"), "{asynchronous}");
}

/// A model whose dense network is in the tables of the servers, against one that has it in a file.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_starts_from_streamed_weights_as_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut ends = Vec::new();
    for weights in ["train.weights=resident", "train.weights=streamed"] {
        let first = run(job_with(folder.path(), &["train.epochs=1", weights]), None, RunBreak::Never).await;
        let sets = ["train.start_steps=continue", "cluster.servers=3", weights];
        let second = run(next_job(&first, folder.path(), &sets), None, RunBreak::Never).await;
        let other = [weights, "features.categorical=['city', 'age']", "train.max_steps=3"];
        let (_, start) = started(next_job(&first, folder.path(), &other)).await;
        ends.push((second.losses.clone(), evaluation(&second).auc, start.differences));
    }
    assert_eq!(ends[0], ends[1]);
    assert!(ends[1].2.contains(&"layer `top.0` of the dense network begins anew".to_owned()), "{:?}", ends[1].2);
    let first =
        run(job_with(folder.path(), &["train.epochs=1", "train.weights=streamed"]), None, RunBreak::Never).await;
    let resident = refused(next_job(&first, folder.path(), &["train.weights=resident"])).await.to_string();
    assert!(resident.contains("rows of its tables") && resident.contains("train.weights = \"streamed\""), "{resident}");
}

/// Rows with cities of which some come in the first steps alone, and some once.
fn changing_rows() -> String {
    let mut text = "click,age,income,city,tags,liked\n".to_owned();
    for row in 0..2000 {
        let city = match row {
            0..300 => format!("early{}", row % 20),
            _ if row % 50 == 0 => format!("once{row}"),
            _ => format!("c{}", row % 17),
        };
        let (click, tag) = (u64::from(row % 3 == 0), row % 11);
        let _ = writeln!(text, "{click},{},{row},{city},{tag}|{},{}", row % 60, row % 5, row % 7);
    }
    text
}

/// The distinct ids of a feature in the rows of a job.
fn distinct_ids(job: &Job, feature: usize) -> Vec<u64> {
    let files = find_files(job, &job.data.train).unwrap();
    let batches = BatchStream::open_files(job, DataPart::All, &files).unwrap();
    let ids = batches.flat_map(|batch| batch.unwrap().categorical.swap_remove(feature).ids);
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The only server of a job, with the rows of a model.
async fn loaded_server(job: &Job, saved: &SavedModel) -> LocalShard {
    let service = EmbeddingService::new(job, ServerIndex(0), &Registry::new()).unwrap();
    service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), job.cluster.buckets, 1)));
    let server = LocalShard::new(service);
    let digest = |name: &String| FileDigest { name: name.clone(), ..FileDigest::default() };
    let files = saved.manifest.row_files.iter().map(digest).collect();
    server.load(LoadRequest { folder: saved.folder.to_string(), files, ..LoadRequest::default() }).await.unwrap();
    server
}

/// Rows that are there, and such as have expired, have not been admitted or never were.
#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_a_model_are_those_that_a_server_reads() {
    for policy in ["embedding.eviction.ttl={steps=10}", "embedding.admission={kind='count', min_count=3}"] {
        let folder = tempfile::tempdir().unwrap();
        let sets = [policy, "data.shuffle_rows=0", "train.epochs=1", "cluster.servers=2"];
        let (summary, _, run) = train(job_over(changing_rows(), folder.path(), &sets)).await;
        summary.unwrap();
        let saved = SavedModel::open(&Folder::on_disk(run.model_folder())).unwrap();
        let mut job = saved.read_job().unwrap();
        job.cluster.servers = 1;
        let (rows, server) = (ModelRows::load_rows(&saved, &job).unwrap(), loaded_server(&job, &saved).await);
        for feature in 0..2 {
            let (ids, table) = (distinct_ids(&job, feature), job.features.categorical[feature].table);
            let mut found = vec![f32::NAN; 4 * ids.len()];
            let missing = rows.read_rows(table, &ids, &mut found).unwrap();
            let expected = read_rows(&server, table as u32, &ids).await;
            assert_eq!(found, expected, "{policy}, table {table}");
            assert!(missing < ids.len() && (feature > 0 || missing >= 20), "{policy}: {missing} of {}", ids.len());
        }
    }
}
