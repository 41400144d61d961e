"""The fields that all requests to a separate process have, and a request's text form."""

import json

from pydantic import BaseModel, ConfigDict


class Request(BaseModel):
    """A request: plain values, checked where it is made and where it is read.

    Attributes:
        quiet: no progress on the terminal, only how the run ended.
        report: draw each run's report.html at its end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    quiet: bool = True
    report: bool = True

    @property
    def text(self) -> str:
        """The request as text, in ASCII: the process that reads it may have another encoding."""
        return json.dumps(self.model_dump(mode="json"))
