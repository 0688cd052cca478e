//! `zagros-operator check` finds what an operator lacks before a job needs it.

use zagros_operator::check::{CheckFindings, RIGHTS, check_cluster};

use crate::world::ClusterWorld;

async fn findings(world: &ClusterWorld, lease_namespace: Option<&str>) -> CheckFindings {
    check_cluster(&world.api.client(), None, lease_namespace).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_all_that_is_needed_has_no_problem() {
    let world = ClusterWorld::new();
    let operator = world.operator(Some("op-a")).await;
    world.advance(5).await;
    let found = findings(&world, Some("zagros-system")).await;
    assert_eq!(found.problems, Vec::<String>::new());
    let rights: usize = RIGHTS.iter().map(|right| right.verbs.len()).sum();
    let first = format!("{rights} rights in all namespaces");
    assert_eq!(found.good, [first.as_str(), "the definition of a HybridJob is installed", "op-a leads"]);
    operator.stop().await;
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_missing_is_named_at_once() {
    let world = ClusterWorld::new();
    let denied = ["patch services", "update hybridjobs/status"];
    world.api.store().denied.extend(denied.map(str::to_owned));
    world.api.store().missing.insert("hybridjobs".to_owned());
    let problems = findings(&world, Some("zagros-system")).await.problems;
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[0].starts_with("the operator cannot update hybridjobs/status of zagros.dev in all namespaces"));
    assert!(problems[1].contains("cannot patch services in all namespaces") && problems[1].contains("rbac.yaml"));
    assert!(problems[2].contains("kubectl apply --server-side -f k8s/crd/hybridjobs.yaml"));
    assert!(problems[3].starts_with("no operator leads by the lease zagros-operator of namespace zagros-system"));
}

#[tokio::test(start_paused = true)]
async fn an_operator_alone_has_no_lease_to_ask_for() {
    let found = findings(&ClusterWorld::new(), None).await;
    assert_eq!((found.problems.len(), found.good.len()), (0, 2));
}
