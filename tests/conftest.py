from __future__ import annotations

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--bless", action="store_true", help="rewrite the expectations of golden tests"
    )


@pytest.fixture
def bless(request):
    return request.config.getoption("--bless")
