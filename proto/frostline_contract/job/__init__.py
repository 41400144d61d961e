"""The job file: one typed model, documented field by field (docs/design.md 9: it is also the chart's values file)."""

from frostline_contract.job.load import (
    apply_overrides,
    dump_job,
    job_digest,
    job_from_json,
    job_revision,
    job_to_json,
    load_job,
    parse_job,
    section_digests,
)
from frostline_contract.job.model import Job
from frostline_contract.job.yaml_text import JobError, read_yaml, write_yaml

__all__ = [
    "Job", "JobError", "apply_overrides", "dump_job", "job_digest", "job_from_json", "job_revision", "job_to_json", "load_job",
    "parse_job", "read_yaml", "section_digests", "write_yaml",
]  # fmt: skip
