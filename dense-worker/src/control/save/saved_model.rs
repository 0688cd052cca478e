//! A trained model is written to its folder, and given to those who train on: `dense.safetensors`, one file of rows per embedding server,
//! `job.toml`, `manifest.json`.
//!
//! [`zagros_scoring`] reads the files, and says why the manifest comes last.

use std::sync::Arc;

use futures::future::join_all;
use tracing::debug;
use zagros_embedding_client::{EmbeddingClient, Shard};
use zagros_job::{Job, WireFormat};
use zagros_model::ModelError;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::{FileDigest, LoadRequest, LoadResponse, SaveRequest, SaveResponse, SaveStage};
use zagros_protocol::datapath::Encoding;
use zagros_protocol::{Refusal, RefusalKind};
use zagros_scoring::{
    DENSE, FORMAT, FileRecord, JOB, MANIFEST, Manifest, ModelCalibrators, OPTIMIZER, SavedModel, TrainingOutcome,
    damaged, fingerprint,
};
use zagros_store::{Folder, StoreError, hex_digits};
use zagros_zip::number_from;

use crate::datapath::dense::{DenseStage, DenseThread};
use crate::error::WorkerError;
use crate::event::Evaluation;
use crate::report::RunFolder;
use crate::report::run_blocking;

/// Calls all servers, with their indices. Returns the servers of one bucket map and their answers.
///
/// Together they save or load each bucket once (invariant CK-2): where buckets move between the answers, one of the servers refuses,
/// and all are asked again.
///
/// # Errors
/// The first error of a server. A server refuses with `moved` only if buckets have moved for longer than the timeout.
pub(crate) async fn on_all<T, F>(
    servers: &EmbeddingClient,
    call: impl Fn(u32, Arc<dyn Shard>) -> F,
) -> Result<(Vec<Arc<dyn Shard>>, Vec<T>), WorkerError>
where
    F: Future<Output = Result<T, WorkerError>>,
{
    let deadline = Deadline::from_now(servers.request_timeout());
    let mut tries = 0;
    loop {
        let listed = servers.newest_servers().await.map_err(WorkerError::Servers)?;
        // A server that still works on one call would refuse the next one.
        let answers = join_all(number_from(0, &listed).map(|(index, server)| call(index, Arc::clone(server)))).await;
        match answers.into_iter().collect::<Result<_, _>>() {
            Err(WorkerError::Storage { server, refusal, .. })
                if refusal.kind == RefusalKind::Moved && !deadline.is_past() =>
            {
                debug!(server, %refusal, "buckets have moved, so all embedding servers are called again");
                tokio::time::sleep(Backoff::default().pause_before(tries).min(deadline.time_left())).await;
                tries += 1;
            }
            answers => return answers.map(|answers| (listed, answers)),
        }
    }
}

/// A server could not do something with its rows.
pub(crate) fn storage_error(server: &dyn Shard, what: &'static str, refusal: Refusal) -> WorkerError {
    WorkerError::Storage { server: server.name().to_owned(), what, refusal }
}

pub(crate) fn wire_encoding(job: &Job) -> Encoding {
    match job.cluster.wire {
        WireFormat::F32 => Encoding::F32,
        WireFormat::F16 => Encoding::F16,
        WireFormat::Bf16 => Encoding::Bf16,
    }
}

pub(crate) const MODEL: &str = "model";

/// How the names of files end while they are written to a disk.
const UNFINISHED: &str = ".tmp";

#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainedModel<'a> {
    pub(crate) job: &'a Job,
    pub(crate) outcome: TrainingOutcome,
    pub(crate) steps: u64,
    pub(crate) samples: u64,
    pub(crate) evaluation: Option<Evaluation>,
    pub(crate) validation: Option<Evaluation>,
    pub(crate) calibrators: Option<&'a ModelCalibrators>,
}

impl<'a> TrainedModel<'a> {
    /// A state to go on from, of a run that is not over.
    pub(crate) fn unfinished(job: &'a Job, steps: u64, samples: u64) -> Self {
        let (evaluation, validation, calibrators) = (None, None, None);
        Self { job, outcome: TrainingOutcome::Interrupted, steps, samples, evaluation, validation, calibrators }
    }
}

/// Where the model of a run goes, and how the run's summary names that: in the run folder by the name in it, else in
/// full.
pub(crate) fn model_place(job: &Job, run: &RunFolder) -> Result<(Folder, String), WorkerError> {
    let Some(parent) = &job.output.model_folder else {
        return Ok((Folder::on_disk(run.model_folder()), MODEL.to_owned()));
    };
    // Requests to a store take as long as the job is patient.
    let parent = Folder::open(parent, job.cluster.timeout)?;
    let parent = match parent.path().map(std::path::absolute) {
        // Who looks for it later is somewhere else.
        Some(Ok(path)) => Folder::on_disk(path),
        _ => parent,
    };
    let folder = parent.join(&run.name()).join(MODEL);
    let reported = folder.to_string();
    Ok((folder, reported))
}

