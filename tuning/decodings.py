"""The real decodings that the papers' claims on drifting methods need: `python -m tuning.report PROFILE --claims`.

Every question of the study is answered by PSD_F over a grid of (tau_Q, tau_T) and by PSD_A over tau_T, on one chain and
with one pair of lengths. Seconds are the forwards that really happened, priced with the study's cost table, so that a
busy machine does not decide what is confirmed. Results are written after each question and read back by the next run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adaptive_pyramid.config import PyramidConfig, route_label
from adaptive_pyramid.models import families
from adaptive_pyramid.pyramid import AdaptivePyramid
from adaptive_pyramid.stats import BlockStats
from tuning.console import progress_bar
from tuning.evidence import Evidence
from tuning.measure import Bench, Timed
from tuning.objective import Question, ask
from tuning.scoring import Agreement
from tuning.settings import Settings, choose_examples, questions_digest
from tuning.tasks import Task

TAUS = (0.0, 0.1, 0.2, 0.4, 0.6)  # nats of Jensen-Shannon divergence, whose largest value is log 2 = .69
REFERENCE_TAUS = (0.2, 0.2)  # at which the lengths are chosen


@dataclass(frozen=True)
class Setting:
    """What was run: a method and its two thresholds; PSD_A has no tau_Q (its qualifier matches)."""

    method: str
    tau_Q: float
    tau_T: float

    @property
    def key(self) -> str:
        return f"{self.method} {self.tau_Q:g} {self.tau_T:g}"


SETTINGS = (*(Setting("psd_f", q, t) for q in TAUS for t in TAUS), *(Setting("psd_a", 0.0, t) for t in TAUS))


@dataclass(frozen=True)
class Run:
    """One question under one setting.

    Args:
        seconds: priced forwards. tokens: new ones. drift: their sum in nats. score: of the freely ended answer, in [0, 1].
        refused: tokens that Q passed and T rejected. lost: tokens that Q passed and T did not take: those and what stood behind them.
    """

    seconds: float
    tokens: int
    drift: float = 0.0
    score: float = 0.0
    refused: int = 0
    lost: int = 0


@dataclass
class Decodings:
    """All runs so far, by question; a question is in once every setting has answered it.

    Args:
        config: chain and lengths; its taus are replaced by each setting's. made_with: what must be the same to go on.
    """

    config: PyramidConfig
    made_with: dict[str, Any]
    questions: list[dict[str, Run]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.questions)

    def runs(self, key: str) -> list[Run]:
        """The runs of a setting, or of "ar", by question."""
        return [question[key] for question in self.questions]

    def save(self, path: Path) -> None:
        data = {
            "made_with": self.made_with,
            "config": self.config.to_dict(),
            "questions": [{key: asdict(run) for key, run in question.items()} for question in self.questions],
        }
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(data, indent=1), encoding="utf-8")
        partial.replace(path)  # Ctrl-C never leaves half a file

    @classmethod
    def load(cls, path: Path) -> Decodings:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                PyramidConfig.from_dict(data["config"]),
                data["made_with"],
                [{key: Run(**run) for key, run in question.items()} for question in data["questions"]],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} holds no decodings of this version ({error}); delete it to measure again"
            ) from None


def decodings_path(profile: Path) -> Path:
    """Where the decodings of a profile lie: beside it."""
    return profile.with_suffix(".claims.json")


def known(evidence: Evidence) -> Decodings | None:
    """The decodings measured so far; None without any. Raises ValueError if they belong to another study."""
    path = decodings_path(evidence.path)
    if not path.is_file():
        return None
    found = Decodings.load(path)
    if found.made_with != made_with(evidence):
        raise ValueError(f"{path} was measured for another study; delete it to measure again")
    return found


def made_with(evidence: Evidence) -> dict[str, Any]:
    """Everything that the decodings depend on."""
    names = (
        "task",
        "family",
        "tiers",
        "dtype",
        "device",
        "questions",
        "max_new_tokens",
        "seed",
        "questions_sha256",
        "versions",
    )
    costs = json.dumps(evidence.costs.to_dict(), sort_keys=True).encode()
    return {
        **{name: evidence.settings[name] for name in names},
        "target": evidence.profile.target,
        "divergence": evidence.method.divergence,
        "taus": list(TAUS),
        "costs_sha256": hashlib.sha256(costs).hexdigest()[:16],
    }


def decode(
    evidence: Evidence,
    family: families.Family | None = None,
    task: str | None = None,
    data: str | None = None,
    run_code: bool = False,
    progress: Callable[[str, int], Any] = progress_bar,
) -> Decodings:
    """Measure what is missing, question by question.

    Args:
        family: loaded already; default: the study's, by name. task, data: for a study that was made with a file of them.
        progress: (what, total) -> a context manager that yields what to call after each piece of work.

    Raises:
        ValueError: no chain of three tiers, or other questions than the study's.
    """
    if evidence.pyramid_route is None:
        raise ValueError(
            "the claims are on three-tier decoding; expected a draft, a qualifier and a target, and the family has "
            + ", ".join(evidence.names)
        )
    found = known(evidence)
    if found is None:
        config = evidence.best_lengths(evidence.pyramid_route, evidence.named("psd_f"), REFERENCE_TAUS)
        found = Decodings(config, made_with(evidence))
    settings = evidence.settings
    if len(found) == settings["questions"]:
        return found
    chosen = Settings(
        task or settings["task"],
        data=data,
        seed=settings["seed"],
        questions=settings["questions"],
        max_new_tokens=settings["max_new_tokens"],
        run_code=run_code,
    )
    loaded, examples, _ = choose_examples(chosen)
    if questions_digest(examples) != settings["questions_sha256"]:
        raise ValueError("these are not the questions of the study; give the --task and --data that it was made with")
    if family is None:
        family = families.load(settings["family"], target=evidence.profile.target)
    pyramid = AdaptivePyramid(family, control="fixed")
    questions = ask(Bench(pyramid, evidence.method, settings["max_new_tokens"]), examples, evidence.answers)
    left = questions[len(found) :]
    with progress(f"decodings on {route_label(found.config.route)}", len(left) * len(SETTINGS)) as advance:
        for question in left:
            found.questions.append(_measure(evidence, pyramid, loaded, question, found.config, advance))
            found.save(decodings_path(evidence.path))
    return found


def _measure(
    evidence: Evidence,
    pyramid: AdaptivePyramid,
    task: Task,
    question: Question,
    config: PyramidConfig,
    progress: Callable[[], None],
) -> dict[str, Run]:
    """Every setting, and `ar`, on one question."""
    tokens, price = evidence.settings["max_new_tokens"], evidence.prior.block_seconds
    alone = Bench(pyramid, evidence.method, tokens, price)
    score = _scorer(alone, task, question)
    runs = {"ar": _run([alone.ar(prompt) for prompt in question.prompts], evidence.target, score(question.answers))}
    for setting in SETTINGS:
        bench = Bench(pyramid, evidence.named(setting.method), tokens, price)
        chosen = config
        for tier, tau in zip(config.route[1:], (setting.tau_Q, setting.tau_T)):
            chosen = chosen.with_stage(tier, tau=tau)
        timed = [bench.run(prompt, chosen) for prompt in question.prompts]
        answers = [bench.answer(prompt, chosen).ids for prompt in question.prompts]
        runs[setting.key] = _run(timed, evidence.target, score(answers))
        progress()
    return runs


def _scorer(bench: Bench, task: Task, question: Question) -> Callable[[Sequence[Sequence[int]]], float]:
    """answers (per turn) -> the question's score in [0, 1]"""

    def text(answers: Sequence[Sequence[int]]) -> str | list[str]:
        texts = [bench.answer_text(ids) for ids in answers]
        return texts[0] if len(texts) == 1 else texts

    examples = [question.example]
    if isinstance(task.scorer, Agreement):
        task = task.with_references([text(question.answers)], examples)
        examples = task.examples
    return lambda answers: float(task.per_example([text(answers)], examples)[0])


def _run(timed: Sequence[Timed], target: int, score: float) -> Run:
    blocks: list[BlockStats] = [block for one in timed for block in one.stats.blocks]
    top = [verification for block in blocks for verification in block.verifications if verification.tier == target]
    return Run(
        sum(one.seconds for one in timed),
        sum(len(one.ids) for one in timed),
        sum(sum(block.drift) for block in blocks),
        score,
        sum(verification.rejected for verification in top),
        sum(verification.proposed - verification.accepted for verification in top),
    )


def totals(runs: Sequence[Run]) -> Mapping[str, float]:
    """Sums over questions, for people: tokens/s, nats per token, score, tokens lost per 100."""
    tokens = sum(run.tokens for run in runs)
    return {
        "tokens_per_second": tokens / sum(run.seconds for run in runs),
        "drift": sum(run.drift for run in runs) / tokens,
        "score": sum(run.score for run in runs) / len(runs),
        "lost": 100 * sum(run.lost for run in runs) / tokens,
        "refused": 100 * sum(run.refused for run in runs) / tokens,
    }
