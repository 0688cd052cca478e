//! docs/metrics.md lists the metrics of every role. Each role registers its metrics here as in a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zagros_coordinator::LocalCoordinator;
use zagros_coordinator_client::{ControlPlane, Membership, wait_for_placement};
use zagros_dense_worker::{RunFolder, Worker};
use zagros_embedding_client::Shard;
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_job::{Job, Overrides};
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::{Registry, describe_process};
use zagros_protocol::control::{JoinRequest, Role};
use zagros_protocol::{BucketMap, Generation, Refusal, ServerIndex};

const LATE: Duration = Duration::from_secs(120);
/// Labels whose values differ between runs.
const OPEN: [&str; 3] = ["server", "table", "release"];
const HEAD: &str = "\
<!-- Written by a test from the code: UPDATE_DOCS=1 cargo test -p zagros --test metrics_page -->
# Metrics

Every role serves them at `/metrics` of its admin address (`cluster.admin`), in Prometheus' text format. Names end in their unit;
counters end in `_total` and start at 0 with their process; durations are seconds. Prometheus adds `role`, `index` and `run`
([monitoring.md](monitoring.md)). A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`.
";
/// Memory for one row, so that there is a cold tier; and both held-out parts.
const JOB: &str = r#"
name = "page"
[data]
format = "delimited"
train = "train.csv"
validation = "train.csv"
test = "train.csv"
threads = 1
[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = ["age"]
categorical = ["city"]
[embedding]
dim = 4
[train]
batch_size = 16
threads = 1
[cluster]
memory = "64 KiB"
durability = "process"
[model]
kind = "dlrm"
bottom = [8]
top = [8]
"#;

fn job(folder: &Path) -> Job {
    let rows: String = (0..64).map(|row| format!("{},{},c{row}\n", row % 2, row % 7)).collect();
    std::fs::write(folder.join("train.csv"), format!("click,age,city\n{rows}")).unwrap();
    let sets = vec![format!("output.folder={:?}", folder.join("runs"))];
    Job::parse(JOB, &folder.join("job.toml"), &Overrides::new(sets, [])).unwrap()
}

/// One server of a run, after it joined and got a placement.
async fn server(job: &Job, control: Arc<LocalCoordinator>, registry: &Registry) -> (Arc<dyn Shard>, Membership) {
    let service = EmbeddingService::open(job, ServerIndex(0), registry).unwrap();
    let (role, address, instance) = (Role::EmbeddingServer.into(), "embedded:0".to_owned(), 1);
    let job_fingerprint = job.fingerprint();
    let request = JoinRequest { role, address, instance, job_fingerprint, ..JoinRequest::default() };
    let member =
        Membership::join(control.clone() as Arc<dyn ControlPlane>, request, LATE, &Shutdown::new()).await.unwrap();
    let placement = wait_for_placement(control.as_ref(), LATE, &Shutdown::new()).await.unwrap();
    let map = BucketMap::unpack_owners(Generation(placement.generation), &placement.owners).unwrap();
    service.set_placement(Arc::new(map));
    (Arc::new(LocalShard::new(service)), member)
}

/// A short run, with a registry for each role.
async fn train(folder: &Path) -> [(&'static str, String); 4] {
    let job = job(folder);
    let [of_coordinator, of_server, of_worker, of_process] = std::array::from_fn(|_| Registry::new());
    describe_process(&of_process, env!("CARGO_PKG_VERSION"));
    let control = LocalCoordinator::new(&job, &of_coordinator);
    let (shard, member) = server(&job, Arc::clone(&control), &of_server).await;
    let folder = Some(RunFolder::create(&job, &[]).unwrap());
    let connect = Arc::new(move |_: &_| {
        let _alive = &member;
        Ok::<_, Refusal>(Arc::clone(&shard))
    });
    let worker =
        Worker { folder, ..Worker::without_peers(job, zagros_torch::backend(), control, connect, of_worker.clone()) };
    // The server's metrics are read from its tables, which must still exist.
    let connect = Arc::clone(&worker.connect);
    tokio::time::timeout(LATE, worker.run()).await.expect("the run ends").unwrap();
    let titles = ["Every process", "Coordinator", "Embedding server", "Dense worker"];
    let tables = [of_process, of_coordinator, of_server, of_worker].map(|registry| table(&registry));
    drop(connect);
    let mut tables = tables.into_iter();
    titles.map(|title| (title, tables.next().unwrap()))
}

fn table(registry: &Registry) -> String {
    let mut text = "| name | kind | labels | what |\n|---|---|---|---|\n".to_owned();
    for family in registry.gather() {
        let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for label in family.get_metric().iter().flat_map(|metric| metric.get_label()) {
            labels.entry(label.name()).or_default().insert(label.value());
        }
        let labels: Vec<String> = labels.iter().map(|(name, values)| described(name, values)).collect();
        let kind = format!("{:?}", family.get_field_type()).to_lowercase();
        writeln!(text, "| `{}` | {kind} | {} | {} |", family.name(), labels.join("; "), family.help()).unwrap();
    }
    text
}

fn described(name: &str, values: &BTreeSet<&str>) -> String {
    if OPEN.contains(&name) {
        return format!("`{name}`");
    }
    format!("`{name}`: {}", values.iter().copied().collect::<Vec<_>>().join(", "))
}

#[tokio::test]
async fn the_page_of_metrics_is_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let operator = Registry::new();
    let metrics = zagros_operator::context::OperatorMetrics::new(&operator);
    for outcome in ["done", "reported", "retried"] {
        metrics.reconciles.with_label_values(&[outcome]);
    }
    let sections = train(folder.path()).await.into_iter().chain([("Operator", table(&operator))]);
    let page = sections.fold(HEAD.to_owned(), |page, (title, table)| format!("{page}\n## {title}\n\n{table}"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/metrics.md differs from the code; write it with: UPDATE_DOCS=1 cargo test -p zagros --test metrics_page\n{page}"
    );
    check_names(&page);
}

/// Base units, and `_total` on counters only.
#[track_caller]
fn check_names(page: &str) {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut found = 0;
    for (name, rest) in rows {
        found += 1;
        assert_eq!(name.ends_with("_total"), rest.starts_with("counter"), "{name}: {rest}");
        assert!(name.starts_with("zagros_") || name.starts_with("process_"), "{name}");
        for unit in ["_ms", "_micros", "_millis", "_kb", "_mb", "_percent", "_minutes"] {
            assert!(!name.ends_with(unit), "{name} is not in a base unit");
        }
    }
    assert!(found > 50, "the page has {found} metrics only");
}
