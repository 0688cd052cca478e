//! Requests and answers as in the "Amazon S3 API Reference". Reading also as in Google's "XML API", which differs in the
//! credentials, and in Azure's "Blob service REST API", which differs in these and in lists.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body::Frame;

use crate::s3::objects::{ListPage, UploadOutcome};
use crate::s3::{InjectedFaults, KEY, S3Fault, ServerState};

/// Larger than any part of an upload.
const MOST_BYTES: usize = 64 << 20;
/// Entries per page. A small number makes lists of several pages.
const PAGE: usize = 3;
/// Time of the last change of every object.
const MODIFIED: &str = "Sat, 31 Jan 2026 00:00:00 GMT";

pub(crate) async fn answer(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = unescape(head.uri.path());
    let named = head.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let accepted = [format!("Credential={KEY}/"), format!("Bearer {KEY}"), format!("SharedKey {KEY}:")];
    if !shared.is_open && !accepted.iter().any(|text| named.contains(text)) {
        return refused(StatusCode::FORBIDDEN, "InvalidAccessKeyId");
    }
    let reported = format!("{} {path}", head.method);
    shared.requests.lock().push(reported.clone());
    let asked = head.uri.query().unwrap_or_default();
    let fault = meets(&mut shared.fault.lock(), &format!("{reported}?{asked}"));
    let halfway = match fault {
        None | Some(S3Fault::LosesAnswer) => false,
        Some(S3Fault::BreaksHalfway) => true,
        Some(S3Fault::Late(by)) => {
            tokio::time::sleep(by).await;
            false
        }
        Some(S3Fault::Hangs) => pending().await,
        Some(S3Fault::Breaks) => cut(),
        Some(fault @ (S3Fault::Fails | S3Fault::Denies)) => {
            // As S3 does: a client that still sends would hear of a broken connection alone.
            let _ = to_bytes(body, MOST_BYTES).await;
            return match fault {
                S3Fault::Fails => refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
                _ => refused(StatusCode::FORBIDDEN, "AccessDenied"),
            };
        }
    };
    let Some(key) =
        path.strip_prefix(&format!("/{}", shared.bucket)).filter(|key| key.is_empty() || key.starts_with('/'))
    else {
        return refused(StatusCode::NOT_FOUND, "NoSuchBucket");
    };
    let key = key.trim_start_matches('/').to_owned();
    let query = query(head.uri.query().unwrap_or_default());
    let Ok(content) = to_bytes(body, MOST_BYTES).await else {
        return refused(StatusCode::BAD_REQUEST, "IncompleteBody");
    };
    let answer = respond(&shared, &head.method, &key, &query, &head.headers, content.to_vec(), halfway);
    if fault == Some(S3Fault::LosesAnswer) {
        cut();
    }
    answer
}

/// Ends the connection's task without an answer, by a panic that nothing prints.
fn cut() -> ! {
    std::panic::resume_unwind(Box::new("cut"))
}

/// The fault for this request, if one is injected. Each match uses it up once.
fn meets(injected: &mut Option<InjectedFaults>, request: &str) -> Option<S3Fault> {
    let injected = injected.as_mut().filter(|it| it.times > 0 && request.starts_with(&it.matching))?;
    injected.times -= 1;
    Some(injected.fault)
}

