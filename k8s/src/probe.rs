//! Asks a coordinator: at its `/status` for the progress of its run, and by gRPC for other numbers of servers and workers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Deserialize;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_plumbing::admin::PageToken;
use zagros_plumbing::ask::ask_path;
use zagros_protocol::Refusal;
use zagros_protocol::control::ScaleRequest;
use zagros_transport::Credentials;

use crate::crd::{RunProgress, ServerScaling};
use crate::names::RunAttempt;

const TIMEOUT: Duration = Duration::from_secs(2);
const SCALE_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the coordinator of an attempt for these numbers, with the proof that this is allowed. A number that is 0 stays.
/// The same call again changes nothing.
pub type CoordinatorScale =
    Arc<dyn Fn(RunAttempt, Credentials, ScaleRequest) -> BoxFuture<'static, Result<(), Refusal>> + Send + Sync>;

/// Asks coordinators by the names of their Services.
pub fn scale_by_coordinator() -> CoordinatorScale {
    Arc::new(|attempt: RunAttempt, credentials: Credentials, wanted: ScaleRequest| {
        Box::pin(async move {
            let control = GrpcControlPlane::connect(&attempt.coordinator_address(), SCALE_TIMEOUT, &credentials);
            let control = control.map_err(|error| Refusal::invalid(error.to_string()))?;
            control.scale(wanted).await.map(|_| ())
        })
    })
}

/// `address` is `host:port`; `token` is that of the run if it has one.
pub async fn ask_status(address: &str, token: Option<&PageToken>) -> Result<RunProgress, String> {
    let failed = |reason: String| format!("the coordinator at {address} did not report its status: {reason}");
    let (status, body) = ask_path(address, "/status", token.map(PageToken::expose_secret), TIMEOUT)
        .await
        .map_err(|error| failed(error.to_string()))?;
    if !status.is_success() {
        return Err(failed(format!("it answers {status}")));
    }
    parse_status(&body).map_err(|error| failed(format!("not a status: {error}")))
}

#[derive(Deserialize)]
struct ProbedReport {
    state: String,
    reason: String,
    epoch: i32,
    epochs: i32,
    members: Vec<ProbedMember>,
    evaluations: Vec<ProbedEvaluation>,
    #[serde(default)]
    checkpoints: Vec<ProbedCheckpoint>,
    scale: Option<ServerScaling>,
}

#[derive(Deserialize)]
struct ProbedCheckpoint {
    step: i64,
}

#[derive(Deserialize)]
struct ProbedMember {
    role: String,
    state: String,
    progress: Option<MemberProgress>,
}

#[derive(Deserialize)]
struct MemberProgress {
    step: i64,
    #[serde(default)]
    checkpoint_step: i64,
    samples_per_second: Option<f64>,
    loss: Option<f64>,
}

#[derive(Deserialize)]
struct ProbedEvaluation {
    auc: Option<f64>,
    logloss: Option<f64>,
}

pub(crate) fn parse_status(body: &[u8]) -> Result<RunProgress, serde_json::Error> {
    let report: ProbedReport = serde_json::from_slice(body)?;
    let workers = || report.members.iter().filter_map(|member| member.progress.as_ref());
    let foremost = workers().max_by_key(|worker| worker.step);
    let digits = |number: Option<f64>| number.map(|number| format!("{number:.4}"));
    let last = report.evaluations.last();
    let marks = report.checkpoints.iter().map(|checkpoint| checkpoint.step);
    let written = workers().map(|worker| worker.checkpoint_step).chain(marks);
    let rate: f64 = workers().filter_map(|worker| worker.samples_per_second).sum();
    let is_serving = |one: &&ProbedMember| one.role == "embedding server" && one.state == "alive";
    let servers = report.members.iter().filter(is_serving).count();
    Ok(RunProgress {
        servers: i32::try_from(servers).unwrap_or(i32::MAX),
        step: foremost.map_or(0, |worker| worker.step),
        checkpoint_step: written.max().unwrap_or(0),
        epoch: (report.epoch + 1).min(report.epochs.max(1)),
        epochs: report.epochs,
        samples_per_second: rate.round() as i64,
        loss: digits(foremost.and_then(|worker| worker.loss)),
        auc: digits(last.and_then(|evaluation| evaluation.auc)),
        logloss: digits(last.and_then(|evaluation| evaluation.logloss)),
        scaling: report.scale,
        state: report.state,
        reason: report.reason,
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use zagros_coordinator::{EvaluationReport, MemberReport, ProgressReport, StatusReport};

    use super::*;

    fn worker(step: u64, loss: f64) -> MemberReport {
        let (samples_per_second, samples) = (1000.4, 10);
        let checkpoint_step = 30;
        let progress =
            ProgressReport { step, samples, samples_per_second, loss, checkpoint_step, ..ProgressReport::default() };
        MemberReport { incarnation: 1, progress: Some(progress), ..MemberReport::default() }
    }

    fn server(state: &'static str) -> MemberReport {
        MemberReport { role: "embedding server".to_owned(), state: state.to_owned(), ..MemberReport::default() }
    }

    fn report() -> String {
        let evaluation = EvaluationReport { step: 9, epoch: 0, samples: 5, auc: 0.756_04, logloss: 0.5, part: "test" };
        let (job, state, evaluations) = ("ctr".to_owned(), "training".to_owned(), vec![evaluation]);
        let members = vec![server("alive"), server("away"), worker(40, 0.5), worker(41, f64::NAN)];
        let report = StatusReport { job, state, epoch: 1, epochs: 3, members, evaluations, ..StatusReport::default() };
        serde_json::to_string(&report).unwrap()
    }

    async fn answering(answer: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"GET /status HTTP/1.1"));
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn the_coordinators_report_is_parsed() {
        let body = report();
        let address = answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
        let progress = ask_status(&address, None).await.unwrap();
        assert_eq!((progress.step, progress.epoch, progress.epochs), (41, 2, 3));
        assert_eq!((progress.checkpoint_step, progress.servers), (30, 1));
        assert_eq!((progress.samples_per_second, progress.auc.as_deref()), (2001, Some("0.7560")));
        assert_eq!((progress.loss, progress.state.as_str()), (None, "training"));
    }

    #[tokio::test]
    async fn another_answer_is_an_error_that_says_so() {
        for (answer, words) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not a status"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}", "127.0.0.1:"),
        ] {
            let address = answering(answer.to_owned()).await;
            let error = ask_status(&address, None).await.unwrap_err();
            assert!(error.contains(words), "{answer}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_hangs_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = ask_status(&address, None).await.unwrap_err();
        assert!(error.contains("does not answer /status within 2s"), "{error}");
    }
}
