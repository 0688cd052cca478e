//! What a newcomer asks first.

use zagros_tests::zagros;

#[test]
fn help_shows_commands_that_work() {
    let run = zagros(["--help"]).expect(0);
    for text in ["train", "up", "eval", "inspect", "data", "status", "Examples:", "Exit codes:"] {
        assert!(run.stdout.contains(text), "no {text:?} in:\n{}", run.stdout);
    }
}

#[test]
fn a_command_with_a_typo_is_answered_with_the_right_one() {
    zagros(["trian"]).expect(2).says(&["similar subcommand", "train"]);
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let run = zagros(["completions", shell]).expect(0);
        assert!(run.stdout.contains("embedding-server"), "{shell}: {}", run.stdout);
    }
}

#[test]
fn the_schema_is_json_and_describes_keys() {
    let run = zagros(["schema"]).expect(0);
    let schema: serde_json::Value = serde_json::from_str(&run.stdout).expect("the schema is JSON");
    assert!(schema["properties"]["train"].is_object(), "{schema}");
}
