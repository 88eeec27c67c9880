"""Options of the controller of streams in objects, as the section [objects] gives them."""

from __future__ import annotations

import pytest

from dlog.stores.s3_direct.options import ObjectsOptions
from proxies.write.object_controllers import controller_options


@pytest.mark.parametrize(("grace_s", "tick_s"), [(600.0, 10.0), (3.0, 3.0), (0.0, 1.0)])
def test_objects_stay_as_long_as_configured_and_are_looked_at_that_often(grace_s: float, tick_s: float) -> None:
    options = controller_options(ObjectsOptions(root="file:///x", marked_grace_s=grace_s))
    assert (options.controller.retention_ms, options.tick_s) == (grace_s * 1000, tick_s)


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="marked_grace_s must not be negative"):
        ObjectsOptions(marked_grace_s=-1.0)
