//! Statistics of many categories, over real connections: their messages are as long as jobs may have them.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::net::TcpListener;
use zagros_coordinator::{CoordinatorConfig, run};
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_job::{EncodingTable, Features, Job, MeasuredValue, Overrides};
use zagros_plumbing::grpc::MAX_CONTROL_BYTES;
use zagros_plumbing::{Shutdown, StopMeaning};
use zagros_protocol::PROTOCOL_VERSION;
use zagros_protocol::control::{DataFile, JoinRequest, Role};
use zagros_transport::Credentials;
use zagros_zip::ZipEq;

use super::{apply, transforms};
use crate::control::data::SplitClient;

const TIMEOUT: Duration = Duration::from_secs(60);

/// An encoding of the default size, and a vocabulary of the largest.
const JOB: &str = "name = 'wide'\n[data]\nformat = 'delimited'\ntrain = 'a.csv'\ncolumns = ['y', 'a', 'b']\n[model]\nkind = 'ffnn'\n\
    [features]\nlabel = { column = 'y', positive = ['1'] }\n\
    numeric = [{ column = 'a', name = 'r', encode = { by = 'target' } }]\n\
    categorical = [{ column = 'b', vocabulary = { min_count = 1, max_size = 262144 } }]\n";

fn job(workers: u32) -> Job {
    let text = format!("{JOB}[cluster]\nworkers = {workers}\n");
    Job::parse(&text, std::path::Path::new("job.toml"), &Overrides::none()).unwrap()
}

async fn caller(control: &Arc<dyn ControlPlane>, job: &Job, index: u32) -> SplitClient {
    let request = JoinRequest {
        role: Role::DenseWorker.into(),
        index,
        instance: 40 + u64::from(index),
        job_fingerprint: job.fingerprint(),
        protocol_version: PROTOCOL_VERSION,
        files: vec![DataFile { path: "a.csv".to_owned(), bytes: 1000, ..DataFile::default() }],
        ..JoinRequest::default()
    };
    let joined = control.join(request).await.unwrap();
    let (member, incarnation) = (joined.member, joined.incarnation);
    let control = Arc::clone(control);
    SplitClient { control, member, incarnation, timeout: TIMEOUT, ..SplitClient::of_test(Arc::default()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_workers_learn_the_statistics_of_as_many_categories_as_a_job_may_have() {
    for workers in [2, 3] {
        let (mut known, shutdown) = (job(workers), Shutdown::new());
        let statistics = known.features.unmeasured_statistics();
        let columns = known.features.numeric[0].encode.as_ref().unwrap().own_folds() + 1;
        let encoding = EncodingTable {
            mean: 0.25,
            deviation: 0.5,
            rare: vec![0.125; columns],
            ids: (0..65_536).collect(),
            values: (0..65_536 * columns as u32).map(|value| value as f32 / 7.0).collect(),
        };
        let values = [MeasuredValue::Encoding(encoding), MeasuredValue::Ids((0..262_144).map(|id| id * 3).collect())];
        for (statistic, value) in statistics.iter().zip_eq(values) {
            assert!(known.features.set_measured(*statistic, value), "{statistic:?}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let config = CoordinatorConfig {
            job: Arc::new(job(workers)),
            grpc_listener: listener,
            admin_listener: None,
            credentials: Credentials::Open,
            journal: None,
            on_stop: StopMeaning::Drain,
            state_file: None,
            end_report: None,
            registry: Registry::new(),
        };
        let process = tokio::spawn(run(config, shutdown.clone()));
        let control: Arc<dyn ControlPlane> =
            Arc::new(GrpcControlPlane::connect(&address, TIMEOUT, &Credentials::Open).unwrap());
        let first = caller(&control, &job(workers), 0).await;
        first.share_transforms(transforms(&known, &statistics), 0).await.unwrap();
        for index in 1..workers {
            let measured = caller(&control, &job(workers), index).await.wait_for_transforms().await.unwrap();
            let mut other = job(workers);
            apply(&mut other, &statistics, &measured).unwrap();
            assert_eq!(other.features, known.features, "worker {index} of {workers}");
        }
        process.abort();
    }
}

/// What a job may have is what its message may.
#[test]
fn the_bound_of_a_job_is_that_of_a_message() {
    assert_eq!(Features::STATISTICS_BYTES, MAX_CONTROL_BYTES as u64 - 1024);
}
