"""deploy/helm: Kubernetes takes what the chart renders, and its nodes are the pair of docker-compose.yml.

``gotpl`` renders the chart here, for CI has no helm. With helm on the PATH its rendering and its lint count
as well; without it those tests skip and say so.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from gotpl.exts.helm import HelmTemplateEngine

from bstar import __version__
from bstar.settings import Settings, flatten, load, pair_problems
from bstar_broker.bounds.memory import bytes_needed
from bstar_cli import exits
from bstar_cli.main import main

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "bstar"
PAGE = (ROOT / "docs" / "deployment.md").read_text("utf-8")
KUBERNETES = "1.37"
NODES = ("bstar-0", "bstar-1")
VALUES: dict[str, dict[str, Any]] = yaml.safe_load("""
default: {}
arbiter:
  arbiter: {enabled: true}
  config: {limits: {queue_bytes_max: 536870912}, timing: {drain_timeout_s: 7.5}}
  storageClass: local
  updateStrategy: OnDelete
  image: {repository: registry.example.org/bstar, tag: "1", pullSecrets: [{name: registry}]}
  networkPolicy: {clientPorts: [5001, 8080], clientsFrom: [{podSelector: {matchLabels: {calls: bstar}}}]}
laboratory:
  keys: {secret: ""}
  arbiter: {enabled: true}
  journal: {enabled: false}
  store: {enabled: false}
  monitoring: {enabled: true, labels: {release: prometheus}}
  networkPolicy: {enabled: false}
  antiAffinity: preferred
  nodeSelector: {disk: local}
  tolerations: [{key: bstar, operator: Exists}]
""")
every_value = pytest.mark.parametrize("name", VALUES)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """As helm lays the values of a user over those of the chart."""
    deeper = {
        key: merged(under[key], value)
        for key, value in over.items()
        if isinstance(value, dict) and isinstance(under.get(key), dict)
    }
    return {**under, **over, **deeper}


class Files:
    """The chart's ``.Files``."""

    def Get(self, name: str) -> str:  # noqa: N802
        return (CHART / name).read_text("utf-8")


@functools.cache
def rendered(name: str) -> dict[str, str]:
    """What each template says with these values; a value that is not there is an error."""
    sources = {path.name: path.read_text("utf-8") for path in sorted((CHART / "templates").iterdir())}
    context = {
        "Values": merged(read(CHART / "values.yaml"), VALUES[name]),
        "Release": {"Name": "bstar", "Namespace": "default"},
        "Chart": {"AppVersion": read(CHART / "Chart.yaml")["appVersion"]},
        "Files": Files(),
    }
    engine = HelmTemplateEngine.from_sources(sources, strict=True)
    return engine.render({each: context for each in sources if not each.endswith(".tpl")})


