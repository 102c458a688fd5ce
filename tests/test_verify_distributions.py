"""Every verifier's emitted distribution, computed (not sampled) through the real `Verifier.verify`, against the definitions.

The only randomness of a verdict is its uniforms. As functions of one uniform its decisions are monotone steps, so bisection
finds where they jump and the probability of every token is an interval's length, exact to the bisection's width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from adaptive_pyramid.decoding.divergence import DIVERGENCES
from adaptive_pyramid.decoding.drift import DriftBudget
from adaptive_pyramid.decoding.sampling import KeyedNoise, PrivateNoise, Sampler, inverse_cdf
from adaptive_pyramid.decoding.tokens import Tokens
from adaptive_pyramid.decoding.verify import Proposal, Verdict, Verifier
from adaptive_pyramid.names import RULE_NAMES
from tests.toys import VOCAB, warped_distribution, warpers

WIDTH = 2.0**-22  # of the bisection: 2.4e-7
TOLERANCE = 1e-6
SETTINGS = [
    dict(zip(("temperature", "top_k", "top_p", "min_p"), values))
    for values in itertools.product((0.6, 1.0, 1.5), (0, 2), (1.0, 0.7), (0.0, 0.15))
]
# 0 is off; each of the others lets some positions of the settings pass and not all (asserted).
TAUS = {"exact": (0.0,), "match": (0.0,), "fuzzy": (0.0, 0.03, 0.1), "relaxed": (0.0, 0.15, 0.4)}
RULES_AND_TAUS = [(rule, tau) for rule in RULE_NAMES for tau in TAUS[rule]]


class GivenNoise(PrivateNoise):
    """Uniforms that the test chooses: one per proposed token, then one for the token after them."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.values: list[float] = []

    def uniform(self, n: int, device: torch.device) -> torch.Tensor:
        assert n == len(self.values)
        return torch.tensor(self.values, dtype=torch.float32)


def step_lengths(step: Callable[[float], int]) -> dict[int, float]:
    """Length of the part of [0, 1) on which a monotone step function takes each of its values."""
    lengths: dict[int, float] = {}

    def split(low: float, at_low: int, high: float, at_high: int) -> None:
        if at_low == at_high:
            lengths[at_low] = lengths.get(at_low, 0.0) + high - low
            return
        middle = (low + high) / 2
        if high - low <= WIDTH:
            lengths[at_low] = lengths.get(at_low, 0.0) + middle - low
            lengths[at_high] = lengths.get(at_high, 0.0) + high - middle
            return
        at_middle = step(middle)
        split(low, at_low, middle, at_middle)
        split(middle, at_middle, high, at_high)

    last = 1 - 2.0**-24
    split(0.0, step(0.0), 1.0, step(last))
    return lengths


def random_logits(seed: int, rows: int = 2, spread: float = 0.8) -> tuple[torch.Tensor, torch.Tensor]:
    """Verifier's logits float32 [rows, V] and the proposer's for all but the last row."""
    generator = torch.Generator().manual_seed(seed)
    p = 1.5 * torch.randn(rows, VOCAB, generator=generator)
    return p, p[:-1] + spread * torch.randn(rows - 1, VOCAB, generator=generator)


def emitted_distribution(
    verifier: Verifier,
    noise: GivenNoise,
    logits: torch.Tensor,
    scores: torch.Tensor,
    draft_logits: torch.Tensor,
    distribution: torch.Tensor,
    tau: float,
) -> tuple[np.ndarray, list[Verdict]]:
    """Of the first token emitted for a proposal of one token drawn from `distribution` [1, V]: float64 [V]; one verdict per outcome."""
    verdicts: list[Verdict] = []

    def verify(x: int, *uniforms: float) -> Verdict:
        noise.values = list(uniforms)
        return verifier.verify(
            Proposal(Tokens([x]), 0, [0], distributions=distribution, logits=draft_logits),
            logits,
            scores,
            tau,
            position=7,
        )

    total = np.zeros(VOCAB)
    for x in range(VOCAB):
        mass = float(distribution[0, x])
        if mass == 0:
            continue

        def outcome(u: float) -> int:
            verdict = verify(x, u, 0.5)
            # The draw that `match` compares with walks through the vocabulary as u grows; an exact test passes below a bound.
            return verdict.tokens[0] if verifier.rule in ("match", "fuzzy") else verdict.n_accepted

        first = step_lengths(outcome)
        if verifier.rule in ("match", "fuzzy"):
            for token, share in first.items():
                total[token] += mass * share
            verdicts += [verify(x, u, 0.5) for u in (0.0, 0.5, 0.999)]
            continue
        accepted = first.get(1, 0.0)
        total[x] += mass * accepted
        if accepted > WIDTH:
            verdicts.append(verify(x, 0.0, 0.3))
        if first.get(0, 0.0) > WIDTH:
            refusing = 1 - first[0] / 2
            for token, share in step_lengths(lambda u: verify(x, refusing, u).tokens[0]).items():
                total[token] += mass * first[0] * share
            verdicts.append(verify(x, refusing, 0.3))
    return total, verdicts


