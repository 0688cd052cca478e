//! The headers of a request: its run, and the server process that it is addressed to. The paths of the data path's calls, for
//! clients that are not generated.
//!
//! Members, incarnations and generations count from 1 in each run. A process of an earlier run therefore looks like a
//! process of this run. Every request between processes names its run in a header, and the receiver refuses requests of
//! other runs (invariant MB-2).

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use zagros_protocol::{Refusal, RefusalKind, RunId};

const RUN: HeaderName = HeaderName::from_static("zagros-run");
const SERVER: HeaderName = HeaderName::from_static("zagros-server");

pub fn stamp_run(run: RunId, headers: &mut HeaderMap) {
    stamp(&RUN, run.0, headers);
}

/// Accepts requests of this run only. `receiver` is the receiver's name for the message, such as `embedding server 1`.
///
/// `Fenced` for a request of another run, with both numbers. `Mismatch` for a request without a run.
pub fn check_run(run: RunId, headers: &HeaderMap, receiver: impl fmt::Display) -> Result<(), Refusal> {
    match number_in(headers, &RUN).map(RunId) {
        Some(named) if named == run => Ok(()),
        Some(named) => Err(Refusal::new(
            RefusalKind::Fenced,
            format!(
                "{receiver} belongs to run {run}, but this request belongs to run {named}: its sender is left over \
                 from another run, or the coordinator was restarted; stop that process, or start the run again"
            ),
        )),
        None => Err(Refusal::new(
            RefusalKind::Mismatch,
            format!(
                "{receiver} belongs to run {run}, but this request names no run; run the same release in all roles"
            ),
        )),
    }
}

pub fn names_run(headers: &HeaderMap) -> bool {
    headers.contains_key(&RUN)
}

/// Adds the instance of an embedding server's process to a request. Another process at the same address may not have
/// its rows.
pub fn stamp_server(instance: u64, headers: &mut HeaderMap) {
    stamp(&SERVER, instance, headers);
}

/// Accepts requests for this process of a server, and requests that name no process.
/// `Moved` for a request to another process.
pub fn check_server(instance: u64, headers: &HeaderMap, receiver: impl fmt::Display) -> Result<(), Refusal> {
    if !headers.contains_key(&SERVER) || number_in(headers, &SERVER) == Some(instance) {
        return Ok(());
    }
    let message = format!(
        "{receiver} was restarted after the sender of this request had fetched the placement; fetch the placement again: it \
         says whether the server still has its rows"
    );
    Err(Refusal::new(RefusalKind::Moved, message))
}

fn stamp(name: &HeaderName, number: u64, headers: &mut HeaderMap) {
    // Hexadecimal digits are always a valid header value.
    if let Ok(value) = HeaderValue::try_from(format!("{number:016x}")) {
        headers.insert(name, value);
    }
}

fn number_in(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let digits = headers.get(name)?.to_str().ok().filter(|digits| digits.len() == 16)?;
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

pub const LOOKUP: &str = "/zagros.datapath.v1.Embedding/Lookup";
pub const PUSH: &str = "/zagros.datapath.v1.Embedding/Push";
pub const HINT: &str = "/zagros.datapath.v1.Embedding/Hint";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::embedding_server::SERVICE_NAME;

    fn named(run: &str) -> HeaderMap {
        HeaderMap::from_iter([(RUN, HeaderValue::try_from(run).unwrap())])
    }

    /// Invariant MB-2.
    #[test]
    fn a_request_of_another_run_is_refused_with_both_names() {
        let mut headers = HeaderMap::new();
        stamp_run(RunId(0xa), &mut headers);
        assert_eq!(check_run(RunId(0xa), &headers, "embedding server 0"), Ok(()));
        let refused = check_run(RunId(0xb), &headers, "embedding server 0").unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Fenced);
        let both =
            "embedding server 0 belongs to run 000000000000000b, but this request belongs to run 000000000000000a";
        assert!(refused.message.starts_with(both), "{refused}");
    }

    #[test]
    fn a_request_for_a_server_that_was_restarted_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(check_server(7, &headers, "server 0"), Ok(()), "a request that names no process is accepted");
        stamp_server(7, &mut headers);
        assert_eq!(check_server(7, &headers, "server 0"), Ok(()));
        assert_eq!(check_server(8, &headers, "server 0").unwrap_err().kind, RefusalKind::Moved);
    }

    #[test]
    fn a_request_that_names_no_run_is_refused() {
        for headers in [HeaderMap::new(), named("a"), named("+00000000000000a"), named("000000000000000g")] {
            let refused = check_run(RunId(0xa), &headers, "the coordinator").unwrap_err();
            assert_eq!(refused.kind, RefusalKind::Mismatch, "{headers:?}: {refused}");
        }
    }

    #[test]
    fn paths_are_those_of_the_service() {
        let path = |call: &str| format!("/{SERVICE_NAME}/{call}");
        assert_eq!([LOOKUP, PUSH, HINT], ["Lookup", "Push", "Hint"].map(path));
    }
}
