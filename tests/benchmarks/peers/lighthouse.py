"""torchft's coordinator as a process of its own: python -m tests.benchmarks.peers.lighthouse ADDRESS_FILE."""

import sys
import threading
from pathlib import Path

from torchft.coordination import LighthouseServer


def main(address_file: Path) -> None:
    """Serve until this process is killed. Heartbeats count as lost after a second; torchft's own default is five seconds."""
    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=5000, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    address_file.write_text(f"http://127.0.0.1:{server.address().rpartition(':')[2]}")
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
