from collections.abc import Iterator

import pytest

from tests.integration.cli.up import Up, up_for_many


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One `dlog up` for the tests that do not end it."""
    with up_for_many(tmp_path_factory, "up") as running:
        yield running
