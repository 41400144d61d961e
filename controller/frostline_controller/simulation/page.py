"""The writing of a simulation to a folder: simulation.json, a self-contained simulation.html, and each picture as an SVG file."""

import json
from collections.abc import Mapping
from pathlib import Path

from frostline_contract.durable_files import replace_durably
from frostline_controller.report.build import rendered
from frostline_controller.simulation.pictures import build_charts, standalone
from frostline_controller.simulation.simulate import Simulation
from frostline_controller.simulation.tables import ARM_HEAD, arm_rows


def write_page(found: Simulation, values: Mapping[str, object], text: str, out: Path) -> None:
    """Write simulation.json, simulation.html and the charts. Raises OSError.

    Args:
        found: the simulation.
        values: contents of simulation.json.
        text: output of the command.
        out: the folder.
    """
    charts = build_charts(found)
    page = rendered(
        "simulation.html",
        job=found.job.name,
        cluster=found.world.cluster.name,
        notes=found.notes,
        head=ARM_HEAD,
        rows=arm_rows(found),
        charts=charts,
        text=text,
    )
    replace_durably(out / "simulation.json", json.dumps(values, indent=1, allow_nan=False) + "\n")
    replace_durably(out / "simulation.html", page)
    for chart in charts:
        replace_durably(out / f"{chart.name}.svg", standalone(chart))
