#!/usr/bin/env python3
"""Train the compose cluster to its end, then again while containers are killed, paused and cut off.

Needs Docker and compose, and the images (`make images`). Where no engine answers and `dockerd` is installed, one is
started for the test, in a folder of its own, and ended with it.

    python3 scripts/test_compose.py
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "zagros-test"
COMPOSE_FILE = "docker/compose.yaml"
DEADLINE_SECONDS = 300
ROWS = "600000"


def run(command, check=True, timeout=DEADLINE_SECONDS):
    """The output of a command. A failure ends the test with the command's own message."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
    if check and done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def wait(what, holds, seconds=DEADLINE_SECONDS):
    """Waits until a condition holds. Names the condition if it never does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.5)
    return sys.exit(f"waited {seconds} s for {what}\n{logs()}")


@contextlib.contextmanager
def engine():
    """A running engine: the installed one, or one that this test starts."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        yield
        return
    if not shutil.which("dockerd") or os.geteuid() != 0:
        sys.exit("no Docker engine answers: start it, or set DOCKER_HOST")
    with tempfile.TemporaryDirectory(prefix="zagros-docker-") as folder:
        socket = f"unix://{folder}/docker.sock"
        command = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        command += ["--pidfile", f"{folder}/pid", "--host", socket]
        with open(f"{folder}/log", "w", encoding="utf-8") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        os.environ["DOCKER_HOST"] = socket
        try:
            ready = ["docker", "info"]
            wait("dockerd", lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, 60)
            yield
        finally:
            daemon.terminate()
            daemon.wait(60)


@functools.cache
def compose_command():
    """The compose command. Version 2 is a part of docker, version 1 is a program."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    return sys.exit("docker compose is not installed: see docs/compose.md")


def compose(*arguments, file=COMPOSE_FILE, check=True):
    return run([*compose_command(), "-p", PROJECT, "-f", file, *arguments], check=check)


def logs():
    return compose("logs", "--no-color", "--tail", "20", check=False)


def container(service):
    return f"{PROJECT}_{service}_1" if compose_command() == ["docker-compose"] else f"{PROJECT}-{service}-1"


def state(service):
    """Whether a container runs, its exit code, and the state of its health check."""
    found = json.loads(run(["docker", "inspect", container(service)]))[0]["State"]
    return found["Status"], found["ExitCode"], found.get("Health", {}).get("Status")


def restarts(service):
    """How often the engine restarted a container."""
    return json.loads(run(["docker", "inspect", container(service)]))[0]["RestartCount"]


def ended(service):
    status, code, _ = state(service)
    return None if status != "exited" else (code,)


def said(service):
    return run(["docker", "logs", container(service)])


def has_ended(*services):
    """The exit codes of containers, once all have ended."""
    return [wait(f"the end of {service}", lambda service=service: ended(service))[0] for service in services]


def steps():
    """The steps of a worker in the coordinator's status; 0 before its first report."""
    status = run(["docker", "exec", container("coordinator"), "/usr/local/bin/zagros-server", "status", "--json"], check=False)
    with contextlib.suppress(ValueError):
        members = json.loads(status)["members"]
        return max((member["progress"] or {}).get("step", 0) for member in members)
    return 0


def down():
    compose("--profile", "monitoring", "down", "--volumes", "--remove-orphans", check=False)


def start(*services):
    down()
    compose("up", "--detach", *services)
    wait("the first steps", lambda: steps() > 5)


def trains_to_its_end():
    """As in docs/compose.md: `up` returns by itself, every role ends with 0, and model and page are in the volume."""
    down()
    compose("up")
    codes = has_ended("worker-0", "worker-1", "coordinator", "server-0", "server-1", "server-2")
    if codes != [0] * 6:
        sys.exit(f"exit codes {codes}\n{logs()}")
    command = ["docker", "run", "--rm", "--volume", f"{PROJECT}_runs:/runs", "--entrypoint", "/bin/ls"]
    files = run([*command, image(), "-R", "/runs"])
    for name in ["summary.json", "report.html", "manifest.json"]:
        if name not in files:
            sys.exit(f"{name} is not in the volume:\n{files}")
    return last_line(said("worker-0"), "AUC")


def prometheus_scrapes_every_role():
    """With the rules and configuration of monitoring/, and the image of scripts/images.sh."""
    os.environ["ZAGROS_PROMETHEUS_IMAGE"] = "zagros-prometheus:latest"
    start("prometheus", "worker-0", "worker-1", "server-0", "server-1", "server-2", "coordinator")
    roles = wait("six scraped roles", lambda: scraped(6))
    return ", ".join(sorted(roles))


def scraped(most):
    """The roles that are up, once there are so many."""
    url = f"http://127.0.0.1:{os.environ['ZAGROS_PROMETHEUS_PORT']}/api/v1/query?query=up%3D%3D1"
    with contextlib.suppress(OSError, ValueError):
        found = json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]
        names = {f"{one['metric']['role']} {one['metric']['index']}" for one in found}
        return names if len(names) == most else None
    return None


def a_killed_server_is_named():
    """After `docker kill` the engine starts no server again, so the run fails, and fails again until the engine gives up."""
    start()
    run(["docker", "kill", container("server-1")])
    return named(has_ended("coordinator"), "embedding server 1", "worker-0", "worker-1", "coordinator")


def kill_process(service):
    """Like a lack of memory. After `docker kill` the engine would restart nothing, because it counts as a request."""
    run(["docker", "exec", container(service), "/bin/sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"])


