"""Studies that outlive their process: opened or resumed, checked against what is asked for now, kept after Ctrl-C."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
_HEARTBEAT = 30   # seconds; a worker that has been silent for three of them has died
_RETRIES = 2


def open_study(url: str, name: str, settings: Mapping[str, Any], pruner: optuna.pruners.BasePruner,
               objectives: int = 1) -> optuna.Study:
    """The study `name` at `url`, new or resumed; every objective is maximised.

    Raises:
        ValueError: a storage that cannot be opened, or a study there that was made with other settings.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            patience = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None
            storage = RDBStorage(url, engine_kwargs=patience,
                                 heartbeat_interval=_HEARTBEAT, grace_period=3 * _HEARTBEAT,
                                 heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=_RETRIES))
            study = optuna.create_study(storage=storage, study_name=name, directions=["maximize"] * objectives,
                                        load_if_exists=True, pruner=pruner)
        except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise ValueError(f"cannot open the storage {url!r}: {reason}; expected a database URL such as "
                             "sqlite:///study.db") from None
    _check_settings(study, url, json.loads(json.dumps(settings)))
    return study


def _check_settings(study: optuna.Study, url: str, settings: dict[str, Any]) -> None:
    known = study.user_attrs.get("settings")
    if known is None:
        study.set_user_attr("settings", settings)
        return
    different = [f"{key} was {known.get(key)!r} and is {settings.get(key)!r} now"
                 for key in {**known, **settings} if known.get(key) != settings.get(key)]
    if different:
        raise ValueError(f"the study {study.study_name!r} in {url} was made with other settings: "
                         f"{'; '.join(different)}. Use the same ones to resume it, or another --out for a new study")


def finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Trials that were measured to their end or pruned, oldest first."""
    return study.get_trials(deepcopy=False, states=FINISHED)


def requeue_interrupted(study: optuna.Study) -> int:
    """Queue again what Ctrl-C cut short, unless it was measured or queued since. -> how many"""
    trials = study.get_trials(deepcopy=False)
    kept = [trial.params for trial in trials if trial.state != TrialState.FAIL]
    kept += [trial.system_attrs.get("fixed_params") for trial in trials if trial.state == TrialState.WAITING]
    count = 0
    for trial in trials:
        if trial.state == TrialState.FAIL and trial.params and trial.params not in kept:
            study.enqueue_trial(trial.params)
            kept.append(trial.params)
            count += 1
    return count


def default_storage(out: Path) -> str:
    """A SQLite file beside the profile."""
    return f"sqlite:///{out.with_suffix('.db')}"
