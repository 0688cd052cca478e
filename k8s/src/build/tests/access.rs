//! Who reaches which pod, who has which part of the run's secret, and which pods may be evicted, by value.

use super::{all, spec_of, *};

/// Workers are open to workers alone, because the library of their sums has no proof.
#[test]
fn each_role_is_reached_by_those_who_need_it() {
    let object = all(|_| ());
    let roles = |selector: &Value| {
        assert_eq!(selector["matchLabels"]["zagros.dev/job"], "ctr");
        selector["matchExpressions"][0]["values"].clone()
    };
    // The operator asks the coordinator for another number of servers.
    let operator = json!([{
        "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "zagros-operator"}}}],
        "ports": [{"port": 7700, "protocol": "TCP"}],
    }]);
    let members = json!(["coordinator", "server", "worker"]);
    for (title, selected, callers, ports, others) in [
        ("NetworkPolicy ctr", json!(["coordinator", "server"]), members, json!([7700, 7701]), operator),
        ("NetworkPolicy ctr.workers", json!(["worker"]), json!(["worker"]), json!([]), json!([])),
    ] {
        let spec = &object(title)["spec"];
        assert_eq!((&spec["policyTypes"], roles(&spec["podSelector"])), (&json!(["Ingress"]), selected), "{title}");
        let [members, between @ .., admin] = &spec["ingress"].as_array().unwrap()[..] else { panic!("rules: {spec}") };
        assert_eq!(json!(between), others, "{title}");
        assert_eq!(roles(&members["from"][0]["podSelector"]), callers, "{title}");
        assert!(members["from"].as_array().unwrap().len() == 1);
        assert!(members["from"][0].get("namespaceSelector").is_none());
        let open: Vec<_> = members["ports"].as_array().into_iter().flatten().map(|port| port["port"].clone()).collect();
        assert_eq!(json!(open), ports, "{title}");
        assert_eq!(admin["ports"], json!([{"port": 7780, "protocol": "TCP"}]));
    }
}

/// Prometheus proves itself by the token of the run.
#[test]
fn a_pod_monitor_names_the_token() {
    let object = all(|job| job.spec.monitoring.pod_monitor = true);
    let endpoint = object("PodMonitor ctr")["spec"]["podMetricsEndpoints"][0].clone();
    let expected = json!({"type": "Bearer", "credentials": {"name": "ctr.run.11111111", "key": "token"}});
    assert_eq!(endpoint["authorization"], expected);
}

/// The group of the pod can read the key, whichever user the pod runs as.
#[test]
fn a_pod_that_runs_as_a_group_reads_its_key() {
    for (given, group) in
        [(json!({"runAsUser": 7, "runAsGroup": 8}), json!(8)), (json!({"runAsGroup": 8, "fsGroup": 9}), json!(9))]
    {
        let object = all(spec_of(json!({"podSecurityContext": given})));
        assert_eq!(object("Job ctr-3-worker")["spec"]["template"]["spec"]["securityContext"]["fsGroup"], group);
    }
}

/// No pod has two budgets: Kubernetes would evict it never.
#[test]
fn one_pod_at_a_time_may_be_evicted_unless_its_loss_restarts_the_group() {
    let budgets = |change: Value| {
        let objects = built(spec_of(change), BuildStage::Everything).into_iter();
        let budgets = objects.filter(|(title, _)| title.starts_with("PodDisruptionBudget"));
        let described = budgets.map(|(title, object)| {
            let selector = &object["spec"]["selector"];
            let roles = &selector["matchExpressions"][0];
            assert_eq!((&roles["key"], &roles["operator"]), (&json!("zagros.dev/role"), &json!("In")));
            assert_eq!(selector["matchLabels"]["zagros.dev/job"], "ctr");
            let roles = serde_json::from_value::<Vec<String>>(roles["values"].clone()).unwrap().join(" ");
            format!("{} {} {roles}", title.split_once(' ').unwrap().1, object["spec"]["minAvailable"])
        });
        described.collect::<Vec<_>>()
    };
    // A coordinator, three servers, and workers.
    assert_eq!(budgets(json!({"denseWorkers": {"replicas": 4}})), ["ctr 7 coordinator server worker"]);
    let sync = format!("{}mode = \"sync\"\n", crate::fixture::JOB_TEXT);
    for (change, workers) in [
        (json!({"job": {"inline": sync}}), 2),
        (json!({"denseWorkers": {"replicas": 1}}), 1),
        (json!({"runPolicy": {"backoffLimit": 0}}), 2),
    ] {
        let fixed = ["ctr 3 coordinator server".to_owned(), format!("ctr.workers {workers} worker")];
        assert_eq!(budgets(change), fixed);
    }
    let volatile = json!({"job": {"inline": VOLATILE}});
    assert_eq!(budgets(volatile), ["ctr 4 coordinator server", "ctr.workers 1 worker"]);
    let neither = json!({"job": {"inline": VOLATILE}, "runPolicy": {"backoffLimit": 0}});
    assert_eq!(budgets(neither), ["ctr 6 coordinator server worker"]);
}
