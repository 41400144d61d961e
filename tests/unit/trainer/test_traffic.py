"""The counts of messages and collectives, each reported once."""

from frostline_contract.usage import Way
from frostline_trainer.transport.traffic import Tally, Traffic


def test_a_collective_counts_as_on_a_ring_and_a_message_as_it_is() -> None:
    traffic = Traffic()
    line = Tally(traffic, Way.DP_GRADIENTS)
    line.summed(1200, 3)
    line.message(sent=5, received=7)
    with line.carrying(Way.DP_WEIGHTS):
        line.broadcast(10, 4, is_root=True)
    line.broadcast(10, 4, is_root=False)
    assert traffic.so_far() == ({"dp_gradients": 1605, "dp_weights": 30}, {"dp_gradients": 1617})


def test_what_is_told_is_told_once_and_what_is_not_on_record_is_told_again() -> None:
    traffic, cached = Traffic(), [3, 4]
    traffic.follow(Way.CACHE, lambda: (cached[0], cached[1]))
    Tally(traffic, Way.MOVES).message(sent=8)
    sent, received = traffic.since_reported()
    assert (sent, received) == ({"cache": 3, "moves": 8}, {"cache": 4}) == traffic.since_reported()
    traffic.mark_reported(sent, received)
    cached[1] = 9
    with traffic.aside():
        Tally(traffic, Way.PP).message(received=2)
    assert [{way: count for way, count in one.items() if count} for one in traffic.since_reported()] == [
        {},
        {"cache": 5, "other": 2},
    ]
