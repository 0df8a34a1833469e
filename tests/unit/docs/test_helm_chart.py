"""The Helm chart, rendered by Helm itself, against the schemas of Kubernetes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

import brisk
from brisk.telemetry.metrics import METRICS, Kind

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "docker" / "helm"
KUBERNETES = "1.31"

# In a process of its own: Helm is a library of Go's, with threads and signal handlers.
RENDER = """
import json, sys
import helm_python as helm
with helm.Chart.load(sys.argv[1]) as chart:
    print(json.dumps(chart.render(json.loads(sys.argv[2]), name="brisk", namespace="serving")))
"""
LINT = """
import json, sys
import helm_python as helm
print(json.dumps(helm.lint(sys.argv[1])))
"""

ALL_ON = {
    "replicas": 2,
    "gpus": 1,
    "cache": {"create": True, "accessMode": "ReadWriteMany", "storageClass": "nfs"},
    "image": {"pullSecrets": ["registry"]},
    "options": ["--repository=/models", "--log-verbose=1"],
    "environment": {"BRISK_MAX_WAITING": 64, "BRISK_POLICY": "shared"},
    "monitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True},
    "autoscaling": {"enabled": True},
    "nodeSelector": {"kind": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podAnnotations": {"team": "vision"},
}


class HelmError(Exception):
    """With what Helm says."""


def helm(script: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", script, str(CHART), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise HelmError(done.stderr)
    return json.loads(done.stdout)


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each object by its kind."""
    files = helm(RENDER, json.dumps(values))
    texts = [text for file, text in files.items() if file.endswith(".yaml") and text.strip()]
    documents = [yaml.safe_load(text) for text in texts]
    return {document["kind"]: document for document in documents}


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    found = helm(LINT)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_the_default_is_what_kubernetes_yaml_has() -> None:
    """All but what Helm adds, its labels, and a field that says what holds without it."""
    chart = rendered({})
    written = {
        each["kind"]: each
        for each in yaml.safe_load_all((ROOT / "docker" / "kubernetes.yaml").read_text())
    }
    assert set(chart) == set(written)
    pods = {}
    for name, documents in (("chart", chart), ("written", written)):
        template = documents["Deployment"]["spec"]["template"]
        for container in (*template["spec"]["containers"], *template["spec"]["initContainers"]):
            container.pop("imagePullPolicy", None)
        pods[name] = template["spec"], template["metadata"]["annotations"]
    assert pods["chart"] == pods["written"]
    assert chart["Service"]["spec"]["ports"] == written["Service"]["spec"]["ports"]
    for key in ("replicas", "strategy"):
        assert chart["Deployment"]["spec"][key] == written["Deployment"]["spec"][key]


@pytest.mark.parametrize("values", [{}, ALL_ON, {"cache": {"claim": ""}, "replicas": 3}])
def test_what_is_rendered_keeps_to_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    documents = rendered(values)
    for document in documents.values():
        if "monitoring.coreos.com" not in document["apiVersion"]:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert documents["Service"]["spec"]["selector"] == labels


