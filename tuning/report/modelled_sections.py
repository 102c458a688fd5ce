"""The sections of a report that say what tiers accept, cost and earn: from traces, replay and the papers' claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaptive_pyramid.config import Route
from tuning.report import html, plots
from tuning.report.plots import Plot
from tuning.report.study_data import StudyData
from tuning.research import paper_runs
from tuning.research.modelled_speeds import LENGTHS_D, LENGTHS_Q
from tuning.research.paper_claims import UNMEASURED, Claim
from tuning.research.paper_runs import REFERENCE_TAUS, TAUS, PaperRuns, Setting
from tuning.study.trial_record import TrialRecord

_FINE_TAUS = tuple(round(0.05 * i, 2) for i in range(21))
_MAP_TAUS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_POSITIONS = 12
_MODELLED = "Recorded answers replayed and priced; passes off the recorded text are estimated."


class ModelledSections:
    """Sections as HTML; `drawn` holds the plots of those that were made, in their order."""

    def __init__(self, study: StudyData, decoded: PaperRuns | None, claims: Sequence[Claim]) -> None:
        self.study, self.decoded, self.claims = study, decoded, claims
        self.names = study.names
        self.drawn: list[Plot] = []

    def figure(
        self,
        title: str,
        kind: str,
        caption: str,
        draw: Callable[..., Plot],
        name: str,
        alt: str,
        *values: Any,
        **options: Any,
    ) -> str:
        """Draw a picture, remember it, and return its HTML."""
        self.drawn.append(draw(name, alt, *values, **options))
        return html.figure(self.drawn[-1], title, caption, kind)

    # tiers

    def accepted(self) -> str:
        study = self.study
        source = f"{study.modelled.n_traces} recorded answers, {study.modelled.n_positions} tokens."
        named = {
            f"{self.names[stage.proposer]} → {self.names[stage.verifier]}": stage for stage in study.modelled.stages
        }
        by_tau = {name: study.modelled.acceptance_by_tau(stage, _FINE_TAUS) for name, stage in named.items()}
        by_position = {
            name: study.modelled.acceptance_by_position(
                stage, study.profile.config.stage(stage.verifier).tau, _POSITIONS
            )
            for name, stage in named.items()
        }
        shares = {name: [share for share, _, _ in rows] for name, rows in by_position.items()}
        bands = {
            name: ([low for _, low, _ in rows], [high for _, _, high in rows]) for name, rows in by_position.items()
        }
        rules = ", ".join(
            sorted({f"{study.modelled.rule(stage)} at {self.names[stage.verifier]}" for stage in study.modelled.stages})
        )
        lossless = (
            " The target's own rule has no tau; shown is what a drift budget would let through."
            if study.method.lossless
            else ""
        )
        return html.grid(
            [
                self.figure(
                    "Acceptance by tau",
                    "recorded",
                    f"{source} Single tokens, proposed along the target's text. Rules: {rules}.{lossless}",
                    plots.lines,
                    "acceptance-tau",
                    "Share of proposed tokens kept, by tau, one line per stage",
                    by_tau,
                    _FINE_TAUS,
                    "tau",
                    "kept",
                    share=True,
                    markers=False,
                ),
                self.figure(
                    "Acceptance by position",
                    "recorded",
                    f"{source} Given that everything before was accepted, at the profile's taus; bands are 95 % intervals. "
                    "At tau above 0 the positions behind a drifting token are estimated.",
                    plots.lines,
                    "acceptance-position",
                    "Share of tokens kept by position in the proposal, one line per stage",
                    shares,
                    range(1, _POSITIONS + 1),
                    "position in the proposal",
                    "kept",
                    bands=bands,
                    share=True,
                ),
                self.figure(
                    "Entropy by tier",
                    "recorded",
                    f"{source} Unprocessed distributions at temperature 1. Bar: quartiles, ring: median.",
                    plots.spreads,
                    "entropy",
                    "Distribution of entropy over positions, one row per model",
                    {self.names[tier]: study.modelled.entropies(tier) for tier in study.modelled.models},
                    "entropy, nats",
                ),
            ]
        )

    def time(self) -> str:
        study, route = self.study, self.study.modelled.pyramid_route
        widths = sorted({width for row in study.costs.table.values() for width in row})
        costs = {
            self.names[tier]: [1000 * study.costs.seconds(tier, width) for width in widths]
            for tier in study.modelled.models
        }
        kind, source = "measured", "Median of repeated forwards on top of cached tokens, when the study began."
        if study.what_if:
            kind, source = "modelled", f"What-if costs {study.what_if!r}, not measured."
        curves = self.figure(
            "Cost of a forward",
            kind,
            f"{source} A lookup costs nothing.",
            plots.lines,
            "costs",
            "Milliseconds of a forward by its width, one line per model",
            costs,
            widths,
            "tokens in the forward",
            "milliseconds",
            logarithmic=True,
        )
        if route is None:
            return html.grid([curves]) + html.paragraph(
                "No maps over lengths and taus: they need a draft, a qualifier and a "
                f"target, and this family has {', '.join(self.names)}.",
                "note",
            )
        chain = " > ".join(self.names[tier] for tier in route)
        fuzzy = study.modelled.named("psd_f")
        best = study.modelled.best_lengths(route, fuzzy, REFERENCE_TAUS)
        lengths = ", ".join(str(best.stage(tier).length) for tier in route[1:])
        return html.grid(
            [
                curves,
                self.figure(
                    "Speed over l_D and l_Q",
                    "modelled",
                    f"{chain}, tau 0, × ar. {_MODELLED} Dotted: l_D : l_Q between 1:2 and 1:3; ring: fastest.",
                    plots.heat_map,
                    "lengths",
                    "Modelled speed ratio by l_D and l_Q",
                    study.modelled.length_map(route),
                    LENGTHS_D,
                    LENGTHS_Q,
                    "l_D",
                    "l_Q",
                    outlined=lambda row, column: 2 * LENGTHS_D[row] <= LENGTHS_Q[column] <= 3 * LENGTHS_D[row],
                ),
                self.figure(
                    "Speed over tau_Q and tau_T",
                    "modelled",
                    f"PSD_F on {chain}, lengths {lengths}, × ar. {_MODELLED}",
                    plots.heat_map,
                    "taus",
                    "Modelled speed ratio by tau_Q and tau_T",
                    study.modelled.tau_map(best, _MAP_TAUS, fuzzy),
                    _MAP_TAUS,
                    _MAP_TAUS,
                    "tau_Q",
                    "tau_T",
                ),
            ]
        )

    def tiers(self) -> str:
        rows = []
        for entry in self.study.modelled.advice():
            bottom, top = entry.route[0], entry.route[-1]
            rows.append(
                {
                    "tier": self.names[entry.tier],
                    "between": f"{self.names[bottom]} and {self.names[top]}",
                    "best trials with and without": f"{self._fastest(entry.route)} and {self._fastest((bottom, top))}",
                    "modelled with it, × ar": f"{entry.with_ratio:.2f} ({entry.with_config.label})",
                    "modelled without": f"{entry.without_ratio:.2f} ({entry.without_config.label})",
                    "advice": "keep" if entry.pays else "drop",
                    "theorem: T_new / T_i": f"{entry.cost_ratio:.3f}",
                    "its bound": f"{entry.bound:.3f}",
                    "theorem says": "insert" if entry.cost_ratio < entry.bound else "leave out",
                }
            )
        if not rows:
            return html.paragraph("There is no middle tier to keep or to drop.")
        text = (
            "The advice compares both routes at their own best lengths, modelled by replay; the trials say what was "
            "measured. Beside it the insertion theorem (arXiv 2510.26527, Theorem 3.2): a tier pays when T_new / T_i is "
            "below L_new (1 / L_i − 1 / L_i'), with the passes of lower tiers held fixed."
        )
        return html.paragraph(text) + html.table(rows)

    def _fastest(self, route: Route) -> str:
        """The speed ratio of the best trial on a route; "none" if no trial took it."""
        ratios = [
            record.speed.ratio for record in map(TrialRecord.of, self.study.trials) if record.config.route == route
        ]
        return f"{max(ratios):.2f}" if ratios else "none"

    # claims

    def tested(self) -> str:
        missing = sum(claim.verdict == UNMEASURED for claim in self.claims)
        text = html.paragraph(
            "Claims of PyramidSD (arXiv 2510.12966), each in the reading that stands below it. An interval "
            "that holds its threshold decides nothing."
        )
        if missing:
            text += (
                f"<p>{missing} of {len(self.claims)} were not measured. To measure them: "
                f"<code>python -m tuning.report {html.escape(self.study.path.name)} --claims</code></p>"
            )
        text += "".join(
            html.claim(claim.text, claim.reading, claim.verdict, claim.numbers, claim.basis) for claim in self.claims
        )
        return text + (self._measured_maps(self.decoded) if self.decoded else "")

    def _measured_maps(self, decoded: PaperRuns) -> str:
        totals = [[paper_runs.totals(decoded.runs(Setting("psd_f", q, t).key)) for t in TAUS] for q in TAUS]
        speed, drift, lost = (
            np.array([[cell[name] for cell in row] for row in totals])
            for name in ("tokens_per_second", "drift", "lost")
        )
        speed /= paper_runs.totals(decoded.runs("ar"))["tokens_per_second"]
        source = f"PSD_F, real decodings of {len(decoded)} questions; forwards priced with the cost table."
        axes = (TAUS, TAUS, "tau_Q", "tau_T")
        return html.grid(
            [
                self.figure(
                    "Speed, × ar",
                    "measured",
                    f"{source} Ring: fastest.",
                    plots.heat_map,
                    "claims-speed",
                    "Measured speed ratio by tau_Q and tau_T",
                    speed,
                    *axes,
                ),
                self.figure(
                    "Drift, nats per token",
                    "measured",
                    f"{source} Ring: least.",
                    plots.heat_map,
                    "claims-drift",
                    "Measured drift by tau_Q and tau_T",
                    drift,
                    *axes,
                    lowest_is_best=True,
                    digits=3,
                ),
                self.figure(
                    "The cascade: tokens Q passed and T did not take",
                    "measured",
                    f"{source} Per 100 tokens written. Ring: fewest.",
                    plots.heat_map,
                    "claims-cascade",
                    "Tokens passed by the qualifier and not taken by the target, by tau_Q and tau_T",
                    lost,
                    *axes,
                    lowest_is_best=True,
                    digits=0,
                ),
            ]
        )
