//! `zagros-server`: the roles that hold and place rows, in a program without libtorch.

use std::net::TcpListener;
use std::process::Command;

use zagros_tests::{RunningCommand, TestProgram};

use super::fixture::{Fixture, with_sets};
use super::workers::{address, start_role};

/// Batches one after the other, so that the same run gives the same losses.
const STRICT: [&str; 2] = ["cluster.servers=2", "train.mode=sync"];

fn role(fixture: &Fixture, program: TestProgram, coordinator: &str, arguments: &[&str]) -> RunningCommand {
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

    let mut coordinator = role(&fixture, TestProgram::Server, "127.0.0.1:0", &["coordinator"]);
    coordinator.wait_for_line("announced");
    let coordinator_address = address(&fixture, "coordinator", "address");
    let servers = ["0", "1"].map(|index| {
        role(&fixture, TestProgram::Server, &coordinator_address, &["embedding-server", "--index", index])
    });
    let status = ["status", "--coordinator", &coordinator_address, "--json"];
    let status = fixture.start_program(TestProgram::Server, status).finish().expect(0).json();
    assert_eq!((&status["job"], &status["state"]), (&"small".into(), &"waiting".into()));
    let admin = address(&fixture, "coordinator", "admin");
    fixture.start_program(TestProgram::Server, ["health", &admin]).finish().expect(0);
    let worker = role(&fixture, TestProgram::Zagros, &coordinator_address, &["dense-worker", "--fresh"]);
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
        role(&fixture, program, &address, &["coordinator"]).finish().expect(4).says(&[&what, help]);
    }
}