def test_everything_that_is_asked_for_is_there() -> None:
    documents = rendered(ALL_ON)
    (server,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in server["env"]}
    assert environment["BRISK_MAX_WAITING"] == "64"
    assert server["args"] == ALL_ON["options"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "replicas" not in documents["Deployment"]["spec"], "the autoscaler's"
    scaler = documents["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == documents["Deployment"]["metadata"]["name"]
    metric = scaler["metrics"][0]["pods"]["metric"]["name"]
    assert METRICS[metric].kind is Kind.GAUGE
    (endpoint,) = documents["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in documents["Service"]["spec"]["ports"]}
    monitored = documents["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= documents["Service"]["metadata"]["labels"].items()
    assert documents["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"
    claim = documents["PersistentVolumeClaim"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert documents["PrometheusRule"]["spec"] == yaml.safe_load(
        (CHART / "alerts.yaml").read_text()
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_000_000, "1000000"), (20_971_520, "20971520"), (0, "0"), (0.98, "0.98"), ("off", "off")],
)
def test_variables_are_the_numbers_that_are_given(value: float | str, text: str) -> None:
    """Helm has all numbers as floats, and writes large ones as 1e+06."""
    documents = rendered({"environment": {"BRISK_CACHE_MIB": value}})
    (server,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "BRISK_CACHE_MIB", "value": text} in server["env"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"cores": 0}, "/cores"),
        ({"environment": {"BRISK_THREADS": 2}}, "invalid propertyName 'BRISK_THREADS'"),
        ({"environment": {"THREADS": 2}}, "invalid propertyName 'THREADS'"),
        ({"replicas": 2}, "expected ReadWriteMany"),
        ({"autoscaling": {"enabled": True}}, "expected ReadWriteMany"),
        (
            {"autoscaling": {"enabled": True, "minimum": 5}, "cache": {"claim": ""}},
            "autoscaling.minimum",
        ),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(HelmError, match=re.escape(said)):
        rendered(values)


def test_alerts_are_of_metrics_that_there_are_by_labels_that_they_have() -> None:
    (group,) = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
    added = {"namespace", "pod", "le"}
    for rule in group["rules"]:
        promql_parser.parse(rule["expr"])
        names = set(re.findall(r"\bbrisk_\w+", rule["expr"]))
        assert names
        metrics = [METRICS[name.removesuffix("_bucket")] for name in names]
        labels = added.union(*(metric.labels for metric in metrics))
        used = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert {label.strip() for each in used for label in each.split(",")} <= labels
        assert set(re.findall(r"[{,]\s*(\w+)(?:=|!)", rule["expr"])) <= labels
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == brisk.__version__


def kserve_fields(kind: str) -> tuple[dict[str, str], set[str]]:
    """Of a class of KServe's own package: types by names in YAML, and which there must be."""
    models = Path(str(distribution("kserve").locate_file("kserve/models")))
    file = models / (re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower() + ".py")
    text = file.read_text()
    found = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("openapi_types", "attribute_map")
    }
    names = found["attribute_map"]
    required = set(re.findall(r"Invalid value for `(\w+)`, must not be `None`", text))
    types = {names[name]: kind for name, kind in found["openapi_types"].items()}
    return types, {names[name] for name in required}


def kserve_problems(kind: str, value: Any, where: str) -> Iterator[str]:
    """What is wrong with a value of a type of KServe; those of Kubernetes are its schemas'."""
    plain = {"str": str, "bool": bool, "int": int}
    if kind in plain:
        if type(value) is not plain[kind]:
            yield f"{where}: {value!r} is no {kind}"
    elif kind.startswith("list["):
        for number, each in enumerate(value):
            yield from kserve_problems(kind[5:-1], each, f"{where}[{number}]")
    elif kind == "dict(str, str)":
        for name, each in value.items():
            yield from kserve_problems("str", each, f"{where}.{name}")
    elif kind.startswith("V1alpha1"):
        types, required = kserve_fields(kind)
        yield from (f"{where}.{name}: missing" for name in required - value.keys())
        for name, each in value.items():
            if name not in types:
                yield f"{where}.{name}: not known"
            else:
                yield from kserve_problems(types[name], each, f"{where}.{name}")


def test_a_runtime_of_kserve_has_the_fields_that_kserve_knows() -> None:
    document = yaml.safe_load((ROOT / "docker" / "kserve.yaml").read_text())
    assert not list(kserve_problems("V1alpha1ServingRuntime", document, "runtime"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"protocolVersion": ["v2"]}, "runtime.spec.protocolVersion: not known"),
        ({"multiModel": "no"}, "runtime.spec.multiModel: 'no' is no bool"),
        (
            {"supportedModelFormats": [{"name": "onnx", "version": 1}]},
            "runtime.spec.supportedModelFormats[0].version: 1 is no str",
        ),
        ({"containers": None}, "runtime.spec.containers: missing"),
    ],
)
def test_others_are_told(change: dict[str, Any], problem: str) -> None:
    document = yaml.safe_load((ROOT / "docker" / "kserve.yaml").read_text())
    spec = {**document["spec"], **change}
    document["spec"] = {name: each for name, each in spec.items() if each is not None}
    assert list(kserve_problems("V1alpha1ServingRuntime", document, "runtime")) == [problem]


def test_a_runtime_of_kserve_asks_a_repository_on_the_ports_that_kserve_asks() -> None:
    document = yaml.safe_load((ROOT / "docker" / "kserve.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == (
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
    )
    (container,) = document["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert {"--repository=/mnt/models", "--http-port=8080"} <= set(container["args"])
    assert container["ports"][0]["containerPort"] == 8080
    pod = {"containers": [container], "volumes": document["spec"]["volumes"]}
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "runtime"}, "spec": pod},
        KUBERNETES,
        strict=True,
    )
