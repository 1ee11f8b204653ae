"""What the process tests share. Assertions of the shared modules say as much as those of the tests."""

from __future__ import annotations

import pytest

SHARED = ("rig", "servers", "twins", "crashes", "aborts", "stops", "slow", "attacks")
pytest.register_assert_rewrite(*(f"process.{name}" for name in SHARED))

from process.servers import serve  # noqa: E402, F401  # only after they are registered
