"""Exhaustive search of the recovery protocol, in its small configurations: it passes, and finds the trace that each rule closes.

`make model` searches the larger ones (docs/adr/0007 lists their traces).
"""

import pytest

from tests.model.configurations import CONFIGURATIONS
from tests.model.rules import RULES
from tests.model.search import Search

QUICK = [configuration for configuration in CONFIGURATIONS.values() if configuration.quick]


@pytest.mark.parametrize("configuration", QUICK, ids=lambda configuration: configuration.name)
def test_everything_holds_in_every_world_that_can_be_reached(configuration) -> None:
    outcome = Search(configuration).run()
    assert outcome.violation == "", "\n".join([outcome.violation, *outcome.trace])
    assert outcome.complete
    assert outcome.ends > 0, "some of these runs end with a result"


@pytest.mark.parametrize(
    ("rule", "broken", "last_words"),
    [
        ("seen-votes", "I5", "go on at step 0"),
        ("torn", "I3", "go on at step 1"),
        ("wait", "I8", "raise the epoch"),
        ("stable", "I8", "go on at step 0"),
        ("acknowledged", "I8", "go back to the checkpoint"),
        ("epoch", "I4", "all have, it passes"),
    ],
)
def test_without_a_rule_the_search_finds_the_trace_that_it_closes(rule: str, broken: str, last_words: str) -> None:
    outcome = Search(CONFIGURATIONS[RULES[rule].configuration], frozenset([rule]), limit=20_000).run(progress=False)
    assert outcome.violation.startswith(broken), outcome.violation
    assert last_words in outcome.trace[-1], outcome.trace


def test_a_search_that_gives_up_says_that_it_is_not_complete() -> None:
    outcome = Search(CONFIGURATIONS["quick"], limit=50).run()
    assert not outcome.complete
    assert outcome.violation == ""


def test_every_rule_is_searched_in_a_configuration_that_there_is() -> None:
    assert {rule.configuration for rule in RULES.values()} <= set(CONFIGURATIONS)
