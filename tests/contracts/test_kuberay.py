"""The cluster of examples/kuberay has the fields that KubeRay demands, with the values that ray start takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = yaml.safe_load((REPOSITORY / "examples/kuberay/raycluster.yaml").read_text())
GROUPS = [CLUSTER["spec"]["headGroupSpec"], *CLUSTER["spec"]["workerGroupSpecs"]]

# The part of the custom resource's schema (KubeRay 1.5) that the file uses.
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
PROBE = {
    "type": "object",
    "required": ["exec"],
    "properties": {
        "exec": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
        "periodSeconds": {"type": "integer"},
        "timeoutSeconds": {"type": "integer"},
    },
    "additionalProperties": False,
}
NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
CONTAINER = {
    "type": "object",
    "required": ["name", "image"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9-]+$"},
        "image": {"type": "string"},
        "env": {"type": "array", "items": NAMED | {"properties": {"value": {"type": "string"}}}},
        "resources": {"type": "object", "properties": {"limits": QUANTITY, "requests": QUANTITY}},
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
        "volumeMounts": {"type": "array", "items": NAMED | {"required": ["name", "mountPath"]}},
    },
    "additionalProperties": False,
}
POD = {
    "type": "object",
    "required": ["containers"],
    "properties": {
        "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
        "volumes": {"type": "array", "items": NAMED},
    },
    "additionalProperties": False,
}
TEMPLATE = {"type": "object", "required": ["spec"], "properties": {"spec": POD}, "additionalProperties": False}
GROUP = {"rayStartParams": STRINGS, "template": TEMPLATE}
COUNT = {"type": "integer", "minimum": 0}
WORKERS = GROUP | {"groupName": {"type": "string"}, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT}
SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": NAMED,
        "spec": {
            "type": "object",
            "required": ["headGroupSpec"],
            "properties": {
                "rayVersion": {"type": "string"},
                "authOptions": {"type": "object", "properties": {"mode": {"enum": ["token", "disabled"]}}},
                "headGroupSpec": {
                    "type": "object",
                    "required": ["template"],
                    "properties": GROUP,
                    "additionalProperties": False,
                },
                "workerGroupSpecs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["groupName", "minReplicas", "maxReplicas", "template"],
                        "properties": WORKERS,
                        "additionalProperties": False,
                    },
                },
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}


def test_the_cluster_for_kuberay_has_the_fields_that_its_schema_demands() -> None:
    pytest.importorskip("jsonschema").Draft202012Validator(SCHEMA).validate(CLUSTER)


def test_its_hosts_collect_behind_a_token_with_the_version_that_is_pinned() -> None:
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    pins = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert f"ray=={CLUSTER['spec']['rayVersion']}" in pins
    head, *workers = [group["rayStartParams"] for group in GROUPS]
    assert "resources" not in head
    for params in workers:  # KubeRay puts the value into a command of a shell
        (resources,) = shlex.split(params["resources"])
        assert json.loads(resources) == {"collector": 1}
    assert {params["num-cpus"] for params in (head, *workers)} == {"0"}


def test_ray_start_takes_each_of_its_options() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    known = {option for param in scripts.start.params for option in param.opts}
    assert {f"--{name}" for group in GROUPS for name in group["rayStartParams"]} <= known
