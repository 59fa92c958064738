"""A lean forward for Llama-like decoders (RMSNorm, rotary positions, grouped heads, gated MLP or experts) with a slot
cache.

It reads the weights of a transformers model once, fuses what can be fused, and then runs without modules: on one
CPU core their overhead would cost more than the arithmetic of a small policy. Prefill takes a flat row of tokens of
many slots; decode takes one token of each of the first B slots. The experts that a token passed through are cached as
its keys and values are, if they are to be told.

It knows nothing of sessions, sampling or policy versions.

Shapes: N tokens, B decoded rows (slots 0..B-1), H query heads, K key-value heads, G = H / K, D head size, E hidden
size, L cached columns that are read, V vocabulary; C experts a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from swe_rl.errors import PolicyError
from swe_rl.inference.local_mlp import SparseMlp
from swe_rl.inference.local_weights import LayerWeights, read_weights
from swe_rl.model.linear import linear
from swe_rl.trajectory import UNKNOWN_EXPERT

ROW_BLOCK = 32  # rows of similar length are worth gathering in blocks of this many slots
_COLUMN_BUCKET = 32
_PREFILL_BUCKET = 64

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to prefill: they stand at `start`, `start + 1`, ... of the context held by `slot`."""

    slot: int
    start: int
    token_ids: Sequence[int]


