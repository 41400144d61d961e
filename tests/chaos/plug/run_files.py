"""What a run's files say when a fault ends it. `sitecustomize` imports this file, so it needs the standard library alone."""

import json
from pathlib import Path
from typing import Any


def now_in(run: Path) -> dict[str, Any]:
    """Return the length of plans.jsonl, and the generation of the durable plan, which that file may not have yet."""
    plans, cluster = run / "plans.jsonl", run / "cluster" / "statefulset.json"
    annotations = json.loads(cluster.read_text())["metadata"]["annotations"] if cluster.exists() else {}
    return {
        "plans_bytes": plans.stat().st_size if plans.exists() else 0,
        "generation": annotations.get("frostline.io/generation", ""),
    }
