"""Policy laboratory: cumulative regret of every bandit policy on toys whose best choice is known.

    python -m benchmarks.policy_lab                                         # tables on the terminal
    python -m benchmarks.policy_lab --seeds 50 --horizon 4000 --out lab/    # and lab/policy_lab.png, lab/policy_lab.json
    python -m benchmarks.policy_lab --arms 8 32 --horizon 4000              # are many arms learned?

Regret is counted in expected reward (rewards are in [0, 1]), against the best fixed arm of the whole run and against
an oracle that plays the best arm of every round. Negative regret against the fixed arm means that following the
changes paid. Every policy runs with its defaults; nothing is tuned to the toys.

With --arms, one arm pays .85 and the others spread from .35 to .70, noise .12 (standard deviation), throughout or shuffled
anew in five stretches; the share of rounds in which the best arm was played, of the last eighth and of all, once when
the played arm's reward is all there is to learn from and once when every arm's is known (full information).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from policies import POLICIES, Policy, make_policy

N_ARMS = 6
CONTEXT_DIM = 3
NOISE = 0.15  # rewards are uniform within this of the mean, and means stay this far from 0 and 1: nothing is clipped
NAMES = ["random", *POLICIES]


@dataclass(frozen=True)
class World:
    """One run of a toy."""

    means: np.ndarray  # [horizon, N_ARMS], what each arm pays on average in each round
    rewards: np.ndarray  # [horizon, N_ARMS], what it pays
    contexts: np.ndarray  # [horizon, CONTEXT_DIM], what can be seen before choosing; zeros if there is nothing to see


class UniformlyRandom(Policy):
    """The policy to beat."""

    name = "random"

    def _select(self, features: None) -> int:
        return int(self._rng.integers(self._n_arms))


def build(name: str, seed: int, n_arms: int = N_ARMS) -> Policy:
    if name == "random":
        return UniformlyRandom(n_arms, seed=seed)
    return make_policy(name, n_arms, seed=seed, **({"context_dim": CONTEXT_DIM} if name == "lin_ucb" else {}))


def world(means: np.ndarray, rng: np.random.Generator, contexts: np.ndarray | None = None) -> World:
    rewards = means + rng.uniform(-NOISE, NOISE, means.shape)
    return World(means, rewards, np.zeros((len(means), CONTEXT_DIM)) if contexts is None else contexts)


def stationary(horizon: int, rng: np.random.Generator, name: str) -> World:
    """One arm is best by at least 0.1, for ever."""
    means = np.append(rng.uniform(0.3, 0.6, N_ARMS - 1), 0.7)
    return world(np.tile(rng.permutation(means), (horizon, 1)), rng)


def drifting(horizon: int, rng: np.random.Generator, name: str) -> World:
    """Every arm's mean is a slow sine of its own phase: each arm in turn is best, over two periods."""
    time = np.arange(horizon)[:, None] / horizon
    phases = rng.permutation(N_ARMS) / N_ARMS
    return world(0.5 + 0.3 * np.sin(2 * np.pi * (2 * time + phases)), rng)


def switching(horizon: int, rng: np.random.Generator, name: str) -> World:
    """Five stretches of equal length; at each start all means are shuffled, the best arm always a new one."""
    deck = np.linspace(0.2, 0.8, N_ARMS)
    means, best = np.empty((horizon, N_ARMS)), -1
    for stretch in np.array_split(np.arange(horizon), 5):
        shuffled = rng.permutation(deck)
        while shuffled.argmax() == best:
            shuffled = rng.permutation(deck)
        best = shuffled.argmax()
        means[stretch] = shuffled
    return world(means, rng)


def adversarial(horizon: int, rng: np.random.Generator, name: str) -> World:
    """The adversary of the textbook: it knows the policy, but not its random draws, and fixes all rewards in advance.

    It lets a copy of the policy with another seed play; the arm that the copy plays pays 0.2, the others 0.6. A
    policy without random draws walks into it in every round; the best fixed arm is the one that the copy avoids most.
    """
    copy = build(name, seed=int(rng.integers(2**32)))
    means = np.full((horizon, N_ARMS), 0.6)
    nothing = np.zeros((horizon, CONTEXT_DIM))
    for t in range(horizon):
        arm = copy.select(nothing[t])
        means[t, arm] = 0.2
        copy.update(arm, 0.2, nothing[t])
    return World(means, means, nothing)


