"""The secret that signs a release's cached values: made once, by the first leader, and readable for its user alone."""

import stat
from pathlib import Path

from frostline_contract.cache_tag import SECRET_CHARACTERS_MIN
from frostline_contract.run_directory import RunDirectory
from frostline_controller.on_cluster import keep_cache_secret


def test_the_leader_makes_it_and_its_successor_keeps_it(tmp_path: Path) -> None:
    keep_cache_secret(tmp_path / "run")
    file = RunDirectory(tmp_path / "run").cache_secret
    first = file.read_text()
    assert len(first) >= SECRET_CHARACTERS_MIN
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keep_cache_secret(tmp_path / "run")
    assert file.read_text() == first