def a_killed_server_and_a_killed_coordinator_come_back():
    """The server has its log and the coordinator its journal. No other role is restarted."""
    start()
    for service in ["server-1", "coordinator"]:
        kill_process(service)
        wait(f"the restart of {service}", lambda service=service: restarts(service) or ended("worker-0"))
    roles = ["worker-0", "worker-1", "coordinator", "server-0", "server-1", "server-2"]
    codes = has_ended(*roles)
    again = [restarts(role) for role in roles]
    if codes != [0] * 6 or again != [0, 0, 1, 0, 1, 0]:
        sys.exit(f"exit codes {codes}, restarts {again}\n{logs()}")
    return f"restarts {dict(zip(roles, again))}"


def a_killed_worker_comes_back():
    """The engine restarts the worker, the other worker continues with it, and the run ends well."""
    start()
    kill_process("worker-1")
    wait("the restart of worker-1", lambda: restarts("worker-1") or ended("worker-0"))
    codes = has_ended("worker-0", "worker-1", "coordinator")
    text = said("worker-0")
    if codes != [0] * 3 or "dense worker 1 lost after step" not in text or restarts("worker-1") != 1:
        sys.exit(f"exit codes {codes}, {restarts('worker-1')} restarts\n{logs()}")
    return last_line(text, "training continues")


def a_paused_server_is_waited_for():
    """The server still accepts connections. Health checks and the worker's log report it. Training ends well afterwards."""
    start()
    run(["docker", "pause", container("server-2")])
    wait("server-2 to be unhealthy", lambda: state("server-2")[2] == "unhealthy" or ended("worker-0"))
    run(["docker", "unpause", container("server-2")])
    codes = has_ended("worker-0", "worker-1")
    if codes != [0, 0]:
        sys.exit(f"exit codes {codes}\n{logs()}")
    return "unhealthy while paused; training went on to its end"


def a_worker_that_is_cut_off_is_named():
    """No process can take its slot, because a restarted container has no network either."""
    start()
    run(["docker", "network", "disconnect", f"{PROJECT}_default", container("worker-1")])
    return named(has_ended("coordinator"), "dense worker 1", "worker-0", "coordinator")


def a_stopped_run_goes_on_with_more_servers_and_workers():
    """The compose file with the edits of docs/compose.md."""
    start()
    compose("stop")
    with tempfile.TemporaryDirectory(prefix="zagros-compose-") as folder:
        compose("up", "--detach", file=grown(Path(folder)))
        codes = has_ended("worker-0", "worker-1", "worker-2", "coordinator", "server-0", "server-3")
    text = said("worker-0")
    if codes != [0] * 6 or "going on after step" not in text:
        sys.exit(f"exit codes {codes}\n{logs()}")
    return last_line(text, "going on after step")


def grown(folder):
    """The compose file and its job with one more server and worker, in a separate folder."""
    page = (ROOT / "docs/compose.md").read_text(encoding="utf-8")
    services = page.split("worker-0 depends on\n")[1].split("```")[0]
    text = (ROOT / COMPOSE_FILE).read_text(encoding="utf-8")
    for before, more in [
        ("      server-2: *started\n", "      server-3: *started\n"),
        ('--index, "1", --advertise, "worker-1:7720"]\n', services),
    ]:
        if before not in text:
            sys.exit(f"{COMPOSE_FILE} has no line {before}")
        text = text.replace(before, before + more)
    (folder / "compose.yaml").write_text(text, encoding="utf-8")
    job = (ROOT / "docker/job.toml").read_text(encoding="utf-8")
    job = job.replace("servers = 3\nworkers = 2\n", "servers = 4\nworkers = 3\n")
    (folder / "job.toml").write_text(job, encoding="utf-8")
    folder.chmod(0o755)
    return str(folder / "compose.yaml")


def named(codes, who, *services):
    """The run failed, and a log names the cause."""
    text = "".join(said(service) for service in services)
    if codes[0] == 0 or who not in text:
        sys.exit(f"exit codes {codes}, and {who} is not named:\n{logs()}")
    return f"exit codes {codes}; " + last_line(text, who)


def last_line(text, word):
    return next((line.strip() for line in reversed(text.splitlines()) if word in line), "")[:200]


def image():
    return os.environ.get("ZAGROS_IMAGE", "zagros:latest")


def main():
    os.environ.setdefault("ZAGROS_ROWS", ROWS)
    os.environ.setdefault("ZAGROS_STATUS_PORT", "17780")
    os.environ.setdefault("ZAGROS_PROMETHEUS_PORT", "19090")
    with engine():
        images = ["docker", "image", "inspect", image(), os.environ.get("ZAGROS_SERVER_IMAGE", "zagros-server:latest")]
        if subprocess.run(images, capture_output=True, check=False).returncode != 0:
            run(["sh", "scripts/images.sh"], timeout=900)
        try:
            for test in [
                trains_to_its_end,
                prometheus_scrapes_every_role,
                a_killed_server_is_named,
                a_killed_server_and_a_killed_coordinator_come_back,
                a_killed_worker_comes_back,
                a_paused_server_is_waited_for,
                a_worker_that_is_cut_off_is_named,
                a_stopped_run_goes_on_with_more_servers_and_workers,
            ]:
                print(f"{test.__name__} ... ", end="", flush=True)
                print(f"ok\n    {test()}", flush=True)
        finally:
            down()


if __name__ == "__main__":
    main()