def contextual(horizon: int, rng: np.random.Generator, name: str) -> World:
    """Each arm's mean is linear in a random context: which arm is best can be seen, and changes every round."""
    contexts = rng.uniform(-1.0, 1.0, (horizon, CONTEXT_DIM))
    slopes = rng.uniform(-1.0, 1.0, (CONTEXT_DIM, N_ARMS))
    return world(0.5 + 0.35 * contexts @ slopes / np.abs(slopes).sum(axis=0), rng, contexts)


TOYS: dict[str, Callable[[int, np.random.Generator, str], World]] = {
    toy.__name__: toy for toy in (stationary, drifting, switching, adversarial, contextual)
}


def comparison(toy: str) -> str:
    """What a toy is sorted and drawn by: an oracle against an adversary that reacts to the policy says little."""
    return "best_fixed" if toy == "adversarial" else "oracle"


def regret(policy: Policy, toy: World) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative regret against the best fixed arm and against the oracle, each [horizon]."""
    rounds = np.arange(len(toy.means))
    arms = np.empty(len(rounds), dtype=int)
    for t in rounds:
        arms[t] = arm = policy.select(toy.contexts[t])
        policy.update(arm, toy.rewards[t, arm], toy.contexts[t])
    earned = toy.means[rounds, arms]
    fixed = toy.means[:, toy.means.sum(axis=0).argmax()]
    return (fixed - earned).cumsum(), (toy.means.max(axis=1) - earned).cumsum()


def experiment(seeds: int, horizon: int, console: Console) -> dict[str, dict[str, np.ndarray]]:
    """{toy: {policy: regret [finished seeds, 2, horizon]}}; Ctrl-C returns what is finished."""
    runs: dict[str, dict[str, list]] = {toy: {name: [] for name in NAMES} for toy in TOYS}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("playing", total=seeds * len(TOYS))
        try:
            for seed in range(seeds):  # seeds outermost: an interrupted run has compared all policies equally
                for number, (toy, make_world) in enumerate(TOYS.items()):
                    done = {}
                    for name in NAMES:
                        world_rng = np.random.default_rng([seed, number])  # the same for every policy, so is the world
                        done[name] = regret(build(name, seed), make_world(horizon, world_rng, name))
                    for name in NAMES:
                        runs[toy][name].append(done[name])
                    progress.update(bar, advance=1, description=f"seed {seed + 1}/{seeds}, {toy}")
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted: what follows holds the seeds that were finished.[/yellow]")
    finished = {toy: by_name for toy, by_name in runs.items() if by_name["random"]}
    return {toy: {name: np.array(of_seeds) for name, of_seeds in by_name.items()} for toy, by_name in finished.items()}


def summary(results: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Final regrets: mean over seeds and standard error (None for a single seed)."""
    out: dict[str, dict[str, dict[str, float | None]]] = {}
    for toy, by_name in results.items():
        out[toy] = {}
        for name, runs in by_name.items():
            row: dict[str, float | None] = {"seeds": len(runs)}
            for target, final in zip(("best_fixed", "oracle"), runs[:, :, -1].T, strict=True):
                row[target] = float(final.mean())
                row[f"{target}_se"] = float(final.std(ddof=1) / np.sqrt(len(final))) if len(final) > 1 else None
            out[toy][name] = row
    return out


