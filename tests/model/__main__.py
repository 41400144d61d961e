"""python -m tests.model [--config NAME] [--without RULE] [--limit WORLDS] [--list]"""

import argparse
import sys

from tests.model.configurations import CONFIGURATIONS
from tests.model.rules import RULES
from tests.model.search import Outcome, Search


def main(words: list[str] | None = None) -> int:
    """Search; print states, seconds and the shortest trace of a violation. Exit status 1 where there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--config", choices=sorted(CONFIGURATIONS), help="one configuration (default: all)")
    parser.add_argument("--without", choices=sorted(RULES), help="switch one rule off, and look for the trace that it closes")
    parser.add_argument("--limit", type=int, default=2_000_000, help="worlds after which a search gives up")
    parser.add_argument("--list", action="store_true", help="say what there is")
    arguments = parser.parse_args(words)
    if arguments.list:
        for one in CONFIGURATIONS.values():
            print(f"{one.name:18} {one.text}")
        for rule in RULES.values():
            print(f"{rule.name:18} {rule.text} (without it: {rule.without}; searched in {rule.configuration})")
        return 0
    off = frozenset([arguments.without] if arguments.without else [])
    default = [RULES[arguments.without].configuration] if arguments.without else list(CONFIGURATIONS)
    outcomes = [search(name, off, arguments.limit) for name in ([arguments.config] if arguments.config else default)]
    return 1 if any(outcome.violation or not outcome.complete for outcome in outcomes) else 0


def search(name: str, off: frozenset[str], limit: int) -> Outcome:
    outcome = Search(CONFIGURATIONS[name], off, limit).run()
    what = f"{name}{''.join(f', without {rule}' for rule in off)}"
    reached = "all visited" if outcome.complete else "not all visited"
    print(f"{what}: {outcome.states} worlds, {reached}, {outcome.seconds:.1f} s, {outcome.ends} with a result", flush=True)
    if outcome.violation:
        print(f"  BROKEN {outcome.violation}")
        for number, words in enumerate(outcome.trace, 1):
            print(f"  {number:3}. {words}")
    elif outcome.complete:
        print("  everything holds")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
