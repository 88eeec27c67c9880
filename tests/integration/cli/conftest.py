from collections.abc import Iterator

import pytest

from tests.integration.cli.up import Up, up


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One `dlog up` for the tests that do not end it."""
    with up(tmp_path_factory.mktemp("up") / "cluster") as running:
        yield running
