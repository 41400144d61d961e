"""The run directory: the paths of its files, and readers of the small ones (docs/run-directory.md has every schema).

All processes of a run take the paths from this module; no other code joins a file name to the run directory's path.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from frostline_contract.durable_files import PRIVATE, replace_durably
from frostline_contract.jsonl import read_jsonl
from frostline_contract.lineage import RecordLines, split_records
from frostline_contract.plan import MICRO_BATCH, PrefixTile
from frostline_contract.run_status import status_word

SCHEMA_VERSION = 1
"""Version of all schemas in a run directory; it rises when a field changes its meaning or is removed."""


class RunDirectory:
    """The paths of one run's files; none of them has to exist.

    Attributes:
        job: the resolved job.
        facts: facts that the command line knew when it started the run (run.json).
        metrics, statistics, plans, events, traces: append-only lines.
        profile: the workers' measurements.
        ledger: how workers spent their time.
        result: how the run ended.
        status: the last status seen.
        lock: held by the owner of the directory.
        cluster: the folder of the local stand-in for the Kubernetes API.
        faults, cuts: in that folder, planned faults that have happened, and pods that are cut off from the controller.
        cache_token: of a cache that several runs share; absent where the run has its own.
        breakages: in the folder of a shared cache, planned faults that its runs ask the cache's process for.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.job, self.facts, self.lock = path / "job.yaml", path / "run.json", path / "lock"
        self.metrics, self.statistics = path / "metrics.jsonl", path / "statistics.jsonl"
        self.plans, self.events = path / "plans.jsonl", path / "events.jsonl"
        self.profile, self.result, self.status = path / "profile.json", path / "result.json", path / "status.json"
        self.ledger, self.traces = path / "ledger.json", path / "traces.jsonl"
        self.report, self.tensorboard, self.model = path / "report.html", path / "tensorboard", path / "model"
        self.logs, self.redis, self.cluster = path / "logs", path / "redis", path / "cluster"
        self.faults, self.cuts = self.cluster / "faults", self.cluster / "cut"
        self.controller_address, self.cache_address = path / "controller.address", path / "cache.address"
        self.tokens, self.redis_password = path / "tokens.json", path / "redis.password"
        self.cache_secret, self.cache_token = path / "cache.secret", path / "cache.token"
        self.breakages = path / "breakages"

    def holds_run(self) -> bool:
        """True where a run was started here."""
        return self.job.exists() or self.metrics.exists()

    def read_records(self) -> RecordLines:
        """The records of metrics.jsonl, those that survive apart from those that a rollback or a restore has undone."""
        return split_records(read_jsonl(self.metrics), self.metrics.name)

    def recorded_prefix_tile(self) -> PrefixTile | None:
        """How many samples the run's frozen prefix computed together, the same in all of its plans; None without a plan."""
        plans = [line for line in read_jsonl(self.plans) if line["kind"] == "plan"]
        return plans[-1].get("prefix_tile", MICRO_BATCH) if plans else None

    def read_result(self) -> dict[str, Any]:
        """result.json, with an older version's status word replaced by the present one; {} where the run has left none.

        Raises ValueError where the file is broken.
        """
        result = read_json(self.result)
        return {**result, "status": status_word(str(result["status"]))} if "status" in result else result

    def ended_as(self) -> str:
        """The run's end: a RunStatus' word, or "" where the run has left no result."""
        return str(self.read_result().get("status", ""))

    def read_facts(self) -> dict[str, Any]:
        """The facts that the command line wrote when it started the run."""
        return {key: value for key, value in read_json(self.facts).items() if key != "version"}

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Write run.json durably, with the schema's version."""
        replace_durably(self.facts, json.dumps({"version": SCHEMA_VERSION, **facts}, indent=1) + "\n")

    def read_job_values(self) -> dict[str, Any]:
        """The job file as a mapping, unchecked; {} where there is none. Raises ValueError where the file is no YAML."""
        if not self.job.exists():
            return {}
        try:
            value = yaml.safe_load(self.job.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(f"{self.job}: no YAML ({' '.join(str(error).split())}); restore it") from None
        return value if isinstance(value, dict) else {}

    def read_status(self) -> dict[str, Any]:
        """The last status seen; {} where none was."""
        return {key: value for key, value in read_json(self.status).items() if key not in ("version", "saved_at")}

    def write_status(self, status: dict[str, Any], saved_at: float) -> None:
        """Write the last status seen, so that the workers of a finished run are still known; `saved_at` is a Unix time."""
        replace_durably(self.status, json.dumps({"version": SCHEMA_VERSION, "saved_at": saved_at, **status}) + "\n")

    def write_secret(self, file: Path, secret: str) -> None:
        """Write one of the secrets, readable by its user only."""
        replace_durably(file, secret, PRIVATE)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; {} where it does not exist. Raises ValueError where it is broken."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error})") from None
    return value if isinstance(value, dict) else {}
