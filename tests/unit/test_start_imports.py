"""A run starts half a dozen small processes, and their imports are most of what each costs: what none of them needs stays out."""

import subprocess
import sys

import pytest

HEAVY = {"frostline_trainer.process.agent": ("torch", "numpy", "pydantic", "yaml", "grpc", "http.server"),
         "frostline_cache_server.__main__": ("torch", "numpy", "frostline_contract.job", "jwt", "aiohttp", "prometheus_client"),
         "frostline_controller.cli.run": ("torch", "numpy", "matplotlib", "scipy", "redis", "kubernetes", "aiohttp"),
         "frostline_controller.__main__": ("torch", "matplotlib", "scipy", "redis", "kubernetes", "jwt")}  # fmt: skip


@pytest.mark.parametrize("module", HEAVY)
def test_a_process_of_a_local_run_imports_nothing_heavy_that_it_does_not_need(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY[module]!r} if name in sys.modules))"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.split() == []
