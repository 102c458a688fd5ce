from __future__ import annotations

import os
import signal

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a model hub; before transformers is imported


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "embedded: needs the embedded family (fetched once from the package registry)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", default="cpu", help="where the tests' models and tensors live, such as cuda (default cpu)"
    )


@pytest.fixture(scope="session", autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    """The device of this run; models of `tiny` and tensors that tests make without naming a device are there."""
    import torch

    chosen = request.config.getoption("--device")
    if chosen != "cpu":  # a default device costs every torch call a detour through Python
        torch.set_default_device(chosen)
    return chosen


@pytest.fixture(scope="session")
def embedded_family():
    """The family `smollm2-135m` in fp32, loaded once per session from the user's normal cache."""
    from adaptive_pyramid.models import families

    return families.load("smollm2-135m", dtype="float32", progress=False)


@pytest.fixture(scope="session")
def postgresql():
    """The URL of a real PostgreSQL server, started for this session."""
    from tests import postgres

    programs = postgres.server_programs()
    if programs is None:
        pytest.skip("postgresql is not installed")
    pytest.importorskip("psycopg")
    with postgres.running_server(programs) as url:
        yield url


@pytest.fixture
def ctrl_c_works():
    """Ctrl-C as in a terminal, here and in processes started within: what a script runs with `&` ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