def prepared(
    settings: dict, seed: int
) -> tuple[Sampler, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]:
    sampler = Sampler(True, warpers(**settings))
    logits, draft_logits = random_logits(seed)
    scores, draft_scores = sampler.scores(logits, None, Tokens()), sampler.scores(draft_logits, None, Tokens())
    p = np.array([warped_distribution(row, **settings) for row in logits.double().numpy()])
    q = warped_distribution(draft_logits[0].double().numpy(), **settings)
    return sampler, logits, scores, draft_logits, sampler.distributions(draft_scores), p, q


def reference_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Jensen-Shannon divergence of two rows of raw logits, nats."""
    p, q = warped_distribution(p), warped_distribution(q)
    middle = (p + q) / 2
    return float((p * np.log(p / middle) + q * np.log(q / middle)).sum() / 2)


@pytest.mark.parametrize(("rule", "tau"), RULES_AND_TAUS)
def test_emitted_distribution_under_private_noise(rule, tau):
    loosened = set()
    for seed, settings in enumerate(SETTINGS):
        sampler, logits, scores, draft_logits, distribution, p, q = prepared(settings, seed)
        noise = GivenNoise()
        measured, verdicts = emitted_distribution(
            Verifier(rule, "js", sampler, noise), noise, logits, scores, draft_logits, distribution, tau
        )
        distance = 0.5 * np.abs(p[0] - q).sum()
        compared = (
            reference_divergence(*logits.double().numpy()[:1], draft_logits[0].double().numpy())
            if rule == "fuzzy"
            else distance
        )
        loose = tau > 0 and compared <= tau
        loosened.add(loose)
        np.testing.assert_allclose(measured, q if loose else p[0], atol=TOLERANCE, err_msg=f"{settings}")
        assert {verdict.n_accepted for verdict in verdicts} <= ({1} if loose else {0, 1})
        for verdict in verdicts:
            # What the verdict says about itself: the distribution of both tokens, and the distance of the first from p.
            np.testing.assert_allclose(verdict.distributions[0], measured, atol=TOLERANCE)
            np.testing.assert_allclose(
                verdict.drift[0], 0.5 * np.abs(measured - p[0]).sum() if loose else 0.0, atol=TOLERANCE
            )
            assert len(verdict.tokens) == len(verdict.distributions) == len(verdict.drift) == verdict.n_accepted + 1
            if verdict.n_accepted:
                np.testing.assert_allclose(verdict.distributions[1], p[1], atol=TOLERANCE)
                assert verdict.drift[1] == 0.0
            np.testing.assert_allclose(verdict.distances, [distance], atol=TOLERANCE)
            np.testing.assert_allclose(verdict.divergences, [compared], atol=TOLERANCE)
    assert loosened == ({False} if tau == 0 else {False, True})  # both branches were really taken


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_bonus_token_is_drawn_from_the_verifiers_distribution(rule):
    for seed, settings in enumerate(SETTINGS[::5]):
        sampler, logits, scores, draft_logits, distribution, p, _ = prepared(settings, seed)
        noise = GivenNoise()
        verifier = Verifier(rule, "js", sampler, noise)
        x = int(p[0].argmax())
        start = float(p[0][:x].sum() + p[0][x] / 2) if rule in ("match", "fuzzy") else 0.0  # accepted for certain

        def bonus(u: float) -> int:
            noise.values = [start, u]
            verdict = verifier.verify(
                Proposal(Tokens([x]), 0, [0], distributions=distribution, logits=draft_logits), logits, scores, 0.0, 7
            )
            assert verdict.n_accepted == 1
            return verdict.tokens[1]

        measured = step_lengths(bonus)
        np.testing.assert_allclose([measured.get(token, 0.0) for token in range(VOCAB)], p[1], atol=TOLERANCE)


@pytest.mark.parametrize(("rule", "tau"), RULES_AND_TAUS)
def test_emitted_distribution_of_a_point_mass_proposal(rule, tau):
    """A lookup's distribution is the point mass on what it found, in acceptance, residuals, drift and what is passed on."""
    point = torch.nn.functional.one_hot(torch.arange(VOCAB), VOCAB).float()
    for seed, settings in enumerate(SETTINGS[::3]):
        sampler, logits, scores, _, _, p, _ = prepared(settings, seed)
        for x in range(VOCAB):
            noise = GivenNoise()
            verifier = Verifier(rule, "tv", sampler, noise)
            distance = 1 - p[0][x]
            compared = 1 - warped_distribution(logits[0].double().numpy())[x] if rule == "fuzzy" else distance
            loose = tau > 0 and compared <= tau

            def verify(*uniforms: float) -> Verdict:
                noise.values = list(uniforms)
                return verifier.verify(Proposal(Tokens([x]), 0, [0]), logits, scores, tau, 7)

            accepted = (
                step_lengths(lambda u: int(verify(u, 0.5).tokens[0] == x)).get(1, 0.0)
                if rule in ("exact", "relaxed")
                else None
            )
            if accepted is not None:
                np.testing.assert_allclose(accepted, 1.0 if loose else p[0][x], atol=TOLERANCE)
            for u, v in itertools.product((0.01, 0.3, 0.6, 0.99), repeat=2):
                verdict = verify(u, v)
                np.testing.assert_allclose(verdict.distributions[0], point[x] if loose else p[0], atol=TOLERANCE)
                np.testing.assert_allclose(verdict.drift[0], distance if loose else 0.0, atol=TOLERANCE)
                assert p[0][verdict.tokens[0]] > 0 or loose
                if verdict.n_accepted == 0:
                    assert verdict.tokens[0] != x  # the residual of a point mass has nothing left at x


