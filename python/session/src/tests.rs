//! Sessions against a coordinator and servers in this process.

use std::sync::atomic::{AtomicBool, Ordering};

use zagros_embedding_client::BatchRows;

use zagros_shell::launch::EmbeddedCluster;
use zagros_zip::ZipEq;

use super::*;

const PATIENT: Look<'static> = &|| Ok(());

/// A cluster of two servers whose rows start at zero and learn by gradient descent with rate 1, and its session.
struct TrainedCluster {
    session: Session,
    _cluster: tokio::runtime::Runtime,
}

fn trained(staleness: usize) -> TrainedCluster {
    let (mut sessions, cluster) = workers(1, &format!("staleness = {staleness}"), "sgd");
    TrainedCluster { session: sessions.remove(0), _cluster: cluster }
}

/// The sessions of so many workers of one cluster.
fn workers(workers: u32, train: &str, optimizer: &str) -> (Vec<Session>, tokio::runtime::Runtime) {
    let text = format!(
        "[data]\nformat = 'delimited'\ntrain = 'none'\ncolumns = ['a', 'b', 'label']\nheader = false\n\
         [features]\nlabel = 'label'\ncategorical = ['a', 'b']\n[tables.a]\ndim = 1\n\
         [embedding]\ndim = 2\ninit = {{ kind = 'zero' }}\noptimizer = {{ kind = '{optimizer}', lr = 1.0 }}\n\
         [model]\nkind = 'ffnn'\nhidden = [1]\n[train]\n{train}\n\
         [cluster]\nservers = 2\nworkers = {workers}\ntimeout_seconds = 5.0\n"
    );
    let job = parse_job(&text, "test.toml").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let cluster = runtime.block_on(EmbeddedCluster::start(&job)).unwrap();
    let reach = RunReach { control: cluster.control, connect: cluster.connect };
    let start = |rank| Session::start(&job, rank, || Ok(reach.clone()), PATIENT).unwrap();
    ((0..workers).map(start).collect(), runtime)
}

impl TrainedCluster {
    fn batch(&self, ids: &[u64], access: BatchAccess) -> (LookupBatch, BatchRows) {
        let batch = self.session.look_up(&[(0, ids), (1, &[7])], access).unwrap();
        let rows = self.session.wait_for_rows(&batch, PATIENT).unwrap();
        (batch, rows)
    }

    fn read(&self, ids: &[u64]) -> Vec<f32> {
        self.session.flush(PATIENT).unwrap();
        self.batch(ids, BatchAccess::Read).1.tables.remove(0)
    }
}

/// The gradient of each row is its value, or `value` for all.
fn gradients(rows: &BatchRows, value: f32) -> BatchRows {
    BatchRows { tables: rows.tables.iter().map(|table| vec![value; table.len()]).collect() }
}

#[test]
fn gradients_reach_the_rows_once_and_the_run_ends_well() {
    let cluster = trained(0);
    let tables = [("a", 1), ("b", 2)].map(|(name, dim)| SessionTable { name: name.into(), dim });
    assert_eq!(cluster.session.tables(), tables);
    for _ in 0..3 {
        let (batch, rows) = cluster.batch(&[5, 9, 5], BatchAccess::Train);
        assert_eq!((batch.id_positions(), rows.tables[0].len()), (&[vec![0, 1, 0], vec![0]][..], 2));
        cluster.session.push(vec![(&batch, gradients(&rows, -1.0))], 0).unwrap();
        let again = cluster.session.push(vec![(&batch, gradients(&rows, -1.0))], 0).unwrap_err().to_string();
        assert!(again.contains("a push is never repeated"), "{again}");
    }
    assert_eq!(cluster.read(&[9, 5, 1]), [3.0, 3.0, 0.0]);
    let tables = cluster.session.describe_tables(PATIENT).unwrap();
    assert_eq!(tables.iter().map(|table| table.rows).collect::<Vec<_>>(), [2, 1], "reads create no row");
    cluster.session.close(None, PATIENT).unwrap();
    cluster.session.close(None, PATIENT).unwrap();
    let closed = cluster.session.look_up(&[(0, &[1])], BatchAccess::Read).err().unwrap();
    assert!(matches!(closed, SessionError::Closed), "{closed}");
}

/// Invariant DP-4.
#[test]
fn the_window_holds_a_batch_until_its_push_and_a_full_window_is_an_error() {
    let cluster = trained(1);
    let (first, rows) = cluster.batch(&[1], BatchAccess::Train);
    let (second, _) = cluster.batch(&[2], BatchAccess::Train);
    let third = cluster.session.look_up(&[(0, &[3])], BatchAccess::Train).unwrap();
    let full = cluster.session.wait_for_rows(&third, PATIENT).unwrap_err();
    assert!(matches!(full, SessionError::WindowFull { inside: 2 }), "{full}");
    // Reading needs no place.
    assert_eq!(cluster.read(&[1]), [0.0]);
    // A batch that is given up and one that is pushed make room.
    second.give_up();
    cluster.session.push(vec![(&first, gradients(&rows, 1.0))], 0).unwrap();
    cluster.session.flush(PATIENT).unwrap();
    assert_eq!(cluster.session.in_flight(), (0, 0));
    drop(cluster.batch(&[4], BatchAccess::Train));
    assert_eq!(cluster.session.in_flight(), (0, 0));
}

