"""Speed of the sandbox service against the docker command and SWE-ReX, in one run on one machine.

In every round each operation (see sandbox_speed.subject) is done by all subjects one after another, in an order that
changes; the figures are medians. Prints a table, or with --json one object: `figures` (operation -> subject ->
median_ms, p95_ms, num), `ratios` (peer / ours: above 1 we are faster), `service_overhead_ms` (exec through the service
minus the backend's own), `left_out` (who couldn't be measured, and why).

    python benchmarks/sandbox.py --rounds 5 --swe-rex-python /path/to/venv/bin/python --json

The ratios without a prefix compare our Docker backend with peers that use Docker, and our bubblewrap backend with
SWE-ReX's local deployment (which isolates nothing); `bubblewrap_...` compares that backend with the Docker peers.
"""

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from sandbox_speed.docker_cli import DockerCli
from sandbox_speed.ours import Ours
from sandbox_speed.subject import OPERATIONS, LeftOutError, Sizes, Subject
from sandbox_speed.swe_rex import SweRex
from served import run

logger = logging.getLogger("sandbox")

Report = dict[str, Any]
Figures = dict[str, dict[str, dict[str, float]]]
# ratio's name: (operation of ours, peer, operation of the peer)
_DOCKER_RATIOS = {
    "exec_vs_docker_exec_cli": ("exec", "docker_cli", "exec"),
    "exec_vs_swe_rex_docker": ("exec", "swe_rex_docker", "exec"),
    "exec_vs_swe_rex_docker_execute": ("exec", "swe_rex_docker", "exec_alone"),
    "cold_start_vs_docker_run": ("start_cold", "docker_cli", "start_cold"),
    "cold_start_vs_swe_rex_docker": ("start_cold", "swe_rex_docker", "start_cold"),
    "warm_start_vs_docker_run": ("start_warm", "docker_cli", "start_cold"),
    "warm_start_vs_swe_rex_docker": ("start_warm", "swe_rex_docker", "start_cold"),
    "file_up_vs_docker_cp": ("file_up", "docker_cli", "file_up"),
    "file_up_vs_swe_rex_docker": ("file_up", "swe_rex_docker", "file_up"),
    "file_down_vs_docker_cp": ("file_down", "docker_cli", "file_down"),
    "file_down_vs_swe_rex_docker": ("file_down", "swe_rex_docker", "file_down"),
    "concurrent_vs_docker_run": ("concurrent", "docker_cli", "concurrent"),
    "concurrent_vs_swe_rex_docker": ("concurrent", "swe_rex_docker", "concurrent"),
    "fork_vs_docker_commit": ("fork", "docker_cli", "fork"),
}
_LOCAL_RATIOS = {
    "exec_vs_swe_rex_local": ("exec", "swe_rex_local", "exec"),
    "exec_vs_swe_rex_local_execute": ("exec", "swe_rex_local", "exec_alone"),
    "cold_start_vs_swe_rex_local": ("start_cold", "swe_rex_local", "start_cold"),
    "warm_start_vs_swe_rex_local": ("start_warm", "swe_rex_local", "start_cold"),
    "file_up_vs_swe_rex_local": ("file_up", "swe_rex_local", "file_up"),
    "file_down_vs_swe_rex_local": ("file_down", "swe_rex_local", "file_down"),
    "concurrent_vs_swe_rex_local": ("concurrent", "swe_rex_local", "concurrent"),
}


def main() -> int:
    args = _arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logger.setLevel(logging.INFO)
    args.scratch_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swe-rl-benchmark-", dir=args.scratch_dir) as scratch:
        report = run(_compare(args, Path(scratch)))
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if args.json else _table(report))
    return 0 if not any(name.startswith("ours_") for name in report["left_out"]) else 1


def _arguments() -> argparse.Namespace:
    usual = Sizes()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--concurrent-rounds", type=int, default=2, help="rounds that do `concurrent` (default: 2)")
    parser.add_argument("--backends", default="bubblewrap,docker", help="ours, with commas (also: docker-runsc)")
    parser.add_argument("--peers", default="docker_cli,swe_rex_local,swe_rex_docker", help="with commas; '': none")
    parser.add_argument("--swe-rex-python", type=Path, metavar="FILE", help="interpreter that has swe-rex and aiohttp")
    parser.add_argument("--swe-rex-image", default="", help="image that has swerex-remote (default: made of ours)")
    parser.add_argument("--execs", type=int, default=usual.num_execs, help="execs a round (default: %(default)s)")
    parser.add_argument("--concurrent", type=int, default=usual.num_concurrent, help="default: %(default)s")
    parser.add_argument("--forks", type=int, default=usual.num_forks, help="copies a fork (default: %(default)s)")
    parser.add_argument("--scratch-dir", type=Path, default=_memory_dir(), help="default: %(default)s")
    return parser.parse_args()


def _memory_dir() -> Path:
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


