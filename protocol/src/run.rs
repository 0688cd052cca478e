//! Which run a request belongs to.
//!
//! Members, epochs and generations count from 1 in each run, so that a process of an earlier run looks like one of this.
//! Every request between processes names its run in a header, and the receiver refuses another run's requests (invariant
//! MB-2).

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{Refusal, RefusalKind};

/// Carries the run across gRPC.
const HEADER: HeaderName = HeaderName::from_static("zagros-run");
/// Carries the instance of the server that is meant.
const SERVER: HeaderName = HeaderName::from_static("zagros-server");

/// A run, by a number that its coordinator chose at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub u64);

impl RunId {
    /// Names this run in a request.
    pub fn stamp(self, headers: &mut HeaderMap) {
        // Hexadecimal digits are a header's value.
        if let Ok(value) = HeaderValue::try_from(self.to_string()) {
            headers.insert(HEADER, value);
        }
    }

    /// Lets a request of this run epoch. `receiver` is for the message: `embedding server 1`.
    ///
    /// # Errors
    /// `Fenced` for a request of another run, by both names; `Mismatch` for one that names none.
    pub fn check(self, headers: &HeaderMap, receiver: impl fmt::Display) -> Result<(), Refusal> {
        match Self::named_in(headers) {
            Some(run) if run == self => Ok(()),
            Some(run) => Err(Refusal::new(
                RefusalKind::Fenced,
                format!(
                    "{receiver} belongs to run {self}, and this request to run {run}: the process that sent it is left \
                     over from another run, or the coordinator was restarted; stop that process, or start the run again"
                ),
            )),
            None => Err(Refusal::new(
                RefusalKind::Mismatch,
                format!(
                    "{receiver} belongs to run {self}, and this request names no run; run the same release everywhere"
                ),
            )),
        }
    }

    fn named_in(headers: &HeaderMap) -> Option<Self> {
        number_in(headers, &HEADER).map(Self)
    }
}

/// Names the process of an embedding server that a request is for: one that took its place at the same address holds none of
/// its rows.
pub fn stamp_server(instance: u64, headers: &mut HeaderMap) {
    if let Ok(value) = HeaderValue::try_from(format!("{instance:016x}")) {
        headers.insert(SERVER, value);
    }
}

/// Lets a request for this process of a server epoch, and one that names none.
///
/// # Errors
/// `Moved` for a request that is for another.
pub fn check_server(instance: u64, headers: &HeaderMap, receiver: impl fmt::Display) -> Result<(), Refusal> {
    if !headers.contains_key(SERVER) || number_in(headers, &SERVER) == Some(instance) {
        return Ok(());
    }
    let message = format!(
        "{receiver} was started anew since the sender of this request heard of it, and has none of the rows that it held; \
         fetch the placement again"
    );
    Err(Refusal::new(RefusalKind::Moved, message))
}

fn number_in(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let digits = headers.get(name)?.to_str().ok().filter(|digits| digits.len() == 16)?;
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(run: &str) -> HeaderMap {
        HeaderMap::from_iter([(HEADER, HeaderValue::try_from(run).unwrap())])
    }

    /// Invariant MB-2.
    #[test]
    fn a_request_of_another_run_is_refused_with_both_names() {
        let mut headers = HeaderMap::new();
        RunId(0xa).stamp(&mut headers);
        assert_eq!(RunId(0xa).check(&headers, "embedding server 0"), Ok(()));
        let refused = RunId(0xb).check(&headers, "embedding server 0").unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Fenced);
        let both = "embedding server 0 belongs to run 000000000000000b, and this request to run 000000000000000a";
        assert!(refused.message.starts_with(both), "{refused}");
    }

    #[test]
    fn a_request_for_a_server_that_was_started_anew_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(check_server(7, &headers, "server 0"), Ok(()), "who knows of no process may mean any");
        stamp_server(7, &mut headers);
        assert_eq!(check_server(7, &headers, "server 0"), Ok(()));
        assert_eq!(check_server(8, &headers, "server 0").unwrap_err().kind, RefusalKind::Moved);
    }

    #[test]
    fn a_request_that_names_no_run_is_refused() {
        for headers in [HeaderMap::new(), named("a"), named("+00000000000000a"), named("000000000000000g")] {
            let refused = RunId(0xa).check(&headers, "the coordinator").unwrap_err();
            assert_eq!(refused.kind, RefusalKind::Mismatch, "{headers:?}: {refused}");
        }
    }
}