def test_no_proposal_draws_from_the_verifiers_distribution():
    for settings in SETTINGS[::5]:
        sampler, logits, scores, _, _, p, _ = prepared(settings, 3)
        noise = GivenNoise()
        for rule in RULE_NAMES:

            def draw(u: float) -> int:
                noise.values = [u]
                verdict = Verifier(rule, "js", sampler, noise).verify(None, logits[:1], scores[:1], 0.5, 7)
                assert (verdict.n_accepted, verdict.drift, len(verdict.distributions)) == (0, [0.0], 1)
                return verdict.tokens[0]

            lengths = step_lengths(draw)
            np.testing.assert_allclose([lengths.get(token, 0.0) for token in range(VOCAB)], p[0], atol=TOLERANCE)


@pytest.mark.parametrize(("rule", "tau"), [pair for pair in RULES_AND_TAUS if pair[0] != "exact"])
def test_coupled_noise_emits_the_shared_draw(rule, tau):
    """With keyed noise every emitted token is argmax(p * e^g) of the distribution p that the verdict names, path by path."""
    noise = KeyedNoise(seed=5, vocab_size=VOCAB)
    seen = set()
    for seed, settings in enumerate(SETTINGS * 2):
        sampler, logits, scores, draft_logits, distribution, p, q = prepared(settings, seed)
        position = 100 * seed
        x = noise.draw(distribution, position)
        verdict = Verifier(rule, "js", sampler, noise).verify(
            Proposal(Tokens(x.tolist()), 0, [0], distributions=distribution, logits=draft_logits),
            logits,
            scores,
            tau,
            position,
        )
        distance = 0.5 * np.abs(p[0] - q).sum()
        compared = (
            reference_divergence(*logits.double().numpy()[:1], draft_logits[0].double().numpy())
            if rule == "fuzzy"
            else distance
        )
        loose = tau > 0 and compared <= tau
        np.testing.assert_allclose(verdict.distributions[0], q if loose else p[0], atol=TOLERANCE)
        np.testing.assert_allclose(verdict.drift[0], distance if loose else 0.0, atol=TOLERANCE)
        for i, token in enumerate(verdict.tokens):
            assert token == noise.draw(verdict.distributions[i : i + 1], position + i)
        seen.add((loose, verdict.n_accepted))
    assert seen >= {(False, 0), (False, 1)} | ({(True, 1)} if tau else set())