@functools.cache
def documents(name: str) -> list[dict[str, Any]]:
    texts = [text for each, text in rendered(name).items() if each.endswith(".yaml")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def own_name(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def one(name: str, kind: str, own: str = "bstar") -> dict[str, Any]:
    [found] = [each for each in documents(name) if own_name(each) == (kind, own)]
    return found


def pod(name: str, own: str = "bstar") -> dict[str, Any]:
    spec: dict[str, Any] = one(name, "StatefulSet", own)["spec"]["template"]["spec"]
    return spec


def settings(name: str, node: str, folder: Path) -> Settings:
    """What this node reads in its pod."""
    path = folder / f"{node}.yaml"
    path.write_text(one(name, "ConfigMap")["data"][path.name])
    container = pod(name)["containers"][0]
    assert container["args"] == ["serve", "--config", "/etc/bstar/$(POD_NAME).yaml"]
    return load(path, environ={each["name"]: each["value"] for each in container["env"] if "value" in each})


def selected(selector: dict[str, str], name: str) -> set[str]:
    """The StatefulSets whose pods have these labels."""
    sets = {each["metadata"]["name"]: each for each in documents(name) if each["kind"] == "StatefulSet"}
    labels = {own: each["spec"]["template"]["metadata"]["labels"] for own, each in sets.items()}
    return {own for own, found in labels.items() if selector.items() <= found.items()}


@every_value
def test_kubernetes_takes_what_the_chart_renders(name: str) -> None:
    own = [each for each in documents(name) if not each["apiVersion"].startswith("monitoring.")]
    assert {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"} <= {each["kind"] for each in own}
    for document in [*own, read(ROOT / "deploy" / "helm" / "worker.yaml")]:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    wrong = copy.deepcopy(one("default", "StatefulSet"))
    wrong["spec"]["template"]["spec"]["containers"][0]["memory"] = "2Gi"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_a_value_that_the_chart_does_not_know_is_refused() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for values in VALUES.values():
        jsonschema.validate(merged(read(CHART / "values.yaml"), values), schema)
    assert schema["properties"].keys() - {"global"} == read(CHART / "values.yaml").keys()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"store": {"enable": True}}, schema)


@pytest.mark.loopback
@every_value
def test_helm_renders_the_same(name: str, tmp_path: Path) -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("no helm on the PATH")
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(VALUES[name]))
    given = ["--values", str(tmp_path / "values.yaml")]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([helm, *arguments], capture_output=True, text=True, timeout=300, check=False)

    linted = run("lint", "--strict", str(CHART), *given)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    made = run("template", "bstar", str(CHART), *given)
    assert made.returncode == 0, made.stderr
    theirs = [each for each in yaml.safe_load_all(made.stdout) if each]
    assert sorted(theirs, key=own_name) == sorted(documents(name), key=own_name)
    assert run("template", str(CHART), "--set", "store.enable=true").returncode != 0


@every_value
def test_the_two_nodes_are_a_pair(name: str, tmp_path: Path) -> None:
    primary, backup = (settings(name, node, tmp_path) for node in NODES)
    assert (primary.role, backup.role) == ("primary", "backup")
    assert pair_problems(primary, backup) == []
    service = one(name, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == one(name, "StatefulSet")["spec"]["serviceName"] == "bstar"
    assert [node.endpoints.peer_state for node in (primary, backup)] == [
        "tcp://bstar-1.bstar:5003",
        "tcp://bstar-0.bstar:5003",
    ]


def test_values_set_any_key_and_the_arbiter(tmp_path: Path) -> None:
    node = settings("arbiter", "bstar-1", tmp_path)
    assert node.endpoints.arbiter == "tcp://bstar-arbiter:5010"
    assert (node.limits.queue_bytes_max, node.timing.drain_timeout_s) == (536870912, 7.5)
    assert node.timing.expire_on_refused is False, "what values do not set stays"


def test_the_nodes_are_those_of_the_compose_file(tmp_path: Path) -> None:
    """Names differ, and these: a platform may refuse for a peer that lives, and its logs are for programs."""
    for node in NODES:
        ours = flatten(settings("default", node, tmp_path))
        theirs = flatten(load(ROOT / "configs" / f"compose-{ours['role']}.yaml", environ={}))
        differing = {key for key, value in ours.items() if theirs[key] != value}
        names = {"endpoints.peer_state", "security.key", "security.principals"}
        names |= {"store.link"} if ours["role"] == "backup" else set()
        assert differing == names | {"timing.expire_on_refused", "log.format"}
        for key in ("endpoints.peer_state", "store.link"):
            assert str(ours[key]).rpartition(":")[2] == str(theirs[key]).rpartition(":")[2]
    compose = read(ROOT / "docker-compose.arbiter.yml")["services"]["arbiter"]
    options = {each for each in compose["command"] if each.startswith("--")}
    args = pod("arbiter", "bstar-arbiter")["containers"][0]["args"]
    assert options <= {each.partition("=")[0] for each in args}
    assert f"--bind={compose['command'][2]}" in args
    limit = pod("default")["containers"][0]["resources"]["limits"]["memory"]
    given = read(ROOT / "docker-compose.yml")["services"]["primary"]["mem_limit"]
    assert limit.replace("Gi", "g") in given


@every_value
def test_a_pod_has_each_volume_that_it_mounts_and_writes_to_no_other(name: str, tmp_path: Path) -> None:
    for own in selected({}, name):
        spec, claims = pod(name, own), one(name, "StatefulSet", own)["spec"]["volumeClaimTemplates"]
        volumes = {each["name"] for each in [*spec["volumes"], *(claim["metadata"] for claim in claims)]}
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        assert {mount["name"] for each in containers for mount in each["volumeMounts"]} == volumes
        assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in containers)
        assert spec["enableServiceLinks"] is False
    node = settings(name, "bstar-0", tmp_path)
    container = pod(name)["containers"][0]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if "readOnly" not in mount}
    kept = {node.state_dir, node.journal.directory, node.store.directory} - {None}
    assert writable == {str(path) for path in kept} | {"/tmp"}
    drain_s = node.timing.drain_timeout_s + 2 * node.timing.failover_timeout_s
    assert pod(name)["terminationGracePeriodSeconds"] > drain_s
    memory = container["resources"]["limits"]["memory"]
    assert bytes_needed(node) < int(memory.removesuffix("Gi")) << 30


