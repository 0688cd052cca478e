//! The program without libtorch (docs/models.md): what it trains, what it refuses, and what it has in common with the other one.

use std::path::Path;
use std::process::Command;

use zagros_tests::{FinishedCommand, TestProgram};

use super::fixture::Fixture;

/// A job of the fixture in the program without libtorch; `None`, with a word, where it is not built.
fn plain<'a>(fixture: &Fixture, arguments: impl IntoIterator<Item = &'a str>) -> Option<FinishedCommand> {
    if !TestProgram::Plain.path().is_file() {
        let path = TestProgram::Plain.path().display();
        assert!(std::env::var_os("CI").is_none(), "no {path}: run scripts/without_libtorch.sh");
        println!("skipped: no {path}; scripts/without_libtorch.sh builds it");
        return None;
    }
    Some(fixture.start_program(TestProgram::Plain, arguments).finish())
}

fn libraries(program: &Path) -> String {
    let printed = Command::new("ldd").arg(program).output().expect("ldd starts");
    String::from_utf8_lossy(&printed.stdout).into_owned()
}

#[test]
fn it_is_linked_to_no_torch() {
    let torch = |text: &str| text.contains("libtorch") || text.contains("libc10");
    if TestProgram::Plain.path().is_file() {
        assert!(!torch(&libraries(TestProgram::Plain.path())));
    }
    assert!(torch(&libraries(TestProgram::Zagros.path())), "the check sees libtorch where it is");
}

#[test]
fn a_model_has_the_same_scores_in_both_programs() {
    let fixture = Fixture::new(4_000);
    // In mode `sync` nothing but the products differs.
    let job = ["train", "job.toml", "--set", "train.mode=sync"];
    let Some(trained) = plain(&fixture, job) else { return };
    trained.expect(0);
    let (run, score) = (fixture.run_name(), |output| ["test.txt", "-o", output, "--logits"]);
    assert_eq!(fixture.read_run_json("model/manifest.json")["products"], "gemm");
    plain(&fixture, ["predict", &run].into_iter().chain(score("plain.csv"))).expect("it is built").expect(0);
    fixture.zagros(["predict", &run].into_iter().chain(score("torch.csv"))).expect(0);
    assert_eq!(fixture.read("plain.csv"), fixture.read("torch.csv"));
    let eval = ["eval", &run, "--json"];
    let of_plain = plain(&fixture, eval).expect("it is built").expect(0).json();
    assert_eq!(of_plain, fixture.zagros(eval).expect(0).json());
    // The same job trained by the other program is as good, whichever library makes its products.
    fixture.zagros(job).expect(0);
    let (found, expected) = (of_plain["auc"].as_f64().unwrap(), fixture.evaluate()["auc"].as_f64().unwrap());
    assert!((found - expected).abs() < 1e-3, "{found}, with libtorch {expected}");
}

#[test]
fn what_needs_libtorch_is_refused_by_its_key() {
    let fixture = Fixture::new(10);
    for (set, key) in [
        ("model={ kind = 'wukong' }", "model.kind = \"wukong\" needs libtorch"),
        ("model={ kind = 'finalmlp', gate = {} }", "model.gate needs libtorch"),
        ("mlp.norm=batch", "mlp.norm needs libtorch"),
        ("mlp.activation=gelu", "mlp.activation needs libtorch"),
        ("features.numeric_embedding={}", "features.numeric_embedding needs libtorch"),
        ("train.precision=f16", "train.precision = \"f16\" needs libtorch"),
        ("train.device=cuda", "train.device = \"cuda\" needs libtorch"),
        ("cluster.workers=2", "more than one dense worker (cluster.workers) needs libtorch"),
    ] {
        for command in [&["train", "job.toml", "--set", set][..], &["train", "job.toml", "--dry-run", "--set", set]] {
            let Some(refused) = plain(&fixture, command.iter().copied()) else { return };
            refused.expect(2).says(&[key, "make build", "docs/models.md"]);
        }
    }
    // bf16 is rounded in software.
    plain(&fixture, ["train", "job.toml", "--set", "train.precision=bf16"]).expect("it is built").expect(0);
}
