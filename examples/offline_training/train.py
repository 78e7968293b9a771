"""From a scored file to an updated policy: a clipped policy gradient with an advantage for every token, in plain torch.

    python examples/offline_training/sample.py rollouts.parquet
    ktae score rollouts.parquet
    ktae export rollouts.scored.parquet --to jsonl -o train.jsonl
    python examples/offline_training/train.py train.jsonl --seeds 5

trains the policy that sampled the rollouts on them, once for each seed, and prints its pass rate before and after, on
problems of which there is no rollout. Left out: a learned value, a KL penalty, new rollouts.
"""

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

SAMPLE = Path(__file__).parents[2] / "sample_data"
sys.path.insert(0, str(SAMPLE))

import policy as lm  # noqa: E402
import problems  # noqa: E402

CLIP, RATE, EPOCHS, BATCH = 0.2, 3e-4, 3, 64
PROMPTS, SAMPLES, LIMIT = 150, 8, 48


def load_policy(tokenizer: Tokenizer) -> lm.Policy:
    """Return the policy that sampled the rollouts."""
    policy = lm.Policy(lm.Shape(tokenizer.get_vocab_size()))
    policy.load_state_dict(torch.load(SAMPLE / "policy.pt", weights_only=True))
    return policy


def read_rows(path: Path) -> list[dict[str, torch.Tensor]]:
    """Return the exported rollouts: every list is as long as input_ids, and value t belongs to token t."""
    names = {"input_ids": torch.long, "loss_mask": torch.bool, "advantages": torch.float, "old_log_probs": torch.float}
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [{name: torch.tensor(row[name], dtype=dtype) for name, dtype in names.items()} for row in rows]


def loss_of(policy: lm.Policy, rows: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Return -mean over the policy's tokens of min(r A, clip(r, 1 - CLIP, 1 + CLIP) A), r = pi / pi_old."""
    padded = {name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True) for name in rows[0]}
    logits = policy(padded["input_ids"][:, :-1])
    # the logits at position t - 1 are those of token t, so every other list is taken from 1 on
    chosen = padded["input_ids"][:, 1:, None]
    log_probs = logits.log_softmax(-1).gather(-1, chosen)[..., 0]
    mask, advantages, old = (padded[name][:, 1:] for name in ("loss_mask", "advantages", "old_log_probs"))
    ratio = torch.exp(torch.where(mask, log_probs - old, 0.0))
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * mask).sum() / mask.sum()


def train(policy: lm.Policy, rows: list[dict[str, torch.Tensor]], seed: int) -> None:
    """Go over the rollouts EPOCHS times in batches."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, weight_decay=0.0)
    order = random.Random(seed)
    for _ in range(EPOCHS):
        shuffled = order.sample(rows, len(rows))
        for start in range(0, len(rows), BATCH):
            optimizer.zero_grad()
            loss_of(policy, shuffled[start : start + BATCH]).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()


def pass_rate(policy: lm.Policy, tokenizer: Tokenizer, seed: int) -> float:
    """Return the share of right answers to problems without a rollout, SAMPLES to each, at temperature 1."""
    end, right = tokenizer.token_to_id("<|endoftext|>"), 0
    for number, problem in enumerate(problems.make_distinct(random.Random(1_000_003), PROMPTS)):
        ids = tokenizer.encode(problem.prompt).ids
        for response in lm.sample(policy, ids, SAMPLES, LIMIT, end, seed * 100_003 + number):
            text = tokenizer.decode(response, skip_special_tokens=True)
            right += problems.is_right(text, str(problem.answer))
    return right / (PROMPTS * SAMPLES)


def main() -> None:
    """Read the command line, train, and print the pass rates."""
    parser = argparse.ArgumentParser(description="Train the sample policy on its scored rollouts.")
    parser.add_argument("rows", type=Path, help="JSON lines of `ktae export --to jsonl`")
    parser.add_argument("--seeds", type=int, default=5, help="repeats with another order and other samples (default 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a policy this small is slower on more
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    rows = read_rows(options.rows)
    changes = []
    print("seed  before   after  change")
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        policy = load_policy(tokenizer)
        before = pass_rate(policy, tokenizer, seed)
        train(policy, rows, seed)
        after = pass_rate(policy, tokenizer, seed)
        changes.append(after - before)
        print(f"{seed:>4}  {before:6.1%}  {after:6.1%}  {100 * changes[-1]:+5.1f} points", flush=True)
    if len(changes) > 1:
        error = statistics.stdev(changes) / len(changes) ** 0.5
        print(f"mean change {100 * statistics.mean(changes):+.1f} points, standard error {100 * error:.1f}")


if __name__ == "__main__":
    main()