def test_keyed_draws_have_the_distribution_they_were_drawn_from():
    distribution = torch.tensor([0.62, 0.3, 0.07, 0.01, 0.0])
    n = 40_000
    draws = KeyedNoise(seed=2, vocab_size=5).draw(distribution.expand(n, -1), position=0)
    counts = torch.bincount(draws, minlength=5).numpy()
    assert counts[4] == 0
    assert (
        stats.chisquare(
            counts[:4], n * distribution[:4].double().numpy() / distribution[:4].double().sum().numpy()
        ).pvalue
        > 1e-4
    )
    other = KeyedNoise(seed=3, vocab_size=5).draw(distribution.expand(n, -1), position=0)
    # Neither another seed nor the neighbouring position may share a stream: independent draws agree in sum p^2.
    for agreement in ((draws == other).double().mean(), (draws[1:] == draws[:-1]).double().mean()):
        assert abs(float(agreement) - float((distribution**2).sum())) < 5 * 0.5 / n**0.5


def test_keyed_draws_of_a_large_vocabulary_keep_to_what_is_likely():
    """Noise of too few bits is 0 or infinite once in 10^7 entries, and then any of 50,000 tokens wins, however unlikely."""
    vocabulary = 50_000
    distribution = torch.full((1, vocabulary), 1e-9 / vocabulary)
    distribution[0, 0] = 1.0
    noise = KeyedNoise(seed=1, vocab_size=vocabulary)
    assert all(int(noise.draw(distribution, position)) == 0 for position in range(2000))
    # And the tail is there: tokens of probability 1e-5 come up as often as they should.
    distribution[0, 0], distribution[0, 1:20_001] = 0.8, 1e-5
    rare = sum(0 < int(noise.draw(distribution, position)) <= 20_000 for position in range(2000))
    assert abs(rare - 400) < 5 * (2000 * 0.2 * 0.8) ** 0.5


def test_keyed_tiers_agree_as_often_as_the_coupling_bound_says():
    p, q = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.3, 0.3, 0.2, 0.2])
    noise = KeyedNoise(seed=0, vocab_size=4)
    n = 20_000
    agreement = float((noise.draw(p.expand(n, -1), 0) == KeyedNoise(0, 4).draw(q.expand(n, -1), 0)).double().mean())
    distance = float(0.5 * (p - q).abs().sum())
    assert (1 - distance) / (1 + distance) - 0.015 <= agreement <= 1 - distance + 0.015


@pytest.mark.parametrize(
    ("rule", "tau"),
    [("exact", 0.0), ("match", 0.0), ("fuzzy", 0.0), ("fuzzy", 0.08), ("relaxed", 0.0), ("relaxed", 0.8)],
)
def test_greedy_decisions(rule, tau):
    outcomes = set()
    for seed in range(60):
        logits, draft_logits = random_logits(seed, rows=4)
        sampler = Sampler(False, warpers(temperature=1.3))
        scores = sampler.scores(logits, None, Tokens())
        x = draft_logits.argmax(-1).tolist()
        verdict = Verifier(rule, "js", sampler, None).verify(
            Proposal(Tokens(x), 0, [0] * 3, logits=draft_logits), logits, scores, tau, 7
        )
        best, expected, drift = scores.argmax(-1).tolist(), [], []
        for i in range(3):
            regret = float(scores[i, best[i]] - scores[i, x[i]])
            compared = (
                reference_divergence(logits[i].double().numpy(), draft_logits[i].double().numpy())
                if rule == "fuzzy"
                else regret
            )
            loose = tau > 0 and rule in ("fuzzy", "relaxed") and compared <= tau
            if not loose and x[i] != best[i]:
                break
            expected.append(x[i])
            drift.append(regret if loose else 0.0)
            outcomes.add((loose, x[i] == best[i]))
        assert verdict.n_accepted == len(expected)
        assert verdict.tokens == [*expected, best[len(expected)]]
        np.testing.assert_allclose(verdict.drift, [*drift, 0.0], atol=1e-6)
        assert verdict.distributions is None
        # A regret is log p(best) - log p(x) of the processed distribution.
        log_p = torch.log_softmax(scores, -1)
        np.testing.assert_allclose(
            verdict.distances, [float(log_p[i, best[i]] - log_p[i, x[i]]) for i in range(3)], atol=1e-5
        )
        outcomes.add("refused" if len(expected) < 3 else "bonus")
    assert {"refused", "bonus", (False, True)} <= outcomes or tau > 0
    if tau > 0:
        assert {"refused", "bonus", (True, False), (True, True)} <= outcomes


