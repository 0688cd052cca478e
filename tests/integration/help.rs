//! The program itself: what a newcomer asks first, how it reports progress (as lines, as log lines in JSON, or not at all), and a
//! copy of it elsewhere, which runs with libtorch beside it or named.
//! `zagros-server` has the roles that hold and place rows, without libtorch.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use zagros_tests::{RunningCommand, TestProgram, repository, zagros};

use super::fixture::{Fixture, with_sets};
use super::workers::{address, start_role};

#[test]
fn help_shows_commands_that_work() {
    let texts = ["train", "up", "eval", "inspect", "data", "status", "Examples:", "Exit codes:"];
    zagros(["--help"]).expect(0).prints(&texts);
}

#[test]
fn a_command_with_a_typo_is_answered_with_the_right_one() {
    zagros(["trian"]).expect(2).says(&["similar subcommand", "train"]);
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        zagros(["completions", shell]).expect(0).prints(&["embedding-server"]);
    }
}

#[test]
fn the_schema_is_json_and_describes_keys() {
    let schema = zagros(["schema"]).expect(0).json();
    assert!(schema["properties"]["train"].is_object(), "{schema}");
}

fn copy(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::copy(TestProgram::Zagros.path(), folder.join("zagros")).expect("the program is copied");
}

fn run(folder: &Path, libraries: Option<&Path>) -> Output {
    let mut command = Command::new(folder.join("zagros"));
    command.arg("--version").env_remove("LD_LIBRARY_PATH");
    libraries.map(|libraries| command.env("LD_LIBRARY_PATH", libraries));
    command.output().expect("it starts")
}

#[test]
fn a_copied_program_runs_with_libtorch_beside_it_or_named() {
    let libtorch = repository().join(".deps/libtorch/lib").canonicalize().expect("libtorch is set up");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (alone, beside, installed) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("c/bin"));
    for place in [&alone, &beside, &installed] {
        copy(place);
    }
    std::os::unix::fs::symlink(&libtorch, beside.join("lib")).expect("a link");
    std::os::unix::fs::symlink(&libtorch, folder.path().join("c/lib")).expect("a link");
    for (place, libraries) in [(&beside, None), (&installed, None), (&alone, Some(libtorch.as_path()))] {
        let output = run(place, libraries);
        assert!(output.status.success(), "{}: {}", place.display(), String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("zagros "));
    }
}

/// It does not run by the checkout's copy, which the next machine has not; the library that is missing is named.
#[test]
fn a_copied_program_without_libtorch_depends_on_nothing_of_the_checkout() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    copy(folder.path());
    let output = run(folder.path(), None);
    let outcome = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && outcome.contains("libtorch"), "{outcome}");
}

fn json_lines(text: &str) -> Vec<Value> {
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: no JSON: {line}"));
    text.lines().map(parsed).collect()
}

#[test]
fn a_quiet_command_prints_its_result_and_what_is_wrong() {
    let fixture = Fixture::new(4_000);
    // With more samples in a step there would be a warning that an epoch has few steps.
    let run = fixture.zagros(["train", "job.toml", "--quiet", "--set", "train.batch_size=32"]).expect(0);
    assert!(run.stderr.is_empty() && run.stdout.contains("test AUC"), "{}{}", run.stderr, run.stdout);
    fixture.zagros(["train", "nowhere.toml", "--quiet"]).expect(2).says(&["cannot read job file nowhere.toml"]);
    let run = fixture.zagros(["up", "job.toml", "--quiet", "--fresh"]).expect(0);
    for words in ["INFO", "step 1 ", "live page", "threads"] {
        assert!(!run.stderr.contains(words), "{words:?} in\n{}", run.stderr);
    }
    assert!(run.stderr.contains("test AUC"), "{}", run.stderr);
}

