"""What a seed repeats, sentence by sentence as the docs say it, and what it does not."""

from __future__ import annotations

import pytest
import torch

from adaptive_pyramid.config import PyramidConfig
from adaptive_pyramid.pyramid import AdaptivePyramid
from tests.engine import reference_ids
from tests.tiny import graded_family

torch.set_num_threads(1)
PROMPT = [1, 10, 11, 12, 30, 10, 11]
SETTINGS = {"do_sample": True, "temperature": 0.9, "top_k": 30, "max_new_tokens": 20, "eos_token_id": None}
LENGTHS = ([1, 1], [2, 3], [4, 2], [3, 8])
FUZZY = ("fsd", "psd_a", "psd_f")
# Thresholds between the divergences that the family shows, so that some positions are relaxed and some are not.
REPEATING_WITH_ITS_CONFIG = {
    "sd": ({"method": "sd"}, [0.0, 0.0]),
    "polybasic": ({"method": "polybasic"}, [0.0, 0.0]),
    **{method: ({"method": method}, [0.1, 0.1]) for method in FUZZY},
    "drift budget": ({"method": "pyramid", "drift_budget": 0.2}, [0.3, 0.5]),
}


@pytest.fixture(scope="module")
def family():
    return graded_family("llama", 3)


def texts(pyramid: AdaptivePyramid, taus: list[float], seed: int = 7, **keywords) -> set[tuple[int, ...]]:
    """What one seed gives under several lengths."""
    return {
        tuple(
            pyramid.generate(PROMPT, seed=seed, config=PyramidConfig.simple(lengths, taus), **SETTINGS, **keywords).ids
        )
        for lengths in LENGTHS
    }


@pytest.mark.parametrize("method", ["ar", "pyramid"])
def test_the_ids_whatever_lengths_thresholds_routes_and_control(family, method):
    pyramid = AdaptivePyramid(family, method=method)
    expected = tuple(reference_ids(family[-1], PROMPT, 7, **SETTINGS))
    assert texts(pyramid, [0.0, 0.0]) == texts(pyramid, [0.3, 0.5]) == {expected}
    for keywords in (
        {"control": "auto"},
        {"control": "thompson"},
        {"config": PyramidConfig.simple([3, 3], route=(1, 2))},
    ):
        out = pyramid.generate(PROMPT, seed=7, **SETTINGS, **keywords)
        assert tuple(out.ids) == expected and out.seed == 7
    shorter = pyramid.generate(PROMPT, seed=7, **{**SETTINGS, "max_new_tokens": 9})
    assert tuple(shorter.ids) == expected[:9]


@pytest.mark.parametrize("name", REPEATING_WITH_ITS_CONFIG)
def test_the_ids_for_the_same_tiers_and_the_same_config(family, name):
    keywords, taus = REPEATING_WITH_ITS_CONFIG[name]
    config = PyramidConfig.simple([2, 3], taus)
    pyramid = AdaptivePyramid(family)
    first = pyramid.generate(PROMPT, seed=7, config=config, **SETTINGS, **keywords)
    assert first.seed == 7
    assert pyramid.generate(PROMPT, seed=8, config=config, **SETTINGS, **keywords).ids != first.ids
    assert pyramid.generate(PROMPT, seed=7, config=config, **SETTINGS, **keywords).ids == first.ids  # warm caches
    again = AdaptivePyramid(family, config=config, control="fixed", **keywords)
    assert again.generate(PROMPT, seed=7, **SETTINGS).ids == first.ids


@pytest.mark.parametrize("name", REPEATING_WITH_ITS_CONFIG)
def test_not_the_ids_under_other_lengths(family, name):
    """The limit of the promise: were these texts equal, the docs would promise too little."""
    keywords, taus = REPEATING_WITH_ITS_CONFIG[name]
    assert len(texts(AdaptivePyramid(family), taus, **keywords)) > 1


@pytest.mark.parametrize("method", FUZZY)
def test_a_fuzzy_method_without_thresholds_repeats_as_ar_does(family, method):
    pyramid = AdaptivePyramid(family, method=method)
    assert texts(pyramid, [0.0, 0.0]) == {tuple(reference_ids(family[-1], PROMPT, 7, **SETTINGS))}


def test_not_the_ids_where_control_goes_by_the_clock(family):
    """Then no seed is reported: nothing that is printed could give the text again."""
    pyramid = AdaptivePyramid(family, drift_budget=0.2)
    assert pyramid.generate(PROMPT, seed=7, **SETTINGS).seed is None
    assert pyramid.generate(PROMPT, seed=7, method="sd", drift_budget=None, control="thompson", **SETTINGS).seed is None
    assert pyramid.generate(PROMPT, seed=7, control="fixed", **SETTINGS).seed == 7


def test_row_i_draws_with_seed_plus_i(family):
    pyramid = AdaptivePyramid(family)
    rows = pyramid.generate([PROMPT, PROMPT], seed=7, pad_token_id=0, **SETTINGS)
    for i, row in enumerate(rows):
        assert row.ids == reference_ids(family[-1], PROMPT, 7 + i, **SETTINGS)