def test_rows_of_a_longer_verdict_belong_to_their_positions():
    """Some of four positions loose, some not: distributions, drift, scores and flags line up with the tokens."""
    mixed = 0
    for seed in range(40):
        sampler = Sampler(True, warpers(temperature=0.9))
        logits, draft_logits = random_logits(seed, rows=5, spread=0.5)
        scores, distribution = (
            sampler.scores(logits, None, Tokens()),
            sampler.distributions(sampler.scores(draft_logits, None, Tokens())),
        )
        noise = PrivateNoise(seed)
        x = noise.draw(distribution, 0).tolist()
        verdict = Verifier("relaxed", "js", sampler, noise).verify(
            Proposal(Tokens(x), 0, [0] * 4, distributions=distribution), logits, scores, 0.15, 7
        )
        p, n = sampler.distributions(scores), verdict.n_accepted
        distance = 0.5 * (p[:4] - distribution).abs().sum(-1)
        loose = distance <= 0.15
        mixed += 0 < int(loose[:n].sum()) < n
        assert verdict.tokens[:n] == x[:n]
        for i in range(n):
            torch.testing.assert_close(verdict.distributions[i], distribution[i] if loose[i] else p[i])
            assert verdict.drift[i] == pytest.approx(float(distance[i]) if loose[i] else 0.0, abs=1e-7)
        torch.testing.assert_close(verdict.distributions[n], p[n])
        assert len(verdict.scores) == len(verdict.logits) == n + 1 and len(verdict.entropies) == 5
        torch.testing.assert_close(verdict.scores, scores[: n + 1])
        torch.testing.assert_close(verdict.logits, logits[: n + 1])
    assert mixed > 5


def test_budget_turns_a_loose_position_into_an_exact_one():
    sampler = Sampler(True)
    logits, draft_logits = random_logits(1)
    distribution, p = sampler.distributions(draft_logits), sampler.distributions(logits)
    distance = float(0.5 * (p[0] - distribution[0]).abs().sum())
    for allowed in (0.9 * distance, 1.1 * distance):
        noise = GivenNoise()

        class Budgeted(Verifier):
            def verify(self, *args, **kwargs):
                return super().verify(*args, budget=DriftBudget(allowed), **kwargs)

        measured, verdicts = emitted_distribution(
            Budgeted("relaxed", "js", sampler, noise), noise, logits, logits, draft_logits, distribution, 1.0
        )
        np.testing.assert_allclose(measured, distribution[0] if allowed > distance else p[0], atol=TOLERANCE)
        for verdict in verdicts:
            np.testing.assert_allclose(verdict.distributions[0], measured, atol=TOLERANCE)
            assert verdict.drift[0] == pytest.approx(distance if allowed > distance else 0.0, abs=1e-6)


def test_equal_distributions_are_always_accepted_and_leave_no_residual():
    """distribution == p to the last bit: no uniform below 1 may refuse, and a residual without mass falls back on p."""
    sampler = Sampler(True)
    logits, _ = random_logits(4)
    distribution = sampler.distributions(logits[:1])
    noise = GivenNoise()
    for x, u in itertools.product(range(VOCAB), (0.0, 0.5, 1 - 2.0**-24)):
        noise.values = [u, 0.5]
        verdict = Verifier("exact", "js", sampler, noise).verify(
            Proposal(Tokens([x]), 0, [0], distributions=distribution), logits, logits, 0.0, 7
        )
        assert verdict.n_accepted == 1


def test_a_token_that_the_verifier_rules_out_is_refused_even_at_zero():
    sampler = Sampler(True, warpers(top_k=2))
    logits, draft_logits = random_logits(6)
    scores, distribution = sampler.scores(logits, None, Tokens()), sampler.distributions(draft_logits)
    x = int(sampler.distributions(scores)[0].argmin())
    for rule, proposed in itertools.product(("exact", "relaxed"), (distribution, None)):
        noise = GivenNoise()
        noise.values = [0.0, 0.0]
        verdict = Verifier(rule, "js", sampler, noise).verify(
            Proposal(Tokens([x]), 0, [0], distributions=proposed), logits, scores, 0.0, 7
        )
        assert verdict.n_accepted == 0 and sampler.distributions(scores)[0, verdict.tokens[0]] > 0


