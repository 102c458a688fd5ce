"""The sections of a report: which numbers stand where, and what is said about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optuna.trial import FrozenTrial

from tuning.report import html, plots
from tuning.report.modelled_sections import ModelledSections
from tuning.report.plots import Point
from tuning.study import trial_table
from tuning.study.trial_record import TrialRecord

_RANKED = 20  # trials in the ranking: more would not be read on a phone


class Sections(ModelledSections):
    """One report; after `html`, `drawn` holds its pictures in their order."""

    def html(self) -> str:
        """The whole page."""
        sections = [
            ("Speed and quality", self.speed()),
            ("What the tiers accept", self.accepted()),
            ("Where time goes", self.time()),
            ("What each tier earns", self.tiers()),
            ("The papers' claims, tested here", self.tested()),
            ("All trials", self.trials()),
            ("Provenance", self.provenance()),
        ]
        label = self.study.profile.study.get("label", self.study.profile.task)
        return html.page(f"{label}: decoding tuned", self.head(label), sections)

    def head(self, label: str) -> str:
        profile, seen = self.study.profile, self.study.profile.measured
        tiles = [
            (
                f"{seen['speed_ratio']:.2f} ×",
                "the speed of target-only decoding" + _range(seen.get("speed_ratio_interval")),
            ),
            (f"{seen['tokens_per_second']:.1f}", "tokens per second"),
        ]
        if "speed_ratio_hf" in seen:
            tiles.append((f"{seen['speed_ratio_hf']:.2f} ×", "the speed of Hugging Face generate"))
        score = seen["score"]
        tiles.append((f"{score['value']:.2f}", f"task score{_range((score['low'], score['high']))}, n = {score['n']}"))
        own_text = " (the target's own text)" if self.study.method.lossless else ""
        tiles.append((f"{seen['mean_drift']:.3g}", "drift per token, nats" + own_text))
        what = (
            f"{profile.family}, method {profile.method}. Best: {trial_table.label(profile.config, self.names)}. "
            f"Score: {score['label'].split(':')[0]}. Intervals hold 95 %."
        )
        if len(profile.config.route) == 1:
            what += " No gain over the target alone was shown."
        return f"<h1>{html.escape(label)}</h1>" + html.paragraph(what, "lead") + html.tiles(tiles)

    # speed and quality

    def speed(self) -> str:
        kind, clock = self._clock()
        caption = f"{clock} Bars: 95 % intervals over questions."
        trials = self.study.trials
        drifted = [self._point(trial, "mean_drift") for trial in trials]
        if self.study.method.lossless:
            fastest = sorted(drifted, key=lambda point: -point.x)[:_RANKED]
            labels = {trial.number: f"{trial.number}: {TrialRecord.of(trial).config.label}" for trial in trials}
            text = (
                "The method writes the target's own text in every trial, so quality is the same everywhere and the "
                "front is the fastest trial."
            )
            ranked = self.figure(
                "Trials by speed",
                kind,
                caption,
                plots.ranking,
                "front",
                "Trials ordered by speed, with intervals; the fastest in green",
                fastest,
                labels,
            )
            return html.paragraph(text) + html.grid([ranked, self._predicted()])
        scored = [self._point(trial, "score") for trial in trials if TrialRecord.of(trial).score is not None]
        regret = " Drift is log-prob regret under the target, exact, along the text written."
        return html.paragraph("On the front no other trial is faster without losing quality.") + html.grid(
            [
                self.figure(
                    "Speed against score",
                    kind,
                    caption,
                    plots.front,
                    "front",
                    "Trials by speed and score; the Pareto front as a line",
                    scored,
                    "task score",
                ),
                self.figure(
                    "Speed against drift",
                    kind,
                    caption + regret,
                    plots.front,
                    "front-drift",
                    "Trials by speed and drift; the Pareto front as a line",
                    drifted,
                    "drift, nats per token",
                ),
                self._predicted(),
            ]
        )

    def _clock(self) -> tuple[str, str]:
        """What the trials' speeds are, and how they were timed."""
        if self.study.what_if:
            return (
                "modelled",
                f"Forwards that happened, priced with what-if costs {self.study.what_if!r}, not measured.",
            )
        if self.study.settings["clock"] == "model":
            return "modelled", "Forwards that happened, priced with the cost table."
        return "measured", "By the wall clock, question by question beside target-only decoding (ar)."

    def _point(self, trial: FrozenTrial, quality: str) -> Point:
        """A trial by speed and "score" or "mean_drift"."""
        record = TrialRecord.of(trial)
        seen = record.speed
        if quality == "score":
            y = (record.score.value, record.score.low, record.score.high)
        else:
            y = (seen.mean_drift,) * 3
        on_front = trial.number in trial_table.front(self.study.trials, by_drift=quality == "mean_drift")
        measured = "measured" if trial_table.feasible(trial) else "limit"
        state = "front" if on_front else "pruned" if trial.state.name == "PRUNED" else measured
        return Point(trial.number, seen.ratio, *seen.ratio_interval, *y, state)

    def _predicted(self) -> str:
        trials = self.study.trials
        replay, formula = (trial_table.median_error(trials, name) for name in ("predicted_ratio", "formula_ratio"))
        records = [TrialRecord.of(trial) for trial in trials]
        rows = {
            label: [(getattr(record, name), record.speed.ratio, *record.speed.ratio_interval) for record in records]
            for label, name in (("replay of traces", "predicted_ratio"), ("formula", "formula_ratio"))
        }
        caption = (
            f"Median error over {len(trials)} trials: replay {replay:.1%}, closed formula {formula:.1%}. Both know only "
            "the calibration questions, none of which is measured. Replay plays the recorded answers forward by "
            "forward; the formula takes acceptance as independent from position to position."
        )
        return self.figure(
            "Predicted and measured",
            self._clock()[0],
            caption,
            plots.predictions,
            "predicted",
            "Predicted against measured speed, one mark per trial",
            rows,
        )

    # the rest

    def trials(self) -> str:
        best = self.study.profile.study.get("best_trial")
        return html.table(trial_table.rows(self.study.trials, self.names), best=None if best is None else str(best))

    def provenance(self) -> str:
        profile, settings, study = self.study.profile, self.study.settings, self.study.profile.study
        limits = [f"{name} {value:g}" for name, value in settings["limits"].items() if value is not None]
        entries = {
            "profile": self.study.path.name,
            "task": profile.task,
            "family": f"{profile.family}: {', '.join(self.names)}",
            "sources": "; ".join(f"{name}: {source}" for name, source in profile.revisions.items()),
            "method": f"{profile.method}, rules {' then '.join(profile.rules)}, divergence {profile.divergence}",
            "machine": f"{profile.device}, {profile.dtype}, {study.get('threads', '?')} thread(s)",
            "measured by": ", ".join(study.get("workers", [])),
            "versions": ", ".join(f"{name} {version}" for name, version in profile.versions.items()),
            **{
                name.replace("_", " "): str(settings[name])
                for name in ("questions", "max_new_tokens", "seed", "clock", "multi_objective", "questions_sha256")
            },
            "limits": ", ".join(limits) or "none",
            "trials": f"{len(self.study.trials)}, sampler {study.get('sampler', '?')}",
            "remeasured against each other": "yes" if study.get("remeasured") else "no",
        }
        return html.definitions({name: value for name, value in entries.items() if value})


def _range(ends: Sequence[float] | None) -> str:
    return "" if ends is None or any(map(math.isnan, ends)) else f" ({ends[0]:.2f} to {ends[1]:.2f})"