/// Invariant RK-1: the row that both workers have takes one step of Adagrad, lr · g / |g|, and not two.
#[test]
fn a_row_takes_the_mean_of_the_workers_gradients_of_a_step_as_one_update() {
    let (sessions, _cluster) = workers(2, "staleness = 0", "adagrad");
    for step in 0..2 {
        for (session, ids) in sessions.iter().zip_eq([[1, 2], [2, 3]]) {
            let batch = session.look_up(&[(0, &ids)], BatchAccess::Train).unwrap();
            let rows = session.wait_for_rows(&batch, PATIENT).unwrap();
            session.push(vec![(&batch, gradients(&rows, 4.0))], step).unwrap();
        }
        sessions.iter().for_each(|session| session.flush(PATIENT).unwrap());
    }
    let batch = sessions[1].look_up(&[(0, &[1, 2, 3])], BatchAccess::Read).unwrap();
    let rows = sessions[1].wait_for_rows(&batch, PATIENT).unwrap().tables.remove(0);
    let expected = -(1.0 + 0.5_f32.sqrt());
    assert!(rows.iter().all(|row| (row - expected).abs() < 1e-6), "{rows:?}, and not {expected}");
    sessions[0].close(None, PATIENT).unwrap();
    let late = sessions[0].wait_for_other_workers(&|| Err(SessionError::Interrupted("tired".into()))).unwrap_err();
    assert!(late.to_string().contains("tired"), "the other worker is there: {late}");
    sessions[1].close(None, PATIENT).unwrap();
    sessions[0].wait_for_other_workers(PATIENT).unwrap();
}

#[test]
fn wrong_calls_are_refused_before_anything_is_sent() {
    let cluster = trained(0);
    let none = cluster.session.look_up(&[(2, &[1])], BatchAccess::Read).err().unwrap().to_string();
    assert_eq!(none, "there is no table 2; the job has 2");
    let (batch, mut rows) = cluster.batch(&[1], BatchAccess::Train);
    assert!(matches!(cluster.session.wait_for_rows(&batch, PATIENT), Err(SessionError::Repeated(_))));
    rows.tables[0].push(0.0);
    let shape = cluster.session.push(vec![(&batch, rows)], 0).unwrap_err().to_string();
    assert!(shape.contains("[2, 2] values by table") && shape.contains("[1, 2]"), "{shape}");
    batch.give_up();
    let (read, rows) = cluster.batch(&[1], BatchAccess::Read);
    let read = cluster.session.push(vec![(&read, rows)], 0).unwrap_err().to_string();
    assert!(read.contains("look its ids up for training"), "{read}");
}

#[test]
fn a_caller_that_does_not_want_to_wait_gets_its_batch_released() {
    let cluster = trained(0);
    let (first, rows) = cluster.batch(&[1], BatchAccess::Train);
    let second = cluster.session.look_up(&[(0, &[1])], BatchAccess::Train).unwrap();
    let asked = AtomicBool::new(false);
    let interrupted = cluster.session.wait_for_rows(&second, &|| {
        asked.store(true, Ordering::Relaxed);
        Err(SessionError::Interrupted("Ctrl-C".into()))
    });
    assert!(matches!(interrupted, Err(SessionError::Interrupted(_))) && asked.into_inner());
    cluster.session.push(vec![(&first, gradients(&rows, 1.0))], 0).unwrap();
    assert_eq!(cluster.read(&[1]), [-1.0]);
}

#[tokio::test]
async fn a_malformed_address_and_a_malformed_secret_are_reported() {
    let cases = [("127.0.0.1:1", Some("xyz"), "64 hexadecimal digits"), ("no where", None, "cannot reach no where")];
    for (address, secret, problem) in cases {
        let wrong = RunReach::over_grpc(address, secret, std::time::Duration::from_secs(1)).err().unwrap().to_string();
        assert!(wrong.contains(problem), "{wrong}");
    }
}

#[test]
fn a_job_in_json_is_the_job_in_toml() {
    let json = r#"{"data": {"format": "criteo", "train": "a"}, "tables": {"C1": {"dim": 4}},
                   "embedding": {"dim": 8}, "model": {"kind": "ffnn", "hidden": [1]}}"#;
    let job = parse_job(&job_toml(json).unwrap(), "x.toml").unwrap();
    assert_eq!((job.tables[0].dim, job.tables[1].dim), (4, 8));
}

#[test]
fn what_is_no_job_is_refused_in_words() {
    for wrong in ["[1]", "{", r#"{"train": null}"#] {
        let said = job_toml(wrong).unwrap_err().to_string();
        assert!(said.starts_with("the settings are no job: "), "{said}");
    }
    let said = parse_job("[tables.C1]\ndims = 4\n", "mine").unwrap_err().to_string();
    assert!(said.contains("mine") && said.contains("`dim`"), "{said}");
}
