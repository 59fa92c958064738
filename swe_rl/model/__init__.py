"""The policy as a torch model: read and write its directory, and price given tokens under it.

    policy directory (Hugging Face layout) -> load_model -> token_logprobs(flat packed row) -> save_policy

It neither samples (that is `swe_rl.inference`) nor optimises (that is `swe_rl.train`).
"""

from swe_rl.model.attention import use_packed_attention
from swe_rl.model.context import ALONE, Context
from swe_rl.model.logprobs import TokenScores, recompute_activations, token_logprobs, token_scores
from swe_rl.model.policy_dir import check_policy_dir, load_model, policy_checksum, save_policy, torch_dtype
from swe_rl.model.routing import Routing, find_routers

__all__ = [
    "ALONE",
    "Context",
    "Routing",
    "TokenScores",
    "check_policy_dir",
    "find_routers",
    "load_model",
    "policy_checksum",
    "recompute_activations",
    "save_policy",
    "token_logprobs",
    "token_scores",
    "torch_dtype",
    "use_packed_attention",
]
