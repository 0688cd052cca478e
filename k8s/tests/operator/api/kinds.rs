//! The kinds that the server knows, and what it answers to requests for others (docs/kubernetes.md lists the rules).

use http::Response;

use super::http::{ApiBody, refused, text};
use super::store::{ObjectStore, refusal};

/// The groups of Kubernetes itself: name, version, kinds, kinds that have a status.
const BUILT_IN: [(&str, &str, &[&str], &[&str]); 7] = [
    ("", "v1", &["configmaps", "secrets", "nodes", "namespaces", "persistentvolumeclaims"], &["pods", "services"]),
    ("apps", "v1", &[], &["statefulsets"]),
    ("batch", "v1", &[], &["jobs"]),
    ("coordination.k8s.io", "v1", &["leases"], &[]),
    ("events.k8s.io", "v1", &["events"], &[]),
    ("networking.k8s.io", "v1", &["networkpolicies"], &[]),
    ("policy", "v1", &[], &["poddisruptionbudgets"]),
];
/// The kinds that definitions bring: group, version, kind, whether it has a status. The first is always installed.
const DEFINED: [(&str, &str, &str, bool); 4] = [
    ("zagros.dev", "v1alpha1", "hybridjobs", true),
    ("scheduling.volcano.sh", "v1beta1", "podgroups", true),
    ("scheduling.x-k8s.io", "v1alpha1", "podgroups", true),
    ("monitoring.coreos.com", "v1", "podmonitors", false),
];
/// Kinds whose objects have a generation: each edit of the spec is counted. Services have none.
const COUNTED: [&str; 7] =
    ["hybridjobs", "statefulsets", "jobs", "networkpolicies", "poddisruptionbudgets", "podgroups", "podmonitors"];

pub(crate) fn has_generation(plural: &str) -> bool {
    COUNTED.contains(&plural)
}

/// The answer to a request for something that the server does not know; `None` if it knows it. `path` is group, version and
/// plural.
pub(super) fn unknown(
    store: &ObjectStore,
    path: [&str; 3],
    subresource: Option<&str>,
    name: &str,
) -> Option<Response<ApiBody>> {
    let [group, version, plural] = path;
    if let Some((_, served, plain, stateful)) = BUILT_IN.into_iter().find(|one| one.0 == group) {
        let has_status = stateful.contains(&plural);
        let is_kind = served == version && (has_status || plain.contains(&plural)) && !store.missing.contains(plural);
        let is_part = subresource.is_none() || subresource == Some("status") && has_status;
        return (!is_kind || !is_part).then(|| not_found("the server could not find the requested resource"));
    }
    let is_installed = |plural: &str| plural == "hybridjobs" || store.installed.contains(plural);
    let defined = DEFINED.into_iter().find(|one| (one.0, one.1, one.2) == (group, version, plural));
    let Some((.., has_status)) = defined.filter(|one| is_installed(one.2) && !store.missing.contains(one.2)) else {
        // Where nothing routes the group, the server of pages answers, and knows nothing of a `Status`.
        return Some(text(404, "404 page not found\n"));
    };
    let is_part = match subresource {
        None => true,
        Some("status") => has_status,
        Some("scale") => plural == "hybridjobs",
        Some(_) => false,
    };
    (!is_part).then(|| not_found(format!("{plural}.{group} \"{name}\" not found")))
}

/// The API machinery answers where it routes the group.
fn not_found(message: impl Into<String>) -> Response<ApiBody> {
    refused(&refusal(404, "NotFound", message))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn answer(store: &ObjectStore, path: [&str; 3], subresource: Option<&str>) -> Option<(String, String)> {
        let answered = unknown(store, path, subresource, "ctr")?;
        assert_eq!(answered.status(), 404);
        let kind = answered.headers()["content-type"].to_str().unwrap().to_owned();
        let body = answered.into_body().collect().await.unwrap().to_bytes();
        Some((kind, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn an_unknown_group_is_a_page_and_an_unknown_kind_of_a_known_group_is_a_status() {
        let mut store = ObjectStore::default();
        let plain = Some(("text/plain; charset=utf-8".to_owned(), "404 page not found\n".to_owned()));
        for path in [
            ["monitoring.coreos.com", "v1", "podmonitors"],
            ["scheduling.volcano.sh", "v1beta1", "podgroups"],
            ["zagros.dev", "v1", "hybridjobs"],
            ["zagros.dev", "v1alpha1", "others"],
        ] {
            assert_eq!(answer(&store, path, None).await, plain, "{path:?}");
        }
        for (path, subresource) in [
            (["apps", "v1", "others"], None),
            (["apps", "v9", "statefulsets"], None),
            (["", "v1", "configmaps"], Some("status")),
            (["zagros.dev", "v1alpha1", "hybridjobs"], Some("log")),
        ] {
            let (kind, body) = answer(&store, path, subresource).await.unwrap();
            assert!(kind == "application/json" && body.contains("\"reason\":\"NotFound\""), "{path:?}: {body}");
        }
        for (path, subresource) in [
            (["", "v1", "pods"], Some("status")),
            (["zagros.dev", "v1alpha1", "hybridjobs"], Some("status")),
            (["apps", "v1", "statefulsets"], None),
        ] {
            assert_eq!(answer(&store, path, subresource).await, None, "{path:?}");
        }
        store.installed.insert("podmonitors".to_owned());
        assert_eq!(answer(&store, ["monitoring.coreos.com", "v1", "podmonitors"], None).await, None);
        store.missing.insert("hybridjobs".to_owned());
        assert_eq!(answer(&store, ["zagros.dev", "v1alpha1", "hybridjobs"], None).await, plain);
    }
}
