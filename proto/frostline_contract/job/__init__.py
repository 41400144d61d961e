"""The job file: one typed model, documented field by field (facts: it is also the chart's values file)."""

from frostline_contract.job.load import (
    JobError,
    apply_overrides,
    dump_job,
    job_digest,
    job_revision,
    load_job,
    parse_job,
    read_yaml,
)
from frostline_contract.job.model import Job

__all__ = ["Job", "JobError", "apply_overrides", "dump_job", "job_digest", "job_revision", "load_job", "parse_job", "read_yaml"]
