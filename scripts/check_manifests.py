#!/usr/bin/env python3
"""Checks every Kubernetes object of this repository strictly against Kubernetes' own schemas, without a cluster.

Objects: what the kustomizations list (and what `kubectl kustomize` makes of them, where kubectl is found), and what the
operator would make of the HybridJobs in examples/k8s (which it checks against the definition, its rules included), and
what Helm makes of the chart, which must be the same objects as the kustomizations. Those schemas say nothing of what an
API server asks of a definition itself: k8s/tests/operator/crd does, by Kubernetes' rules for structural schemas, defaults and costs. Prints what every pod may do and is given. Usage: check_manifests.py OPERATOR_BINARY
Schemas come with the PyPI package kubernetes-validate, which is put into .deps/ once.
"""

import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import helm_chart
import pods

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / ".deps" / "kubernetes-validate"
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
# Kinds of custom resources. Kubernetes has no schemas for them.
FOREIGN = {"HybridJob", "PodGroup", "PodMonitor", "Kustomization"}
# The comment in which an example with a ConfigMap names its job file.
JOB_FILE = re.compile(r"--from-file=job\.toml=(\S+)")


def install():
    if not (PACKAGES / "kubernetes_validate").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target", str(PACKAGES)]
        subprocess.run([*pip, "kubernetes-validate==1.37.0", "pyyaml"], check=True)
    sys.path.insert(0, str(PACKAGES))


def listed(folder):
    """The documents of a kustomization that only lists files, as all of this repository do."""
    import yaml

    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from listed(path)
        else:
            yield from yaml.safe_load_all(path.read_text())


def kustomized(folder):
    """The same by kubectl."""
    import yaml

    made = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(made))


def rendered(operator, example):
    """The objects that the operator makes of an example."""
    import yaml

    command = [operator, "render", str(example)]
    if told := JOB_FILE.search(example.read_text()):
        command += ["--config", str(ROOT / told.group(1))]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"error: {' '.join(command)}: {result.stderr.strip()}")
    made = result.stdout
    return [document for document in yaml.safe_load_all(made) if document]


def identity(document):
    metadata = document["metadata"]
    return (document["kind"], metadata.get("namespace", ""), metadata["name"])


def collect(operator):
    sources = {}
    for folder in ["k8s/crd", "k8s/manifests", "k8s/manifests/namespaced"]:
        documents = list(listed(ROOT / folder))
        if which("kubectl"):
            by_kubectl = kustomized(ROOT / folder)
            if sorted(documents, key=identity) != sorted(by_kubectl, key=identity):
                sys.exit(f"error: kubectl kustomize {folder} gives other objects than the files it lists")
        sources[folder] = documents
    for example in sorted((ROOT / "examples/k8s").glob("*.yaml")):
        sources[f"operator render {example.name}"] = rendered(operator, example)
    return sources


def charts(sources):
    """Adds the objects that the chart renders. Returns its problems."""
    rendered, problems = helm_chart.checked()
    for folder in ["k8s/manifests", "k8s/manifests/namespaced"]:
        for name in helm_chart.differences(rendered[f"chart, {folder}"], sources[folder]):
            problems.append(f"chart: {name} is another than in {folder}")
    sources.update(rendered)
    return problems


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    install()
    import kubernetes_validate

    checked = 0
    sources = collect(sys.argv[1])
    problems = charts(sources) if helm_chart.install() else []
    table, lacking = pods.check(sources)
    print("\n".join(table))
    problems += lacking
    for source, documents in sources.items():
        for document in documents:
            if document["kind"] in FOREIGN:
                continue
            for version in VERSIONS:
                checked += 1
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                except Exception as error:  # the package has a class for each of its failures
                    problems.append(f"{source}: {' '.join(identity(document))}, Kubernetes {version}: {error}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{sum(map(len, sources.values()))} objects, {checked} checks, Kubernetes {VERSIONS[0]} to {VERSIONS[-1]}: "
          f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
