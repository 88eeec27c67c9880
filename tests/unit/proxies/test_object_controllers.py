"""Options of the controller of streams in objects, as the section [objects] gives them, and the way to it from here."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import ConnectionLostError, OwnedElsewhereError
from dlog.stores.s3_direct.options import ObjectsOptions
from proxies.write.object_controllers import LocalSender, controller_options
from tests.unit.io.test_object_metadata import DONE, PlayedProxies, moved


@pytest.mark.parametrize(("grace_s", "tick_s"), [(600.0, 10.0), (3.0, 3.0), (0.0, 1.0)])
def test_objects_stay_as_long_as_configured_and_are_looked_at_that_often(grace_s: float, tick_s: float) -> None:
    options = controller_options(ObjectsOptions(root="file:///x", marked_grace_s=grace_s))
    assert (options.controller.retention_ms, options.tick_s) == (grace_s * 1000, tick_s)


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="marked_grace_s must not be negative"):
        ObjectsOptions(marked_grace_s=-1.0)


class PlayedControllers:
    """This process has no controller; another proxy does. asked: how often that was looked up."""

    def __init__(self) -> None:
        self.asked = 0
        self.hosted = False

    def hosts(self, stream: str) -> bool:
        return self.hosted

    async def ask(self, operation: bytes, suspect: str | None) -> bytes:
        self.asked += 1
        if self.hosted:
            return DONE
        raise OwnedElsewhereError("there", location="b:1")


async def local_sender(*answers: Any) -> tuple[LocalSender, PlayedControllers, PlayedProxies]:
    proxies, controllers, sender = PlayedProxies(), PlayedControllers(), LocalSender()
    await proxies.add("b:1", *answers)
    sender.attach(controllers, proxies.sender())  # type: ignore[arg-type]  # what a LocalSender uses of it
    return sender, controllers, proxies


async def test_the_owner_is_looked_up_once_for_many_operations() -> None:
    sender, controllers, proxies = await local_sender(*[DONE] * 5)
    assert [await sender.send(b"x") for _ in range(5)] == [DONE] * 5
    assert (controllers.asked, len(proxies.asked)) == (1, 5)


@pytest.mark.parametrize("failure", [ConnectionLostError("reset"), moved(None), moved("b:1")])
async def test_the_owner_is_looked_up_again_after_a_failure(failure: Exception) -> None:
    sender, controllers, proxies = await local_sender(DONE, failure, DONE)
    assert await sender.send(b"x") == DONE
    with pytest.raises(type(failure)):
        await sender.send(b"x")
    assert controllers.asked == 1
    assert await sender.send(b"x") == DONE
    assert (controllers.asked, len(proxies.asked)) == (2, 3)


async def test_a_controller_here_is_asked_whatever_other_owner_is_known() -> None:
    sender, controllers, proxies = await local_sender(DONE)
    assert await sender.send(b"x") == DONE
    controllers.hosted = True
    assert await sender.send(b"x") == DONE
    assert (controllers.asked, len(proxies.asked)) == (2, 1)
