"""Studies that outlive their process: opened or resumed, checked against what is asked for now, kept after Ctrl-C."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from tuning.study.locks import Lock, is_in_memory

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
HEARTBEAT = 30  # seconds; a worker that has been silent for three of them has died
MAX_RETRIES = 2  # of a trial whose worker died: what kills three workers is not worth a fourth
_EXPECTED = "expected a database URL such as sqlite:///study.db or postgresql://user@host/database"


def checked_url(url: str, workers: int = 1) -> str:
    """`url` with the driver that this package uses.

    Raises:
        ValueError: a storage that several workers cannot share safely.
    """
    if url.startswith("journal") or url.endswith((".log", ".journal")):
        raise ValueError(
            f"--storage {url}: journal storage has no heartbeat, so nobody would notice that a worker died "
            f"and its trial would be lost; {_EXPECTED}"
        )
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    except SQLAlchemyError:
        raise ValueError(f"cannot open the storage {url!r}: {_EXPECTED}") from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(f"cannot open the storage {shown(url)!r}: {_EXPECTED}")
    if workers > 1 and is_in_memory(parsed):
        raise ValueError(
            f"--workers {workers} cannot share {url}, which lives in the memory of one process; {_EXPECTED}"
        )
    return parsed.render_as_string(hide_password=False)


def shown(url: str) -> str:
    """`url` for people: without its password."""
    return make_url(url).render_as_string(hide_password=True)


class OpenStudy(NamedTuple):
    """A study, the database it is in, and the lock that its workers share."""

    study: optuna.Study
    database: RDBStorage
    lock: Lock


def open_study(
    url: str,
    name: str,
    settings: Mapping[str, Any],
    pruner: optuna.pruners.BasePruner,
    objectives: int = 1,
    heartbeat: int = HEARTBEAT,
) -> OpenStudy:
    """The study `name` at `url`, new or resumed; every objective is maximised.

    Args:
        heartbeat: seconds between two signs of life of a worker.

    Raises:
        ValueError: a storage that cannot be opened, or a study there that was made with other settings.
    """
    url = checked_url(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            with Lock(url, "tables"):  # two processes cannot create the tables of one database at once
                database = _database(url, heartbeat)
                study = optuna.create_study(
                    storage=database,
                    study_name=name,
                    directions=["maximize"] * objectives,
                    load_if_exists=True,
                    pruner=pruner,
                )
                _check_settings(study, url, json.loads(json.dumps(settings)))
        except (SQLAlchemyError, ImportError, OSError, RuntimeError) as error:
            reason = (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]
            if isinstance(error, ImportError):
                reason += " (pip install 'adaptive-pyramid[postgres]')"
            raise ValueError(f"cannot open the storage {shown(url)!r}: {reason}; {_EXPECTED}") from None
    return OpenStudy(study, database, Lock(url, name))


def _database(url: str, heartbeat: int) -> RDBStorage:
    is_sqlite = url.startswith("sqlite")
    # SQLite: seconds to wait for another writer. A server may restart between two trials: look before each use.
    engine = {"connect_args": {"timeout": 60}} if is_sqlite else {"pool_pre_ping": True}
    return RDBStorage(
        url,
        engine_kwargs=engine,
        heartbeat_interval=heartbeat,
        grace_period=3 * heartbeat,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=MAX_RETRIES),
    )


def _check_settings(study: optuna.Study, url: str, settings: dict[str, Any]) -> None:
    known = study.user_attrs.get("settings")
    if known is None:
        study.set_user_attr("settings", settings)
        return
    different = [
        f"{key} was {known.get(key)!r} and is {settings.get(key)!r} now"
        for key in {**known, **settings}
        if known.get(key) != settings.get(key)
    ]
    if different:
        raise ValueError(
            f"the study {study.study_name!r} in {shown(url)} was made with other settings: "
            f"{'; '.join(different)}. Use the same ones to resume it, or another --out for a new study"
        )


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that were measured to their end or pruned, oldest first."""
    return study.get_trials(deepcopy=False, states=FINISHED)


def given_up(trial: FrozenTrial) -> bool:
    """Whether the trial's worker died, and those of all its retries before."""
    return trial.state == TrialState.FAIL and len(trial.system_attrs.get("retry_history", ())) >= MAX_RETRIES


def requeue_interrupted(study: optuna.Study) -> int:
    """Queue again what Ctrl-C cut short, unless it was measured, queued or given up since. -> how many"""
    trials = study.get_trials(deepcopy=False)
    kept = [trial.params for trial in trials if trial.state != TrialState.FAIL or given_up(trial)]
    kept += [trial.system_attrs.get("fixed_params") for trial in trials if trial.state == TrialState.WAITING]
    count = 0
    for trial in trials:
        params = trial.params or trial.system_attrs.get("fixed_params")  # none yet of one that had just begun
        if trial.state == TrialState.FAIL and params and params not in kept:
            study.enqueue_trial(params)
            kept.append(params)
            count += 1
    return count


def default_storage(out: Path) -> str:
    """The URL of a SQLite file beside the profile, whose path may hold any character."""
    return URL.create("sqlite", database=str(out.with_suffix(".db"))).render_as_string(hide_password=False)
