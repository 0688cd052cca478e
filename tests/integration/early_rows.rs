//! Mode `sync` looks up early what a step leaves as it is, and learns the bits of a run that looks nothing up early.

use crate::fixture::Fixture;

/// Rows that could expire are looked up after the step before, all of them. In so many steps none does.
const NOTHING_EARLY: &str = "embedding.ttl_steps=4000000000";

#[test]
fn rows_that_are_looked_up_early_change_no_bit_of_a_sync_run() {
    let fixture = Fixture::new(6_000);
    let learned = |workers: &str, servers: &str, set: &str| {
        let sets = ["--set", "train.mode=sync", "--set", "train.epochs=2", "--set", set];
        let up = ["up", "job.toml", "--workers", workers, "--servers", servers];
        fixture.zagros(up.into_iter().chain(sets)).expect(0);
        let summary = fixture.summary();
        (fixture.losses(), summary["evaluation"].clone(), summary["rows"].clone())
    };
    for workers in ["1", "2"] {
        let sequential = learned(workers, "1", NOTHING_EARLY);
        assert!(!sequential.0.is_empty());
        for servers in ["1", "3"] {
            let early = learned(workers, servers, "embedding.ttl_steps=0");
            assert_eq!(early, sequential, "{workers} workers, {servers} servers");
        }
    }
}
