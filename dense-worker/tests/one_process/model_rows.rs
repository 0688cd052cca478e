//! The rows of a saved model in this process are those that an embedding server reads of it.

use std::collections::BTreeSet;

use zagros_ingest::{BatchStream, DataPart, find_files};
use zagros_protocol::control::{FileDigest, LoadRequest};
use zagros_scoring::{ModelRows, RowSource, SavedModel};

use super::workers::read_rows;
use super::*;

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