fn respond(
    shared: &ServerState,
    method: &Method,
    key: &str,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
    content: Vec<u8>,
    halfway: bool,
) -> Response {
    let mut objects = shared.objects.lock();
    let asked = |name: &str| query.get(name).map(String::as_str);
    let upload = asked("uploadId").and_then(|id| id.parse().ok());
    let found = |found: bool| match found {
        true => ([("etag", "\"0\"")], "").into_response(),
        false => refused(StatusCode::NOT_FOUND, "NoSuchUpload"),
    };
    let of_upload = |outcome: UploadOutcome, answer: Response| match outcome {
        UploadOutcome::Done => answer,
        UploadOutcome::Unknown => found(false),
        UploadOutcome::Refused(code) => refused(StatusCode::BAD_REQUEST, code),
    };
    match (method.as_str(), upload) {
        ("GET", None) if key.is_empty() => {
            let (prefix, after) = (asked("prefix").unwrap_or_default(), asked("continuation-token"));
            let delimiter = asked("delimiter").and_then(|text| text.chars().next());
            let marker = after.or_else(|| asked("marker")).unwrap_or_default();
            let page = objects.list_page(prefix, delimiter, marker, PAGE);
            let is_azure = asked("comp") == Some("list");
            if is_azure { list_of_azure(&page).into_response() } else { list(&page).into_response() }
        }
        ("GET" | "HEAD", None) => match objects.get(key) {
            Some(object) => {
                let mut answer = read(&object, method == Method::HEAD, headers, halfway);
                for (name, value) in objects.metadata.get(key).into_iter().flatten() {
                    let header = (name.parse::<HeaderName>(), value.parse::<HeaderValue>());
                    if let (Ok(name), Ok(value)) = header {
                        answer.headers_mut().insert(name, value);
                    }
                }
                answer
            }
            None => refused(StatusCode::NOT_FOUND, "NoSuchKey"),
        },
        ("PUT", Some(upload)) => {
            let number = asked("partNumber").and_then(|number| number.parse().ok()).unwrap_or_default();
            of_upload(objects.put_part(upload, number, content), found(true))
        }
        ("PUT", None) => {
            objects.put(key, content);
            found(true)
        }
        ("POST", None) if asked("uploads").is_some() => {
            let is_metadata = |name: &str| name.starts_with("x-amz-meta-");
            let named = headers.iter().filter(|(name, _)| is_metadata(name.as_str()));
            let text = |(name, value): (&HeaderName, &HeaderValue)| {
                Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
            };
            let id = objects.begin_upload(key, named.filter_map(text).collect());
            format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>")
                .into_response()
        }
        ("POST", Some(upload)) => {
            let done = "<CompleteMultipartUploadResult><ETag>\"0\"</ETag></CompleteMultipartUploadResult>";
            of_upload(objects.complete_upload(upload), done.into_response())
        }
        ("DELETE", Some(upload)) => found(objects.abort_upload(upload)),
        ("DELETE", None) => {
            objects.delete(key);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => refused(StatusCode::NOT_IMPLEMENTED, "NotImplemented"),
    }
}

fn read(object: &[u8], head_only: bool, headers: &HeaderMap, halfway: bool) -> Response {
    let asked = headers.get("range").and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let range = asked.and_then(|(first, last)| Some((first.parse().ok()?, last.parse::<usize>().ok()? + 1)));
    let (from, until) = range.map_or((0, object.len()), |(from, until)| (from, until.min(object.len())));
    let Some(part) = object.get(from..until).filter(|_| range.is_none() || from < object.len()) else {
        return refused(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
    };
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut answer = Response::builder()
        .status(status)
        .header("etag", "\"0\"")
        .header("last-modified", MODIFIED)
        .header("content-length", part.len());
    if range.is_some() {
        answer = answer.header("content-range", format!("bytes {from}-{}/{}", until.saturating_sub(1), object.len()));
    }
    let body = match (head_only, halfway) {
        (true, _) => Body::empty(),
        // The body is shorter than its stated length, then the connection closes.
        (_, true) => Body::new(HalvedBody(Some(part[..part.len() / 2].to_vec().into()))),
        _ => Body::from(part.to_vec()),
    };
    answer.body(body).unwrap_or_else(|_| refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"))
}

/// A body that fails after its first half.
struct HalvedBody(Option<Bytes>);

impl HttpBody for HalvedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = self.0.take().map(Frame::data);
        Poll::Ready(Some(next.ok_or_else(|| io::Error::other("cut"))))
    }
}

fn list(page: &ListPage) -> String {
    let object = |(key, bytes): &(String, usize)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-31T00:00:00Z</LastModified><ETag>\"0\"</ETag>\
             <Size>{bytes}</Size></Contents>"
        )
    };
    let folder = |prefix: &String| format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    let next = |after: &String| {
        format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{after}</NextContinuationToken>")
    };
    let entries = page.objects.iter().map(object).chain(page.prefixes.iter().map(folder));
    let entries: String = entries.chain(page.more_after.iter().map(next)).collect();
    format!("<ListBucketResult>{entries}</ListBucketResult>")
}

fn list_of_azure(page: &ListPage) -> String {
    let blob = |(key, bytes): &(String, usize)| {
        format!(
            "<Blob><Name>{key}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified><Etag>\"0\"</Etag>\
             <Content-Length>{bytes}</Content-Length><Content-Type>text/plain</Content-Type></Properties></Blob>"
        )
    };
    let blobs: String = page.objects.iter().map(blob).collect();
    let more = page.more_after.as_deref().unwrap_or_default();
    format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>")
}

fn refused(status: StatusCode, code: &str) -> Response {
    (status, format!("<Error><Code>{code}</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>")).into_response()
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (unescape(name), unescape(value))
    };
    text.split('&').map(pair).collect()
}

fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = (*first == b'%').then(|| std::str::from_utf8(after.get(..2)?).ok()).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
