"""NOTES.txt: rendered by Helm as a ConfigMap of a copy of the chart, since `helm template` leaves notes out."""

import re
import shutil
from pathlib import Path

import pytest

from frostline_contract import annotations
from tests.chart.rendering import CHART, HELMS, render


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("notes") / "frostline"
    shutil.copytree(CHART, place)
    text = (place / "templates" / "NOTES.txt").read_text()
    (place / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}\n' + text + "{{- end }}\n")
    (place / "templates" / "notes.yaml").write_text(
        'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: notes\ndata:\n  text: |\n    {{- include "notes" . | nindent 4 }}\n'
    )
    return place


def notes(copied: Path, *settings: str, name: str = "helm4") -> str:
    return render(*settings, chart=copied, name=name).get("ConfigMap", "notes")["data"]["text"]


@pytest.mark.parametrize("name", HELMS)
def test_every_command_is_there_as_one_line_of_kubectl(copied: Path, name: str) -> None:
    text = notes(copied, name=name)
    commands = re.findall(r"frostline\.io/command='?([a-z]+(?: \d+)?)'?$", text, re.MULTILINE)
    assert commands == ["suspend", "resume", "checkpoint", "freeze 3", "unfreeze", "cancel"]
    assert f"{annotations.REQUESTED_WORKERS}=1" in text and annotations.COMMAND in text
    assert "scale statefulset digits-trainer --replicas=4" in text
    assert "--for=jsonpath='{.metadata.annotations.frostline\\.io/state}'=completed" in text
    assert "  kubectl frostline -n research status digits\n" in text, "kubectl takes no flag before a plugin's name"
    assert "  kubectl frostline -n research status digits --watch\n" in text, "what returns at any end"
    for line in text.splitlines():
        if line.startswith("  kubectl"):
            assert line.startswith(("  kubectl -n research ", "  kubectl frostline -n research ")), line
            assert "research frostline " not in line, line
    assert "{{" not in text and "%!" not in text


def test_pods_are_counted_by_workers_a_pod(copied: Path) -> None:
    text = notes(copied, "placement.workers=9", "placement.workers_per_pod=4")
    assert "9 worker(s) in 3 pod(s)" in text
    text = notes(copied, "placement.workers=9", "placement.workers_per_pod=4", "placement.spare_workers=4")
    assert "9 worker(s) and 4 spare in 4 pod(s)" in text and "--replicas=4" in text


def test_where_checkpoints_are_and_what_uninstall_does(copied: Path) -> None:
    assert "helm uninstall keeps the claim" in notes(copied)
    assert "helm uninstall DELETES the claim" in notes(copied, "kubernetes.storage.keep=false")
    mine = notes(copied, 'kubernetes.storage.claim="mine"')
    assert "claim mine, folder runs/digits" in mine and "uninstall" not in mine


def test_warnings_where_they_are_due(copied: Path) -> None:
    assert "15 s at most" not in notes(copied) and "No NetworkPolicy" not in notes(copied)
    assert "15 s at most" in notes(copied, "kubernetes.trainer.spot=true")
    assert "15 s at most" not in notes(copied, "kubernetes.trainer.spot=true", "kubernetes.trainer.grace_seconds=15")
    assert "asks for no password" in notes(copied, "kubernetes.network_policy.enabled=false")
