"""The rules that the search can switch off, one at a time, to show the trace that each prevents (docs/adr/0007)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One rule of the protocol. without: the model's behaviour when the rule is off. configuration: where its trace is found."""

    name: str
    text: str
    without: str
    configuration: str


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "promise",
            "who reports enters nothing up to what it has heard",
            "a fence raises nothing: after its report a worker still enters a generation up to the one that it was fenced from",
            "reshape",
        ),
        Rule(
            "no-late-vote",
            "who reports takes no vote result of its old generation any more",
            "a worker that has reported still takes the result of a vote that it had entered",
            "pair",
        ),
        Rule(
            "quorum",
            "a plan needs a reporter of a prepared n + 1 too, unless its fate is known",
            "the prepared plan is left out of what is asked",
            "reshape",
        ),
        Rule(
            "former-units",
            "owners keep the units that they hand over until the new generation's first vote",
            "they are dropped at the switch",
            "reshape-replicas",
        ),
        Rule(
            "former-replicas",
            "buddies keep their former unit replicas until the new generation's first vote",
            "they are dropped at the switch",
            "reshape",
        ),
        Rule(
            "seen-votes",
            "reports carry the votes that were seen",
            "reports carry none",
            "pair",
        ),
        Rule(
            "vote-in-plan",
            "the vote that a recovery plan names counts as seen in the next recovery",
            "it is forgotten",
            "pair",
        ),
        Rule(
            "torn",
            "a unit is torn from the moment that its update begins until the device is synchronised",
            "a unit that an update left half written is reported as intact",
            "tear",
        ),
        Rule(
            "tags",
            "states match by (lineage, step, generation of the vote)",
            "reports say lineage and step only, and not whose votes led there",
            "pair",
        ),
        Rule(
            "holders-only",
            "who is not named as a unit's holder drops it before entering",
            "it keeps what it has",
            "pair",
        ),
        Rule(
            "epoch",
            "where a generation may still run unheard, the run's epoch is raised",
            "the run goes back to the checkpoint under the old epoch and lineage rules alone",
            "partition",
        ),
        Rule(
            "incarnation",
            "only the newest incarnation writes plans",
            "a controller that was replaced writes its answer after its successor wrote another",
            "takeover",
        ),
        Rule(
            "wait",
            "an answer waits for every participant that can be reached",
            "whoever has not reported counts as silent",
            "pair",
        ),
        Rule(
            "acknowledged",
            "a vote is entered only with the gradients of one's unit replicas in hand",
            "buddies enter the vote without them, and the copies fall behind",
            "pair",
        ),
        Rule(
            "stable",
            "a step is published when a later vote has been seen",
            "it is published when it is committed",
            "partition",
        ),
        Rule(
            "old-groups",
            "who has switched keeps the old generation's groups open until the new one's first vote",
            "they are closed at the switch",
            "reshape",
        ),
        Rule(
            "new-lineage",
            "a target that does not extend every vote known to its survivors begins a new lineage",
            "the lineage goes on",
            "partition",
        ),
        Rule(
            "one-result",
            "a result is an exclusive creation under the current epoch",
            "whoever ends claims it",
            "partition",
        ),
    )
}
