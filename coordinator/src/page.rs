//! The live page of a run: a browser draws what the coordinator knows while the run goes on. Read-only.
//!
//! `/` is one document that loads nothing else. `/events` feeds it with server-sent events. Names of jobs and addresses
//! reach the document as JSON only, and the script inserts them as text.

mod axes;
mod events;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use zagros_plumbing::Shutdown;

use crate::LocalCoordinator;
use events::EventStreams;

const HTML: &str = include_str!("../page/page.html");
const CSS: &str = include_str!("../page/page.css");
/// In the order in which they use each other.
const SCRIPTS: [&str; 4] = [
    include_str!("../page/format.js"),
    include_str!("../page/chart.js"),
    include_str!("../page/page.js"),
    include_str!("../page/live.js"),
];

/// The routes `/` and `/events`. Their responses end with `shutdown`. The port decides who may read them.
pub(crate) fn page_routes(coordinator: &Arc<LocalCoordinator>, shutdown: Shutdown) -> Router {
    let events = Arc::new(EventStreams::new(Arc::clone(coordinator), shutdown));
    Router::new().route("/", get(async || page())).route("/events", get(async move || events.stream_events()))
}

fn page() -> Response {
    let nonce = format!("{:032x}", rand::random::<u128>());
    (HeaderMap::from_iter(policies(&nonce)), Html(document(&nonce))).into_response()
}

fn document(nonce: &str) -> String {
    HTML.replace("{{nonce}}", nonce).replace("{{css}}", CSS).replace("{{script}}", &SCRIPTS.concat())
}

/// The browser runs this script only and connects to this server only.
fn policies(nonce: &str) -> Vec<(HeaderName, HeaderValue)> {
    let content = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let content = HeaderValue::try_from(content).map(|value| (header::CONTENT_SECURITY_POLICY, value)).ok();
    content.into_iter().chain(fixed.map(|(name, value)| (name, HeaderValue::from_static(value)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_whole_and_asks_nobody_else() {
        let document = document("n0nce");
        assert!(!document.contains("{{"), "a place was not filled");
        assert_eq!(document.matches("nonce=\"n0nce\"").count(), 2);
        for foreign in ["src=", "@import", "url(", "//cdn", "https://", "innerHTML", "document.write"] {
            assert!(!document.contains(foreign), "{foreign} is in the page");
        }
        // The name space of SVG looks like an address, but no browser connects to it.
        let addresses = document.matches("http://").count() - document.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(addresses, 0);
        assert!(SCRIPTS.iter().all(|script| !script.contains("</")), "a script would end early");
    }

    #[test]
    fn every_policy_is_sent() {
        let policies = policies("n0nce");
        assert_eq!(policies.len(), 4);
        let content = policies[0].1.to_str().unwrap();
        assert!(content.starts_with("default-src 'none'; script-src 'nonce-n0nce';"), "{content}");
        assert!(!content.contains("unsafe"), "{content}");
    }
}
