"""What a study left behind, in the terms of its report: profile, settings, trials, cost table and traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from adaptive_pyramid.decoding.method import METHODS, Method
from adaptive_pyramid.errors import unknown_name
from adaptive_pyramid.profile import Profile
from adaptive_pyramid.throughput import CostModel
from tuning.research.modelled_speeds import ModelledSpeeds
from tuning.study import storage
from tuning.study.prior import Prior
from tuning.study.trial_record import is_measured


@dataclass
class StudyData:
    """A profile and the study that it came from.

    Args:
        settings: what the study was made with. trials: those that were measured, in full or until pruned.
        prior: cost table and traces, under the study's method.
    """

    profile: Profile
    path: Path
    url: str
    settings: dict[str, Any]
    answers: list[list[list[int]]]
    trials: list[FrozenTrial]
    prior: Prior

    def __post_init__(self) -> None:
        self.modelled = ModelledSpeeds(self.profile.tiers, self.prior.replay, self.prior.replay_of)

    @classmethod
    def load(cls, path: str | Path, url: str | None = None) -> StudyData:
        """Read the profile at `path` and its study from `url` (default: the SQLite file beside it).

        Raises:
            FileNotFoundError: no profile, or no SQLite file. ValueError: a profile without a study, or a database without it.
        """
        path = Path(path)
        profile = Profile.load(path)
        name = profile.study.get("name")
        if name is None:
            raise ValueError(f"{path} names no study; expected a profile that tuning.search wrote")
        if url is None:
            if not path.with_suffix(".db").is_file():
                raise FileNotFoundError(
                    f"no study at {path.with_suffix('.db')}; expected it beside the profile, or --storage URL"
                )
            url = storage.default_storage(path)
        try:
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            known = {summary.study_name for summary in optuna.get_all_study_summaries(url, include_best_trial=False)}
            if name not in known:
                raise ValueError(unknown_name("study", name, known or ["none"]))
            study = optuna.load_study(study_name=name, storage=url)
        except Exception as error:  # whatever the database's driver raises
            reason = (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"cannot read the study of {path} from {storage.shown(url)!r}: {reason}") from None
        data = study.user_attrs
        trials = [trial for trial in storage.finished(study) if is_measured(trial)]
        return cls(
            profile,
            path,
            url,
            data["settings"],
            data["answers"],
            trials,
            Prior.from_dict(data["prior"], replace(METHODS[profile.method], divergence=profile.divergence)),
        )

    @property
    def method(self) -> Method:
        return self.prior.method

    @property
    def costs(self) -> CostModel:
        return self.prior.costs

    @property
    def what_if(self) -> str | None:
        """Name of the what-if cost table that prices everything here; None where `costs` were measured."""
        table = self.settings.get("costs")
        return None if table is None else table["name"]

    @property
    def names(self) -> tuple[str, ...]:
        return self.profile.tiers
