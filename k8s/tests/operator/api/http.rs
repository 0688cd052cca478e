//! Turns requests into calls of the store, and results into responses. It knows the kinds that the server has, and what it answers to
//! requests for others (docs/kubernetes.md lists the rules).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use futures::stream::{self, Stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use serde_json::{Value, json};

use super::FakeApi;
use super::store::{ApiRefusal, ObjectKey, ObjectPart, ObjectStore, json_patch, matches_selector, merge, refusal};
use crate::manifests::rights;

/// A body that is complete at once, or lasts as long as a watch.
pub(crate) type ApiBody = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The rights that the manifests' roles give, as (group, `verb resource`). The operator of these tests has no others.
static PERMITTED: LazyLock<BTreeSet<(String, String)>> =
    LazyLock::new(|| ["rbac.yaml", "leases.yaml"].into_iter().flat_map(rights).collect());

struct ApiCall {
    method: Method,
    group: String,
    version: String,
    plural: String,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    query: Vec<(String, String)>,
    content: String,
    body: Value,
}

impl ApiCall {
    async fn read(request: Request<Body>) -> Self {
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        let path: Vec<&str> = head.uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match path.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            other => panic!("no path of Kubernetes: {other:?}"),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let part = |index: usize| rest.get(index).map(|part| (*part).to_owned());
        let query = head.uri.query().unwrap_or_default();
        let content = head.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            method: head.method,
            group: group.to_owned(),
            version: version.to_owned(),
            plural: part(0).unwrap_or_default(),
            namespace,
            name: part(1),
            subresource: part(2),
            query: pairs(query),
            content: content.to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn verb(&self) -> &'static str {
        let watches = self.parameter("watch").is_some_and(|value| value == "true" || value == "1");
        match (&self.method, &self.name) {
            (&Method::GET, None) if watches => "watch",
            (&Method::GET, None) => "list",
            (&Method::GET, Some(_)) => "get",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, None) => "deletecollection",
            (&Method::DELETE, Some(_)) => "delete",
            (method, _) => panic!("{method}"),
        }
    }

    /// Whether an object matches the field selector, which can only be a name here.
    fn selects(&self, object: &Value) -> bool {
        let Some(fields) = self.parameter("fieldSelector") else { return true };
        let name = fields.strip_prefix("metadata.name=").expect("a field that every kind has");
        object["metadata"]["name"] == name
    }

    fn resource(&self) -> String {
        let subresource = self.subresource.as_ref().map(|part| format!("/{part}")).unwrap_or_default();
        format!("{}{subresource}", self.plural)
    }

    fn key(&self) -> ObjectKey {
        let named = self.name.clone().or_else(|| self.body["metadata"]["name"].as_str().map(str::to_owned));
        let (group, plural) = (self.group.clone(), self.plural.clone());
        let (namespace, name) = (self.namespace.clone().unwrap_or_default(), named.unwrap_or_default());
        ObjectKey { group, plural, namespace, name }
    }
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            match byte {
                b'%' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                }
                b'+' => bytes.push(b' '),
                byte => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).unwrap()
    };
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decode(key), decode(value))).collect()
}

pub(crate) async fn answer(api: &FakeApi, request: Request<Body>) -> Response<ApiBody> {
    let call = ApiCall::read(request).await;
    let verb = call.verb();
    if call.plural == "selfsubjectaccessreviews" {
        return full(201, &reviewed(api, call.body));
    }
    let is_write = !matches!(verb, "get" | "list" | "watch");
    if is_write && api.store().is_dead() {
        // The client is gone before an answer comes.
        std::future::pending::<()>().await;
    }
    api.store().requests.push(format!("{verb} {}", call.resource()));
    api.delay().await;
    // Rights come first: they are asked for by names, whether there is such a kind or not.
    if let Err(refusal) = allowed(api, &call, verb) {
        return refused(&refusal);
    }
    if is_unknown(&api.store(), &call) {
        return text(404, "404 page not found\n");
    }
    if verb == "watch" {
        return Response::new(StreamBody::new(watch(api.clone(), call)).boxed_unsync());
    }
    let version = api.store().version;
    let result = carry_out(api, &call, verb);
    if api.store().version != version {
        api.store().writes.push(format!("{verb} {} {}", call.resource(), call.key().name));
    }
    api.announce();
    match result {
        Ok(value) => full(200, &value),
        Err(refusal) => refused(&refusal),
    }
}

fn allowed(api: &FakeApi, call: &ApiCall, verb: &str) -> Result<(), ApiRefusal> {
    let store = api.store();
    let resource = call.resource();
    if !may(&store, &call.group, &format!("{verb} {resource}")) {
        let message = format!(
            "{resource} is forbidden: User \"system:serviceaccount:zagros-system:zagros-operator\" cannot {verb} \
             resource \"{resource}\" in API group \"{}\" in the namespace \"{}\"",
            call.group,
            call.namespace.clone().unwrap_or_default()
        );
        return Err(refusal(403, "Forbidden", message));
    }
    Ok(())
}

fn may(store: &ObjectStore, group: &str, asked: &str) -> bool {
    !store.denied.contains(asked) && PERMITTED.contains(&(group.to_owned(), asked.to_owned()))
}

