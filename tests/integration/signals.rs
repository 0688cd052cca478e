//! Ctrl-C and SIGTERM finish the step, write what there is, and end with 130 and 143.

use rustix::process::Signal;

use crate::fixture::Fixture;

#[test]
fn an_interrupted_training_writes_what_there_is() {
    let fixture = Fixture::new(4_000);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut run = fixture.start(["train", "job.toml", "--set", "train.epochs=1000"]);
        run.wait_for_line("step ");
        run.signal(signal);
        let run = run.finish().expect(code);
        assert!(run.stdout.contains("stopped after"), "{}", run.stdout);
        let summary = fixture.summary();
        assert_eq!(summary["outcome"], "interrupted");
        assert!(summary["steps"].as_u64().is_some_and(|steps| steps > 0), "{summary}");
        assert_eq!(fixture.losses().len() as u64, summary["steps"].as_u64().unwrap_or(0), "one loss a step");
    }
}
