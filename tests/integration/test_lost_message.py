"""A message that gloo loses blocks no process: neither the one that waits for it, nor the one that closes its group."""

import subprocess
import sys

from tests.in_time import fastest_of_three, in_time


@fastest_of_three
def test_a_group_with_a_lost_message_is_closed_at_once_and_its_process_ends() -> None:
    """The group's destructor alone would wait for the message for ever."""
    ended = subprocess.run([sys.executable, "-m", "tests.lost_message"], capture_output=True, text=True, timeout=240, check=True)
    said, seconds = ended.stdout.splitlines()
    assert said == "the group was interrupted, and a message under way in it is lost"
    in_time(float(seconds), 1.0, "closing the group")
