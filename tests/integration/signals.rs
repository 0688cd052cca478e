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

#[test]
fn a_signal_has_its_own_code_also_before_and_after_training() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(["train", "job.toml"]).expect(0);
    let model = fixture.run_folder().display().to_string();
    // Read over and over, so that every command is still reading when it is told to stop.
    let many = format!("data.train=[{}]", vec!["'train.txt'"; 1000].join(", "));
    let standardise = "features.numeric=[{column='I1', standardise=true}]";
    let fitting = vec!["train", "job.toml", "--set", &many, "--set", standardise];
    let scoring: Vec<&str> = ["eval", &model, "--data"].into_iter().chain(vec!["train.txt"; 1000]).collect();
    for (command, line) in [(fitting, "measuring"), (scoring, "scoring")] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let mut run = fixture.start(command.iter().copied());
            run.wait_for_line(line);
            run.signal(signal);
            run.finish().expect(code).says(&["interrupted"]);
        }
    }
}
