"""The pictures of a run: one function a picture, each from numbers that are already counted to one PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from swe_rl.analysis.figure import BLUE, FAINT, GREEN, INK, PURPLE, SKY, VERMILLION, describe, note, panels
from swe_rl.analysis.summary import RunLogs
from swe_rl.analysis.tokens import DIVERGENCE_EDGES, TokenStatistics
from swe_rl.train.mask import Reason, binary_kl

_SMOOTH_STEPS = 5
_REASONS = {
    Reason.OVER_PHI: ("rejected by the rule", VERMILLION),
    Reason.STALE: ("too stale", PURPLE),
    Reason.NONFINITE: ("not finite", SKY),
}
_SEGMENT_NAMES = {
    "reasoning": "reasoning",
    "text": "prose",
    "tool_name": "tool name",
    "tool_args": "tool arguments",
    "diff": "code written",
    "stop": "stop token",
}


def plot_learning(path: Path, logs: RunLogs) -> None:
    """Training reward by step, and the held-out pass rate with intervals by policy version."""
    with panels(path, size=(7.6, 4.4)) as (axes,):
        rows = [row for row in logs.metrics if row.get("reward/mean") is not None]
        steps, rewards = [row["step"] for row in rows], np.array([row["reward/mean"] for row in rows])
        if len(rows):
            axes.plot(steps, rewards, color=SKY, lw=1, alpha=0.8, label="training reward, each step")
            axes.plot(
                steps, _smooth(rewards), color=BLUE, lw=2.2, label=f"training reward, mean of {_SMOOTH_STEPS} steps"
            )
        _draw_rates(axes, logs.evals, "pass_rate", VERMILLION, "o", "held-out pass rate, sampled (95 % interval)")
        greedy = [e for e in logs.evals if e.get("greedy")]
        _draw_rates(axes, greedy, "greedy", GREEN, "D", "held-out pass rate, greedy (95 % interval)")
        describe(axes, "Learning", "policy version (optimiser steps)", "resolved (fraction of episodes)")
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=2)
        else:
            note(axes, "no rewards and no evaluations")


def plot_probabilities(path: Path, tokens: TokenStatistics, phi: float | None) -> None:
    """p_train against p_infer of sampled tokens, linear and logarithmic, with the line where KPop's divergence is phi.

    Masked tokens lie on top; `phi` is None where another rule decides.
    """
    with panels(path, columns=2, size=(10.4, 5.9)) as all_axes:
        for axes, is_log in zip(all_axes, (False, True), strict=True):
            low = 1e-6 if is_log else 0.0
            axes.plot([low, 1], [low, 1], color=FAINT, lw=1, zorder=3, label="equal")
            kept, masked = (_points(pairs, low) for pairs in (tokens.sample_kept, tokens.sample_masked))
            axes.scatter(
                *kept, s=4, c=BLUE, lw=0, alpha=0.35, zorder=4, rasterized=True, label=f"kept ({len(kept[0]):,} drawn)"
            )
            label = f"masked ({len(masked[0]):,} drawn)"
            axes.scatter(
                *masked, s=9, c=VERMILLION, marker="x", lw=0.8, alpha=0.6, zorder=5, rasterized=True, label=label
            )
            if phi is not None:
                _draw_threshold(axes, phi, is_log)
            scale = "logarithmic" if is_log else "linear"
            x, y = "p_infer (engine, when sampled)", "p_train (trainer's replay)"
            describe(axes, f"Probability of sampled tokens, {scale}", x, y)
            if is_log:
                axes.set_xscale("log")
                axes.set_yscale("log")
            axes.set_xlim(low, 1.5 if is_log else 1.02)
            axes.set_ylim(low, 1.5 if is_log else 1.02)
            axes.set_box_aspect(1)
        figure = all_axes[0].get_figure(root=True)
        assert figure is not None
        handles, labels = all_axes[0].get_legend_handles_labels()
        legend = figure.legend(handles, labels, loc="outside lower center", markerscale=2, ncols=4)
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set_alpha(1.0)


def plot_divergence(path: Path, tokens: TokenStatistics, phi: float | None) -> None:
    """Histogram of the larger binary KL of each token, with the threshold."""
    masked, kept = tokens.divergence_counts
    with panels(path, size=(7.6, 4.2)) as (axes,):
        if not tokens.divergence_counts.sum():
            note(axes, "no token logs")
        else:
            axes.set_yscale("log")
        axes.stairs(kept, DIVERGENCE_EDGES, fill=True, color=BLUE, alpha=0.85, label=f"kept ({int(kept.sum()):,})")
        axes.stairs(
            masked, DIVERGENCE_EDGES, fill=True, color=VERMILLION, alpha=0.85, label=f"masked ({int(masked.sum()):,})"
        )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0.7)
        if phi is not None:
            axes.axvline(phi, color=INK, lw=1.4, ls=(0, (4, 2)), label=f"phi = {phi:g}")
        describe(
            axes,
            "Binary KL between trainer and engine",
            "max(D(p_train || p_infer), D(p_infer || p_train)), nats per token; below 1e-12 in the first bin",
            "tokens (count)",
        )
        axes.legend(loc="upper right")


def plot_kept_over_steps(path: Path, tokens: TokenStatistics) -> None:
    """Kept fraction by step above, what became of the others below."""
    steps = sorted(step for step, counts in tokens.reasons.items() if sum(counts.values()))
    with panels(path, rows=2, size=(7.6, 5.4)) as (above, below):
        totals = np.array([sum(tokens.reasons[step].values()) for step in steps], dtype=np.float64)
        kept = np.array([tokens.reasons[step][Reason.KEPT] for step in steps]) / np.maximum(totals, 1)
        if not steps:
            note(above, "no token logs")
        above.plot(steps, kept, color=BLUE, lw=2, marker="o", ms=3.5)
        above.yaxis.set_major_formatter(PercentFormatter(1.0))
        above.set_ylim(max(0.0, 1 - 1.25 * (1 - kept.min(initial=0.999))), 1 + 0.05 * (1 - kept.min(initial=0.999)))
        describe(above, "Tokens that the mask kept", "", "kept (fraction of trainable)")
        for reason, (name, colour) in _REASONS.items():
            share = np.array([tokens.reasons[step][reason] for step in steps]) / np.maximum(totals, 1)
            below.plot(steps, share, color=colour, lw=1.8, marker="o", ms=3, label=name)
        below.yaxis.set_major_formatter(PercentFormatter(1.0))
        below.set_ylim(bottom=0)
        describe(below, "Masked, by reason", "optimiser step", "masked (fraction of trainable)")
        below.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, borderaxespad=0.1)
        for axes in (above, below):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_kept_by_segment(path: Path, tokens: TokenStatistics) -> None:
    """Kept fraction of each kind of token, with its 95 % interval and its number of tokens."""
    rows = sorted(tokens.segments.items(), reverse=True)
    with panels(path, size=(7.6, 1.6 + 0.42 * max(2, len(rows)))) as (axes,):
        if not rows:
            note(axes, "no token logs")
        intervals = [_wilson(kept, total) for _, (kept, total) in rows]
        for place, ((_, (kept, total)), (low, high)) in enumerate(zip(rows, intervals, strict=True)):
            axes.plot([low, high], [place, place], color=BLUE, lw=2.5, alpha=0.45, solid_capstyle="butt")
            axes.plot(kept / total, place, "o", color=BLUE, ms=7)
            label = f"{kept / total:.2%} of {total:,}"
            axes.text(1.02, place, label, transform=axes.get_yaxis_transform(), va="center", color=INK)
        axes.set_yticks(range(len(rows)), [_SEGMENT_NAMES.get(s.name.lower(), s.name.lower()) for s, _ in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        lowest = min((low for low, _ in intervals), default=0.0)
        axes.set_xlim(max(0.0, 1 - 1.15 * (1 - lowest)), 1 + 0.03 * (1 - lowest))
        axes.xaxis.set_major_locator(MaxNLocator(4))  # near 100 % the labels are long
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", visible=False)
        describe(axes, "Kept, by what the token belongs to", "kept (fraction of trainable; 95 % interval)", "")


def plot_staleness(path: Path, tokens: TokenStatistics) -> None:
    """Mean |log p_train - log p_infer|: by the age of the sampling policy, and by step."""
    with panels(path, columns=2, size=(10.4, 4.0)) as (left, right):
        for axes, by, colour, label in (
            (left, tokens.staleness, VERMILLION, "staleness (versions since sampled)"),
            (right, tokens.steps, BLUE, "optimiser step"),
        ):
            places = sorted(place for place, moments in by.items() if moments.count)
            means = [by[place].mean for place in places]
            if not places:
                note(axes, "no token logs")
            errors = [by[place].half_width for place in places]
            axes.errorbar(places, means, errors, color=colour, lw=1.6, marker="o", ms=5, capsize=3)
            axes.set_ylim(bottom=0, top=1.25 * max((m + e for m, e in zip(means, errors, strict=True)), default=1.0))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            describe(axes, "", label, "mean |log p_train - log p_infer| (nats)")
        for place, moments in tokens.staleness.items():
            if moments.count:
                above = (place, moments.mean + moments.half_width)
                left.annotate(
                    f"{moments.count:,} tokens", above, (0, 7), textcoords="offset points", ha="center", color=FAINT
                )
        if len(tokens.staleness) == 1:
            left.set_xlim(min(tokens.staleness) - 1, min(tokens.staleness) + 1)
        left.margins(x=0.18)
        left.set_title("Mismatch by age of the sampling policy", fontweight="bold")
        right.set_title("Mismatch over the run", fontweight="bold")


def _points(pairs: NDArray[np.float32], low: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    probabilities = np.clip(np.exp(pairs.astype(np.float64)), low, 1.0)
    return probabilities[:, 0], probabilities[:, 1]


def _draw_threshold(axes: Axes, phi: float, is_log: bool) -> None:
    """Where max(D(p||q), D(q||p)) = phi: the mask keeps what lies between the two curves."""
    side = np.logspace(-6, -1e-7, 400) if is_log else np.linspace(1e-5, 1 - 1e-6, 600)
    logq, logp = torch.meshgrid(torch.from_numpy(np.log(side)), torch.from_numpy(np.log(side)), indexing="xy")
    divergence = torch.maximum(binary_kl(logp, logq), binary_kl(logq, logp)).numpy()
    axes.contour(side, side, divergence, levels=[phi], colors=INK, linewidths=1.2, linestyles="--", zorder=6)
    axes.plot([], [], color=INK, lw=1.2, ls="--", label=f"binary KL = phi = {phi:g}")


def _draw_rates(
    axes: Axes, evals: Sequence[Mapping[str, Any]], name: str, colour: str, marker: str, label: str
) -> None:
    if not evals:
        return
    versions = [e["version"] for e in evals]
    values = np.array([e[name]["value"] for e in evals])
    low, high = np.array([e[name]["ci95"] for e in evals]).T
    spread = np.maximum([values - low, high - values], 0.0)
    shift = 0.0 if name == "pass_rate" else 0.008 * max(1, *versions)  # side by side, not on top of each other
    axes.errorbar(
        np.array(versions) + shift,
        values,
        spread,
        color=colour,
        marker=marker,
        ms=6,
        lw=1.4,
        ls=(0, (5, 2)),
        capsize=3,
        zorder=5,
        label=label,
    )


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred mean; the window shrinks at the ends instead of inventing values."""
    reach = _SMOOTH_STEPS // 2
    return np.array([values[max(0, i - reach) : i + reach + 1].mean() for i in range(len(values))])


def _wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a proportion. Source: Wilson 1927."""
    z, p = 1.96, hits / total
    centre = (p + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z * np.sqrt(p * (1 - p) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    return float(centre - reach), float(centre + reach)