/// Writes the model below `folder`, which every embedding server must reach under the same name.
pub(crate) async fn save(
    folder: &Folder,
    trained: TrainedModel<'_>,
    dense: &DenseThread,
    servers: &EmbeddingClient,
) -> Result<Manifest, WorkerError> {
    let folder = prepare_folder(folder.clone()).await?;
    // The optimiser's state is for runs that start from this model.
    let state = |dense: &mut DenseStage| {
        Ok::<_, ModelError>((
            dense.model.scoring_safetensors()?,
            dense.model.optimizer_state()?,
            dense.model.products(),
        ))
    };
    let (weights, optimizer, products) = dense.call(state).await??;
    let (_, saved) = on_all(servers, |_, server| save_rows(server, &folder, SaveStage::Whole)).await?;
    let own = vec![(DENSE, weights), (OPTIMIZER, optimizer)];
    write_files(&folder, trained, WrittenModel { own, saved, products }).await
}

#[derive(Debug)]
pub(crate) struct WrittenModel {
    /// Files that the worker writes itself, by name: the dense network's weights among them. Not written yet.
    pub(crate) own: Vec<(&'static str, Vec<u8>)>,
    pub(crate) saved: Vec<SaveResponse>,
    /// Which library makes the products of the dense network.
    pub(crate) products: &'static str,
}

/// Writes the worker's own files and the job, and the manifest last (invariant CK-1), which says by what each file is
/// known (invariant CK-4).
pub(crate) async fn write_files(
    folder: &Folder,
    trained: TrainedModel<'_>,
    WrittenModel { mut own, saved, products }: WrittenModel,
) -> Result<Manifest, WorkerError> {
    own.push((JOB, trained.job.to_toml().into_bytes()));
    own.extend(trained.calibrators.map(ModelCalibrators::to_file));
    let of_servers = || saved.iter().flat_map(|saved| &saved.files);
    let record =
        |file: &FileDigest| FileRecord { name: file.name.clone(), bytes: file.bytes, sha256: hex_digits(&file.sha256) };
    let mut files: Vec<FileRecord> = of_servers().map(record).collect();
    let row_files = of_servers().map(|file| file.name.clone()).collect();
    let target = folder.clone();
    let write_own = move || -> Result<Vec<FileRecord>, StoreError> {
        let write =
            |(name, content): &(&str, Vec<u8>)| target.write(name, content).map(|()| FileRecord::new(name, content));
        own.iter().map(write).collect()
    };
    files.extend(run_blocking("model files", write_own).await??);
    let manifest = Manifest {
        manifest_sha256: String::new(),
        format: FORMAT,
        job: trained.job.name.clone(),
        fingerprint: fingerprint(trained.job),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        products: products.to_owned(),
        outcome: trained.outcome,
        steps: trained.steps,
        samples: trained.samples,
        dense: DENSE.to_owned(),
        rows: saved.iter().map(|saved| saved.rows).sum(),
        row_files,
        files,
        evaluation: trained.evaluation,
        validation: trained.validation,
        written: trained.job.data.written.clone(),
    };
    let ((manifest, text), target) = (manifest.into_sealed(), folder.clone());
    run_blocking("model files", move || target.write(MANIFEST, &text)).await??;
    Ok(manifest)
}

/// Makes the folder and takes away an older manifest, so that at no time one describes other files, and files that a process which was
/// killed did not finish.
pub(crate) async fn prepare_folder(folder: Folder) -> Result<Folder, WorkerError> {
    let make = move || {
        // Servers have their own working directories.
        let folder = folder.make()?;
        folder.delete_file(MANIFEST)?;
        if folder.path().is_some() {
            let unfinished = folder.file_names()?.into_iter().filter(|name| name.ends_with(UNFINISHED));
            unfinished.into_iter().try_for_each(|name| folder.delete_file(&name))?;
        }
        Ok(folder)
    };
    run_blocking("model files", make).await?
}

pub(crate) async fn save_rows(
    server: Arc<dyn Shard>,
    folder: &Folder,
    stage: SaveStage,
) -> Result<SaveResponse, WorkerError> {
    let saved =
        server.save(SaveRequest { folder: folder.to_string(), stage: stage.into(), ..SaveRequest::default() }).await;
    saved.map_err(|refusal| storage_error(&*server, "save its rows", refusal))
}

pub(crate) async fn open_model(folder: &Folder) -> Result<SavedModel, WorkerError> {
    let folder = folder.clone();
    Ok(run_blocking("model files", move || SavedModel::open(&folder)).await??)
}

pub(crate) async fn read_file(saved: &SavedModel, name: &str) -> Result<Vec<u8>, WorkerError> {
    let (saved, name) = (saved.clone(), name.to_owned());
    Ok(run_blocking("model files", move || saved.read_file(&name)).await??)
}

/// Gives weights and rows to whom they belong, in place of those that are there. Each server compares the files that it takes rows from
/// with what was saved, before it takes any.
pub(crate) async fn load_model(
    saved: &SavedModel,
    dense: &DenseThread,
    servers: &EmbeddingClient,
) -> Result<(), WorkerError> {
    let SavedModel { folder, manifest } = saved;
    let weights = read_file(saved, &manifest.dense).await?;
    let taken = dense.call(move |dense| dense.model.load_safetensors(&weights)).await?;
    taken.map_err(|error| damaged(folder, format!("{}: {error}", manifest.dense)))?;
    let (_, loaded) = on_all(servers, |_, server| load_rows(saved, server, LoadRequest::default())).await?;
    let loaded: u64 = loaded.iter().map(|loaded| loaded.rows).sum();
    if loaded == manifest.rows {
        return Ok(());
    }
    let rows = manifest.rows;
    let reason = format!("{rows} rows were saved, but the embedding servers took {loaded}; is a file missing?");
    Err(damaged(folder, reason).into())
}

/// Has a server load its rows from the files of a model. `how` says what else is wanted.
pub(crate) async fn load_rows(
    SavedModel { folder, manifest }: &SavedModel,
    server: Arc<dyn Shard>,
    how: LoadRequest,
) -> Result<LoadResponse, WorkerError> {
    let loaded = server.load(LoadRequest { folder: folder.to_string(), files: row_digests(manifest), ..how }).await;
    loaded.map_err(|refusal| storage_error(&*server, "load rows", refusal))
}

/// What a server compares the files of rows with.
fn row_digests(manifest: &Manifest) -> Vec<FileDigest> {
    let named = |file: &&FileRecord| manifest.row_files.contains(&file.name);
    let digest = |FileRecord { name, bytes, sha256 }: &FileRecord| FileDigest {
        name: name.clone(),
        bytes: *bytes,
        sha256: from_hexadecimal(sha256).into(),
    };
    manifest.files.iter().filter(named).map(digest).collect()
}

/// Text that is none has other bytes than any file.
fn from_hexadecimal(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(|pair| byte(pair).unwrap_or_default()).collect()
}

#[cfg(test)]
impl<'a> TrainedModel<'a> {
    pub(crate) fn of_test(job: &'a Job, steps: u64) -> Self {
        Self { outcome: TrainingOutcome::Finished, ..Self::unfinished(job, steps, 40) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zagros_fakes::FakeShard;
    use zagros_protocol::{BucketMap, Generation};

    use super::*;
    use crate::testing::{WorkerShard, assert_refused, ffnn, job, metrics, servers_client};

    fn disk(folder: &tempfile::TempDir) -> Folder {
        Folder::on_disk(folder.path())
    }

    fn server(index: u32) -> FakeShard {
        FakeShard::new(index, BucketMap::split_evenly(Generation(1), 16, 2))
    }

    fn servers(count: u32) -> EmbeddingClient {
        let servers = (0..count).map(|index| -> Arc<dyn Shard> { Arc::new(WorkerShard(server(index))) });
        servers_client(&[count], servers.collect())
    }

    async fn dense() -> (Job, DenseThread) {
        let job = job(1, &[2], ffnn(&[3]));
        let dense = DenseThread::start(&job, zagros_torch::backend(), metrics()).await.unwrap();
        (job, dense)
    }

    /// A folder with a saved model, and the network that it was saved of.
    async fn saved() -> (tempfile::TempDir, Job, DenseThread, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        let (job, dense) = dense().await;
        let manifest = save(&disk(&folder), TrainedModel::of_test(&job, 5), &dense, &servers(2)).await.unwrap();
        (folder, job, dense, manifest)
    }

    #[tokio::test]
    async fn a_failed_save_leaves_no_manifest_not_even_an_older_one() {
        let (folder, job, dense, _) = saved().await;
        let failing = servers_client(&[1], vec![Arc::new(WorkerShard(server(0).failing_to_save()))]);
        let refused = save(&disk(&folder), TrainedModel::of_test(&job, 5), &dense, &failing).await;
        assert_refused(refused, &["embedding server 0 (fake) could not save its rows: disk full"]);
        assert!(!folder.path().join(MANIFEST).exists());
        assert_refused(SavedModel::open(&disk(&folder)), &["no model here"]);
    }

    /// A process that was killed while it wrote leaves its temporary file.
    #[tokio::test]
    async fn what_a_killed_save_left_goes_with_the_next_save() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("rows-0.bin.0123456789abcdef.tmp");
        fs::write(&left, "half of the rows").unwrap();
        let (job, dense) = dense().await;
        save(&disk(&folder), TrainedModel::of_test(&job, 5), &dense, &servers(2)).await.unwrap();
        assert!(!left.exists());
        assert!(SavedModel::open(&disk(&folder)).is_ok());
    }

    #[tokio::test]
    async fn a_model_goes_into_its_run_or_below_the_folder_that_the_job_names() {
        let folder = tempfile::tempdir().unwrap();
        let (mut job, dense) = dense().await;
        job.output.folder = folder.path().join("runs");
        let run = RunFolder::create(&job, &[]).unwrap();
        let (own, reported) = model_place(&job, &run).unwrap();
        assert_eq!((own.path(), reported.as_str()), (Some(run.model_folder().as_path()), "model"));
        let elsewhere = folder.path().join("elsewhere");
        job.output.model_folder = Some(elsewhere.display().to_string());
        let (model, reported) = model_place(&job, &run).unwrap();
        save(&model, TrainedModel::of_test(&job, 5), &dense, &servers(2)).await.unwrap();
        assert_eq!(std::path::Path::new(&reported), elsewhere.join(run.name()).join("model"));
        assert!(std::path::Path::new(&reported).join(MANIFEST).is_file());
        let saved = fs::read_to_string(std::path::Path::new(&reported).join(JOB)).unwrap();
        assert!(saved.contains(&format!("model_folder = \"{}\"", elsewhere.display())), "{saved}");
        job.output.model_folder = Some("below".to_owned());
        assert!(std::path::Path::new(&model_place(&job, &run).unwrap().1).is_absolute());
        job.output.model_folder = Some("gs://models".to_owned());
        assert!(model_place(&job, &run).unwrap_err().to_string().contains("only s3:// and file://"));
    }

    #[tokio::test]
    async fn rows_that_went_missing_are_reported() {
        let (folder, _, dense, _) = saved().await;
        let saved = SavedModel::open(&disk(&folder)).unwrap();
        let refused = load_model(&saved, &dense, &servers(1)).await;
        assert_refused(refused, &["2 rows were saved, but the embedding servers took 1"]);
    }
}

#[cfg(test)]
mod row_servers_tests {
    use zagros_fakes::{FakeShard, ScriptedFault};
    use zagros_protocol::control::DescribeRequest;

