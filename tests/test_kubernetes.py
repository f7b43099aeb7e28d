"""deploy/kubernetes: Kubernetes takes the manifests, and the nodes that they describe are a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bstar.settings import Settings, load, pair_problems

FOLDER = Path(__file__).parent.parent / "deploy" / "kubernetes"
ROLES = ("primary", "backup")
MANIFESTS = ("pair", *ROLES, "worker")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def one(name: str, kind: str) -> dict[str, Any]:
    [found] = [document for document in documents(name) if document["kind"] == kind]
    return found


def pod(role: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(role, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def settings(role: str, folder: Path) -> Settings:
    """What the node of this role reads in its pod."""
    path = folder / "node.yaml"
    path.write_text(one("pair", "ConfigMap")["data"]["node.yaml"])
    variables = {entry["name"]: entry["value"] for entry in pod(role)["containers"][0]["env"]}
    return load(path, environ=variables)


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_the_manifest(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    wrong = one("primary", "StatefulSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["memory"] = "2Gi"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_two_nodes_are_a_pair(tmp_path: Path) -> None:
    primary, backup = (settings(role, tmp_path) for role in ROLES)
    assert (primary.role, backup.role) == ROLES
    assert pair_problems(primary, backup) == []
    assert not primary.timing.expire_on_refused


@pytest.mark.parametrize("role", ROLES)
def test_a_node_is_reached_where_its_peer_and_its_clients_look(role: str, tmp_path: Path) -> None:
    service = one(role, "Service")
    peer = settings(next(each for each in ROLES if each != role), tmp_path)
    assert peer.endpoints.peer_state == f"tcp://{service['metadata']['name']}:5003"
    variables = one("worker", "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert f"tcp://{service['metadata']['name']}:5001" in variables[0]["value"].split(",")
    ports = {port["port"] for port in service["spec"]["ports"]}
    assert ports == {port["containerPort"] for port in pod(role)["containers"][0]["ports"]}
    spec = one(role, "StatefulSet")["spec"]
    assert (
        service["spec"]["selector"]
        == spec["selector"]["matchLabels"]
        == spec["template"]["metadata"]["labels"]
    )


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_each_volume_that_it_mounts_and_writes_to_no_other(role: str, tmp_path: Path) -> None:
    spec, claims = pod(role), one(role, "StatefulSet")["spec"]["volumeClaimTemplates"]
    volumes = {each["name"] for each in spec["volumes"]} | {each["metadata"]["name"] for each in claims}
    containers = [*spec["initContainers"], *spec["containers"]]
    assert {mount["name"] for each in containers for mount in each["volumeMounts"]} == volumes
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in containers)
    node = settings(role, tmp_path)
    writable = [mount["mountPath"] for mount in containers[-1]["volumeMounts"] if "readOnly" not in mount]
    for directory in (node.state_dir, node.journal.directory, node.store.directory):
        assert str(directory).startswith(tuple(f"{path}/" for path in writable)) or directory in writable
    drain_s = node.timing.drain_timeout_s + 2 * node.timing.failover_timeout_s
    assert spec["terminationGracePeriodSeconds"] > drain_s


def test_kustomize_lists_every_manifest_but_the_example() -> None:
    [listed] = documents("kustomization")
    assert listed["resources"] == [f"{name}.yaml" for name in MANIFESTS[:-1]]
