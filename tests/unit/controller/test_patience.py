"""What precedes leading is tried again where that may help: a full disk, a cluster that is away, a root that takes no files."""

import asyncio
import errno
import os
import resource
import socket
from functools import partial
from pathlib import Path

import certifi
import pytest
import yaml

from frostline_contract.job import JobError, load_job
from frostline_controller.__main__ import read_job
from frostline_controller.cluster.backend import ClusterError
from frostline_controller.cluster.kubernetes.api import Api
from frostline_controller.on_cluster import wait_for_checkpoint_root
from frostline_controller.run import patience
from frostline_controller.run.checkpoints import CannotWrite, try_to_write
from frostline_controller.run.patience import Stopped, patiently
from tests.integration.scripted_worker import job_values
from tests.unit.controller.test_service_sizing import Stage

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EROFS, errno.ETIMEDOUT)
PASSING = [OSError(number, "refused", "/run/state") for number in ERRORS] + [ClusterError("503")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FILE_SECONDS", "WAIT_SECONDS_FIRST"):
        monkeypatch.setattr(patience, name, 0.01)


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_may_pass_is_tried_again_and_said(error: OSError, caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([error, error])

    async def ask() -> str:
        if (failure := next(failures, None)) is not None:
            raise failure
        return "answer"

    assert asyncio.run(patiently(ask, asyncio.Event())) == "answer"
    assert len(caplog.messages) == 2
    assert all(str(error) in line for line in caplog.messages)
    assert all(patience.REMEDIES.get(error.errno, "503") in line for line in caplog.messages)


@pytest.mark.parametrize("error", [OSError("127.0.0.1:1 cannot be listened on"), FileNotFoundError(errno.ENOENT, "none", "/x")])
def test_what_no_wait_mends_is_not_waited_for(error: OSError) -> None:
    async def ask() -> None:
        raise error

    with pytest.raises(OSError) as raised:
        asyncio.run(patiently(ask, asyncio.Event()))
    assert raised.value is error


def test_a_pod_that_cannot_reach_the_api_server_names_the_policy_that_may_keep_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("token")
    (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text())
    monkeypatch.setenv("FROSTLINE_SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(taken.getsockname()[1]))
    api, asked = Api.in_cluster(), iter([True])

    async def ask() -> str:
        return str(api.get("/version")) if next(asked, False) else "answer"

    assert asyncio.run(patiently(ask, asyncio.Event())) == "answer"
    assert "the API server cannot be reached" in caplog.messages[-1]
    assert "does the NetworkPolicy (kubernetes.network_policy.api_ports) let" in caplog.messages[-1]


def test_a_job_file_that_cannot_be_read_now_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that answers EIO for a moment is no mistake in the job file, and ends no run; a missing file is one."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_values()))
    failing = iter([OSError(errno.EIO, "Input/output error")] * 2)
    read = Path.read_text

    def read_text(path: Path, *arguments: object, **more: object) -> str:
        if path == file and (error := next(failing, None)) is not None:
            raise error
        return read(path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", read_text)
    found = asyncio.run(patiently(partial(asyncio.to_thread, read_job, file), asyncio.Event()))
    assert found == load_job(file)
    with pytest.raises(JobError, match="cannot be read"):
        read_job(tmp_path / "absent.yaml")


def test_a_signal_ends_the_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FILE_SECONDS", 3600.0)

    async def story() -> None:
        stop = asyncio.Event()

        async def ask() -> None:
            asyncio.get_running_loop().call_later(0.05, stop.set)
            raise OSError(errno.ENOSPC, "full")

        async with asyncio.timeout(30.0):
            with pytest.raises(Stopped):
                await patiently(ask, stop)

    asyncio.run(story())


def test_a_checkpoint_root_that_takes_no_files_is_told_once_and_waited_for(tmp_path: Path) -> None:
    """On a cluster the root may be a volume that is not there yet: the run would train to its end and lose its result."""
    root = tmp_path / "checkpoints"
    root.write_text("a file")

    async def story() -> list[str]:
        stage, stop = Stage(tmp_path, placement={"workers": 2}), asyncio.Event()
        waiting = asyncio.create_task(wait_for_checkpoint_root(stage.run, root, stop))
        said = await stage.reported("cannot_start", f"{root}: checkpoints cannot be written there (File exists)")
        assert said.endswith("; make it a folder that this process may write to"), "another checkpoint.uri would be refused"
        await asyncio.sleep(0.1)
        assert not waiting.done()
        root.unlink()
        await asyncio.wait_for(waiting, 30.0)
        reported = [line["kind"] for line in stage.store.events.all()]
        root.rmdir()
        root.write_text("a file again")
        stop.set()
        with pytest.raises(Stopped):
            await wait_for_checkpoint_root(stage.run, root, stop)
        stage.run.close()
        return reported

    assert asyncio.run(story()) == ["cannot_start"]


def test_a_checkpoint_root_without_room_is_told_with_what_helps_and_left_without_a_file(tmp_path: Path) -> None:
    """The trial file is made before its content finds no room; a limit on file sizes stands for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(CannotWrite) as refused:
            try_to_write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(refused.value).startswith(f"{tmp_path}: checkpoints cannot be written there (File too large); make it a folder")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_of_checkpoints_is_told_to_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CannotWrite, match=r"No space left on device\); free some space there$"):
        try_to_write(tmp_path / "checkpoints")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_volume_without_hard_links_is_refused_by_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Checkpoints and run epochs get their names by a link: the first one would end the controller, at each new start again."""

    def none(*arguments: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.link", none)
    with pytest.raises(CannotWrite) as refused:
        try_to_write(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}: checkpoints cannot be written there (its volume has no hard links: {os.strerror(number)}); mount a volume "
        "there that has them, such as NFS, CephFS or a local disk"
    )
    assert list(tmp_path.iterdir()) == []
