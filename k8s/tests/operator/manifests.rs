//! Files that users apply: the rules accept the examples, roles ask for no more than they should, pods are restricted.
//! `zagros-operator check` finds what an operator lacks before a job needs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use zagros_operator::check::{CheckFindings, RIGHTS, RequiredRight, check_cluster, render_objects};

use crate::crd::admission_refusals;
use crate::kubelet;
use crate::world::ClusterWorld;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn examples() -> Vec<(PathBuf, String)> {
    let files = fs::read_dir(repository().join("examples/k8s")).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = files.map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect();
    assert!(found.len() >= 2);
    found
}

fn documents(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository().join("k8s/manifests").join(path)).unwrap();
    text.split("---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn rules(path: &str) -> Vec<Value> {
    documents(path).iter().flat_map(|one| one["rules"].as_array().cloned().unwrap_or_default()).collect()
}

/// What a file's roles give, as (group, `verb resource`).
pub(crate) fn rights(path: &str) -> Vec<(String, String)> {
    let mut given = Vec::new();
    for rule in rules(path) {
        let words = |key: &str| serde_json::from_value::<Vec<String>>(rule[key].clone()).unwrap();
        for group in words("apiGroups") {
            for resource in words("resources") {
                given.extend(words("verbs").iter().map(|verb| (group.clone(), format!("{verb} {resource}"))));
            }
        }
    }
    given
}

/// The job file of an example, at the path that the example itself names.
fn job_file(text: &str) -> Option<String> {
    let message = text.lines().find_map(|line| line.split_once("--from-file=job.toml=")).map(|(_, rest)| rest.trim());
    message.map(|path| fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// Each example is built with the job file that its comment names.
#[test]
fn examples_are_admitted_and_can_be_built() {
    let mut with_config = 0;
    for (path, text) in examples() {
        let object: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(admission_refusals(&object, None), Vec::<String>::new(), "{}", path.display());
        let config = job_file(&text);
        assert_eq!(config.is_some(), text.contains("configMap:"), "{} says where its job file is", path.display());
        with_config += usize::from(config.is_some());
        let rendered = render_objects(&text, config.as_deref(), false)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(rendered.contains("kind: StatefulSet"), "{}", path.display());
        for document in rendered.split("---\n").filter(|document| !document.is_empty()) {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            assert_eq!(kubelet::fault(&object["spec"]["template"]["spec"]), None, "{}", path.display());
        }
    }
    assert!(with_config > 0);
}

/// Every shipped job file reads its data below `../data`, so it trains on a claim that is mounted at `/data`.
#[test]
fn every_shipped_job_file_can_read_its_data_from_a_claim() {
    let example = fs::read_to_string(repository().join("examples/k8s/criteo.yaml")).unwrap();
    let files = fs::read_dir(repository().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    assert!(files.len() > 3);
    for path in files {
        let rendered = render_objects(&example, Some(&fs::read_to_string(&path).unwrap()), false);
        assert!(rendered.is_ok(), "{}: {:?}", path.display(), rendered.err());
    }
}

#[test]
fn roles_make_and_read_single_secrets_enter_no_pod_and_have_no_wildcard() {
    for path in ["rbac.yaml", "leases.yaml", "namespaced/rbac.yaml"] {
        for rule in rules(path) {
            let text = rule.to_string();
            if text.contains("secrets") {
                assert_eq!(&rule["resources"], &json!(["secrets"]), "{path}");
                assert_eq!(&rule["verbs"], &json!(["get", "create"]), "{path}");
            }
            for word in ["pods/exec", "\"*\"", "escalate", "bind", "impersonate", "rolebindings"] {
                assert!(!text.contains(word), "{path}: {text}");
            }
        }
    }
}

/// The roles give the rights that `zagros-operator check` asks for, and rights on kinds of other operators.
#[test]
fn the_roles_give_what_the_operator_asks_for() {
    let is_of_others = |group: &str| ["monitoring", "scheduling"].contains(&group.split('.').next().unwrap());
    let given = rights("rbac.yaml").into_iter().filter(|(group, _)| !is_of_others(group));
    let of_right = |right: &RequiredRight| {
        let RequiredRight { group, resource, verbs } = *right;
        verbs.iter().map(move |verb| (group.to_owned(), format!("{verb} {resource}")))
    };
    assert_eq!(given.collect::<BTreeSet<_>>(), RIGHTS.iter().flat_map(of_right).collect());
}

/// The namespaced role has the rights of the other two, for its namespace only.
#[test]
fn the_namespaced_role_is_the_same_in_one_namespace() {
    assert_eq!(rules("namespaced/rbac.yaml"), [rules("rbac.yaml"), rules("leases.yaml")].concat());
    for path in ["namespaced/rbac.yaml", "namespaced/deployment.yaml"] {
        for document in documents(path) {
            assert_eq!(document["metadata"]["namespace"], "ads", "{path}");
            assert!(!document["kind"].as_str().unwrap().starts_with("Cluster"), "{path}");
        }
    }
}

#[test]
fn the_operators_pod_is_restricted_probed_and_bounded() {
    for path in ["deployment.yaml", "namespaced/deployment.yaml"] {
        let pod = &documents(path)[0]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "http");
        }
        assert!(container["resources"]["limits"]["memory"].is_string());
        assert!(container["resources"]["requests"]["cpu"].is_string());
    }
}

#[test]
fn every_file_is_listed() {
    for folder in ["k8s/manifests", "k8s/manifests/namespaced", "k8s/crd"] {
        let folder = repository().join(folder);
        let listed = fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
            let is_part = entry.is_file() && name != "kustomization.yaml";
            assert!(!is_part || listed.contains(&format!("- {name}")), "{name} is not in {}", folder.display());
        }
    }
}

async fn findings(world: &ClusterWorld) -> CheckFindings {
    check_cluster(&world.api.client(), None, Some("zagros-system")).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_all_that_is_needed_has_no_problem() {
    let world = ClusterWorld::new();
    let _operator = world.operator(Some("op-a")).await;
    world.advance(5).await;
    let found = findings(&world).await;
    assert_eq!(found.problems, Vec::<String>::new());
    let rights: usize = RIGHTS.iter().map(|right| right.verbs.len()).sum();
    let first = format!("{rights} rights in all namespaces");
    assert_eq!(found.good, [first.as_str(), "the definition of a HybridJob is installed", "op-a leads"]);
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_missing_is_named_at_once() {
    let world = ClusterWorld::new();
    let denied = ["patch services", "update hybridjobs/status"];
    world.api.store().denied.extend(denied.map(str::to_owned));
    world.api.store().missing.insert("hybridjobs".to_owned());
    let problems = findings(&world).await.problems;
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[0].starts_with("the operator cannot update hybridjobs/status of zagros.dev in all namespaces"));
    assert!(problems[1].contains("cannot patch services in all namespaces") && problems[1].contains("rbac.yaml"));
    assert!(problems[2].contains("kubectl apply --server-side -f k8s/crd/hybridjobs.yaml"));
    assert!(problems[3].starts_with("no operator leads by the lease zagros-operator of namespace zagros-system"));
}
