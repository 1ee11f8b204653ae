"""What the tests of senders' libraries share: the process that is asked about JavaScript ends with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from senders import node


@pytest.fixture(scope="session", autouse=True)
def _asked() -> Iterator[None]:
    yield
    node.close()
