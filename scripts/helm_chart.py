"""The chart k8s/helm/zagros-operator, rendered by Helm's own engine, without a cluster and without the helm program.

Helm comes with the PyPI package helm-python-sdk, a C library of Helm's Go packages, which is put into .deps/ once.
"""

import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "k8s/helm/zagros-operator"
PACKAGES = ROOT / ".deps/helm"
PACKAGE = "helm-python-sdk==0.2.2"
RELEASE = "zagros-operator"

# Labels that Helm's users expect. Users of kubectl do not need them.
ADDED = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}
NAME = "app.kubernetes.io/name"

EVERYTHING = {
    "image": {
        "repository": "registry.example:5000/ads/zagros-operator",
        "digest": "sha256:" + "0" * 64,
        "pullPolicy": "IfNotPresent",
        "pullSecrets": ["registry"],
    },
    "replicas": 3,
    "serviceAccount": {"name": "zagros", "annotations": {"example.com/team": "ads"}},
    "logJson": False,
    "allowHostAccess": True,
    "env": [{"name": "RUST_LOG", "value": "debug"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {NAME: "zagros-operator"}}}
            ]
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {NAME: "zagros-operator"}},
        }
    ],
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"example.com/team": "ads"},
    "podAnnotations": {"example.com/owner": "ads"},
    "podDisruptionBudget": {"enabled": True, "minAvailable": 2},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"example.com/monitors": "yes"}}}]},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
# Values by name of the case. The first two must equal the kustomization of that folder.
CASES = {
    "k8s/manifests": {},
    "k8s/manifests/namespaced": {"namespaced": True},
    "everything": EVERYTHING,
    "everything, in one namespace": EVERYTHING | {"namespaced": True},
    "rights given by others": {"rbac": {"create": False}, "serviceAccount": {"create": False}},
}
NAMESPACES = {"k8s/manifests/namespaced": "ads"}
# Values that the chart refuses, and the key that it must name.
WRONG = [
    ({"replicaz": 3}, "replicaz"),
    ({"image": {"tagg": "1"}}, "tagg"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"replicas": 0}, "/replicas"),
    ({"replicas": "2"}, "/replicas"),
    ({"namespaced": "ads"}, "/namespaced"),
    ({"rbac": {"creat": True}}, "creat"),
    ({"resources": {"limits": {"memory": "plenty"}}}, "/resources/limits/memory"),
    ({"resources": {"limit": {}}}, "limit"),
    ({"env": [{"name": "POD_NAME", "value": "x"}]}, "/env/0/name"),
    ({"terminationGracePeriodSeconds": 1}, "/terminationGracePeriodSeconds"),
    ({"podMonitor": {"interval": 30}}, "/podMonitor/interval"),
    ({"networkPolicy": {"from": [{"pods": {}}]}}, "pods"),
]


def install():
    """Whether Helm is installed. Its package has a library for Linux on x86_64."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        print("note: no package of Helm for this machine; the chart is not rendered", file=sys.stderr)
        return False
    if not (PACKAGES / "helm_python").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target", str(PACKAGES)]
        subprocess.run([*pip, "--no-deps", PACKAGE], check=True)
        # The library has three names in the package.
        first, *others = sorted((PACKAGES / "helm_python/lib").glob("libhelm_c.so*"))
        for other in others:
            other.unlink()
            other.symlink_to(first.name)
    sys.path.insert(0, str(PACKAGES))
    return True


def checked():
    """The objects that the chart renders, by case, and its problems."""
    import helm_python as helm

    with tempfile.TemporaryDirectory() as folder:
        # As in a packed chart: files in place of the links of the repository.
        path = shutil.copytree(CHART, Path(folder) / CHART.name)
        problems = lint(helm, path)
        with helm.Chart.load(path) as chart:
            sources = {case: rendered(chart, case, values) for case, values in CASES.items()}
            problems += accepted(helm, chart)
            committed = (ROOT / "k8s/crd/hybridjobs.yaml").read_text()
            if [path.read_text() for path in path.glob("crds/*.yaml")] != [committed] or len(chart.crds) != 1:
                problems.append("chart: crds/ is not k8s/crd")
    return {f"chart, {case}": documents for case, documents in sources.items()}, problems


def lint(helm, path):
    # 1 is information: the chart has no icon.
    messages = [message for message in helm.lint(path, strict=True)["messages"] if message["severity"] > 1]
    return [f"chart: {message['path']}: {message['error']}" for message in messages]


def rendered(chart, case, values):
    import yaml

    files = chart.render(values, name=RELEASE, namespace=NAMESPACES.get(case, "zagros-system"))
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def accepted(helm, chart):
    """Wrong values that the chart does not refuse with their key."""
    problems = []
    for values, key in WRONG:
        try:
            chart.render(values, name=RELEASE)
            problems.append(f"chart: {values} is accepted")
        except helm.HelmError as error:
            if key not in str(error):
                problems.append(f"chart: {values} is refused without a word of {key}: {error}")
    return problems


def differences(documents, kustomized):
    """Objects that differ between chart and kustomization. Helm itself makes the namespace and the definition."""
    by_helm = {identity(one): plain(one) for one in documents if "helm.sh/hook" not in annotations(one)}
    by_kubectl = {
        identity(one): plain(one) for one in kustomized if one["kind"] not in {"Namespace", "CustomResourceDefinition"}
    }
    return sorted(key for key in by_helm.keys() | by_kubectl.keys() if by_helm.get(key) != by_kubectl.get(key))


def identity(document):
    metadata = document["metadata"]
    return " ".join([document["kind"], metadata.get("namespace", ""), metadata["name"]])


def annotations(document):
    return document["metadata"].get("annotations", {})


def plain(value):
    """The object without the labels that Helm's users expect, and without the name if it has no other label."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: plain(item) for key, item in value.items() if key not in ADDED}
    if kept.get("kind") != "Deployment" and set(kept.get("metadata", {}).get("labels", {})) == {NAME}:
        del kept["metadata"]["labels"]
    return kept
