//! The cluster of containers ends as `zagros up` does: compose stops a service before those that it depends on.

use serde_json::Value;
use zagros_tests::read;

fn services() -> Vec<(String, Value)> {
    let file: Value = serde_saphyr::from_str(&read("docker/compose.yaml")).expect("it is YAML");
    let services = file["services"].as_object().expect("it has services");
    services.iter().map(|(name, service)| (name.clone(), service.clone())).collect()
}

#[test]
fn containers_end_in_the_order_of_workers_servers_coordinator() {
    let services = services();
    let is_role = |name: &str| name.starts_with("server-") || name == "coordinator";
    let needed = |of: &str| -> Vec<&str> {
        let roles = services.iter().map(|(name, _)| name.as_str()).filter(|name| is_role(name));
        roles.filter(|name| if of.starts_with("worker-") { true } else { *name == "coordinator" }).collect()
    };
    let roles: Vec<_> =
        services.iter().filter(|(name, _)| name.starts_with("worker-") || name.starts_with("server-")).collect();
    assert_eq!(roles.len(), 5, "three servers and two workers");
    for (name, service) in roles {
        for other in needed(name) {
            let condition = service["depends_on"][other]["condition"].as_str();
            assert_eq!(condition, Some("service_started"), "{name} does not depend on {other}");
        }
    }
}

/// Half a minute is killed in the midst of a checkpoint of large tables.
#[test]
fn every_role_has_the_time_that_a_checkpoint_may_take() {
    for (name, service) in services() {
        if name.starts_with("worker-") || name.starts_with("server-") || name == "coordinator" {
            let grace = service["stop_grace_period"].as_str();
            assert_eq!(grace, Some("${ZAGROS_STOP_GRACE:-10m}"), "{name}");
        }
    }
}

/// What a role needs to come back is on a volume. A role that has ended well is not started again.
#[test]
fn roles_come_back_with_what_they_had_and_not_after_their_end() {
    let services = services();
    for (name, limit) in [("coordinator", 3), ("server-0", 10), ("worker-0", 3)] {
        let (_, service) = services.iter().find(|(service, _)| service == name).expect("the role is there");
        assert_eq!(service["restart"].as_str(), Some(format!("on-failure:{limit}").as_str()), "{name}");
        let volumes = service["volumes"].as_array().expect("it has volumes");
        assert!(volumes.iter().any(|volume| volume == "runs:/runs"), "{name}");
    }
    let (_, coordinator) = services.iter().find(|(name, _)| name == "coordinator").expect("the role is there");
    let command: Vec<&str> =
        coordinator["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(command.windows(2).any(|words| words == ["--journal", "/runs/journal"]), "{command:?}");
    let job = read("docker/job.toml");
    assert!(job.contains("durability = \"process\"\nlog_folder = \"/runs/"), "{job}");
}
