"""The real decodings that the papers' claims on drifting methods need, measured on the questions of a study."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from adaptive_pyramid.config import PyramidConfig, route_label
from adaptive_pyramid.models import families
from adaptive_pyramid.pyramid import AdaptivePyramid
from adaptive_pyramid.stats import BlockStats
from tuning.report.study_data import StudyData
from tuning.research.paper_runs import REFERENCE_TAUS, SETTINGS, TAUS, PaperRun, PaperRuns
from tuning.study.benchmark import Bench, Timed
from tuning.study.objective import Question, ask
from tuning.study.settings import Settings, choose_examples, questions_digest
from tuning.tasks.scorers import Agreement
from tuning.tasks.task import Task
from tuning.terminal.progress import progress_bar


def decodings_path(profile: Path) -> Path:
    """Where the decodings of a profile lie: beside it."""
    return profile.with_suffix(".claims.json")


def known(study: StudyData) -> PaperRuns | None:
    """The decodings measured so far; None without any. Raises ValueError if they belong to another study."""
    path = decodings_path(study.path)
    if not path.is_file():
        return None
    found = PaperRuns.load(path)
    if found.made_with != made_with(study):
        raise ValueError(f"{path} was measured for another study; delete it to measure again")
    return found


def made_with(study: StudyData) -> dict[str, Any]:
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
    costs = json.dumps(study.costs.to_dict(), sort_keys=True).encode()
    return {
        **{name: study.settings[name] for name in names},
        "target": study.profile.target,
        "divergence": study.method.divergence,
        "taus": list(TAUS),
        "costs_sha256": hashlib.sha256(costs).hexdigest()[:16],
    }


def decode(
    study: StudyData,
    family: families.Family | None = None,
    task: str | None = None,
    data: str | None = None,
    run_code: bool = False,
    progress: Callable[[str, int], Any] = progress_bar,
) -> PaperRuns:
    """Measure what is missing, question by question.

    Args:
        family: loaded already; default: the study's, by name. task, data: for a study that was made with a file of them.
        progress: (what, total) -> a context manager that yields what to call after each piece of work.

    Raises:
        ValueError: no chain of three tiers, or other questions than the study's.
    """
    if study.modelled.pyramid_route is None:
        raise ValueError(
            "the claims are on three-tier decoding; expected a draft, a qualifier and a target, and the family has "
            + ", ".join(study.names)
        )
    found = known(study)
    if found is None:
        config = study.modelled.best_lengths(
            study.modelled.pyramid_route, study.modelled.named("psd_f"), REFERENCE_TAUS
        )
        found = PaperRuns(config, made_with(study))
    settings = study.settings
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
    loaded, examples, *_ = choose_examples(chosen)
    if questions_digest(examples) != settings["questions_sha256"]:
        raise ValueError("these are not the questions of the study; give the --task and --data that it was made with")
    if family is None:
        family = families.load(settings["family"], target=study.profile.target)
    pyramid = AdaptivePyramid(family, control="fixed")
    questions = ask(Bench(pyramid, study.method, settings["max_new_tokens"]), examples, study.answers)
    left = questions[len(found) :]
    with progress(f"decodings on {route_label(found.config.route)}", len(left) * len(SETTINGS)) as advance:
        for question in left:
            found.questions.append(_measure(study, pyramid, loaded, question, found.config, advance))
            found.save(decodings_path(study.path))
    return found


def _measure(
    study: StudyData,
    pyramid: AdaptivePyramid,
    task: Task,
    question: Question,
    config: PyramidConfig,
    progress: Callable[[], None],
) -> dict[str, PaperRun]:
    """Every setting, and `ar`, on one question."""
    tokens, price = study.settings["max_new_tokens"], study.prior.block_seconds
    alone = Bench(pyramid, study.method, tokens, price)
    score = _scorer(alone, task, question)
    runs = {
        "ar": _run([alone.ar(prompt) for prompt in question.prompts], study.modelled.target, score(question.answers))
    }
    for setting in SETTINGS:
        bench = Bench(pyramid, study.modelled.named(setting.method), tokens, price)
        chosen = config
        for tier, tau in zip(config.route[1:], (setting.tau_Q, setting.tau_T)):
            chosen = chosen.with_stage(tier, tau=tau)
        timed = [bench.run(prompt, chosen) for prompt in question.prompts]
        answers = [bench.answer(prompt, chosen).ids for prompt in question.prompts]
        runs[setting.key] = _run(timed, study.modelled.target, score(answers))
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


def _run(timed: Sequence[Timed], target: int, score: float) -> PaperRun:
    blocks: list[BlockStats] = [block for one in timed for block in one.stats.blocks]
    top = [verification for block in blocks for verification in block.verifications if verification.tier == target]
    return PaperRun(
        sum(one.seconds for one in timed),
        sum(len(one.ids) for one in timed),
        sum(sum(block.drift) for block in blocks),
        score,
        sum(verification.rejected for verification in top),
        sum(verification.proposed - verification.accepted for verification in top),
    )