def test_near_ties_are_counted_and_leave_the_scores_alone():
    scores = torch.tensor([[3.0, 2.999, -5.0], [3.0, 2.5, -torch.inf], [-2.0, -2.001, -2.002]])
    before = scores.clone()
    sampler = Sampler(False)
    verdict = Verifier("exact", "js", sampler, None, rounding=2**-8).verify(
        Proposal(Tokens([0, 0]), 0, [0, 0]), scores, scores, 0.0, 7
    )
    assert verdict.near_ties == [True, False, True]
    assert torch.equal(scores, before)
    assert Verifier("exact", "js", sampler, None).verify(None, scores[:1], scores[:1], 0.0, 7).near_ties == []


def test_inverse_cdf_never_draws_an_index_without_mass():
    masses = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]]).expand(5, -1)
    uniforms = torch.tensor([0.0, 0.29999, 0.30001, 0.999, 1 - 2.0**-24])
    assert inverse_cdf(masses, uniforms).tolist() == [1, 1, 3, 3, 3]
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        masses = torch.rand(8, 50, generator=generator) * (torch.rand(8, 50, generator=generator) < 0.3)
        masses[:, 7] += 1e-3
        for u in (torch.rand(8, generator=generator), torch.full((8,), 1 - 2.0**-24), torch.zeros(8)):
            assert (masses.gather(1, inverse_cdf(masses, u)[:, None]) > 0).all()


def topk_mismatch(k: int) -> Callable[[np.ndarray, np.ndarray], float]:
    return lambda p, q: 1 - len(set(np.argsort(-p)[:k]) & set(np.argsort(-q)[:k])) / k


DEFINITIONS = {
    "js": reference_divergence,
    "tv": lambda p, q: 0.5 * np.abs(warped_distribution(p) - warped_distribution(q)).sum(),
    "kl": lambda p, q: (warped_distribution(p) * np.log(warped_distribution(p) / warped_distribution(q))).sum(),
    "kl_rev": lambda p, q: (warped_distribution(q) * np.log(warped_distribution(q) / warped_distribution(p))).sum(),
    "logit_gap": lambda p, q: p.max() - p[q.argmax()],
    "topk_1": topk_mismatch(1),
    "topk_5": topk_mismatch(5),
    "topk_20": topk_mismatch(20),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_fuzzy_compares_the_named_divergence_of_raw_logits(name):
    """One position just within tau and the same position just beyond it; temperature must not enter the comparison."""
    sampler = Sampler(True, warpers(temperature=0.5))
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(2, 30, generator=generator)
    draft_logits = logits[:1] + 2 * torch.randn(1, 30, generator=generator)
    scores, distribution = (
        sampler.scores(logits, None, Tokens()),
        sampler.distributions(sampler.scores(draft_logits, None, Tokens())),
    )
    expected = DEFINITIONS[name](logits[0].double().numpy(), draft_logits[0].double().numpy())
    assert expected > 0.01
    verifier = Verifier("fuzzy", name, sampler, PrivateNoise(0))
    x = int(scores[0].argmin())  # hopeless under the verifier's own draw
    for tau, n_accepted in ((expected * 1.001, 1), (expected * 0.999, 0)):
        verdict = verifier.verify(
            Proposal(Tokens([x]), 0, [0], distributions=distribution, logits=draft_logits), logits, scores, tau, 7
        )
        assert verdict.n_accepted == n_accepted
        assert verdict.divergences == pytest.approx([expected], rel=1e-5)


def test_divergences_against_their_definitions():
    assert DEFINITIONS.keys() == DIVERGENCES.keys()
    generator = torch.Generator().manual_seed(0)
    p = 2 * torch.randn(30, 40, generator=generator)
    q = p + torch.randn(30, 40, generator=generator)
    for name, definition in DEFINITIONS.items():
        expected = [definition(a, b) for a, b in zip(p.double().numpy(), q.double().numpy())]
        np.testing.assert_allclose(DIVERGENCES[name](p, q), expected, atol=2e-6, rtol=1e-5, err_msg=name)
        assert DIVERGENCES[name](p, p).abs().max() < 1e-6
