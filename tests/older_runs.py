"""A run directory as older versions wrote it, before shapes had named degrees, and state had pieces.

It has the same lines, with `pp_degree` and `dp_degree`, and with sources and buddies by worker id.
"""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from frostline_contract.annotations import PLAN

FILES = ("metrics.jsonl", "plans.jsonl", "events.jsonl")


def as_before(values: Any) -> Any:
    """Return the same record, and every record in it, with `pp_degree` and `dp_degree` for `degrees`, and names for indices."""
    if isinstance(values, list):
        return [as_before(value) for value in values]
    if not isinstance(values, dict):
        return values
    values, older = _named(values), dict[str, Any]()
    for name, value in values.items():
        if name in ("degrees", "start_degrees"):
            start = name.removesuffix("degrees")
            older |= {f"{start}pp_degree": value.get("pp", 0), f"{start}dp_degree": value.get("dp", 0)}
        else:
            older[name] = as_before(value)
    return older


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """Return a plan with its sources and buddies by worker id; any other record unchanged."""
    placement = values.get("placement")
    if not isinstance(placement, dict) or not isinstance(placement.get("workers"), list):
        return values
    participants = [*placement["workers"], *values.get("leavers", ())]
    indices = {"source_indices": "sources", "buddy_indices": "buddies"}
    named = {
        older: ["" if index < 0 else participants[index] for index in values[name]]
        for name, older in indices.items()
        if name in values
    }
    return {name: value for name, value in values.items() if name not in (*indices, "state_ranges")} | named


def rewrite_as_before(folder: Path) -> int:
    """Rewrite a run directory's lines and its durable state. Returns how many degrees were renamed."""
    texts = {folder / name: (folder / name).read_text() for name in FILES if (folder / name).exists()}
    for file, text in texts.items():
        file.write_text("".join(json.dumps(as_before(json.loads(line))) + "\n" for line in text.splitlines()))
    renamed = sum(text.count('degrees"') for text in texts.values())
    cluster = folder / "cluster" / "statefulset.json"
    if cluster.exists():
        found = json.loads(cluster.read_text())
        annotations = found["metadata"]["annotations"]
        state = zlib.decompress(base64.b64decode(annotations[PLAN])).decode()
        renamed += state.count('degrees"')
        annotations[PLAN] = base64.b64encode(zlib.compress(json.dumps(as_before(json.loads(state))).encode())).decode()
        cluster.write_text(json.dumps(found))
    return renamed
