"""Fixtures of the benchmark's tests."""

import pytest
from stand_in import StandIn

from compare import registry, runner


@pytest.fixture
def own(monkeypatch):
    """An empty registry, and the decorator to fill it."""
    monkeypatch.setattr(registry, "_all", {})
    return registry.implementation


@pytest.fixture
def measure(tmp_path):
    """measure(settings, engine=, **options) runs into tmp_path and returns the record."""
    def run(settings, engine=None, **options):
        engine = engine or StandIn()
        said = []
        made = runner.Runner(engine, runner.Options(str(tmp_path), **options), engine.clock, said.append)
        data = made.run(settings)
        data["said"] = said
        return data
    return run
