//! Which role may make which call, and how long its request may be. A call that is not listed here is refused.

use zagros_plumbing::grpc::{MAX_CONTROL_BYTES, MAX_MESSAGE_BYTES};

use super::PeerRole;
use PeerRole::{Client, Coordinator, DenseWorker, EmbeddingServer};

/// Every call of every service, with the least role that may make it and the most bytes of its request. Long requests list the rows of a
/// batch, the files or splits of a run, or the categories of a job's features.
pub const CALLS: &[(&str, PeerRole, usize)] = &[
    ("/zagros.datapath.v1.Embedding/Lookup", DenseWorker, MAX_MESSAGE_BYTES),
    ("/zagros.datapath.v1.Embedding/Push", DenseWorker, MAX_MESSAGE_BYTES),
    ("/zagros.datapath.v1.Embedding/Hint", DenseWorker, MAX_MESSAGE_BYTES),
    ("/zagros.control.v1.Storage/Describe", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Storage/Save", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Storage/Load", DenseWorker, MAX_CONTROL_BYTES),
    ("/zagros.control.v1.Storage/Forget", DenseWorker, MOST_BYTES),
    // What a worker may not do with it is checked where the message is read: join as a server, speak for a server.
    ("/zagros.control.v1.Coordinator/Join", DenseWorker, MAX_CONTROL_BYTES),
    ("/zagros.control.v1.Coordinator/Heartbeat", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Leave", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Placement", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Group", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Barrier", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Assign", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Complete", DenseWorker, MAX_CONTROL_BYTES),
    ("/zagros.control.v1.Coordinator/Position", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Transforms", DenseWorker, MAX_CONTROL_BYTES),
    ("/zagros.control.v1.Coordinator/ReportEvaluation", DenseWorker, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Status", Client, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/Scale", Coordinator, MOST_BYTES),
    ("/zagros.control.v1.Coordinator/ReportMove", EmbeddingServer, MOST_BYTES),
    ("/zagros.control.v1.Migration/BeginMove", EmbeddingServer, MOST_BYTES),
    ("/zagros.control.v1.Migration/MoveRows", EmbeddingServer, MOST_BYTES),
    ("/zagros.control.v1.Migration/FreezeMove", EmbeddingServer, MOST_BYTES),
];

/// Longest request of the other calls. The longest of them is a heartbeat with its waits. A decoder
/// makes about a hundred bytes of each byte of a list of empty entries, so what a request may take in memory follows from this limit.
const MOST_BYTES: usize = 256 << 10;

/// The most bytes of a request to this path.
pub fn most_bytes(path: &str) -> usize {
    CALLS.iter().find(|(call, ..)| *call == path).map_or(MOST_BYTES, |(.., bytes)| *bytes)
}

/// The least role that may make the call of this path. `None` if there is no such call.
pub fn least_role(path: &str) -> Option<PeerRole> {
    CALLS.iter().find(|(call, ..)| *call == path).map(|(_, role, _)| *role)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use prost::Message;
    use zagros_protocol::control::{
        BarrierRequest, BarrierVote, CompleteRequest, DataFile, FileDigest, ForgetRequest, HeartbeatRequest,
        JoinRequest, LoadRequest, LongWait, Position, ServerWait, Split, Transform, TransformsRequest,
    };

    use super::*;

    /// Every `rpc` of every service in `proto/`, as a path.
    fn calls_of(folder: &Path) -> BTreeSet<String> {
        let mut calls = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                calls.extend(calls_of(&path));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let word = |line: &str, first: &str| {
                line.trim().strip_prefix(first)?.split([' ', ';', '(', '{']).next().map(str::to_owned)
            };
            let package = text.lines().find_map(|line| word(line, "package ")).unwrap();
            let mut service = String::new();
            for line in text.lines() {
                if let Some(name) = word(line, "service ") {
                    service = name;
                }
                calls.extend(word(line, "rpc ").map(|call| format!("/{package}.{service}/{call}")));
            }
        }
        calls
    }

    /// A new call is refused until someone decides who may make it.
    #[test]
    fn every_call_of_the_protocol_names_the_role_that_may_make_it() {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
        let listed: BTreeSet<String> = CALLS.iter().map(|(call, ..)| (*call).to_owned()).collect();
        let calls = calls_of(&proto);
        assert!(calls.len() >= 23, "the check finds what is there: {calls:?}");
        assert_eq!(listed, calls, "calls.rs lists every call of protocol/proto, and no other");
        assert_eq!(listed.len(), CALLS.len(), "a call is listed twice");
    }

    /// The largest requests that follow from a job: of 1024 servers, 524,288 splits, 100,000 files with names of 100 bytes, or statistics
    /// of the features, of which a job has no more bytes than a message.
    #[test]
    fn the_largest_request_of_a_job_is_one_that_its_call_takes() {
        let text = |bytes: usize| "x".repeat(bytes);
        let split = Split { id: 1 << 20, file: 99_999, start: 1 << 40, end: 1 << 41 };
        let file = DataFile { path: text(100), bytes: 1 << 40, splittable: true, fingerprint: u64::MAX };
        let position = Position { plan: vec![split; 1 << 19], done: vec![1 << 20; 1 << 18], ..Position::default() };
        let join = JoinRequest { files: vec![file; 100_000], position: Some(position), ..JoinRequest::default() };
        let splits = vec![1 << 20; 1 << 19];
        let complete = CompleteRequest { splits, bad_rows: vec![1 << 30; 1 << 19], ..CompleteRequest::default() };
        let wait = ServerWait { server: 1023, lookups: u32::MAX, pushes: u32::MAX, oldest_ms: u64::MAX };
        let long_wait =
            LongWait { part: text(512), what: text(512), indices: vec![u32::MAX; 512], ..LongWait::default() };
        let (waits, long_waits) = (vec![wait; 1024], vec![long_wait; 16]);
        let heartbeat = HeartbeatRequest { waits, long_waits, ..HeartbeatRequest::default() };
        let vote = Some(BarrierVote { counts: text(4096), ..BarrierVote::default() });
        let barrier = BarrierRequest { vote, ..BarrierRequest::default() };
        let digest = FileDigest { name: text(128), bytes: u64::MAX, sha256: vec![0; 32].into() };
        let load = LoadRequest { files: vec![digest; 65_536], ..LoadRequest::default() };
        let forget = ForgetRequest { table: text(128), ids: vec![0; 8 * 16_384].into(), generation: u64::MAX };
        // An encoding and a vocabulary of as many categories as there may be.
        let encoding = Transform { ids: vec![0; 1 << 18], values: vec![0.0; 17 << 18], ..Transform::default() };
        let vocabulary = Transform { ids: vec![0; 1 << 18], ..Transform::default() };
        let transforms = TransformsRequest { measured: vec![encoding, vocabulary], ..TransformsRequest::default() };
        for (call, bytes) in [
            ("Coordinator/Join", join.encoded_len()),
            ("Coordinator/Complete", complete.encoded_len()),
            ("Coordinator/Heartbeat", heartbeat.encoded_len()),
            ("Coordinator/Barrier", barrier.encoded_len()),
            ("Coordinator/Transforms", transforms.encoded_len()),
            ("Storage/Load", load.encoded_len()),
            ("Storage/Forget", forget.encoded_len()),
        ] {
            let most = most_bytes(&format!("/zagros.control.v1.{call}"));
            println!("{call}: {bytes} of {most} bytes");
            assert!(bytes <= most, "{call}: {bytes} of {most} bytes");
        }
    }

    #[test]
    fn a_call_that_is_not_listed_is_nobodys() {
        assert_eq!(least_role("/zagros.control.v1.Coordinator/Status"), Some(Client));
        assert_eq!(least_role("/zagros.control.v1.Coordinator/status"), None);
        assert_eq!(least_role("/"), None);
    }
}
