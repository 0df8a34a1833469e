"""The files in docker/ against what Brisk and Triton need: fields, not whether they were run."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from brisk.protocol.runtime_paths import MAX_SOCKET_PATH_BYTES, Role

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
FILES = ("Dockerfile", "Dockerfile.cpu")


def instructions(name: str) -> list[tuple[str, str]]:
    """Instruction and argument of each logical line; comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / name).read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def of(name: str, instruction: str) -> list[str]:
    return [rest for word, rest in instructions(name) if word == instruction]


@pytest.mark.parametrize("name", FILES)
def test_an_image_starts_from_a_pinned_base_and_ends_as_an_ordinary_user(name: str) -> None:
    (base,) = [rest for rest in of(name, "ARG") if rest.startswith("BASE_IMAGE=")]
    assert re.search(r":[\w.-]*(\d+\.\d+|bookworm)", base), "a tag that names a release"
    assert of(name, "USER")[-1] == "brisk"
    assert of(name, "STOPSIGNAL") == ["SIGTERM"]
    assert of(name, "ENTRYPOINT")[-1].startswith('["/usr/bin/tini", "--"'), "an init that reaps"
    assert "/v2/health/ready" in of(name, "HEALTHCHECK")[0]
    assert set(of(name, "EXPOSE")[0].split()) == {str(port) for port in PORTS.values()}


@pytest.mark.parametrize("name", FILES)
def test_every_copied_path_exists_and_docker_is_given_it(name: str) -> None:
    """.dockerignore leaves out everything that it does not name."""
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    given = [line[1:] for line in ignore if line.startswith("!")]
    for arguments in of(name, "COPY"):
        *sources, _ = shlex.split(arguments)
        if sources[0].startswith("--from"):
            continue
        for source in sources:
            found = [path.relative_to(ROOT).as_posix() for path in ROOT.glob(source)]
            assert found, source
            for path in found:
                parents = [path, *(str(each) for each in Path(path).parents)]
                matched = any(fnmatch.fnmatch(each, rule) for each in parents for rule in given)
                assert matched, f"{name} copies {path}, which .dockerignore leaves out"


@pytest.mark.parametrize("name", FILES)
def test_layers_keep_no_package_lists_and_settings_of_pip_are_no_part_of_the_image(
    name: str,
) -> None:
    text = (DOCKER / name).read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    kept = [stage for stage in stages if re.match(r"\S+ AS (system|server|client)\n", stage)]
    assert kept
    for stage in kept:
        for run in re.findall(r"^RUN (?:.*\\\n)*.*", stage, re.MULTILINE):
            if "apt-get install" not in run:
                continue
            assert "--no-install-recommends" in run
            assert "rm -rf /var/lib/apt/lists" in run
        assert "ARG PIP_" not in stage


def test_compose_starts_the_server_as_the_page_says_and_a_client_once_it_is_healthy() -> None:
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    server, client = document["services"]["server"], document["services"]["client"]
    stages = {rest.split()[-1] for rest in of("Dockerfile.cpu", "FROM")}
    for service in (server, client):
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert service["build"]["target"] in stages
        assert any(volume.endswith(":/models:ro") for volume in service["volumes"])
    assert server["ports"] == ["127.0.0.1:8000-8002:8000-8002"]
    assert server["shm_size"] == "1gb"
    assert server["read_only"] is True
    writable = {entry.partition(":")[0] for entry in server["tmpfs"]}
    writable |= {volume.split(":")[1] for volume in server["volumes"] if volume[-3:] != ":ro"}
    assert writable == {"/tmp", "/run/brisk", "/var/cache/brisk"}
    assert server["stop_grace_period"] == "45s"
    assert client["depends_on"]["server"]["condition"] == "service_healthy"
    assert set(document["volumes"]) == {"cache"}


@pytest.fixture(scope="module")
def kubernetes() -> dict[str, Any]:
    documents = yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


def test_the_deployment_has_probes_limits_and_no_privileges(kubernetes: dict[str, Any]) -> None:
    deployment = kubernetes["Deployment"]
    assert deployment["apiVersion"] == "apps/v1"
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > 30, "Triton answers for up to 30 s"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (server,) = pod["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == PORTS
    for probe, path in (("startup", "ready"), ("readiness", "ready"), ("liveness", "live")):
        asked = server[f"{probe}Probe"]["httpGet"]
        assert asked == {"path": f"/v2/health/{path}", "port": "http"}
    start = server["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120
    limits, requests = server["resources"]["limits"], server["resources"]["requests"]
    threads = {each["name"]: each["value"] for each in server["env"]}["BRISK_THREADS"]
    assert limits["cpu"] == requests["cpu"] == threads, "no quota stops a segment in its middle"
    context = server["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_pod_has_shared_memory_read_only_models_and_a_directory_of_its_own_for_sockets(
    kubernetes: dict[str, Any],
) -> None:
    spec = kubernetes["Deployment"]["spec"]["template"]["spec"]
    (server,) = spec["containers"]
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    shared = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
    assert shared == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert mounts["/models"]["readOnly"] is True
    assert {"/var/cache/brisk", "/tmp"} <= set(mounts), "the root is read-only"
    chosen = {each["name"]: each["value"] for each in server["env"]}["BRISK_RUNTIME_DIR"]
    (making,) = spec["initContainers"]
    made = {mount["name"]: mount["mountPath"] for mount in making["volumeMounts"]}
    for path in (chosen, "/var/cache/brisk", "/tmp"):
        name, folder = mounts[path]["name"], mounts[path]["subPath"]
        wanted = f"{made[name]}/{folder}"
        assert wanted in making["command"][-1], "a volume is everybody's, a directory in it is not"
    longest = max(len(f"{chosen}/cuda-00/{role.value}.sock") for role in Role)
    assert longest <= MAX_SOCKET_PATH_BYTES


def test_the_service_leads_to_the_pods_ports(kubernetes: dict[str, Any]) -> None:
    service = kubernetes["Service"]["spec"]
    pod = kubernetes["Deployment"]["spec"]["template"]
    assert service["selector"] == pod["metadata"]["labels"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == PORTS
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(PORTS["metrics"])
