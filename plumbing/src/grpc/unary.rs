//! Unary gRPC calls that do not copy long fields in user space. Generated stubs copy each message into one buffer
//! before sending it and after receiving it. For a batch of rows these copies cost as much as the socket. The bytes on
//! the wire are the same, so either end may be a generated stub.

use std::future::{Future, poll_fn};

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::transport::Channel;

pub use super::message::OutgoingMessage;
use super::message::read;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Sends a message with these headers to `path` (`/package.Service/Method`), and waits for the answer. The caller
/// bounds the call.
pub async fn call<Q, A>(
    channel: &mut Channel,
    path: PathAndQuery,
    headers: HeaderMap,
    message: OutgoingMessage<Q>,
) -> Result<A, Status>
where
    Q: Message,
    A: Message + Default,
{
    let request = request(path, headers, Body::new(message.into_pieces(None)?));
    poll_fn(|context| GrpcService::<Body>::poll_ready(channel, context)).await.map_err(unreachable)?;
    let response = GrpcService::call(channel, request).await.map_err(unreachable)?;
    check_started(&response)?;
    let (message, trailers) = read(response.into_body()).await?;
    check_ended(trailers.as_ref())?;
    message.ok_or_else(|| Status::internal("the answer has no message"))
}

pub async fn answer_call<Q, A, F>(request: Request<Body>, work: impl FnOnce(Q) -> F) -> Response<Body>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<OutgoingMessage<A>, Status>>,
{
    served(request, work).await.unwrap_or_else(Status::into_http)
}

async fn served<Q, A, F>(request: Request<Body>, work: impl FnOnce(Q) -> F) -> Result<Response<Body>, Status>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<OutgoingMessage<A>, Status>>,
{
    let (message, _) = read(request.into_body()).await?;
    let message = message.ok_or_else(|| Status::invalid_argument("the request has no message"))?;
    let mut trailers = HeaderMap::new();
    Status::ok("").add_header(&mut trailers)?;
    let body = Body::new(work(message).await?.into_pieces(Some(trailers))?);
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    Ok(response)
}

fn request(path: PathAndQuery, headers: HeaderMap, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.headers_mut() = headers;
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    // The channel adds the host.
    *request.uri_mut() = Uri::from(path);
    request.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    request
}

fn unreachable(error: tonic::transport::Error) -> Status {
    Status::from_error(Box::new(error))
}

/// A call that fails early reports its failure in the headers. A proxy reports it as an HTTP status.
fn check_started(response: &Response<Body>) -> Result<(), Status> {
    match (Status::from_header_map(response.headers()), response.status()) {
        (Some(status), _) if status.code() != tonic::Code::Ok => Err(status),
        (_, StatusCode::OK) => Ok(()),
        (_, status) => Err(Status::unavailable(format!("the answer has HTTP status {status}"))),
    }
}

fn check_ended(trailers: Option<&HeaderMap>) -> Result<(), Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() == tonic::Code::Ok => Ok(()),
        Some(status) => Err(status),
        None => Err(Status::unavailable("the answer broke off before its status")),
    }
}
