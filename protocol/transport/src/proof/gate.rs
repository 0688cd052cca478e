//! Refuses every request of a connection that has proven nothing, and every call that its peer's role may not make.
//!
//! This is invariant MB-7. The gate stands before all services of a port, so a new service or call is behind it without a line of its own. It
//! reads no body.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::Either;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;
use zagros_plumbing::grpc::MAX_MESSAGE_BYTES;
use zagros_protocol::{Refusal, RefusalKind};

use super::{PeerRole, least_role, most_bytes};
use crate::status_of;

/// Bytes that gRPC puts before a message.
const PREFIX: usize = 5;

/// What is known of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// This port asks for no proof: it listens for this machine only, or the job says `cluster.insecure`.
    Unchecked,
    Unproven,
    Proven(PeerRole),
}

impl Peer {
    /// The peer of a request. A request whose connection is not known has proven nothing.
    pub fn from_extensions(extensions: &http::Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or(Self::Unproven)
    }

    /// Accepts a peer of this role, or of a role with more rights. `what` is what the peer wants to do, for the message.
    pub fn require_role(self, least: PeerRole, what: &str) -> Result<(), Refusal> {
        match self {
            Self::Unchecked => Ok(()),
            Self::Proven(role) if role >= least => Ok(()),
            Self::Proven(role) => {
                let message = format!("{what} needs the role {least}, and this peer has proven the role {role} only");
                Err(Refusal::new(RefusalKind::Forbidden, message))
            }
            Self::Unproven => Err(Refusal::new(
                RefusalKind::Unauthenticated,
                "this peer has not proven that it belongs to the run; give it the run's secret: ZAGROS_RUN_SECRET_FILE \
                 names the file, and `zagros up` writes it to roles/secret in the run folder (docs/security.md)",
            )),
        }
    }

    fn may_call(self, path: &str) -> Result<(), Status> {
        if self == Self::Unchecked {
            return Ok(());
        }
        // A peer that has proven nothing does not learn which calls there are.
        let least = least_role(path);
        self.require_role(least.unwrap_or(PeerRole::Client), path).map_err(status_of)?;
        least.map(|_| ()).ok_or_else(|| Status::unimplemented(format!("there is no call {path}")))
    }
}

/// Adds the gate to all services of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateLayer;

impl<S> Layer<S> for GateLayer {
    type Service = RequestGate<S>;

    fn layer(&self, inner: S) -> RequestGate<S> {
        RequestGate(inner)
    }
}

#[derive(Clone, Debug)]
pub(super) struct RequestGate<S>(S);

impl<S> Service<Request<Body>> for RequestGate<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Response<Body>, Infallible>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match Peer::from_extensions(request.extensions()).may_call(request.uri().path()) {
            Ok(()) => Either::Right(self.0.call(limited(request))),
            Err(status) => Either::Left(ready(Ok(status.into_http()))),
        }
    }
}

/// Limits the bytes of a request. Requests of the data path are limited by their own reader, which copies nothing.
fn limited(request: Request<Body>) -> Request<Body> {
    match most_bytes(request.uri().path()) {
        MAX_MESSAGE_BYTES => request,
        most => {
            let path = request.uri().path().to_owned();
            request.map(|body| Body::new(LimitedRequest { body, path, most, left: most + PREFIX }))
        }
    }
}

/// A request body that ends with an error once it is too long.
struct LimitedRequest {
    body: Body,
    path: String,
    most: usize,
    left: usize,
}

impl http_body::Body for LimitedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(polled) = Pin::new(&mut self.body).poll_frame(context) else { return Poll::Pending };
        let bytes = polled.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum();
        Poll::Ready(match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                polled
            }
            None => {
                let (path, most) = (&self.path, self.most);
                Some(Err(Status::out_of_range(format!(
                    "a request of {path} has at most {most} bytes, and this one is longer"
                ))))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::CALLS;

    #[test]
    fn without_a_proof_no_call_is_reachable_and_a_role_reaches_its_own() {
        for (call, least, _) in CALLS {
            let refused = Peer::Unproven.may_call(call).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{call}");
            assert!(refused.message().contains("ZAGROS_RUN_SECRET_FILE"), "{refused}");
            assert!(Peer::Unchecked.may_call(call).is_ok());
            for role in PeerRole::ALL {
                let answer = Peer::Proven(role).may_call(call).map_err(|status| status.code());
                let expected = if role >= *least { Ok(()) } else { Err(tonic::Code::PermissionDenied) };
                assert_eq!(answer, expected, "{role} {call}");
            }
        }
        let unknown = "/zagros.control.v1.Coordinator/Shutdown";
        let peers = [Peer::Unproven, Peer::Proven(PeerRole::Coordinator)];
        let codes = peers.map(|peer| peer.may_call(unknown).unwrap_err().code());
        assert_eq!(codes, [tonic::Code::Unauthenticated, tonic::Code::Unimplemented]);
    }

    #[test]
    fn a_request_of_an_unknown_connection_has_proven_nothing() {
        assert_eq!(Peer::from_extensions(&http::Extensions::new()), Peer::Unproven);
    }
}