fn reviewed(api: &FakeApi, mut review: Value) -> Value {
    let asked = &review["spec"]["resourceAttributes"];
    let word = |key: &str| asked[key].as_str().unwrap_or_default();
    let subresource = asked["subresource"].as_str().map(|part| format!("/{part}")).unwrap_or_default();
    let allowed = may(&api.store(), word("group"), &format!("{} {}{subresource}", word("verb"), word("resource")));
    review["status"] = json!({ "allowed": allowed });
    review
}

fn carry_out(api: &FakeApi, call: &ApiCall, verb: &str) -> Result<Value, ApiRefusal> {
    let mut store = api.store();
    let key = call.key();
    let labels = call.parameter("labelSelector").unwrap_or_default();
    let part = if call.subresource.as_deref() == Some("status") { ObjectPart::Status } else { ObjectPart::Main };
    match verb {
        "list" => {
            let items = store.list(&call.group, &call.plural, call.namespace.as_deref(), labels);
            let items: Vec<Value> = items.into_iter().filter(|object| call.selects(object)).collect();
            Ok(json!({
                "apiVersion": "v1", "kind": "List", "items": items,
                "metadata": { "resourceVersion": store.version.to_string() },
            }))
        }
        "get" => store.get(&key),
        "create" => match store.get(&key) {
            Ok(_) => Err(refusal(409, "AlreadyExists", format!("{} \"{}\" already exists", key.plural, key.name))),
            Err(_) => store.put(&key, call.body.clone(), part),
        },
        "update" => {
            store.get(&key)?;
            store.put(&key, call.body.clone(), part)
        }
        "patch" if call.content.contains("apply-patch") => {
            let manager = call.parameter("fieldManager").expect("an apply names its manager");
            store.apply(&key, manager, &call.body, part)
        }
        "patch" => {
            let mut object = store.get(&key)?;
            if call.content.contains("json-patch") {
                json_patch(&mut object, &call.body).map_err(|error| refusal(422, "Invalid", error))?;
            } else {
                merge(&mut object, &call.body);
            }
            store.put(&key, object, part)
        }
        "delete" => {
            let wanted = &call.body["preconditions"]["uid"];
            if wanted.is_string() && *wanted != store.get(&key)?["metadata"]["uid"] {
                return Err(refusal(409, "Conflict", "the UID in the precondition is another"));
            }
            store.delete_within(&key, call.body["gracePeriodSeconds"].as_i64())
        }
        "deletecollection" => {
            let found = store.list(&call.group, &call.plural, call.namespace.as_deref(), labels);
            for object in found.iter().filter(|object| call.selects(object)) {
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                store.delete(&ObjectKey { name, ..key.clone() })?;
            }
            Ok(json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }))
        }
        other => panic!("{other} {}", call.version),
    }
}

/// All events of a kind after a version, and those that follow.
fn watch(api: FakeApi, call: ApiCall) -> impl Stream<Item = Result<Frame<Bytes>, std::convert::Infallible>> {
    let from: u64 = call.parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let changes = api.changed.subscribe();
    stream::unfold((api, call, changes, from), async |(api, call, mut changes, mut from)| {
        loop {
            let lines = {
                let store = api.store();
                let labels = call.parameter("labelSelector").unwrap_or_default();
                let concerns = |key: &ObjectKey| {
                    key.group == call.group
                        && key.plural == call.plural
                        && call.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
                };
                let start = store.log.partition_point(|one| one.version <= from);
                let since = store.log[start..].iter().filter(|one| concerns(&one.key));
                let events = since.filter(|one| matches_selector(labels, &one.object));
                let lines: String =
                    events.map(|one| format!("{}\n", json!({ "type": one.what, "object": one.object }))).collect();
                from = store.version;
                lines
            };
            if !lines.is_empty() {
                return Some((Ok(Frame::data(Bytes::from(lines))), (api, call, changes, from)));
            }
            changes.changed().await.ok()?;
        }
    })
}

fn text(code: u16, text: &'static str) -> Response<ApiBody> {
    let body = Full::new(Bytes::from(text)).boxed_unsync();
    Response::builder().status(code).header("content-type", "text/plain; charset=utf-8").body(body).unwrap()
}

fn full(code: u16, value: &Value) -> Response<ApiBody> {
    let body = Full::new(Bytes::from(value.to_string())).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

fn refused(refusal: &ApiRefusal) -> Response<ApiBody> {
    let ApiRefusal { code, reason, message } = refusal;
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code,
    });
    full(*code, &status)
}

/// The kinds that definitions bring: group, version, kind. The first is always installed.
const DEFINED: [(&str, &str, &str); 4] = [
    ("zagros.dev", "v1alpha1", "hybridjobs"),
    ("scheduling.volcano.sh", "v1beta1", "podgroups"),
    ("scheduling.x-k8s.io", "v1alpha1", "podgroups"),
    ("monitoring.coreos.com", "v1", "podmonitors"),
];

/// Whether nothing routes the request: then the server of pages answers, and knows nothing of a `Status`. There is no
/// right on unknown kinds of Kubernetes itself.
fn is_unknown(store: &ObjectStore, call: &ApiCall) -> bool {
    let place = (&*call.group, &*call.version, &*call.plural);
    let is_of_definition = DEFINED.iter().any(|one| one.0 == place.0);
    let is_installed = place.2 == "hybridjobs" || store.installed.contains(place.2);
    store.missing.contains(place.2) || is_of_definition && !(is_installed && DEFINED.contains(&place))
}