#[test]
fn progress_is_log_lines_where_that_is_asked_for() {
    let fixture = Fixture::new(4_000);
    let run = fixture.zagros(["train", "job.toml", "--log-json"]).expect(0);
    let lines = json_lines(&run.stderr);
    let step = lines.iter().find(|line| line["message"] == "training").expect("a line of a step");
    assert!(step["step"].as_u64() == Some(1) && step["loss"].is_f64() && step["level"] == "INFO", "{step}");
    assert!(run.stdout.contains("test AUC"), "{}", run.stdout);

    let run = fixture.zagros(["up", "job.toml", "--log-json", "--fresh"]).expect(0);
    let lines = json_lines(&run.stderr);
    for role in ["coordinator", "embedding server 0", "dense worker 0"] {
        assert!(lines.iter().any(|line| line["role"] == role), "no line of {role}:\n{}", run.stderr);
    }
    let said = |text: &str| lines.iter().any(|line| line["message"].as_str().is_some_and(|said| said.contains(text)));
    assert!(said("live page: http://"), "{}", run.stderr);

    let run = fixture.zagros(["train", "nowhere.toml", "--log-json"]).expect(2);
    let error = &json_lines(&run.stderr)[0];
    assert!(error["level"] == "ERROR" && error["exit_code"] == 2, "{error}");
    assert!(error["message"].as_str().is_some_and(|outcome| outcome.contains("nowhere.toml")), "{error}");
}

/// Batches one after the other, so that the same run gives the same losses.
const STRICT: [&str; 2] = ["cluster.servers=2", "train.mode=sync"];

fn server_role(fixture: &Fixture, program: TestProgram, coordinator: &str, arguments: &[&str]) -> RunningCommand {
    let coordinator = format!("cluster.coordinator={coordinator}");
    let addresses = ["cluster.server_addresses=[\"127.0.0.1:0\"]", "cluster.admin=127.0.0.1:0", coordinator.as_str()];
    start_role(fixture, program, arguments, &[&STRICT[..], &addresses].concat())
}

/// The libraries that the system's loader would load for a program, by name, without their addresses: those may hold any letters.
fn libraries(program: TestProgram) -> String {
    let listed = Command::new("ldd").arg(program.path()).output().expect("ldd starts");
    let listed = String::from_utf8(listed.stdout).expect("text");
    listed.lines().filter_map(|line| line.split_whitespace().next()).collect::<Vec<_>>().join("\n")
}

#[test]
fn only_zagros_links_libtorch() {
    let (zagros, server) = (libraries(TestProgram::Zagros), libraries(TestProgram::Server));
    assert!(zagros.contains("libtorch_cpu.so"), "the check looks at something: {zagros}");
    assert!(server.contains("librocksdb"), "{server}");
    for library in ["torch", "c10"] {
        assert!(!server.contains(library), "zagros-server links {library}: {server}");
    }
}

#[test]
fn both_programs_explain_the_same_commands_in_the_same_words() {
    let fixture = Fixture::new(10);
    for command in ["coordinator", "embedding-server", "status", "health"] {
        let help = |program| fixture.start_program(program, [command, "--help"]).finish().expect(0).stdout;
        let of_server = help(TestProgram::Server).replace("zagros-server ", "zagros ");
        assert_eq!(help(TestProgram::Zagros), of_server);
    }
}

#[test]
fn a_cluster_of_both_programs_trains_as_one_of_zagros_alone() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(with_sets(&["up", "job.toml"], &STRICT)).expect(0);
    let alone = fixture.losses();

    let mut coordinator = server_role(&fixture, TestProgram::Server, "127.0.0.1:0", &["coordinator"]);
    coordinator.wait_for_line("announced");
    let coordinator_address = address(&fixture, "coordinator", "address");
    let servers = ["0", "1"].map(|index| {
        server_role(&fixture, TestProgram::Server, &coordinator_address, &["embedding-server", "--index", index])
    });
    let status = ["status", "--coordinator", &coordinator_address, "--json"];
    let status = fixture.start_program(TestProgram::Server, status).finish().expect(0).json();
    assert_eq!((&status["job"], &status["state"]), (&"small".into(), &"waiting".into()));
    let admin = address(&fixture, "coordinator", "admin");
    fixture.start_program(TestProgram::Server, ["health", &admin]).finish().expect(0);
    let worker = server_role(&fixture, TestProgram::Zagros, &coordinator_address, &["dense-worker", "--fresh"]);
    for process in servers.into_iter().chain([coordinator, worker]) {
        process.finish().expect(0);
    }
    assert_eq!(alone.len(), 16);
    assert_eq!(fixture.losses(), alone);
}

#[test]
fn a_port_that_is_taken_is_named_with_what_to_do() {
    let fixture = Fixture::new(10);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let what = format!("coordinator cannot listen on {address} (cluster.coordinator)");
    let help = "stop what uses that port, or choose another: --set cluster.coordinator=HOST:PORT";
    for program in [TestProgram::Zagros, TestProgram::Server] {
        server_role(&fixture, program, &address, &["coordinator"]).finish().expect(4).says(&[&what, help]);
    }
}
