"""The local cluster's API server: compare-and-swap between real processes, nothing half written."""

import fcntl
import multiprocessing
from pathlib import Path

import pytest

from frostline_contract.durable_files import create_durably
from frostline_controller.cluster.backend import Conflict
from frostline_controller.cluster.local.backend import LocalBackend


def test_empty_cluster_reads_as_nothing(tmp_path: Path) -> None:
    state = LocalBackend(tmp_path).read()
    assert (state.annotations, state.spec_replicas, state.pods) == ({}, 0, [])


def test_patch_sets_removes_and_tests(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.patch_annotations({"a": "1", "b": "2"}, {"a": None})
    with pytest.raises(Conflict, match="a is '1', expected '0'"):
        backend.patch_annotations({"b": "3"}, {"a": "0"})
    backend.patch_annotations({"b": None}, {"a": "1", "c": None})
    assert LocalBackend(tmp_path).read().annotations == {"a": "1"}


def test_scale_refuses_what_cannot_be(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.scale(3)
    with pytest.raises(ValueError, match="replicas is -1"):
        backend.scale(-1)
    assert backend.read().spec_replicas == 3


def test_a_change_by_anybody_is_seen_without_reading(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    assert not backend.changed()
    LocalBackend(tmp_path).scale(2)
    assert backend.changed()
    assert backend.changed(), "until it is read"
    assert backend.read().spec_replicas == 2
    assert not backend.changed()
    backend.patch_annotations({"a": "1"}, {})
    assert backend.changed(), "an own write has not been read yet"


def test_breakages_are_asked_for_in_order_also_of_an_older_object(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.change(lambda found: found["spec"].pop("breakages"))
    backend.break_machine("cut_node", "trainer-1", 2.5)
    backend.break_machine("kill_redis", "", 5.0)
    assert backend.read_object()["spec"]["breakages"] == [
        {"kind": "cut_node", "pod": "trainer-1", "seconds": 2.5},
        {"kind": "kill_redis", "pod": "", "seconds": 5.0},
    ]


def test_of_many_that_create_a_file_one_does(tmp_path: Path) -> None:
    assert [create_durably(tmp_path / "new" / "0", str(number)) for number in range(3)] == [True, False, False]
    assert [(file.name, file.read_text()) for file in (tmp_path / "new").iterdir()] == [("0", "0")]


def count_up(folder: str, wins: int) -> None:
    """Add 1 to a counter annotation by compare-and-swap, `wins` times."""
    backend = LocalBackend(Path(folder))
    while wins:
        found = backend.read().annotations.get("n")
        try:
            backend.patch_annotations({"n": str(int(found or 0) + 1)}, {"n": found})
            wins -= 1
        except Conflict:
            continue


def test_no_increment_is_lost_between_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up, args=(str(tmp_path), 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    state = LocalBackend(tmp_path).read()
    assert state.annotations["n"] == "60"
    assert state.resource_version == 60
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_writer_that_stands_still_is_not_waited_for_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped controller may hold the lock, and the command that ends the run has to change the object too."""
    monkeypatch.setattr("frostline_controller.cluster.local.backend.LOCK_SECONDS", 0.2)
    backend = LocalBackend(tmp_path)
    backend.change(lambda found: None)
    with open(tmp_path / "statefulset.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process has held it") as refused:
            backend.change(lambda found: found["spec"].update(replicas=3))
    assert refused.value.filename == str(tmp_path / "statefulset.lock")
    backend.change(lambda found: found["spec"].update(replicas=2))
    assert backend.read().spec_replicas == 2
