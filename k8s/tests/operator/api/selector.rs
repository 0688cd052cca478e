//! Label selectors.

use serde_json::Value;

/// Whether an object has the labels: `a=b`, `a!=b`, `a`, joined by commas.
pub(crate) fn matches(selector: &str, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        if let Some((key, value)) = term.split_once("!=") {
            labels[key] != value
        } else if let Some((key, value)) = term.split_once('=') {
            labels[key] == value
        } else {
            labels[term].is_string()
        }
    })
}

#[test]
fn selectors_have_the_meaning_that_kubernetes_gives_them() {
    let object = serde_json::json!({"metadata": {"labels": {"a": "1", "b/c": "2"}}});
    for (selector, expected) in [
        ("", true),
        ("a=1", true),
        ("a=1,b/c=2", true),
        ("a!=1", false),
        ("z!=1", true),
        ("a,a!=3", true),
        ("z", false),
    ] {
        assert_eq!(matches(selector, &object), expected, "{selector}");
    }
}