class SlotDecoder:
    """One model and the key-value cache of `num_slots` contexts of up to `max_context` tokens."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_context: int, keeps_experts: bool = False) -> None:
        """Raises PolicyError for a model that this forward doesn't reproduce, or has no experts that could be kept."""
        self._weights = w = read_weights(model, max_context)
        self._linear = linear if w.embedding.dtype == torch.float32 else F.linear
        self._scale = self._weights.head_dim**-0.5
        self.vocab_size: int = len(self._weights.embedding)
        # slots and heads are neighbours, so that the decode's batch of products is a view
        shape = (len(w.layers), 2, num_slots, w.num_kv_heads, max_context, w.head_dim)
        self._cache = torch.zeros(shape, dtype=w.embedding.dtype)
        self._experts = _expert_cache(w.layers, num_slots, max_context) if keeps_experts else None

    def prefill(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Caches the chunks and returns float32 [len(chunks), V]: the logits after the last token of each."""
        lengths = [len(chunk.token_ids) for chunk in chunks]
        total = sum(lengths)
        padding = -total % _PREFILL_BUCKET  # few distinct shapes: each new one costs a kernel and memory
        tokens_N = torch.tensor([t for chunk in chunks for t in chunk.token_ids] + [0] * padding)
        places = [torch.arange(c.start, c.start + n) for c, n in zip(chunks, lengths, strict=True)]
        positions_N = torch.cat([*places, torch.zeros(padding, dtype=torch.long)])
        masks = [_causal_mask(c.start, n, self._cache.dtype) for c, n in zip(chunks, lengths, strict=True)]

        def attend(index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            out_NHD = torch.zeros_like(query)
            offset = 0
            for chunk, n, mask in zip(chunks, lengths, masks, strict=True):
                part = slice(offset, offset + n)
                out_NHD[part] = self._attend_chunk(index, chunk, mask, query[part], key[part], value[part])
                offset += n
            return out_NHD

        slots_N = torch.repeat_interleave(torch.tensor([chunk.slot for chunk in chunks]), torch.tensor(lengths))
        hidden_NE = self._forward(tokens_N, positions_N, slots_N, attend)
        last = torch.cumsum(torch.tensor(lengths), 0) - 1
        return self._logits(hidden_NE[last])

    def decode(self, token_ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """One token of each of the slots 0..B-1, standing at `positions`; returns float32 [B, V] logits after it."""
        positions_B = torch.tensor(positions)
        rows_B = torch.arange(len(token_ids))
        blocks = [
            self._row_block(start, positions_B[start : start + ROW_BLOCK]) for start in rows_B[::ROW_BLOCK].tolist()
        ]

        def attend(index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = self._cache[index]
            keys[rows_B, :, positions_B] = key
            values[rows_B, :, positions_B] = value
            parts = [
                self._attend_rows(query[part], keys[part, :, : mask.shape[1]], values[part, :, : mask.shape[1]], mask)
                for part, mask in blocks
            ]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        return self._logits(self._forward(torch.tensor(token_ids), positions_B, rows_B, attend))

    def _row_block(self, start: int, positions_B: torch.Tensor) -> tuple[slice, torch.Tensor]:
        """Rows whose attention reads the columns of the longest of them, and their additive mask float32 [B, L]."""
        needed = int(positions_B.max()) + 1
        columns = min(-(-needed // _COLUMN_BUCKET) * _COLUMN_BUCKET, self._cache.shape[4])
        hidden = torch.arange(columns) > positions_B[:, None]
        return slice(start, start + len(positions_B)), torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))

    def swap(self, first: int, second: int, columns: int) -> None:
        """Exchanges the first `columns` cached tokens of two slots."""
        one, two = self._cache[:, :, first, :, :columns], self._cache[:, :, second, :, :columns]
        kept = one.clone()
        one.copy_(two)
        two.copy_(kept)
        if self._experts is not None:
            self._experts[[first, second], :columns] = self._experts[[second, first], :columns]

    def experts(self, slot: int, start: int, end: int) -> torch.Tensor | None:
        """int16 [end - start, layers, C] of a slot's cached tokens, if they are kept."""
        return None if self._experts is None else self._experts[slot, start:end].clone()

    def clear(self) -> None:
        """Zeroes the cache: a NaN left in a column would pass through its mask."""
        self._cache.zero_()

    def _forward(
        self, tokens_N: torch.Tensor, positions_N: torch.Tensor, slots_N: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """`slots_N` may be shorter than the tokens: those behind are padding."""
        hidden = F.embedding(tokens_N, self._weights.embedding)
        size = (hidden.shape[-1],)
        cos, sin = self._weights.cos[positions_N], self._weights.sin[positions_N]
        for index, layer in enumerate(self._weights.layers):
            normed = F.rms_norm(hidden, size, layer.input_norm, self._weights.eps)
            query, key, value = self._project(layer, normed, cos, sin)
            mixed = attend(index, query, key, value).reshape(len(tokens_N), -1)
            hidden = hidden + self._linear(mixed, layer.out, layer.out_bias)
            normed = F.rms_norm(hidden, size, layer.mlp_norm, self._weights.eps)
            out, experts_NC = layer.mlp(normed, self._linear)
            hidden = hidden + out
            if self._experts is not None and experts_NC is not None:
                real = len(slots_N)
                self._experts[slots_N, positions_N[:real], index] = experts_NC[:real].to(torch.int16)
        return hidden

    def _project(
        self, layer: LayerWeights, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = self._weights.num_heads + self._weights.num_kv_heads
        qkv = self._linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, self._weights.head_dim)
        rotated = qkv[:, :heads]
        if layer.qk_norm is not None:
            rotated = F.rms_norm(rotated, (self._weights.head_dim,), None, self._weights.eps) * layer.qk_norm
        # the sign of the rotated half is in the table
        rotated = rotated * cos + rotated.roll(self._weights.head_dim // 2, -1) * sin
        return rotated[:, : self._weights.num_heads], rotated[:, self._weights.num_heads :], qkv[:, heads:]

    def _attend_chunk(
        self,
        index: int,
        chunk: Chunk,
        mask: torch.Tensor | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        end = chunk.start + len(query)
        cache = self._cache[index, :, chunk.slot]
        cache[0, :, chunk.start : end] = key.transpose(0, 1)
        cache[1, :, chunk.start : end] = value.transpose(0, 1)
        groups = self._weights.num_heads // self._weights.num_kv_heads
        # key-value heads are the batch, so that one view of the cache serves a whole group of query heads
        query_KGND = query.transpose(0, 1).reshape(self._weights.num_kv_heads, groups, len(query), -1)
        keys, values = cache[:, :, None, :end].expand(-1, -1, groups, -1, -1)
        out_KGND = F.scaled_dot_product_attention(
            query_KGND, keys, values, mask, is_causal=mask is None, scale=self._scale
        )
        return out_KGND.flatten(0, 1).transpose(0, 1)

    def _attend_rows(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask_BL: torch.Tensor
    ) -> torch.Tensor:
        """query [B, H, D], keys and values [B, K, L, D] -> [B, H * D].

        Keys stand on the left of their product: as a right operand each would be repacked for a few query rows.
        """
        rows, columns = mask_BL.shape
        groups = self._weights.num_heads // self._weights.num_kv_heads
        query_bDG = (query * self._scale).reshape(-1, groups, self._weights.head_dim).transpose(1, 2)
        scores_bLG = torch.bmm(keys.flatten(0, 1), query_bDG)
        scores_BKGL = scores_bLG.view(rows, -1, columns, groups).transpose(2, 3).float()
        weights_BKGL = torch.softmax(scores_BKGL + mask_BL[:, None, None], dim=-1).to(query.dtype)
        return torch.bmm(weights_BKGL.flatten(0, 1), values.flatten(0, 1)).view(rows, -1)

    def _logits(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        normed = F.rms_norm(hidden_NE, (hidden_NE.shape[-1],), self._weights.final_norm, self._weights.eps)
        return self._linear(normed, self._weights.head).float()


def _expert_cache(layers: Sequence[LayerWeights], num_slots: int, max_context: int) -> torch.Tensor:
    """int16 [slots, max_context, layers, C]; layers without experts stay unknown."""
    chosen = {layer.mlp.num_chosen for layer in layers if isinstance(layer.mlp, SparseMlp)}
    if not chosen:
        raise PolicyError(
            "local engine: engine.return_routed_experts is true, but no layer of the policy has experts; unset it"
        )
    return torch.full((num_slots, max_context, len(layers), max(chosen)), UNKNOWN_EXPERT, dtype=torch.int16)


def _causal_mask(start: int, length: int, dtype: torch.dtype) -> torch.Tensor | None:
    """None where the chunk begins its context: the kernel's own causal mask is faster."""
    if start == 0:
        return None
    return torch.full((length, start + length), float("-inf"), dtype=dtype).triu_(start + 1)
