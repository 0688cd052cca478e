"""Rights and resources of the pods of a set of Kubernetes objects, one line each."""

COLUMNS = ["pod", "not root", "root read-only", "rights dropped", "probes", "requests", "limits"]
PROBES = ["startupProbe", "livenessProbe", "readinessProbe"]


def templates(document):
    """The pod templates of an object: its name and its pod's spec."""
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "Pod":
        yield f"{kind} {name}", document["spec"]
    elif kind in {"Deployment", "StatefulSet", "Job"}:
        yield f"{kind} {name}", document["spec"]["template"]["spec"]


def rows(source, documents):
    for document in documents:
        for name, pod in templates(document):
            # The pod of `helm test` ends by itself, so it needs no probe.
            is_test = "helm.sh/hook" in document["metadata"].get("annotations", {})
            for container in pod["containers"]:
                yield source, row(name, pod, container, is_test)


def row(name, pod, container, is_test):
    security = container.get("securityContext", {})
    resources = container.get("resources", {})
    amounts = lambda which: ", ".join(str(resources.get(which, {}).get(kind, "none")) for kind in ["cpu", "memory"])
    is_root = not pod.get("securityContext", {}).get("runAsNonRoot") or not security.get("runAsNonRoot")
    dropped = security.get("capabilities", {}).get("drop") == ["ALL"]
    restricted = dropped and security.get("allowPrivilegeEscalation") is False
    probes = [probe.removesuffix("Probe") for probe in PROBES if "httpGet" in container.get(probe, {})]
    return {
        "pod": name,
        "not root": "no" if is_root else "yes",
        "root read-only": "yes" if security.get("readOnlyRootFilesystem") else "no",
        "rights dropped": "yes" if restricted else "no",
        "probes": "ends by itself" if is_test else ", ".join(probes) if len(probes) == len(PROBES) else "no",
        "requests": amounts("requests"),
        "limits": amounts("limits"),
    }


def check(sources):
    """The table, and the missing settings."""
    found = [row for source, documents in sources.items() for row in rows(source, documents)]
    problems = [
        f"{source}: {row['pod']}: {column} is {value}"
        for source, row in found
        for column, value in row.items()
        if value == "no" or "none" in value.split(", ")
    ]
    lines = ["| " + " | ".join([source, *row.values()]) + " |" for source, row in found]
    head = ["| " + " | ".join(["from", *COLUMNS]) + " |", "|" + "---|" * (len(COLUMNS) + 1)]
    return head + lines, problems
