//! `model.size`: from the key to a trained, resumed and scored model, in every mode.

use super::fixture::Fixture;
use super::resume::interrupt;

fn fixture() -> Fixture {
    let fixture = Fixture::new(20_000);
    let open = fixture.read("job.toml").replace("bottom = [16]\ntop = [16]\n", "");
    fixture.write("job.toml", open);
    fixture
}

#[test]
fn a_size_trains_and_its_model_keeps_the_widths() {
    let fixture = fixture();
    let train = ["train", "job.toml", "--size", "20k", "--max-steps", "20"];
    fixture.zagros(train).expect(0);
    let run = fixture.run_name();
    let resolved = fixture.read(&format!("{run}/model/job.toml"));
    assert!(resolved.contains("mup_base_width = 128") && !resolved.contains("\nsize = "), "{resolved}");
    fixture.zagros(["eval", &run]).expect(0);
    fixture.zagros(["predict", &run, "test.txt", "-o", "scores.csv"]).expect(0);
    fixture.zagros(["inspect", &run]).expect(0);
    // A model that is started from has the same network.
    let job = format!("{run}/model/job.toml");
    let again = ["train", &job, "--from", &run, "--max-steps", "5", "--fresh"];
    let said = fixture.zagros(again).expect(0);
    assert!(!said.stderr.contains("anew"), "{}", said.stderr);
}

#[test]
fn several_processes_agree_on_a_size_in_each_mode() {
    let fixture = fixture();
    for mode in ["sync", "hybrid", "async"] {
        let mode = format!("train.mode={mode}");
        // After one epoch of stale gradients on a busy machine, chance decides how much is learned.
        let epochs = ["--set", "train.epochs=3"];
        let up = ["up", "job.toml", "--size", "20k", "--servers", "2", "--workers", "2", "--set", &mode];
        fixture.zagros(up.into_iter().chain(epochs)).expect(0);
        let summary = fixture.summary();
        assert!(summary["evaluation"]["auc"].as_f64() > Some(0.6), "{mode} {summary}");
    }
}

#[test]
fn a_run_does_not_go_on_with_another_size() {
    let fixture = fixture();
    interrupt(&fixture, &["--size", "20k"]);
    let refused = fixture.zagros(["train", "job.toml", "--size", "40k", "--resume"]);
    refused.expect(2).says(&["model.top: [", "model.bottom: [", "--fresh"]);
    let wrong = fixture.zagros(["train", "job.toml", "--size", "40k", "--set", "model.top=[8]"]);
    wrong.expect(2).says(&["model.size gives `top`, and the job gives it too", "remove the key, or `size`"]);
}

#[test]
fn a_size_beyond_memory_says_what_is_too_little() {
    let fixture = fixture();
    for command in [["train", "job.toml", "--size", "1.3t"], ["up", "job.toml", "--size", "1.3t"]] {
        for more in [&[][..], &["--dry-run"]] {
            let refused = fixture.zagros([&command[..], more].concat()).expect(2);
            refused.says(&["too little", "for the dense network", "choose a model.size of up to"]);
        }
    }
}

#[test]
fn models_are_listed_over_the_features_of_a_job() {
    let fixture = fixture();
    let table = fixture.zagros(["models", "job.toml", "--flops", "50G", "--json"]).expect(0).json();
    let networks = table["networks"].as_array().expect("networks");
    let network = |kind: &str| networks.iter().find(|network| network["kind"] == kind).expect("the network is listed");
    assert_eq!((networks.len(), network("dlrm")["sizes"].as_array().map(Vec::len)), (12, Some(8)));
    // The job has no sequence.
    assert!(network("bst")["refused"].as_str().is_some_and(|why| why.contains("sequence")), "{table}");
    fixture.zagros(["models", "--kind", "ffnn"]).expect(0).prints(&["111b", "samples/s"]);
}
