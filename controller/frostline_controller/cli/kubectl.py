"""`kubectl frostline`: shows and controls a run on a cluster.

Each command is one kubectl annotate, scale or get; its help shows which.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from frostline_contract.annotations import COMMAND, PROGRESS, REQUESTED_WORKERS, REQUESTED_WORKERS_MAX, STATE
from frostline_contract.mesh import in_words
from frostline_contract.run_status import ENDED
from frostline_controller.cli.arguments import natural
from frostline_controller.cluster.kubernetes.api import Api, ApiError, NotFound
from frostline_controller.cluster.kubernetes.release import Release
from frostline_controller.local_run import exit_codes

WATCH_SECONDS = 2.0
ANSWER_SECONDS = 30.0
EVENTS_SHOWN = 5
NO_ANSWER, TOO_MANY_REQUESTS, SERVER_ERRORS = 0, 429, 500
"""Statuses of an ApiError; all from SERVER_ERRORS on are the server's."""


def status(release: Release, arguments: argparse.Namespace) -> int:
    """Print the status of the run; with --watch until it has ended, also where the API server does not answer for a while."""
    state = _show_status(release, arguments.watch)
    while arguments.watch and state not in ENDED:
        time.sleep(WATCH_SECONDS)
        try:
            state = _show_status(release, clears=True)
        except ApiError as error:
            if not _may_pass(error):
                raise
            print(f"kubectl frostline: {error}; asking again", file=sys.stderr, flush=True)
    return exit_codes.DONE


def _show_status(release: Release, clears: bool) -> str | None:
    """Print the status, on a terminal in place of the one before if `clears`; return the run's state."""
    annotations = release.annotations()
    text = status_text(release, annotations)
    if sys.stdout.isatty() and clears:
        print("\x1b[2J\x1b[H", end="")
    print(text, flush=True)
    return annotations.get(STATE)


def _may_pass(error: ApiError) -> bool:
    """Whether the API server gave no answer, or was not able to give one."""
    return error.status in (NO_ANSWER, TOO_MANY_REQUESTS) or error.status >= SERVER_ERRORS


def status_text(release: Release, annotations: dict[str, str]) -> str:
    """Return the status as a few lines and a table of pods."""
    progress = json.loads(annotations.get(PROGRESS) or "{}")
    state = annotations.get(STATE) or "not started"
    lines = [f"{release.name}: {state}" + (f" ({progress['message']})" if progress.get("message") else "")]
    if progress.get("generation"):
        loss = f", loss {progress['loss']:.4g}" if progress.get("loss") is not None else ""
        backend = f" over {progress['backend']}" if progress.get("backend") else ""
        lines.append(
            f"step {progress['step']} of {progress['total_steps'] or '?'}, generation {progress['generation']}, "
            f"freeze point {progress['freeze_point']}, shape {progress['shape']}{backend}{loss}"
        )
    lines.append(f"{'pod':<32}{'ready':<7}{'phase':<11}{'restarts':<10}node")
    for pod in release.pods():
        status = pod.get("status", {})
        containers = status.get("containerStatuses") or []
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
        phase = "Leaving" if pod["metadata"].get("deletionTimestamp") else status.get("phase", "")
        restarts = sum(one.get("restartCount", 0) for one in containers)
        node = pod["spec"].get("nodeName", "")
        lines.append(f"{pod['metadata']['name']:<32}{'yes' if ready else 'no':<7}{phase:<11}{restarts:<10}{node}")
    lines += [_event_line(event) for event in release.events()[-EVENTS_SHOWN:]]
    return "\n".join(lines)


def plan(release: Release, arguments: argparse.Namespace) -> int:
    """Print the plan in force: which worker computes which units."""
    state = release.state()
    if state is None or state.current is None:
        print("no plan yet")
        return exit_codes.DONE
    placement = state.current.placement
    print(
        f"generation {state.current.generation}, shape {in_words(placement.degrees)}, "
        f"schedule {placement.schedule}, stage bounds {list(placement.stage_bounds)}"
        + (f", slices {list(placement.slices)}" if placement.slices else "")
        + (f", state shared out by {placement.shard}" if placement.is_sharded else "")
        + (", samples divided in groups" if placement.splits_rows else "")
    )
    for worker_id in placement.workers:
        units = placement.units_of(worker_id)
        print(f"  {worker_id}: units {units[0]} to {units[-1]}" if units else f"  {worker_id}: no units")
    return exit_codes.DONE


def events(release: Release, arguments: argparse.Namespace) -> int:
    """Print the events of the run, oldest first."""
    for event in release.events():
        print(_event_line(event))
    return exit_codes.DONE


def command(release: Release, arguments: argparse.Namespace) -> int:
    """Annotate a command and print the controller's answer."""
    words = [arguments.command, *([str(arguments.number)] if getattr(arguments, "number", None) is not None else [])]
    return _asked(release, lambda: release.command(" ".join(words)))


def resize(release: Release, arguments: argparse.Namespace) -> int:
    """Request at most `number` workers. The same number again changes nothing that a controller could answer."""
    number, annotations = arguments.number, release.annotations()
    if annotations.get(REQUESTED_WORKERS) == str(number):
        print(f"{number} workers have been asked for before: nothing changes; the run is {annotations.get(STATE, 'not started')}")
        return exit_codes.DONE
    return _asked(release, lambda: release.request_workers(arguments.number))


