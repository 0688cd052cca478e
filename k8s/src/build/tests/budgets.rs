//! Which pods may be evicted, by value.

use super::*;

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
            let name = title.split_once(' ').unwrap().1.to_owned();
            (name, object["spec"]["minAvailable"].as_i64().unwrap(), roles)
        });
        described.collect::<Vec<_>>()
    };
    let expected = |budgets: &[(&str, i64, &str)]| {
        let owned = budgets.iter().map(|(name, least, roles)| ((*name).to_owned(), *least, (*roles).to_owned()));
        owned.collect::<Vec<_>>()
    };
    // A coordinator, three servers, and workers.
    let all = "coordinator server worker";
    assert_eq!(budgets(json!({"denseWorkers": {"replicas": 4}})), expected(&[("ctr", 7, all)]));
    let sync = format!("{}mode = \"sync\"\n", crate::fixture::JOB_TEXT);
    for (change, workers) in [
        (json!({"job": {"inline": sync}}), 2),
        (json!({"denseWorkers": {"replicas": 1}}), 1),
        (json!({"runPolicy": {"backoffLimit": 0}}), 2),
    ] {
        let fixed = [("ctr", 3, "coordinator server"), ("ctr.workers", workers, "worker")];
        assert_eq!(budgets(change), expected(&fixed));
    }
    let volatile = json!({"job": {"inline": VOLATILE}});
    assert_eq!(budgets(volatile), expected(&[("ctr", 4, "coordinator server"), ("ctr.workers", 1, "worker")]));
    let neither = json!({"job": {"inline": VOLATILE}, "runPolicy": {"backoffLimit": 0}});
    assert_eq!(budgets(neither), expected(&[("ctr", 6, all)]));
}