def _subjects(args: argparse.Namespace, scratch: Path) -> list[Subject]:
    sizes = Sizes(num_execs=args.execs, num_concurrent=args.concurrent, num_forks=args.forks)
    subjects: list[Subject] = [Ours(backend, scratch, sizes) for backend in args.backends.split(",") if backend]
    peers: dict[str, Subject] = {
        "docker_cli": DockerCli(sizes),
        "swe_rex_local": SweRex("local", args.swe_rex_python, "", scratch, sizes),
        "swe_rex_docker": SweRex("docker", args.swe_rex_python, args.swe_rex_image, scratch, sizes),
    }
    return subjects + [peers[name] for name in args.peers.split(",") if name]


async def _compare(args: argparse.Namespace, scratch: Path) -> Report:
    left_out: dict[str, str] = {}
    opened: list[Subject] = []
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    load_before = os.getloadavg()
    try:
        for subject in _subjects(args, scratch):
            logger.info("opening %s", subject.name)
            opened.append(subject)
            try:
                await subject.open()
            except LeftOutError as error:
                left_out[subject.name] = str(error)
                logger.info("left out: %s: %s", subject.name, error)
        for index in range(args.rounds):
            await _round(index, args, [s for s in opened if s.name not in left_out], samples, left_out)
    finally:
        for subject in opened:
            await subject.close()
    figures = {
        operation: {name: _figure(values) for name, values in sorted(by_subject.items())}
        for operation, by_subject in samples.items()
    }
    return {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load_before": load_before,
                    "load_after": os.getloadavg()},
        "rounds": args.rounds,
        "sizes": {"execs_a_round": args.execs, "concurrent": args.concurrent, "forks": args.forks},
        "figures": figures,
        "ratios": _ratios(figures),
        "service_overhead_ms": _overheads(figures),
        "left_out": left_out,
    }  # fmt: skip


async def _round(
    index: int,
    args: argparse.Namespace,
    subjects: list[Subject],
    samples: dict[str, dict[str, list[float]]],
    left_out: dict[str, str],
) -> None:
    for turn, operation in enumerate(OPERATIONS):
        if operation == "concurrent" and index >= args.concurrent_rounds:
            continue
        start = (index + turn) % max(1, len(subjects))
        for subject in subjects[start:] + subjects[:start]:
            measure = subject.operations.get(operation)
            if measure is None or f"{subject.name} {operation}" in left_out:
                continue
            try:
                measured = await measure()
            except RuntimeError as error:  # named, and not tried again: a figure of the lucky rounds would flatter
                left_out[f"{subject.name} {operation}"] = str(error)
                logger.info("left out: %s: %s: %s", subject.name, operation, error)
                samples[operation].pop(subject.name, None)
                continue
            for name, values in measured.items():
                samples[name][subject.name] += values
                logger.info(
                    "round %d: %-23s %-16s %9.2f ms", index + 1, name, subject.name, statistics.median(values) * 1e3
                )


def _figure(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {
        "median_ms": round(statistics.median(ordered) * 1e3, 3),
        "p95_ms": round(p95 * 1e3, 3),
        "num": len(ordered),
    }


def _ratios(figures: Figures) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for prefix, ours, table in (
        ("", "ours_docker", _DOCKER_RATIOS),
        ("", "ours_bubblewrap", _LOCAL_RATIOS),
        ("bubblewrap_", "ours_bubblewrap", _DOCKER_RATIOS),
        ("runsc_", "ours_docker-runsc", _DOCKER_RATIOS),
    ):
        for name, (operation, peer, peers_operation) in table.items():
            mine = figures.get(operation, {}).get(ours)
            its = figures.get(peers_operation, {}).get(peer)
            if mine and its:
                ratios[prefix + name] = round(its["median_ms"] / mine["median_ms"], 2)
    return ratios


def _overheads(figures: Figures) -> dict[str, float]:
    through, alone = figures.get("exec", {}), figures.get("exec_backend", {})
    return {name: round(through[name]["median_ms"] - alone[name]["median_ms"], 3) for name in alone if name in through}


def _table(report: Report) -> str:
    lines = [f"{report['rounds']} rounds, {report['machine']}, {report['sizes']}", ""]
    for operation, by_subject in report["figures"].items():
        for name, figure in by_subject.items():
            lines.append(
                f"{operation:<23} {name:<17} median {figure['median_ms']:>10.2f} ms   "
                f"p95 {figure['p95_ms']:>10.2f} ms   of {figure['num']:.0f}"
            )
    lines += ["", "peer / ours (above 1: we are faster)"]
    lines += [f"{name:<42} {ratio:>8.2f}" for name, ratio in report["ratios"].items()]
    lines += ["", "the service's own share of an exec"]
    lines += [f"{name:<42} {overhead:>8.2f} ms" for name, overhead in report["service_overhead_ms"].items()]
    lines += [f"left out: {name}: {reason}" for name, reason in report["left_out"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
