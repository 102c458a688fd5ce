"""The real decodings that the papers' claims on drifting methods need: `python -m tuning.report PROFILE --claims`.

Every question of the study is answered by PSD_F over a grid of (tau_Q, tau_T) and by PSD_A over tau_T, on one chain and
with one pair of lengths. Seconds are the forwards that really happened, priced with the study's cost table, so that a
busy machine does not decide what is confirmed. Results are written after each question and read back by the next run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adaptive_pyramid.atomic_write import write_atomically
from adaptive_pyramid.config import PyramidConfig

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
class PaperRun:
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
class PaperRuns:
    """All runs so far, by question; a question is in once every setting has answered it.

    Args:
        config: chain and lengths; its taus are replaced by each setting's. made_with: what must be the same to go on.
    """

    config: PyramidConfig
    made_with: dict[str, Any]
    questions: list[dict[str, PaperRun]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.questions)

    def runs(self, key: str) -> list[PaperRun]:
        """The runs of a setting, or of "ar", by question."""
        return [question[key] for question in self.questions]

    def save(self, path: Path) -> None:
        data = {
            "made_with": self.made_with,
            "config": self.config.to_dict(),
            "questions": [{key: asdict(run) for key, run in question.items()} for question in self.questions],
        }
        write_atomically(path, json.dumps(data, indent=1))

    @classmethod
    def load(cls, path: Path) -> PaperRuns:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                PyramidConfig.from_dict(data["config"]),
                data["made_with"],
                [{key: PaperRun(**run) for key, run in question.items()} for question in data["questions"]],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} holds no decodings of this version ({error}); delete it to measure again"
            ) from None


def totals(runs: Sequence[PaperRun]) -> Mapping[str, float]:
    """Sums over questions, for people: tokens/s, nats per token, score, tokens lost per 100."""
    tokens = sum(run.tokens for run in runs)
    return {
        "tokens_per_second": tokens / sum(run.seconds for run in runs),
        "drift": sum(run.drift for run in runs) / tokens,
        "score": sum(run.score for run in runs) / len(runs),
        "lost": 100 * sum(run.lost for run in runs) / tokens,
        "refused": 100 * sum(run.refused for run in runs) / tokens,
    }
