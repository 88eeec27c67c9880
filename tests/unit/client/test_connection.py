"""What a client sends over one connection, as its other end sees it."""

from __future__ import annotations

import asyncio

from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.wire.proxy import Done, GetOwner, Message
from tests.unit.client.proxy_double import Double, Peer


async def test_questions_wait_their_turn_instead_of_being_refused_for_their_number() -> None:
    """A client of a thousand streams asks for a thousand owners; a server accepts a limited number at a time per
    connection."""
    waiting: list[tuple[Peer, GetOwner]] = []
    most = 0

    def hold(peer: Peer, message: Message) -> bool:
        nonlocal most
        if not isinstance(message, GetOwner):
            return False
        waiting.append((peer, message))
        most = max(most, len(waiting))
        if len(waiting) == 8:
            for asker, question in waiting:
                asker.send(Done(question.request, {"location": question.stream}))
            waiting.clear()
        return True

    async with Double(script=hold) as double:
        double.limits = {"questions_max": 8}
        connection = await Connection.open(double.address, ClientOptions())

        async def owner_of(stream: str) -> str:
            answer = await connection.ask(lambda request: GetOwner(request, stream, None))
            return str(answer["location"])

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            asks = [group.create_task(owner_of(f"s{n}")) for n in range(80)]
        connection.close()
    assert [ask.result() for ask in asks] == [f"s{n}" for n in range(80)]
    assert most == 8
