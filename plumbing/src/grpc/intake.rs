//! Limits the bytes of incomplete requests over all connections of a server.
//!
//! A message stays in memory until it is complete. Without a limit, a sender that starts many long messages and
//! completes none would fill the server's memory. Each piece that arrives takes from a budget. The message returns its
//! bytes when it is complete or abandoned. If a piece finds no budget, its request ends with `UNAVAILABLE`, which
//! members retry. A request that is not complete in time is abandoned.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::Request;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tower_layer::Layer;
use tower_service::Service;

use super::MAX_MESSAGE_BYTES;

/// Bytes of four messages of the largest size. Members usually send messages of a hundredth of that size.
const BUDGET: usize = 4 * MAX_MESSAGE_BYTES;
/// Time for the largest message at 40 Mbit/s.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);

/// Adds the limit to all services of a server.
#[derive(Clone, Debug)]
pub struct IntakeLayer(Arc<IntakeBudget>);

#[derive(Debug)]
struct IntakeBudget {
    budget: usize,
    whole_within: Duration,
    /// Bytes of incomplete requests.
    held: AtomicUsize,
}

impl Default for IntakeLayer {
    fn default() -> Self {
        Self::bounded(BUDGET, WHOLE_WITHIN)
    }
}

impl IntakeLayer {
    fn bounded(budget: usize, whole_within: Duration) -> Self {
        Self(Arc::new(IntakeBudget { budget, whole_within, held: AtomicUsize::new(0) }))
    }
}

impl<S> Layer<S> for IntakeLayer {
    type Service = IntakeService<S>;

    fn layer(&self, inner: S) -> IntakeService<S> {
        IntakeService { inner, intake: Arc::clone(&self.0) }
    }
}

/// A service that counts the bytes of its requests while they arrive.
#[derive(Clone, Debug)]
pub struct IntakeService<S> {
    inner: S,
    intake: Arc<IntakeBudget>,
}

impl<S: Service<Request<tonic::body::Body>>> Service<Request<tonic::body::Body>> for IntakeService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> S::Future {
        let intake = &self.intake;
        self.inner.call(request.map(|body| tonic::body::Body::new(CountedBody::new(body, Arc::clone(intake)))))
    }
}

/// A request body that takes from the budget. Its reader drops the body when the message is complete, which returns the
/// bytes.
struct CountedBody<B> {
    body: B,
    intake: Arc<IntakeBudget>,
    held: usize,
    late: Pin<Box<Sleep>>,
}

impl<B> CountedBody<B> {
    fn new(body: B, intake: Arc<IntakeBudget>) -> Self {
        let late = Box::pin(sleep(intake.whole_within));
        Self { body, intake, held: 0, late }
    }

    fn take(&mut self, bytes: usize) -> Result<(), Status> {
        let others = self.intake.held.fetch_add(bytes, Ordering::Relaxed);
        self.held += bytes;
        if others + bytes <= self.intake.budget {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "{others} bytes of incomplete messages are in memory already, and the limit is {}; try again",
            self.intake.budget
        )))
    }
}

impl<B> Drop for CountedBody<B> {
    fn drop(&mut self) {
        self.intake.held.fetch_sub(self.held, Ordering::Relaxed);
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining);
                Poll::Ready(Some(self.take(bytes).map(|()| frame)))
            }
            Poll::Pending => self.late.as_mut().poll(context).map(|()| {
                let limit = self.intake.whole_within;
                Some(Err(Status::deadline_exceeded(format!("the request was not complete within {limit:.0?}"))))
            }),
            ended => ended,
        }
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
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    use super::*;

    /// A body whose pieces the test sends.
    struct Sent(mpsc::UnboundedReceiver<Bytes>);

    impl Body for Sent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn started(intake: &Arc<IntakeBudget>) -> (mpsc::UnboundedSender<Bytes>, CountedBody<Sent>) {
        let (send, sent) = mpsc::unbounded_channel();
        (send, CountedBody::new(Sent(sent), Arc::clone(intake)))
    }

    fn intake() -> Arc<IntakeBudget> {
        IntakeLayer::bounded(100, Duration::from_secs(60)).0
    }

    #[tokio::test]
    async fn a_piece_beyond_the_budget_ends_its_request_and_other_requests_continue() {
        let intake = intake();
        let ((slow, mut held), (send, mut late)) = (started(&intake), started(&intake));
        slow.send(Bytes::from_static(&[0; 80])).unwrap();
        assert!(held.frame().await.unwrap().is_ok());
        send.send(Bytes::from_static(&[0; 21])).unwrap();
        let refused = late.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.message().starts_with("80 bytes of incomplete messages"), "{refused}");
        drop(late);
        drop(held);
        assert_eq!(intake.held.load(Ordering::Relaxed), 0);
        let (send, mut whole) = started(&intake);
        send.send(Bytes::from_static(&[0; 100])).unwrap();
        drop(send);
        assert!(whole.frame().await.unwrap().is_ok() && whole.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_whole_is_given_up() {
        let intake = intake();
        let (send, mut body) = started(&intake);
        send.send(Bytes::from_static(&[0; 10])).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::DeadlineExceeded);
        assert!(refused.message().contains("not complete within 60s"), "{refused}");
    }
}
