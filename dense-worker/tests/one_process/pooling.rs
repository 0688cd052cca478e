//! Who adds up the rows of a bag changes bytes, not the model.

use zagros_job::{PoolAt, Values};

use super::*;

/// The job with every multi-valued feature pooled there.
fn job_at(place: PoolAt, folder: &Path, sets: &[&str]) -> Job {
    let mut job = job_of(JOB, rows(2000), folder, sets);
    for feature in &mut job.features.categorical {
        if let Values::Many { pool_at, .. } = &mut feature.values {
            *pool_at = place;
        }
    }
    job
}

/// Rows are added in the order of their bag, gradients in the order of their samples, at either place.
#[tokio::test(flavor = "multi_thread")]
async fn one_server_pools_bit_for_bit_as_the_worker_does() {
    let folder = tempfile::tempdir().unwrap();
    let (at_worker, expected, _) = train(job_at(PoolAt::Worker, folder.path(), &[])).await;
    let (at_server, losses, _) = train(job_at(PoolAt::Server, folder.path(), &[])).await;
    let (at_worker, at_server) = (at_worker.unwrap(), at_server.unwrap());
    assert_eq!(expected.losses(), losses.losses());
    assert_eq!((at_worker.evaluation, at_worker.rows), (at_server.evaluation, at_server.rows));
    // Without staleness nothing is left to choose.
    let (chosen, losses, _) = train(job_at(PoolAt::Auto, folder.path(), &["cluster.servers=3"])).await;
    assert_eq!((expected.losses(), at_worker.evaluation), (losses.losses(), chosen.unwrap().evaluation));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_pool_as_the_worker_does_but_for_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let (at_worker, expected, _) = train(job_at(PoolAt::Worker, folder.path(), &["train.epochs=4"])).await;
    let sets = ["train.epochs=4", "cluster.servers=3"];
    let (at_server, losses, _) = train(job_at(PoolAt::Server, folder.path(), &sets)).await;
    let (at_worker, at_server) = (at_worker.unwrap(), at_server.unwrap());
    assert_near_losses(&expected, &losses, 1e-3, "pooled elsewhere");
    let (expected, found) = (auc(&at_worker), auc(&at_server));
    assert!(expected > 0.85 && (expected - found).abs() < 1e-3, "{expected} {found}");
    assert_eq!(at_worker.rows, at_server.rows);
}

/// 64 samples with this many tags each, no two of them equal, or all samples with the same.
fn batch(tags: u64, rare: bool) -> Batch {
    let size = 64;
    let tag = |sample: u64, tag: u64| if rare { sample * tags + tag } else { tag };
    let tags_of = |sample: u64| (0..tags).map(move |at| tag(sample, at));
    let every = |step: u64| Some((0..=size).map(|sample| (sample * step) as u32).collect());
    let tags =
        CategoryIds { ids: (0..size).flat_map(tags_of).collect(), offsets: every(tags), ..CategoryIds::default() };
    let categorical = vec![
        CategoryIds { ids: (0..size).collect(), ..CategoryIds::default() },
        tags,
        CategoryIds { ids: Vec::new(), offsets: every(0), ..CategoryIds::default() },
    ];
    let labels = (0..size).map(|sample| (sample % 2) as f32).collect();
    Batch { size: size as usize, labels, numeric: vec![0.5; 2 * size as usize], categorical, ..Batch::default() }
}

/// Bytes between the worker and its servers for a few steps on this batch.
async fn bytes(place: PoolAt, batch: &Batch, sets: &[&str]) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let job = job_at(place, folder.path(), &[&["train.staleness=1"], sets].concat());
    let cluster = WorkerCluster::start(&job).await;
    let worker = cluster.worker(&job, Arc::new(ObserverList::default()));
    let summary = worker.run_on(WorkerInput::Preloaded(Arc::new(vec![batch.clone(); 3]))).await.unwrap();
    assert_eq!(summary.steps, 6);
    cluster.bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_choose_takes_the_fewer_bytes() {
    for (batch, sets) in [
        (batch(16, true), &[][..]),
        (batch(16, true), &["cluster.servers=2", "cluster.wire=bf16"]),
        (batch(16, false), &[]),
        (batch(1, true), &["cluster.servers=3"]),
    ] {
        let places = [PoolAt::Worker, PoolAt::Server, PoolAt::Auto];
        let [worker, server, auto] = places.map(|place| bytes(place, &batch, sets));
        let (worker, server, auto) = (worker.await, server.await, auto.await);
        assert_ne!(worker, server, "{sets:?}");
        assert_eq!(auto, worker.min(server), "{sets:?}: {worker} at the worker, {server} at the servers");
    }
    // A row of four values beside an id and its place in a bag: ids are most of what is left.
    let rare = batch(16, true);
    let (worker, server) = (bytes(PoolAt::Worker, &rare, &[]).await, bytes(PoolAt::Server, &rare, &[]).await);
    assert!(5 * server < 3 * worker, "{server} of {worker}");
}