def show(results: dict[str, dict[str, dict[str, float | None]]], console: Console) -> None:
    """A table per toy, side by side where the terminal is wide; the least regret first."""
    tables = []
    for toy, rows in results.items():
        table = Table(title=f"{toy} ({rows['random']['seeds']} seeds)")
        for column in ("policy", "best fixed arm", "oracle"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for name, row in sorted(rows.items(), key=lambda item: item[1][comparison(toy)]):
            cells = []
            for target in ("best_fixed", "oracle"):
                error = row[f"{target}_se"]
                cells.append(f"{row[target]:.0f}" + ("" if error is None else f" ± {error:.1f}"))
            table.add_row(name, *cells, style="dim" if name == "random" else "")
        tables.append(table)
    console.print(Columns(tables, padding=(1, 3)))


def draw(results: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """Regret against time, a panel per toy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    colours = plt.get_cmap("tab10").colors
    for axis, (toy, by_name) in zip(axes.flat, results.items(), strict=False):
        for index, (name, runs) in enumerate(by_name.items()):
            curves = runs[:, ("best_fixed", "oracle").index(comparison(toy))]
            mean = curves.mean(axis=0)
            style = {"color": "0.6", "linestyle": "--"} if name == "random" else {"color": colours[index - 1]}
            axis.plot(mean, label=name, linewidth=1.5, **style)
            if len(curves) > 1:
                error = curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
                axis.fill_between(np.arange(len(mean)), mean - error, mean + error, color=style["color"], alpha=0.2)
        axis.set_title(toy)
        axis.set_xlabel("round")
        axis.set_ylabel(f"cumulative regret against {comparison(toy).replace('_', ' ')}")
        axis.grid(alpha=0.3)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    axes.flat[-1].axis("off")
    axes.flat[-1].legend(handles, labels, loc="center", title="mean of seeds, band = standard error")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def many_arms(n_arms: int, horizon: int, rng: np.random.Generator, stretches: int) -> World:
    """One arm at .85, the others between .35 and .70, in a new order at each of `stretches` starts."""
    means = np.empty((horizon, n_arms))
    for stretch in np.array_split(np.arange(horizon), stretches):
        means[stretch] = rng.permutation(np.append(rng.uniform(0.35, 0.70, n_arms - 1), 0.85))
    rewards = (means + rng.normal(0.0, 0.12, means.shape)).clip(0.0, 1.0)
    return World(means, rewards, np.zeros((horizon, CONTEXT_DIM)))


def share_of_best(policy: Policy, toy: World, full_information: bool) -> tuple[float, float]:
    """Share of rounds in which the best arm was played: of the last eighth, and of all."""
    hits = np.empty(len(toy.means))
    best = toy.means.argmax(axis=1)
    for t, context in enumerate(toy.contexts):
        arm = policy.select(context)
        hits[t] = arm == best[t]
        for known in range(policy.n_arms) if full_information else (arm,):
            policy.update(known, toy.rewards[t, known], context)
    return float(hits[-len(hits) // 8 :].mean()), float(hits.mean())


def show_many_arms(arms: list[int], seeds: int, horizon: int, console: Console) -> None:
    """A row per policy, a column per number of arms, kind of toy and feedback; mean of seeds."""
    cases = [
        (
            f"{n_arms} arms, {'steady' if stretches == 1 else 'switching'}{', full' if full else ''}",
            n_arms,
            stretches,
            full,
        )
        for n_arms in arms
        for stretches in (1, 5)
        for full in (False, True)
    ]
    table = Table(title=f"best arm played, % of the last {horizon // 8} rounds (of all {horizon}), {seeds} seeds")
    for column in ("policy", *(title for title, *_ in cases)):
        table.add_column(column, justify="left" if column == "policy" else "right")
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("playing", total=len(POLICIES) * len(cases))
        for name in POLICIES:
            cells = []
            for _, n_arms, stretches, full in cases:
                progress.update(bar, advance=1, description=f"{name}, {n_arms} arms")
                if full and name == "exp3":
                    cells.append("refused")
                    continue
                shares = [
                    share_of_best(
                        build(name, seed, n_arms),
                        many_arms(n_arms, horizon, np.random.default_rng([seed, n_arms, stretches]), stretches),
                        full,
                    )
                    for seed in range(seeds)
                ]
                last, whole = 100 * np.mean(shares, axis=0)
                cells.append(f"{last:.0f} ({whole:.0f})")
            table.add_row(name, *cells)
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="independent runs (default: 20)")
    parser.add_argument("--horizon", type=int, default=2000, help="rounds of each run (default: 2000)")
    parser.add_argument("--out", type=Path, help="folder for policy_lab.png and policy_lab.json")
    parser.add_argument("--arms", type=int, nargs="+", metavar="N", help="the toys with many arms, with this many each")
    options = parser.parse_args(arguments)
    if options.arms and min(options.arms) < 2:
        parser.error(f"--arms must be at least 2, got {min(options.arms)}")
    for field in ("seeds", "horizon"):
        if getattr(options, field) < 1:
            parser.error(f"--{field} must be at least 1, got {getattr(options, field)}")
    console = Console()
    if options.arms:
        show_many_arms(options.arms, options.seeds, options.horizon, console)
        return
    results = experiment(options.seeds, options.horizon, console)
    table = summary(results)
    console.print(f"Cumulative regret after {options.horizon} rounds, {N_ARMS} arms, mean ± standard error over seeds")
    show(table, console)
    if options.out and results:
        options.out.mkdir(parents=True, exist_ok=True)
        report = {"horizon": options.horizon, "n_arms": N_ARMS, "regret": table}
        (options.out / "policy_lab.json").write_text(json.dumps(report, indent=1) + "\n")
        draw(results, options.out / "policy_lab.png")
        console.print(f"written: {options.out / 'policy_lab.png'}, {options.out / 'policy_lab.json'}")


if __name__ == "__main__":
    main()
