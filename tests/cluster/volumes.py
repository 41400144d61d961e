"""A pod's volumes as folders: files of ConfigMaps, Secrets, tokens and the downward API, kept fresh; claims as shared folders."""

import base64
import os
import re
import time
from pathlib import Path
from typing import Any

from tests.cluster.api import Json, Refused, Rest

CONTENT_SECONDS = 3.0
"""The greatest age of a ConfigMap's or Secret's files, in seconds; a kubelet takes about a minute."""


class Unsupported(ValueError):
    """The pod needs a feature that the test nodes lack; the text names it."""


class Sources:
    """The objects to which a pod refers, read with the node's rights. pod: the pod's own object; replaced when it changes."""

    def __init__(self, rest: Rest, pod: Json) -> None:
        self.pod = pod
        self._rest = rest
        self._namespace = f"/api/v1/namespaces/{pod['metadata']['namespace']}"

    def content(self, kind: str, name: str, optional: bool = False) -> dict[str, bytes]:
        """Return the content of a ConfigMap ("configmaps") or Secret ("secrets"). Raises Refused where a required one is
        missing."""
        try:
            found = self._rest.get(f"{self._namespace}/{kind}/{name}")
        except Refused as error:
            if optional and error.status == 404:
                return {}
            raise
        plain = {} if kind == "secrets" else {key: text.encode() for key, text in (found.get("data") or {}).items()}
        coded = found.get("data" if kind == "secrets" else "binaryData") or {}
        return plain | {key: base64.b64decode(text) for key, text in coded.items()}

    def token(self, audience: str, seconds: int) -> str:
        """Return a token of the pod's service account, valid while the pod lives and at most for `seconds`."""
        metadata = self.pod["metadata"]
        spec = {
            "audiences": [audience] if audience else [],
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        }
        account = self.pod["spec"].get("serviceAccountName", "default")
        path = f"{self._namespace}/serviceaccounts/{account}/token"
        answer = self._rest.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        return answer["status"]["token"]

    def claim(self, name: str) -> Path:
        """Return the folder of a bound claim (`claims`)."""
        volume = self._rest.get(f"{self._namespace}/persistentvolumeclaims/{name}")["spec"].get("volumeName")
        if not volume:
            raise Refused(404, f"claim {name} is not bound yet")
        return Path(self._rest.get(f"/api/v1/persistentvolumes/{volume}")["spec"]["nfs"]["path"])


class Volumes:
    """Folders of a pod's volumes below `folder`, by the volume's name. token_share: of a token's life, after which it is
    renewed."""

    def __init__(self, sources: Sources, folder: Path, token_share: float) -> None:
        self.folders: dict[str, Path] = {}
        self._sources, self._folder, self._token_share = sources, folder, token_share
        self._due: dict[tuple[str, int], float] = {}

    def prepare(self) -> None:
        """Make and fill all folders. Raises one of api.TROUBLE where an object does not exist yet, Unsupported."""
        for volume in self._sources.pod["spec"].get("volumes", ()):
            self.folders[volume["name"]] = self._place(volume)
        self.refresh()

    def refresh(self) -> None:
        """Write outdated files again. Raises as `prepare`."""
        for volume in self._sources.pod["spec"].get("volumes", ()):
            for number, source in enumerate(volume.get("projected", {}).get("sources", [volume])):
                key = (volume["name"], number)
                if time.monotonic() >= self._due.get(key, 0.0):
                    for name, content in self._files(source).items():
                        replace_file(self.folders[volume["name"]] / name, content)
                    self._due[key] = time.monotonic() + self._life(source)

    def _place(self, volume: Json) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self._sources.claim(claim["claimName"])
        if unknown := volume.keys() - {"name", "emptyDir", "configMap", "secret", "downwardAPI", "projected"}:
            raise Unsupported(f"volume {volume['name']}: test nodes have no {', '.join(sorted(unknown))}")
        place = self._folder / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _life(self, source: Json) -> float:
        token = source.get("serviceAccountToken")
        return token["expirationSeconds"] * self._token_share if token else CONTENT_SECONDS

    def _files(self, source: Json) -> dict[str, bytes]:
        """Return the files of one source of a volume: path -> content."""
        if token := source.get("serviceAccountToken"):
            return {token["path"]: self._sources.token(token.get("audience", ""), token["expirationSeconds"]).encode()}
        if downward := source.get("downwardAPI"):
            items = downward.get("items", ())
            return {item["path"]: field_of(self._sources.pod, item["fieldRef"]["fieldPath"]).encode() for item in items}
        for key, kind in (("configMap", "configmaps"), ("secret", "secrets")):
            if held := source.get(key):
                content = self._sources.content(kind, held.get("secretName") or held["name"], held.get("optional", False))
                items = held.get("items") or [{"key": name, "path": name} for name in content]
                return {item["path"]: content[item["key"]] for item in items if item["key"] in content}
        return {}


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically, unless its content is unchanged."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


def field_of(pod: Json, path: str) -> str:
    """Return a field of the downward API."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return pod["metadata"].get(found[1], {}).get(found[2], "")
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, {})
    if isinstance(value, dict):
        return "\n".join(f'{name}="{text}"' for name, text in value.items())
    return str(value)
