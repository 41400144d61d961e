"""The WatchPlan streams: messages arrive in order, and a broadcast to many workers lets other messages through in between."""

import asyncio

from frostline_controller.serving.streams import WOKEN_A_TURN, Streams


def test_a_broadcast_wakes_a_few_streams_a_turn() -> None:
    """In any one turn of the loop no more than WOKEN_A_TURN streams send, so that others get their turn in between."""

    async def run() -> None:
        streams, count = Streams(), 3 * WOKEN_A_TURN + 1
        sent_in: list[int] = []
        turn = 0

        async def read(worker_id: str) -> None:
            outbox = streams.open(worker_id)
            while await outbox.get() is not None:
                sent_in.append(turn)

        readers = [asyncio.ensure_future(read(f"uid-{number}/1")) for number in range(count)]
        await asyncio.sleep(0)
        streams.send_all(b"decision")
        while len(sent_in) < count:
            turn += 1
            await asyncio.sleep(0)
            assert turn < 10 * count, f"{len(sent_in)} of {count} have heard of it"
        assert max(sent_in.count(number) for number in set(sent_in)) == WOKEN_A_TURN
        streams.close_all()
        await asyncio.gather(*readers)

    asyncio.run(run())


def test_each_stream_sends_in_order_and_ends_after_what_came_before() -> None:
    async def run() -> None:
        streams = Streams()
        received: dict[str, list[bytes]] = {}

        async def read(worker_id: str, pause: float) -> None:
            outbox = streams.open(worker_id)
            own = received.setdefault(worker_id, [])
            while (message := await outbox.get()) is not None:
                own.append(message)
                await asyncio.sleep(pause)

        names = [f"uid-{number}/1" for number in range(2 * WOKEN_A_TURN)]
        readers = [asyncio.ensure_future(read(name, 0.001 * (number % 3))) for number, name in enumerate(names)]
        await asyncio.sleep(0)
        streams.send_all(b"1")
        streams.send(names[-1], b"2")
        await asyncio.sleep(0)
        streams.send_all(b"3")
        await streams.flushed(10.0)
        streams.send_to(names, b"4")
        streams.close_all()
        await asyncio.wait_for(asyncio.gather(*readers), 60.0)
        assert received[names[-1]] == [b"1", b"2", b"3", b"4"]
        assert all(received[name] == [b"1", b"3", b"4"] for name in names[:-1])

    asyncio.run(run())


def test_a_newer_stream_closes_the_older_and_a_cancelled_one_harms_nobody() -> None:
    async def run() -> None:
        streams = Streams()
        older = streams.open("uid-0/1")
        waiting = asyncio.ensure_future(older.get())
        await asyncio.sleep(0)
        newer = streams.open("uid-0/1")
        assert await asyncio.wait_for(waiting, 60.0) is None
        assert not streams.close("uid-0/1", older), "it is not the newest"
        cancelled = asyncio.ensure_future(newer.get())
        await asyncio.sleep(0)
        cancelled.cancel()
        streams.send("uid-0/1", b"plan")
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(newer.get(), 60.0) == b"plan", "nobody had taken it"
        assert streams.close("uid-0/1", newer) and streams.listening() == []

    asyncio.run(run())
