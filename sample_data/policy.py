"""A small decoder-only transformer: training with teacher forcing, sampling, and scoring of token sequences."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100


@dataclass(frozen=True)
class Shape:
    """Sizes of the transformer."""

    vocab: int
    width: int = 96
    layers: int = 3
    heads: int = 4
    context: int = 192


class Block(nn.Module):
    """Pre-norm attention with rotary positions, then a feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.mix = nn.Linear(shape.width, shape.width, bias=False)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: dict[str, Tensor] | None) -> Tensor:
        """Transform `x` (batch, time, width); `cache` holds the keys and values of earlier positions."""
        batch, time, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = (part.transpose(1, 2) for part in split.unbind(2))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cache is not None:
            if cache:
                key, value = torch.cat((cache["key"], key), 2), torch.cat((cache["value"], value), 2)
            cache.update(key=key, value=value)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=time > 1)
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position angles to the last dimension."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class Policy(nn.Module):
    """The language model; output and input embeddings are one matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        half = shape.width // shape.heads // 2
        angles = torch.arange(shape.context)[:, None] * 1000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        nn.init.normal_(self.embed.weight, std=0.5 / math.sqrt(shape.width))

    def hidden(self, ids: Tensor, caches: list[dict[str, Tensor]] | None = None) -> Tensor:
        """Final hidden states; with `caches` the ids continue what was seen before."""
        past = caches[0]["key"].shape[2] if caches and caches[0] else 0
        cos, sin = (table[past : past + ids.shape[1]] for table in (self.cos, self.sin))
        x = self.embed(ids) * math.sqrt(self.shape.width)
        for index, block in enumerate(self.blocks):
            x = block(x, cos, sin, caches[index] if caches is not None else None)
        return self.norm(x)

    def forward(self, ids: Tensor, caches: list[dict[str, Tensor]] | None = None) -> Tensor:
        """Logits of the next token at each position."""
        return self.hidden(ids, caches) @ self.embed.weight.T


Example = tuple[list[int], list[int]]


def batches(examples: list[Example], size: int, rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless shuffled batches of inputs and targets; examples of like length go together, prompts have no target."""
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for start in range(0, len(order), 16 * size):
            pool = sorted(order[start : start + 16 * size], key=lambda i: len(examples[i][0]) + len(examples[i][1]))
            groups = [pool[at : at + size] for at in range(0, len(pool), size)]
            rng.shuffle(groups)
            for group in groups:
                rows = [examples[i] for i in group]
                length = max(len(prompt) + len(response) for prompt, response in rows) - 1
                ids = torch.zeros(len(rows), length, dtype=torch.long)
                targets = torch.full((len(rows), length), IGNORED)
                for at, (prompt, response) in enumerate(rows):
                    whole = torch.tensor(prompt + response)
                    ids[at, : len(whole) - 1] = whole[:-1]
                    targets[at, len(prompt) - 1 : len(whole) - 1] = whole[len(prompt) :]
                yield ids, targets


def train(
    policy: Policy, examples: list[Example], *, steps: int, extra: int, batch: int, seed: int, rate: float
) -> Iterator[float]:
    """Train for `steps`, yield the mean loss of the last tenth, train `extra` steps more and yield again."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    feed = batches(examples, batch, random.Random(seed))
    losses: list[float] = []
    for step in range(steps + extra):
        if step == steps:
            yield _recent(losses, steps)
        progress = min(1.0, step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 100) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
        ids, targets = next(feed)
        chosen = targets != IGNORED
        logits = policy.hidden(ids)[chosen] @ policy.embed.weight.T
        loss = functional.cross_entropy(logits, targets[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    yield _recent(losses, extra)


def _recent(losses: list[float], steps: int) -> float:
    """Mean of the last tenth of `steps` losses."""
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


@torch.no_grad()
def sample(policy: Policy, prompt: list[int], count: int, limit: int, stop: int, seed: int) -> list[list[int]]:
    """Draw `count` responses at temperature 1; each ends with `stop`, which stays, or has `limit` tokens."""
    generator = torch.Generator().manual_seed(seed)
    caches: list[dict[str, Tensor]] = [{} for _ in policy.blocks]
    logits = policy(torch.tensor([prompt] * count), caches)[:, -1]
    drawn: list[list[int]] = [[] for _ in range(count)]
    for _ in range(limit):
        tokens = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        for response, token in zip(drawn, tokens[:, 0].tolist(), strict=True):
            if not response or response[-1] != stop:
                response.append(token)
        if all(response[-1] == stop for response in drawn):
            break
        logits = policy(tokens, caches)[:, -1]
    return drawn


@torch.no_grad()
def score(policy: Policy, prompt: list[int], response: list[int]) -> tuple[Tensor, Tensor]:
    """Log-probability of each response token and entropy in nats of the distribution that it was drawn from."""
    log_p = policy(torch.tensor([prompt + response[:-1]]))[0, len(prompt) - 1 :].log_softmax(-1)
    chosen = log_p.gather(-1, torch.tensor(response)[:, None])[:, 0]
    return chosen, -(log_p.exp() * log_p).sum(-1).clamp(max=0)
