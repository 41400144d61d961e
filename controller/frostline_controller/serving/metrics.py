"""The run's status as Prometheus metrics. charts/frostline/README.md lists their names."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from frostline_contract.run_status import ENDED, RunStatus
from frostline_contract.worker_state import SHOWN, WorkerState
from frostline_controller.ledger.carried import Carried
from frostline_controller.ledger.sums import Ledger
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore
from frostline_controller.serving.status import status_of, workers_by_state
from frostline_proto.v1 import control_pb2 as pb

LEADING_TEXT = "1 while this controller leads, else 0."


class RunMetrics:
    """A collector of the run's metrics at one moment.

    Args:
        status: the run's status.
        workers: number of workers in each state.
        step_seconds: duration of the newest step.
        events: number of events of each kind.
        carried: sums of the run's traffic, and the newest usage of each member.
    """

    def __init__(self, status: pb.StatusResponse, workers: Counter[str], step_seconds: float, events: Counter[str],
                 carried: Carried) -> None:  # fmt: skip
        self._status, self._workers, self._carried = status, workers, carried
        self._step_seconds, self._events = step_seconds, Counter(events)

    def collect(self) -> Iterator[Metric]:
        """The metrics; prometheus_client calls this at each scrape."""
        status = self._status
        gauges = (
            ("step", "Last committed step.", status.step),
            ("total_steps", "Steps of the whole run.", status.total_steps),
            ("lineage", "Rises with each rollback and restore.", status.lineage),
            ("generation", "Counter of the running generation.", status.generation.counter),
            ("freeze_point", "Index of the first trainable unit.", status.freeze_point),
            ("step_seconds", "Duration of the newest step, in seconds.", self._step_seconds),
            ("samples_per_second", "Training samples a second.", status.samples_per_second),
            ("cache_hit_ratio", "Hits among the newest step's reads of the activation cache.", status.cache_hit_fraction),
            ("uncovered_units", "Units that one node's end would take.", len(status.uncovered_units)),
            ("waiting", "1 while no worker trains: the run waits for workers or checkpoints, else 0.", self._is_waiting),
            ("leading", LEADING_TEXT, 1),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"frostline_{name}", text, value)
        workers = GaugeMetricFamily("frostline_workers", "Workers by state.", labels=["state"])
        for state in SHOWN:
            workers.add_metric([state], self._workers[state])
        yield workers
        yield from self._ledger()
        yield from self._bytes()
        for name, text, kind in (
            ("recoveries", "Failures that the run has recovered from.", "failure"),
            ("reshapes", "Reshapes.", "reshape"),
            ("checkpoints", "Checkpoints.", "checkpoint"),
            ("hangs", "Workers that were found hanging.", "hang"),
        ):
            yield CounterMetricFamily(f"frostline_{name}", text, self._events[kind])

    @property
    def _is_waiting(self) -> bool:
        """Whether a run that has not ended has no generation, or one of which no member is left."""
        going_on = self._status.state not in ENDED
        return going_on and (self._status.state == RunStatus.WAITING or not self._workers[WorkerState.MEMBER])

    def _ledger(self) -> Iterator[Metric]:
        """The ledger's seconds by use. They are gauges: seconds of steps that are taken back move from one use to another."""
        ledger = Ledger.of_message(self._status.ledger)
        used = GaugeMetricFamily("frostline_worker_seconds", "Worker-seconds of the run by use.", labels=["use"])
        saved = GaugeMetricFamily("frostline_saved_worker_seconds_estimated", "Worker-seconds saved, estimated.", labels=["by"])
        for family, seconds in ((used, ledger.used), (saved, ledger.saved)):
            for name, value in sorted(seconds.items()):
                family.add_metric([name], value)
            yield family
        if (cost := ledger.cost(ledger.total)) is not None:
            yield GaugeMetricFamily("frostline_cost", "What the run's worker-hours cost, in the job's currency.", cost)

    def _bytes(self) -> Iterator[Metric]:
        """Yield the bytes that workers sent and received over the run, and the most that a worker of the last interval holds."""
        traffic = CounterMetricFamily(
            "frostline_traffic_bytes", "Bytes that workers sent and received, by what for.", labels=["way", "direction"]
        )
        for direction, sums in (("sent", self._carried.sent), ("received", self._carried.received)):
            for way, count in sorted(sums.items()):
                traffic.add_metric([way, direction], count)
        yield traffic
        resident = GaugeMetricFamily("frostline_resident_bytes", "Most bytes of a kind that a worker holds.", labels=["kind"])
        for kind, count in self._carried.most_resident().items():
            resident.add_metric([kind], count)
        yield resident


def standby_text() -> bytes:
    """The metrics of a controller that waits for the Lease."""
    registry = CollectorRegistry()
    Gauge("frostline_leading", LEADING_TEXT, registry=registry).set(0)
    return generate_latest(registry)


def metrics_text(facts: RunFacts, store: RunStore) -> bytes:
    """The metrics in Prometheus' text format. Call this in the event loop, since it reads what the reconciler changes."""
    registry = CollectorRegistry()
    registry.register(
        RunMetrics(
            status_of(facts, store, with_workers=False),
            workers_by_state(facts),
            facts.step_seconds(),
            store.events.counts,
            store.records.carried,
        )
    )
    return generate_latest(registry)
