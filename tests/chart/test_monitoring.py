"""Prometheus and Grafana are given documented metrics only, and find the pods that serve them."""

import json
import re

from tests.chart.rendering import CHART, render

TOGGLES = {"service_monitor": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}, "interval_seconds": 30}
ON = f"kubernetes.monitoring={json.dumps(TOGGLES)}"
METRIC = re.compile(r"\bfrostline_[a-z_]+")


def documented() -> set[str]:
    """The names in the first columns of the README's tables."""
    first = re.findall(r"^\| (`frostline_[^|]*)\|", (CHART / "README.md").read_text(), re.MULTILINE)
    return set(METRIC.findall(" ".join(first)))


def test_the_service_finds_exactly_the_pods_that_serve_metrics() -> None:
    found = render()
    selector = found.get("Service", "digits-metrics")["spec"]["selector"].items()
    served = set()
    for kind in ("Deployment", "StatefulSet"):
        for one in found.of(kind):
            template = one["spec"]["template"]
            has_port = any(port["name"] == "metrics" for port in template["spec"]["containers"][0]["ports"])
            assert (selector <= template["metadata"]["labels"].items()) == has_port
            served |= {one["metadata"]["name"]} if has_port else set()
    assert served == {"digits-controller", "digits-cache-server"}


def test_the_monitor_finds_the_service() -> None:
    found = render(ON)
    monitor = found.get("ServiceMonitor", "digits-metrics")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= found.get("Service", "digits-metrics")["metadata"]["labels"].items()
    )
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "interval": "30s"}]
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert found.get(kind, "digits-metrics")["metadata"]["labels"]["release"] == "prometheus"


def test_alerts_and_dashboard_ask_for_documented_metrics_of_this_run() -> None:
    found = render(ON)
    rules = found.get("PrometheusRule", "digits-metrics")["spec"]["groups"][0]["rules"]
    config = found.get("ConfigMap", "digits-dashboard")
    dashboard = json.loads(config["data"]["frostline-digits.json"])
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 12
    for text in expressions:
        names = METRIC.findall(text)
        assert names and set(names) <= documented(), text
        assert text.count('namespace="research",service="digits-metrics"') == len(names), text
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}")
    about_the_run = {
        name for name in documented() if not re.match("frostline_(cache_(?!hit_ratio)|total|checkpoints|hangs)", name)
    }
    assert set(METRIC.findall(" ".join(expressions))) == about_the_run
    assert len(about_the_run) == 18 and len(documented()) == 36
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["title"] == "Frostline: digits"
    assert [rule["alert"] for rule in rules] == [
        "FrostlineNoLeader",
        "FrostlineStalled",
        "FrostlineWaiting",
        "FrostlineUncovered",
        "FrostlineRecovering",
    ]


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((CHART / "dashboards" / "frostline.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
