//! A job that cannot fit into memory is refused in words, before anything is allocated.

use std::process::Command;

use zagros_tests::TestProgram;

use crate::fixture::Fixture;

/// Enough for the program and its libraries, far from enough for the network below.
const KIB: &str = "6000000";
/// 40,000² weights with their gradient and two moments: 24 GiB.
const NETWORK: &str = "model.top=[40000,40000]";

#[test]
fn a_network_beyond_memory_is_refused_with_the_key_to_change() {
    let fixture = Fixture::new(2_000);
    for arguments in ["train job.toml", "train job.toml --dry-run", "up job.toml", "up job.toml --dry-run"] {
        let limited = format!("ulimit -v {KIB}; exec \"$0\" {arguments} --set '{NETWORK}'");
        let run = Command::new("sh")
            .args(["-c", &limited])
            .arg(TestProgram::Zagros.path())
            .current_dir(fixture.folder())
            .output()
            .expect("a shell starts");
        let outcome = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{arguments}: {outcome}");
        // It is too large for one process with streamed weights, too: 18 GiB of weights and moments.
        for words in [
            "of memory before its first row",
            "`ulimit -v` allows 5.72 GiB",
            "make the layers in [model] narrower",
            "GiB too little as well",
        ] {
            assert!(outcome.contains(words), "{arguments}: no {words:?} in\n{outcome}");
        }
        assert!(!outcome.contains("stack backtrace"), "{outcome}");
    }
    assert!(!fixture.path("runs").exists(), "a run was started");
}