@every_value
def test_services_and_policies_select_the_pods_that_they_are_for(name: str) -> None:
    arbiter = {"bstar-arbiter"} if "arbiter" in VALUES[name] else set()
    assert selected({}, name) == {"bstar"} | arbiter
    for own in {"bstar"} | arbiter:
        assert selected(one(name, "Service", own)["spec"]["selector"], name) == {own}
        assert selected(one(name, "StatefulSet", own)["spec"]["selector"]["matchLabels"], name) == {own}
        ports = {port["port"] for port in one(name, "Service", own)["spec"]["ports"]}
        container = pod(name, own)["containers"][0]
        assert ports == {port["containerPort"] for port in container["ports"]}
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz", "not /active"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", "never the peer's fault"
    budget = one(name, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert selected(budget["selector"]["matchLabels"], name) == {"bstar"} | arbiter


def test_the_keys_are_those_that_the_commands_make(tmp_path: Path) -> None:
    commands = re.findall(r"bstar keys new ((?:bstar-\S+ )+)(--.*) --out keys$", PAGE, re.MULTILINE)
    for names, roles in commands:
        given = ["keys", "new", *names.split(), *roles.split(), "--out", str(tmp_path)]
        assert main(given) == exits.OK
    made = {path.name for path in tmp_path.iterdir()}
    for own, pods in (("bstar", NODES), ("bstar-arbiter", ("bstar-arbiter-0",))):
        spec = pod("arbiter", own)
        [init] = spec["initContainers"]
        [public] = [each for each in spec["volumes"] if each["name"] == "public"]
        wanted = {item["key"] for item in public["secret"]["items"]}
        wanted |= {Path(init["command"][-2].replace("$(POD_NAME)", each)).name for each in pods}
        assert wanted <= made
    worker = read(ROOT / "deploy" / "helm" / "worker.yaml")["spec"]["template"]["spec"]["containers"][0]
    names = {each["name"]: each["value"] for each in worker["env"]}
    node = {each["name"]: each.get("value") for each in pod("default")["containers"][0]["env"]}
    assert names["BSTAR_ENDPOINTS"] == node["BSTAR_ENDPOINTS"]
    assert node["BSTAR_ENDPOINTS"] in rendered("default")["NOTES.txt"]


def test_prometheus_gets_the_rules_of_the_compose_file() -> None:
    assert one("laboratory", "PrometheusRule")["spec"] == read(ROOT / "configs" / "alerts.yml")
    monitor = one("laboratory", "ServiceMonitor")
    service = one("laboratory", "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    arbiter = one("laboratory", "Service", "bstar-arbiter")
    assert not monitor["spec"]["selector"]["matchLabels"].items() <= arbiter["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert {"name": endpoint["port"], "port": 9401} in service["spec"]["ports"]
    job = read(ROOT / "configs" / "prometheus.yml")["scrape_configs"][0]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == job["job_name"]
    assert endpoint["honorLabels"] == job["honor_labels"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = read(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