    use super::*;
    use crate::testing::{SERVERS_TIMEOUT, WorkerShard, servers_client};

    fn server(faults: impl IntoIterator<Item = RefusalKind>) -> Arc<dyn Shard> {
        let server = FakeShard::default();
        server.faults.lock().unwrap().extend(faults.into_iter().map(ScriptedFault::Refuse));
        Arc::new(WorkerShard(server))
    }

    async fn describe(_: u32, server: Arc<dyn Shard>) -> Result<u64, WorkerError> {
        let refused = |refusal| WorkerError::Storage { server: "it".to_owned(), what: "describe", refusal };
        Ok(server.describe(DescribeRequest {}).await.map_err(refused)?.tables[0].rows)
    }

    /// Invariant CK-2.
    #[tokio::test(start_paused = true)]
    async fn when_one_server_has_another_map_all_servers_of_the_next_map_are_asked() {
        // The first call fetches two placements: one to know any, and the newest.
        let servers = servers_client(&[1, 1, 2], vec![server([RefusalKind::Moved]), server([])]);
        let (listed, answers) = on_all(&servers, describe).await.unwrap();
        assert_eq!((listed.len(), answers), (2, vec![1, 1]));
    }

    #[tokio::test(start_paused = true)]
    async fn another_refusal_and_moves_without_end_are_errors() {
        let broken = servers_client(&[1], vec![server([RefusalKind::Internal])]);
        assert!(on_all(&broken, describe).await.is_err());
        let moving = servers_client(&[1], vec![server([RefusalKind::Moved; 1000])]);
        let started = tokio::time::Instant::now();
        let error = on_all(&moving, describe).await.err().unwrap();
        assert!(matches!(error, WorkerError::Storage { refusal, .. } if refusal.kind == RefusalKind::Moved));
        let waited = started.elapsed();
        assert!(waited >= SERVERS_TIMEOUT && waited < SERVERS_TIMEOUT * 2, "{waited:?}");
    }
}
