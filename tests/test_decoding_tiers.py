"""One to five tiers, routes that skip and fall through, changed between blocks; and the caches beneath them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from adaptive_pyramid.config import PyramidConfig, StageConfig, all_routes
from adaptive_pyramid.decoding.decoder import PyramidDecoder
from adaptive_pyramid.decoding.drafters import PromptLookup
from adaptive_pyramid.decoding.method import Method
from adaptive_pyramid.pyramid import AdaptivePyramid
from adaptive_pyramid.request import GenerationRequest
from tests.engine import ChosenControl, check_identities, counted_forwards, reference_ids
from tests.tiny import ARCHITECTURES, EOS, VOCAB, graded_family, perturbed, tiny_model

torch.set_num_threads(1)
PROMPT = [1, 10, 11, 12]


def request(new: int = 24, eos: tuple[int, ...] = (), prompt: list[int] = PROMPT, **fields) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), max_new_tokens=new, eos=frozenset(eos), **fields)


def decoded(decoder: PyramidDecoder, asked: GenerationRequest, configs, method="pyramid"):
    """-> (ids, block statistics); `configs` maps the index of a block to its config."""
    decoding, stats = decoder.start(asked, method), []
    while not decoding.finished:
        stats.append(decoding.step(configs(len(stats))).stats)
    return decoding.new_ids, stats


def random_stages(rng: random.Random, n: int) -> tuple[StageConfig, ...]:
    return tuple(
        StageConfig(rng.choice((1, 2, 3, 5, 8)), rng.choice((0, 0, 0.3)), rng.choice((None, None, 0.6)))
        for _ in range(n)
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("n_tiers", [1, 2, 3, 5])
def test_greedy_equals_generate_with_any_number_of_tiers(arch, n_tiers):
    """Every block with another random route (skipping, or falling through) and other lengths."""
    family = graded_family(arch, n_tiers)
    decoder = PyramidDecoder(family)
    rng = random.Random(n_tiers)
    routes = all_routes(n_tiers)
    routes += [((route[0], route[1]), *route[2:]) for route in routes if len(route) > 2]
    happened, tested, accepted = Counter(), 0, 0
    for prompt in (PROMPT, [4, 5, 6, 7] * 3):
        reference = reference_ids(family[-1], prompt, max_new_tokens=24, eos_token_id=None)
        for eos in ((), (reference[14],), (reference[6], EOS)):
            expected = reference_ids(family[-1], prompt, max_new_tokens=24, eos_token_id=list(eos) or None)
            with counted_forwards(family) as (passes, read):
                ids, blocks = decoded(
                    decoder,
                    request(24, eos, prompt),
                    lambda _: PyramidConfig(random_stages(rng, n_tiers - 1), rng.choice(routes)),
                )
            assert ids == expected
            happened["eos"] += ids[-1] in eos
            for block in blocks:
                for v in block.verifications:
                    tested, accepted = tested + v.tested, accepted + v.accepted
                    happened["accept"] += v.accepted > 0
                    happened["reject"] += v.rejected
                    happened["bonus"] += v.emitted == v.proposed + 1 > 1
            happened["clip"] += (
                len(blocks[-1].config.route) > 1
                and blocks[-1].verifications[-1].proposed < blocks[-1].config.stages[-1].length
            )
    if n_tiers > 1:
        assert all(happened[what] for what in ("eos", "accept", "reject", "bonus", "clip")), happened
        assert 0.2 < accepted / tested < 0.95


@pytest.mark.parametrize("lengths", [(1, 1), (2, 3), (5, 2), (4, 8)])
@pytest.mark.parametrize("how", ["greedy", "exact", "keyed"])
def test_one_model_as_all_tiers_is_always_accepted(lengths, how):
    """fp32. Catches the draft whose last token, after a full acceptance, never enters its own cache."""
    model = tiny_model("llama", dtype=torch.float32)
    decoder = PyramidDecoder([model] * 3)
    method = {"greedy": "polybasic", "exact": "polybasic", "keyed": Method("match", "match", "match")}[how]
    for seed in range(3):
        asked = request(40, do_sample=how != "greedy", seed=seed, seeded=how == "keyed", prompt=[1, 10 + seed, 11])
        ids, blocks = decoded(decoder, asked, lambda _: PyramidConfig.simple(lengths), method)
        assert len(ids) == 40
        for block in blocks:
            for v in block.verifications:
                assert (v.accepted, v.rejected) == (v.proposed, 0)
        for block in blocks[1:-1]:
            # A full block each time: rounds of lengths[0] + 1 until lengths[1] are there, and the target's bonus token.
            rounds = -(-lengths[1] // (lengths[0] + 1))
            assert block.tokens == rounds * (lengths[0] + 1) + 1
            # No tier reads anything twice: it lags by its own last token and the bonus token of every tier above it.
            assert all(f.width <= f.needed + (2, 1, 0)[f.tier] for f in block.forwards if f.tier)
            assert sum(f.width for f in block.forwards if f.tier == 0) == block.tokens


def test_every_route_of_three_tiers_by_itself():
    family = graded_family("llama", 3)
    decoder = PyramidDecoder(family)
    expected = reference_ids(family[-1], PROMPT, max_new_tokens=24, eos_token_id=None)
    for route in [*all_routes(3), ((0, 1), 2)]:
        with counted_forwards(family) as (passes, _):
            ids, blocks = decoded(decoder, request(24), lambda _: PyramidConfig.simple([3, 4], route=route))
        assert ids == expected
        used = {tier for entry in route for tier in (entry if isinstance(entry, tuple) else (entry,))}
        assert set(passes) <= used
        if ((0, 1), 2) == route:
            assert 1 not in passes  # a model never abstains while it can read the text


def test_lookup_falls_through_to_a_model():
    """The lookup answers where it finds something; where it abstains the draft does."""
    family = graded_family("llama", 2)
    decoder = PyramidDecoder([PromptLookup(3, 2), *family])
    prompt = [5, 6, 7, 8, 9, 5, 6, 7]
    expected = reference_ids(family[-1], prompt, max_new_tokens=40, eos_token_id=None)
    ids, blocks = decoded(
        decoder, request(40, prompt=prompt), lambda _: PyramidConfig.simple([3, 3], route=((0, 1), 2))
    )
    assert ids == expected
    assert {v.proposer for block in blocks for v in block.verifications if v.proposed} == {0, 1}


def test_vertical_cascade():
    """PromptLookup under a small model under the qualifier under the target: Cascade Speculative Drafting by recursion alone."""
    family = graded_family("llama", 3)
    decoder = PyramidDecoder([PromptLookup(3, 1), *family])
    prompt = [5, 6, 7, 8] * 4
    expected = reference_ids(family[-1], prompt, max_new_tokens=40, eos_token_id=None)
    with counted_forwards(decoder.tiers) as (passes, _):
        ids, blocks = decoded(decoder, request(40, prompt=prompt), lambda _: PyramidConfig.simple([3, 3, 4]))
    assert ids == expected
    accepted = Counter()
    for v in (v for block in blocks for v in block.verifications):
        accepted[v.proposer] += v.accepted
    assert all(accepted[tier] for tier in (0, 1, 2)), "every tier's proposals were of some use"
    assert {origin for block in blocks for origin in block.origins} >= {0, 1, 3}


@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_tiers_of_different_dtypes(how):
    family = graded_family("llama", 3)
    tiers = [family[0].float(), family[1].to(torch.bfloat16), family[2]]
    settings = {
        "max_new_tokens": 24,
        "eos_token_id": None,
        **({"do_sample": True, "top_k": 30} if how == "sampled" else {}),
    }
    expected = reference_ids(family[2], PROMPT, 5, **settings)
    out = AdaptivePyramid(tiers).generate(PROMPT, config=PyramidConfig.simple([3, 4]), seed=5, **settings)
    assert out.ids == expected
    assert sum(stage.accepted for stage in out.stats.stages) > 5 and sum(stage.rejected for stage in out.stats.stages)


def test_the_target_reads_nothing_twice():
    """Its forwards are one prefill and then, per block, the proposal and at most one token more."""
    family = graded_family("mistral", 3)
    decoder = PyramidDecoder(family)
    prompt = list(range(4, 34))
    with counted_forwards(family) as (passes, read):
        ids, blocks = decoded(decoder, request(40, prompt=prompt), lambda _: PyramidConfig.simple([3, 4]))
    target = [f for block in blocks for f in block.forwards if f.tier == 2]
    assert passes[2] == len(blocks) == len(target)
    assert target[0].context == 0 and target[0].width == len(prompt) + blocks[0].verifications[-1].proposed
    for block, forward in zip(blocks[1:], target[1:]):
        assert forward.width == block.verifications[-1].proposed + 1
    # A second call with a longer text on top of the first reads only what is new.
    with counted_forwards(family) as (passes, read):
        decoded(decoder, request(4, prompt=[*prompt, *ids, 7]), lambda _: PyramidConfig.simple([1, 1]))
    assert read[2] < 20


def test_two_decodings_of_one_decoder_may_be_interleaved():
    family = graded_family("gemma3", 3)
    decoder = PyramidDecoder([PromptLookup(2, 1), *family])
    prompts = ([1, 10, 11, 12], [1, 10, 11, 30, 31])
    expected = [reference_ids(family[-1], prompt, max_new_tokens=16, eos_token_id=None) for prompt in prompts]
    decodings = [decoder.start(request(16, prompt=prompt)) for prompt in prompts]
    rng = random.Random(0)
    while any(not d.finished for d in decodings):
        decoding = rng.choice([d for d in decodings if not d.finished])
        decoding.step(PyramidConfig(random_stages(rng, 3), rng.choice([(0, 1, 2, 3), (1, 3), (0, 3), (2, 3)])))
    assert [d.new_ids for d in decodings] == expected


def test_blocks_can_be_driven_by_hand():
    family = graded_family("llama", 3)
    decoder = PyramidDecoder(family)
    expected = reference_ids(family[-1], PROMPT, max_new_tokens=24, eos_token_id=None)
    blocks = decoder.blocks(request(24), PyramidConfig.simple([2, 3]))
    block, tokens, labels = next(blocks), [], []
    for route in [(2,), (0, 2), (1, 2), (0, 1, 2)] * 24:
        tokens += block.tokens
        labels.append(block.stats.config.route)
        assert block.scores.shape == block.logits.shape == (len(block.tokens), VOCAB)
        try:
            block = blocks.send(PyramidConfig.simple([2, 3], route=route))
        except StopIteration:
            break
    assert tokens == expected
    assert labels[:5] == [(0, 1, 2), (2,), (0, 2), (1, 2), (0, 1, 2)]
    plain = [token for block in decoder.blocks(request(24), PyramidConfig.simple([2, 3])) for token in block.tokens]
    assert plain == expected


def test_a_decoder_refuses_what_it_cannot_run():
    family = graded_family("llama", 2)
    decoder = PyramidDecoder([PromptLookup(), *family])
    with pytest.raises(ValueError, match="for 2 tiers, this pyramid has 3"):
        decoder.start(request()).step(PyramidConfig.simple([2]))
    with pytest.raises(TypeError, match="last tier must be a transformers model"):
        PyramidDecoder([family[0], PromptLookup()])
    with pytest.raises(TypeError, match="tier 0 must be a transformers model, PromptLookup"):
        PyramidDecoder(["smollm2", family[1]])
    with pytest.raises(ValueError, match="tier 1 has no model, so it can only stand at the bottom"):
        PyramidDecoder([family[0], PromptLookup(), family[1]]).check(PyramidConfig.simple([2, 2]))
    finished = decoder.start(request(1))
    finished.step(PyramidConfig.simple([2, 2], route=(2,)))
    with pytest.raises(RuntimeError, match="finished"):
        finished.step(PyramidConfig.simple([2, 2]))


def test_counters_add_up_with_hooks_on_the_models():
    family = graded_family("llama", 3)
    pyramid = AdaptivePyramid(family)
    rng = random.Random(3)
    control = ChosenControl(lambda blocks: PyramidConfig(random_stages(rng, 2), rng.choice(all_routes(3))))
    for seed in range(4):
        with counted_forwards(family) as (passes, read):
            out = pyramid.generate(
                PROMPT, control=control, seed=seed, do_sample=seed % 2 == 1, max_new_tokens=40, eos_token_id=EOS
            )
        check_identities(out.stats, out.ids, 3, passes, read)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rollback_at_any_depth(arch):
    """A draft that is refused again and again beyond the window: caches are cropped by 1 .. 8 tokens many times in a row."""
    target = tiny_model(arch)
    drafts = [perturbed(target, 0.5, seed) for seed in range(2)]  # hopeless: almost everything is refused
    decoder = PyramidDecoder([*drafts, target])
    prompt = [4 + i % 20 for i in range(20)]  # beyond the window of 6
    expected = reference_ids(target, prompt, max_new_tokens=24, eos_token_id=None)
    ids, blocks = decoded(
        decoder, request(24, prompt=prompt), lambda i: PyramidConfig.simple([1 + i % 8, 1 + (5 * i) % 8])
    )
    assert ids == expected
    assert sum(v.proposed - v.accepted for block in blocks for v in block.verifications) > 40


def test_a_lookup_that_was_not_asked_is_looked_at_all_the_same():
    """What its shadow says is what it earns when it is asked, and looking changes nothing else."""
    family = graded_family("llama", 2)
    prompt = [4, 5, 6, 7] * 3
    pyramid = AdaptivePyramid([PromptLookup(3, 1), *family])
    keywords = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False}
    alone, asked = (
        pyramid.generate(prompt, config=PyramidConfig.simple([1, 16], route=route), **keywords)
        for route in ((2,), (0, 2))
    )
    assert alone.ids == asked.ids
    shadows = {block.position: block.shadows[0] for block in alone.stats.blocks}  # one per token
    hits = 0
    for block in asked.stats.blocks:
        assert block.shadows == (), "the target asked it"
        (verification,) = block.verifications
        shadow = shadows[block.position]
        assert (shadow.tier, bool(shadow.proposed)) == (0, bool(verification.proposed))
        assert (shadow.accepted, shadow.tested) == (min(1, verification.accepted), min(1, verification.proposed))
        hits += shadow.accepted
    chain = pyramid.generate(prompt, config=PyramidConfig.simple([4, 8]), **keywords)
    assert all(len(block.shadows) == 1 for block in chain.stats.blocks), (
        "the target asked tier 1, which asked the lookup"
    )
    assert hits > 3


@pytest.mark.parametrize("tier", [0, 3, -1])
def test_only_verifying_tiers_have_stages(tier):
    config = PyramidConfig.simple([2, 4])
    for ask in (config.stage, lambda tier: config.with_stage(tier, length=3)):
        with pytest.raises(ValueError, match="expected one of the verifying tiers 1 to 2"):
            ask(tier)
