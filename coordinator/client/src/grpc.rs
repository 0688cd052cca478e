//! The coordinator over gRPC. Every call has a deadline. Every failure says who was called.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use zagros_plumbing::Deadline;
use zagros_plumbing::grpc::{InvalidAddress, MAX_CONTROL_BYTES};
use zagros_protocol::control::*;
use zagros_protocol::{Refusal, RefusalKind, RunId};
use zagros_transport::control::coordinator_client::CoordinatorClient;
use zagros_transport::{Credentials, PeerRole, open_channel, refusal_of, stamp_run, status_of};

use crate::control_plane::{ControlAnswer, ControlPlane};

#[derive(Clone, Debug)]
pub struct GrpcControlPlane {
    name: String,
    call_timeout: Duration,
    client: CoordinatorClient<Channel>,
    /// The run of the first join. Every later request names this run, so a restarted coordinator refuses the members of
    /// the earlier run (invariant MB-2).
    run: Arc<OnceLock<RunId>>,
}

impl GrpcControlPlane {
    /// Prepares calls to `address` (`host:port`), each ended after `call_timeout`. The connection is made by the
    /// first call and made again when it breaks. Each connection proves what `credentials` says.
    pub fn connect(address: &str, call_timeout: Duration, credentials: &Credentials) -> Result<Self, InvalidAddress> {
        let client = CoordinatorClient::new(open_channel(address, credentials, PeerRole::Coordinator)?);
        let client = client.max_decoding_message_size(MAX_CONTROL_BYTES).max_encoding_message_size(MAX_CONTROL_BYTES);
        Ok(Self { name: format!("coordinator ({address})"), call_timeout, client, run: Arc::default() })
    }

    fn named_run<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(run) = self.run.get() {
            stamp_run(*run, request.metadata_mut().as_mut());
        }
        request
    }

    /// Ends a call after its timeout. Turns its status into a refusal, which names the coordinator if no answer came.
    fn bounded<'a, T: 'a>(
        &'a self,
        call: impl Future<Output = Result<Response<T>, Status>> + Send + 'a,
    ) -> ControlAnswer<'a, T> {
        async move {
            let answer = Deadline::from_now(self.call_timeout).bound(call).await;
            let answer = answer.map_err(Refusal::no_answer).and_then(|answer| answer.map_err(refusal_of));
            answer.map(Response::into_inner).map_err(|refusal| self.named(refusal))
        }
        .boxed()
    }

    fn named(&self, refusal: Refusal) -> Refusal {
        if refusal.kind.is_retryable() || refusal.kind == RefusalKind::Unauthenticated {
            return Refusal::new(refusal.kind, format!("{}: {}", self.name, refusal.message));
        }
        refusal
    }
}

/// One method of the trait per call of the generated client: same name, same messages.
macro_rules! calls {
    ($($method:ident($request:ident) -> $response:ident),* $(,)?) => {$(
        fn $method(&self, request: $request) -> ControlAnswer<'_, $response> {
            // A clone shares the connection; the generated methods want `&mut self`.
            let (mut client, request) = (self.client.clone(), self.named_run(request));
            self.bounded(async move { client.$method(request).await })
        }
    )*};
}

impl ControlPlane for GrpcControlPlane {
    fn name(&self) -> &str {
        &self.name
    }

    fn join(&self, request: JoinRequest) -> ControlAnswer<'_, JoinResponse> {
        let (mut client, run) = (self.client.clone(), Arc::clone(&self.run));
        self.bounded(async move {
            let joined = client.join(request).await?;
            let named = RunId(joined.get_ref().run);
            let is_member = !joined.get_ref().over && !joined.get_ref().discard;
            if is_member && *run.get_or_init(|| named) != named {
                let first = run.get().copied().unwrap_or(named);
                let another =
                    format!("the coordinator was restarted: it belongs to run {named}, this process to run {first}");
                return Err(status_of(Refusal::new(RefusalKind::Fenced, another)));
            }
            Ok(joined)
        })
    }

    calls! {
        heartbeat(HeartbeatRequest) -> HeartbeatResponse,
        leave(LeaveRequest) -> LeaveResponse,
        placement(PlacementRequest) -> PlacementResponse,
        group(GroupRequest) -> GroupResponse,
        barrier(BarrierRequest) -> BarrierResponse,
        assign(AssignRequest) -> AssignResponse,
        complete(CompleteRequest) -> CompleteResponse,
        position(PositionRequest) -> PositionResponse,
        transforms(TransformsRequest) -> TransformsResponse,
        report_evaluation(ReportEvaluationRequest) -> ReportEvaluationResponse,
        status(StatusRequest) -> StatusResponse,
        scale(ScaleRequest) -> ScaleResponse,
        report_move(ReportMoveRequest) -> ReportMoveResponse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_coordinator_is_named_with_the_time_waited() {
        // Accepts connections into its backlog and never answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let plane = GrpcControlPlane::connect(&address, Duration::from_millis(50), &Credentials::Open).unwrap();
        let refusal = plane.status(StatusRequest {}).await.unwrap_err();
        let said = format!("coordinator ({address}): no answer within ");
        assert_eq!(refusal.kind, zagros_protocol::RefusalKind::Deadline);
        // Near 50 ms, by the clock of the machine.
        assert!(refusal.message.starts_with(&said) && refusal.message.ends_with("ms"), "{refusal}");
    }

    #[test]
    fn text_that_is_no_address_is_refused_with_an_example() {
        let refused =
            GrpcControlPlane::connect("not an address", Duration::from_secs(1), &Credentials::Open).unwrap_err();
        assert!(refused.to_string().contains("expected host:port"), "{refused}");
    }
}