def logs(release: Release, arguments: argparse.Namespace) -> int:
    """Print the newest lines of each pod's log, or why it has none. A pod or role that is not there is a mistake."""
    roles = {pod["metadata"]["name"]: pod["metadata"]["labels"].get("app.kubernetes.io/component", "") for pod in release.pods()}
    asked = [name for name, role in roles.items() if arguments.pod in ("", name, role)]
    if arguments.pod and not asked:
        there = ", ".join(dict.fromkeys(filter(None, [*roles.values(), *roles]))) or "no pod"
        print(f"kubectl frostline: --pod {arguments.pod}: is no pod or role of {release.name}; there: {there}", file=sys.stderr)
        return exit_codes.USER_MISTAKE
    if not asked:
        release.stateful_set()  # raises NotFound where there is no such release
        print(f"kubectl frostline: {release.name} has no pod", file=sys.stderr)
    shown = [_show_log(release, name, roles[name], arguments.lines) for name in asked]
    return exit_codes.DONE if any(shown) else exit_codes.FAILED


def _show_log(release: Release, pod: str, role: str, lines: int) -> bool:
    """Print a pod's log, or why there is none: its image is missing, say. The chart names a pod's container as its role."""
    try:
        log = release.log(pod, role, lines)
    except ApiError as error:
        print(f"{pod}: (no log: {str(error).partition(': ')[2] or error})")
        return False
    for line in log.splitlines():
        print(f"{pod}: {line}")
    return True


def report(release: Release, arguments: argparse.Namespace) -> int:
    """Fetch the report from the controller."""
    target = Path(arguments.out or f"{release.name}.html")
    target.write_text(release.page("/report"), encoding="utf-8")
    print(target)
    return exit_codes.DONE


def _asked(release: Release, ask: Callable[[], None]) -> int:
    before = {event["metadata"]["name"] for event in release.events()}
    ask()
    said = list(release.answers(before, ANSWER_SECONDS))
    print(
        "\n".join(said) or f"asked; no answer within {ANSWER_SECONDS:.0f} s: is a controller leading? (kubectl frostline status)"
    )
    return exit_codes.FAILED if not said or any(text.startswith("refused") for text in said) else exit_codes.DONE


def _event_line(event: dict[str, object]) -> str:
    return f"{event.get('lastTimestamp') or '-'}  {event['type']:<8} {event['reason']:<16} {event['message']}"


def number_of_workers(text: str) -> int:
    """A limit of workers that may be requested. Raises argparse.ArgumentTypeError."""
    number = natural(text)
    if number > REQUESTED_WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is more than the {REQUESTED_WORKERS_MAX} workers that a run may have")
    return number


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each has the function that carries it out and the plain kubectl command that does the
    same."""
    parser = argparse.ArgumentParser(
        prog="kubectl frostline",
        description="A run on a cluster, seen and steered. Each command is also one plain kubectl, shown in its help.",
    )
    parser.add_argument("-n", "--namespace", help="namespace of the release (default: the context's)")
    parser.add_argument("--kubeconfig", help="file (default: $KUBECONFIG or ~/.kube/config)")
    parser.add_argument("--context", help="context of the kubeconfig")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[Release, argparse.Namespace], int], text: str, plain: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text} The same: {plain}")
        added.add_argument("release", help="name of the release")
        added.set_defaults(run=run, command=name)
        return added

    get = "kubectl get statefulset RELEASE-trainer -o yaml"
    add("status", status, "Where the run stands.", get).add_argument("-w", "--watch", action="store_true", help="until it ends")
    add("plan", plan, "Who computes what.", get)
    add("events", events, "What happened.", "kubectl get events --field-selector involvedObject.name=RELEASE-trainer")
    annotate = f"kubectl annotate --overwrite statefulset RELEASE-trainer {COMMAND}="
    for name, text in (
        ("suspend", "Drain to a checkpoint and scale to 0."),
        ("resume", "Go on where a stopped run was."),
        ("cancel", "Drain to a checkpoint and end as cancelled; `resume` can still go on."),
        ("checkpoint", "Write a checkpoint after this step."),
        ("unfreeze", "Everything learns again."),
    ):
        add(name, command, text, annotate + name)
    freeze = add("freeze", command, "Freeze the first N units with the next decision.", annotate + "'freeze N'")
    freeze.add_argument("number", type=natural, metavar="N", help="freeze point: index of the first unit that still learns")
    resized = add(
        "resize", resize, "At most N workers.",
        f"kubectl annotate --overwrite statefulset RELEASE-trainer {REQUESTED_WORKERS}=N, or kubectl scale --replicas",
    )  # fmt: skip
    resized.add_argument("number", type=number_of_workers, metavar="N", help="workers; 0 suspends")
    shown = add("logs", logs, "The newest lines of the pods' logs.", "kubectl logs POD")
    shown.add_argument("--pod", default="", help="a pod, or a role: trainer, controller, cache-server, redis (default: all)")
    shown.add_argument("--lines", type=int, default=20, help="lines of each (20)")
    add("report", report, "Fetch the report.", "kubectl port-forward service/RELEASE-controller 7002, then /report").add_argument(
        "-o", "--out", help="file to write (RELEASE.html)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns an exit status of `exit_codes`; NO_RUN where there is no such release."""
    arguments = build_parser().parse_args(argv)
    try:
        api = Api.from_kubeconfig(arguments.kubeconfig, arguments.context)
        namespace = arguments.namespace or Api.namespace_of_kubeconfig(arguments.kubeconfig, arguments.context)
        return int(arguments.run(Release(api, namespace, arguments.release), arguments))
    except NotFound as error:
        print(f"kubectl frostline: {error}", file=sys.stderr)
        return exit_codes.NO_RUN
    except (ApiError, OSError, ValueError) as error:
        print(f"kubectl frostline: {error}", file=sys.stderr)
        return exit_codes.FAILED
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
