"""A user's request to stop at a checkpoint, on its way to the run's controller."""

import time
from collections.abc import Callable

from frostline_contract.run_status import ENDED
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.errors import CommandError, NoRun, NotWritten
from frostline_controller.local_run.progress import Progress

AGAIN = "press Ctrl-C again to stop at once"


class StopRequest:
    """Sends the request until the controller has carried it out, or refuses it.

    Args:
        client: the connection to the controller.
        say: shows a line.
        clock: seconds.
    """

    def __init__(self, client: OperatorClient, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._say, self._clock = client, say, clock
        self._sent = self._said_why = False
        self._silent_since: float | None = None

    @property
    def silent_seconds(self) -> float:
        """Seconds for which no controller has answered; 0 where it answers, or has the request."""
        return 0.0 if self._silent_since is None else self._clock() - self._silent_since

    def advance(self, progress: Progress) -> None:
        """Send the request, if that is still needed. Returns after some seconds where the controller does not answer."""
        if self._sent or progress.state in ENDED:
            self._silent_since = None
            return
        if self._silent_since is None:
            self._silent_since = self._clock()
        try:
            self._client.command("suspend")
        except NotWritten as error:
            self._wait_for_the_disk(error)
            return
        except NoRun:
            return
        except CommandError as error:
            self._say(f"stopping: {error}; {AGAIN}")
        else:
            self._say(f"stopping at a checkpoint; {AGAIN}")
        self._sent, self._silent_since = True, None

    def _wait_for_the_disk(self, error: NotWritten) -> None:
        """Go on waiting where the controller answers otherwise: it has the request, and cannot write it down."""
        try:
            self._client.status(deadline_seconds=1.0)
        except CommandError:
            return
        self._silent_since = None
        if not self._said_why:
            self._say(f"the stop waits until {error.folder} can be written: free some space there; {AGAIN}")
            self._said_why = True
