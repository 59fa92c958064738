"""The held-out guard: a policy isn't evaluated on what it was trained on.

What a policy was trained on is written in the manifest beside its weights, which travels with a copy of them.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from swe_rl.errors import SplitError
from swe_rl.store.policies import PolicyManifest

logger = logging.getLogger(__name__)


def check_held_out(policy_dir: Path, split: str, task_ids: Iterable[str]) -> PolicyManifest | None:
    """Gives the policy's manifest, None if it has none (a model that wasn't trained here).

    Raises SplitError if the manifest names the split or one of the tasks.
    """
    manifest = PolicyManifest.read(policy_dir)
    if manifest is None:
        logger.warning("policy %s has no manifest: that it never saw split %s can't be checked", policy_dir, split)
        return None
    if split in manifest.splits:
        raise SplitError(
            f"policy {policy_dir} (v{manifest.version}) was trained on split {split!r}; expected a split other than "
            f"{', '.join(manifest.splits)}: set eval.split"
        )
    if seen := sorted(set(manifest.task_ids) & set(task_ids)):
        raise SplitError(
            f"policy {policy_dir} (v{manifest.version}) was trained on {len(seen)} tasks of split {split!r}, e.g. "
            f"{seen[0]}; expected none: make the splits disjoint"
        )
    return manifest
