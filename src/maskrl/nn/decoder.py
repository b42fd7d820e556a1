"""The predictive latent decoder φ (paper, section 3.2 (iii)): a small transformer over state and action tokens."""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from maskrl.nn.clip import over_time


class LatentDecoder(nn.Module):
    """Predict every latent state of a clip from the masked ones and the actions: (B, K, d), (B, K, A) → (B, K, d)."""

    order: Tensor | None

    def __init__(
        self,
        latent_dim: int,
        action_dim: int,
        *,
        depth: int = 2,
        action_tokens: bool = True,
        order: Tensor | None = None,  # of the latent's units in the table of positions; None: unchanged
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"decoder_depth={depth} must be at least 1; the paper uses 2.")
        self.embed_action = nn.Linear(action_dim, latent_dim) if action_tokens else None
        self.blocks = nn.ModuleList(Block(latent_dim) for _ in range(depth))
        self.register_buffer("order", order, persistent=False)

    @property
    def core(self) -> nn.Module:
        """The decoder without the embedding of the actions."""
        return self.blocks

    def forward(self, states: Tensor, actions: Tensor, valid: Tensor | None = None) -> Tensor:
        """Predict all states. Steps attend only to steps that are `valid` (B, K)."""
        steps = states.shape[1]
        position = sinusoid(steps, states)  # (K, d), shared by the state and the action of a step
        position = position if self.order is None else position[:, self.order]
        tokens = states + position  # (B, K, d)
        if self.embed_action is not None:
            # The paper interleaves states and actions. Attention depends on the positions of tokens, not on their order,
            # so putting the states first gives the same result and keeps them together.
            tokens = torch.cat([tokens, self.embed_action(actions) + position], dim=1)  # (B, 2K, d)
            valid = None if valid is None else torch.cat([valid, valid], dim=1)
        for block in self.blocks[:-1]:
            tokens = block(tokens, valid)
        # Only the state tokens are used, so the last block computes no others.
        decoded: Tensor = self.blocks[-1](tokens, valid, outputs=steps)
        return decoded


class NarrowDecoder(nn.Module):
    """A decoder narrower than the latent. Not in the paper, whose Atari blocks, 3136 wide, have 78.7 M parameters each.

    It is residual, like the blocks of the wide decoder: otherwise every prediction would pass through only `width` numbers.
    """

    def __init__(self, latent_dim: int, decoder: LatentDecoder, *, width: int) -> None:
        super().__init__()
        self.narrow, self.decoder, self.widen = nn.Linear(latent_dim, width), decoder, nn.Linear(width, latent_dim)

    @property
    def core(self) -> nn.Module:
        return nn.ModuleList([self.narrow, self.decoder.core, self.widen])

    def forward(self, states: Tensor, actions: Tensor, valid: Tensor | None = None) -> Tensor:
        found: Tensor = self.widen(self.decoder(self.narrow(states), actions, valid))
        return states + found


class CausalDecoder(nn.Module):
    """MOOSS's decoder: in s₀, a₀, s₁, a₁, … a token attends to itself and earlier ones; (B, K, d), (B, K, A) → (B, K, d)."""

    def __init__(self, latent_dim: int, action_dim: int, *, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        if latent_dim % heads:
            raise ValueError(
                f"A latent state of {latent_dim} numbers cannot be divided among {heads} attention heads. Use "
                "agent.encoder.latent_dim=64 as its authors do, or another number of heads."
            )
        self.embed_action = nn.Linear(action_dim, latent_dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                latent_dim, heads, 4 * latent_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(latent_dim, eps=1e-6)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # Query, key and value are one matrix: as released, its fan-out counts all three.
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def core(self) -> nn.Module:
        """The decoder without the embedding of the actions."""
        return nn.ModuleList([*self.blocks, self.norm])

    def forward(self, states: Tensor, actions: Tensor, valid: Tensor | None = None) -> Tensor:
        """Predict all states. `valid` has no effect: steps past the end come last, so no valid step attends to them."""
        steps = states.shape[1]
        position = sinusoid(steps, states)  # (K, d)
        pairs = torch.stack([states + position, self.embed_action(actions) + position], dim=2)  # (B, K, 2, d)
        tokens = pairs.flatten(1, 2)  # (B, 2K, d)
        later = torch.ones(2 * steps, 2 * steps, dtype=torch.bool, device=states.device).triu(1)
        for block in self.blocks:
            tokens = block(tokens, src_mask=later)
        decoded: Tensor = self.norm(tokens)[:, ::2]
        return decoded


class Block(nn.Module):
    """Pre-norm self-attention and MLP, both residual. One head, no bias on query, key and value; 20 400 parameters at d = 50."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(d)
        self.query = nn.Linear(d, d, bias=False)
        self.key_value = nn.Linear(d, 2 * d, bias=False)
        self.project = nn.Linear(d, d)
        self.norm_mlp = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, valid: Tensor | None = None, outputs: int | None = None) -> Tensor:
        """(B, T, d) → (B, outputs, d): all tokens are read; the first `outputs` (default: all) are computed."""
        normed = self.norm_attention(x)
        key, value = self.key_value(normed).chunk(2, dim=-1)
        z = x[:, :outputs] + self.project(attention(self.query(normed[:, :outputs]), key, value, valid))
        written: Tensor = z + over_time(self.mlp, self.norm_mlp(z))
        return written


def attention(query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
    """(B, outputs, d), (B, T, d), (B, T, d) → (B, outputs, d): every query sees the keys that are `valid` (B, T).

    The bits of `F.scaled_dot_product_attention`, in a quarter of the operations, as there is one head.
    """
    scale = math.sqrt(1 / math.sqrt(query.shape[-1]))  # on both sides, as torch does: their product stays small
    scores = torch.bmm(query * scale, (key * scale).transpose(1, 2))
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None], torch.finfo(scores.dtype).min)
    return torch.bmm(scores.softmax(dim=-1), value)


def sinusoid(length: int, like: Tensor) -> Tensor:
    """(length, d) with d, dtype and device of `like`: sin(p·10000^(−2j/d)) at 2j, the cosine at 2j + 1 (paper, appendix B.1).

    Every row has norm √(d/2), for an even d.
    """
    return _sinusoid(length, like.shape[-1], like.dtype, like.device)


@lru_cache(maxsize=16)
def _sinusoid(length: int, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    frequency = torch.exp(torch.arange(0, d, 2, dtype=dtype, device=device) * (-math.log(10_000) / d))
    angle = torch.arange(length, dtype=dtype, device=device)[:, None] * frequency  # (length, ⌈d/2⌉)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d]
