"""The short form of tests/soak.py: random combinations of everything against `generate`."""

from __future__ import annotations

import torch

from tests.soak import soak
from tests.tiny import ARCHITECTURES

torch.set_num_threads(1)


def test_short_soak():
    happened, failures = soak(runs=80, seed=0)
    assert not failures, failures[0][1]
    for what in (
        "compared greedy",
        "compared sampled",
        "finish eos",
        "finish length",
        "finish stop_string",
        "bonus",
        "relaxed",
        "overshoot",
        "clip",
        "left route",
        "drifted",
        *(f"compared {arch}" for arch in ARCHITECTURES),
    ):
        assert happened[what], f"80 runs without a single {what!r}: {dict(happened)}"
    assert 0.2 < happened["accepted"] / (happened["accepted"] + happened["rejected"]) < 0.95
