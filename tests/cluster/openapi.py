"""The OpenAPI schemas of several Kubernetes versions, and a check of objects against them.

    python -m tests.cluster.openapi        obtains those that are missing

Each release of k8s.io/kubernetes, a Go module, contains the schema of its own API. The modules are downloaded (16 to 20 MB each,
nothing is built), checked against the sums below, and only the definitions are kept, in the user's cache folder.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.cluster.binaries import NoTools, find_go

MODULE = "k8s.io/kubernetes"
SUMS = {
    "1.29.15": "h1:hLcyf3XmxtfkubCEmmPX5QVD7lDclXjvEUrJeP283LM=",
    "1.31.14": "h1:UtjLfqvXLuSVDdJ4+NpQCIfFkKkLnAAVmxAEMsnkhjk=",
    "1.33.13": "h1:bmH31xUdSzeA5vk0wZAK9MZp11mdLuzUSeKk0qN3hPQ=",
    "1.35.4": "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM=",
    "1.36.3": "h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=",
}
"""By version: the module's sum in the Go checksum database. The oldest version of the chart, the newest, and some between."""

OPERATOR_MODULE, OPERATOR_VERSION = "github.com/prometheus-operator/prometheus-operator", "v0.85.0"
OPERATOR_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
OPERATOR_KINDS = ("servicemonitors", "prometheusrules")
"""Kinds of the Prometheus operator, which are custom resources."""

Json = dict[str, Any]
REF = "#/definitions/"


def folder() -> Path:
    """Return the folder of the schemas, which may not exist yet."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "frostline" / "openapi"


def obtain(say: Callable[[str], None]) -> None:
    """Download the missing schemas; a second caller waits for the first. Raises NoTools."""
    folder().mkdir(parents=True, exist_ok=True)
    with open(folder() / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for version, total in SUMS.items():
            if not _file(version).exists():
                say(f"obtaining the API of Kubernetes {version} (once; about 20 MB)")
                _download(MODULE, f"v{version}", total, _file(version), _kubernetes_definitions)
        if not _operator_file().exists():
            say(f"obtaining the custom resources of the Prometheus operator {OPERATOR_VERSION} (once)")
            _download(OPERATOR_MODULE, OPERATOR_VERSION, OPERATOR_SUM, _operator_file(), _operator_definitions)


@cache
def definitions(version: str) -> Json:
    """Return the definitions by name; `obtain` must have been called."""
    return json.loads(_file(version).read_text(encoding="utf-8")) | json.loads(_operator_file().read_text(encoding="utf-8"))


def mistakes(found: Json, version: str) -> list[str]:
    """Return the faults of an object by the API of `version`, unknown kinds and fields included, one line each."""
    name = _names(version).get((found.get("apiVersion", ""), found.get("kind", "")))
    if name is None:
        return [f"Kubernetes {version} has no {found.get('kind')} of {found.get('apiVersion')}"]
    errors = sorted(_validator(version, name).iter_errors(found), key=lambda error: error.json_path)
    return [f"{found['kind']} {found['metadata'].get('name')}: {error.json_path}: {error.message[:300]}" for error in errors]


def _file(version: str) -> Path:
    return folder() / f"kubernetes-{version}.json"


def _operator_file() -> Path:
    return folder() / f"prometheus-operator-{OPERATOR_VERSION}.json"


@cache
def _names(version: str) -> dict[tuple[str, str], str]:
    """(apiVersion, kind) -> name of the definition."""
    found = {}
    for name, definition in definitions(version).items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            found["/".join(part for part in (kind["group"], kind["version"]) if part), kind["kind"]] = name
    return found


@cache
def _validator(version: str, name: str) -> jsonschema.Draft4Validator:
    return jsonschema.Draft4Validator({"$ref": f"{REF}{name}", "definitions": definitions(version)})


def _download(module: str, version: str, total: str, target: Path, extract: Callable[[Path], Json]) -> None:
    """Write the result of `extract` on the module's folder to a file. The module cache is temporary, so that the user's stays
    small."""
    with tempfile.TemporaryDirectory(prefix="frostline-openapi-") as place:
        env = {**os.environ, "GOMODCACHE": place, "GOFLAGS": "-modcacherw", "GOWORK": "off"}
        command = [find_go(lambda text: print(text, file=sys.stderr)), "mod", "download", "-json", f"{module}@{version}"]
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoTools(f"{module}@{version} cannot be downloaded: {done.stderr.strip()[-500:] or done.stdout[-500:]}")
        found = json.loads(done.stdout)
        if found["Sum"] != total:
            raise NoTools(f"{module}@{version} has the sum {found['Sum']}, expected {total}")
        draft = target.with_suffix(".draft")
        draft.write_text(json.dumps(extract(Path(found["Dir"]))), encoding="utf-8")
        os.replace(draft, target)


def _kubernetes_definitions(module: Path) -> Json:
    swagger = json.loads((module / "api/openapi-spec/swagger.json").read_text(encoding="utf-8"))
    return {name: _strict(definition) for name, definition in swagger["definitions"].items()}


def _operator_definitions(module: Path) -> Json:
    found = {}
    for kind in OPERATOR_KINDS:
        file = module / "example/prometheus-operator-crd" / f"monitoring.coreos.com_{kind}.yaml"
        resource = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
        for version in resource["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            # A custom resource's schema does not cover metadata, which the server checks by its own schema.
            schema["properties"]["metadata"] = {"$ref": f"{REF}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
            group = {"group": resource["group"], "version": version["name"], "kind": resource["names"]["kind"]}
            found[f"{kind}.{version['name']}"] = _strict(schema) | {"x-kubernetes-group-version-kind": [group]}
    return found


def _strict(node: Any) -> Any:
    """Return a schema without descriptions, without unknown fields, and with numbers or text where Kubernetes takes both."""
    if isinstance(node, list):
        return [_strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    fields = {name: _strict(value) for name, value in node.get("properties", {}).items()}
    rest = {key: _strict(value) for key, value in node.items() if key not in ("description", "properties")}
    if node.get("format") == "int-or-string" or node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if re.match("Quantity is a fixed-point", str(node.get("description", ""))):
        return {"type": ["number", "string"]}
    if fields:
        rest["properties"] = fields
        rest.setdefault("additionalProperties", False)
    return rest


def _all_files() -> Iterator[Path]:
    yield from (_file(version) for version in SUMS)
    yield _operator_file()


def missing() -> list[str]:
    """Return the names of the files that `obtain` would make."""
    return [file.name for file in _all_files() if not file.exists()]


def main() -> int:
    try:
        obtain(lambda text: print(text, file=sys.stderr, flush=True))
    except NoTools as error:
        print(error, file=sys.stderr)
        return 1
    print(folder())
    return 0


if __name__ == "__main__":
    sys.exit(main())
