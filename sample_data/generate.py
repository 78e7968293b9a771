"""Make the sample rollouts: problems, a tokenizer, a small policy trained on them, and 16 samples per prompt.

    python sample_data/generate.py --out sample_data

writes `tokenizer.json`, `rollouts.parquet` and `policy.pt` and prints the measured figures as JSON. One seed gives the
same values on the same machine.
"""

import argparse
import contextlib
import copy
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import policy as lm
import problems
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
FLOATS = pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("rollout_id", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("reward", pa.float64()),
        ("correct", pa.bool_()),
        ("old_log_probs", FLOATS),
        ("old_entropy", FLOATS),
        ("log_probs", FLOATS),
        ("entropy", FLOATS),
        ("ground_truth", pa.string()),
        ("finish_reason", pa.string()),
        ("step", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Plan:
    """How much of everything: rollouts, training text, sizes of the model, training steps."""

    prompts: int = 72
    rollouts: int = 16
    limit: int = 48
    examples: int = 60_000
    vocab: int = 600
    width: int = 96
    layers: int = 3
    steps: int = 2600
    extra: int = 200
    batch: int = 32
    rate: float = 3e-3


QUICK = Plan(prompts=4, rollouts=4, limit=24, examples=2000, width=32, layers=1, steps=240, extra=30, batch=16)


@dataclass(frozen=True)
class Outcome:
    """Everything that one run makes."""

    table: pa.Table
    tokenizer: Tokenizer
    sampling: lm.Policy
    later: lm.Policy
    figures: dict[str, float]


@contextlib.contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """One thread, deterministic kernels and a seeded generator; the caller's settings come back afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(threads)


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    """A byte-level BPE of `vocab` entries with the end-of-text token as id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_examples(plan: Plan, held_out: set[str], seed: int) -> list[tuple[str, str]]:
    """Pairs of prompt and worked answer; prompts that are sampled later do not occur."""
    rng = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < plan.examples:
        problem = problems.make_problem(rng)
        if problem.prompt not in held_out:
            pairs.append((problem.prompt, problems.write_solution(rng, problem)))
    return pairs


def roll_out(
    plan: Plan, asked: list[problems.Problem], tokenizer: Tokenizer, sampling: lm.Policy, later: lm.Policy, seed: int
) -> pa.Table:
    """Sample every prompt, grade the text and score the tokens under both checkpoints."""
    end = tokenizer.token_to_id(END)
    rows = []
    for number, problem in enumerate(asked):
        prompt_ids = tokenizer.encode(problem.prompt).ids
        drawn = lm.sample(sampling, prompt_ids, plan.rollouts, plan.limit, end, seed * 100_003 + number)
        for at, ids in enumerate(drawn):
            response = tokenizer.decode(ids, skip_special_tokens=True)
            right = problems.is_right(response, str(problem.answer))
            old, new = lm.score(sampling, prompt_ids, ids), lm.score(later, prompt_ids, ids)
            row = {
                "group_id": f"arith-{number:03d}",
                "rollout_id": f"arith-{number:03d}/{at:02d}",
                "prompt": problem.prompt,
                "response": response,
                "prompt_ids": prompt_ids,
                "response_ids": ids,
                "reward": float(right),
                "correct": right,
                "old_log_probs": old[0].numpy(),
                "old_entropy": old[1].numpy(),
                "log_probs": new[0].numpy(),
                "entropy": new[1].numpy(),
                "ground_truth": str(problem.answer),
                "finish_reason": "stop" if ids[-1] == end else "length",
                "step": plan.steps,
            }
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def measure(table: pa.Table) -> dict[str, float]:
    """Counts and shares of a finished table."""
    groups: dict[str, list[bool]] = {}
    for group, right in zip(table["group_id"].to_pylist(), table["correct"].to_pylist(), strict=True):
        groups.setdefault(group, []).append(right)
    lengths = [len(ids) for ids in table["response_ids"].to_pylist()]
    finished = table["finish_reason"].to_pylist()
    return {
        "rollouts": table.num_rows,
        "groups": len(groups),
        "groups_mixed": sum(0 < sum(rights) < len(rights) for rights in groups.values()),
        "pass_rate": sum(map(sum, groups.values())) / table.num_rows,
        "tokens": sum(lengths),
        "tokens_max": max(lengths),
        "truncated": finished.count("length") / len(finished),
    }


def build(seed: int, quick: bool = False, plan: Plan | None = None) -> Outcome:
    """Do everything but write files."""
    plan = plan or (QUICK if quick else Plan())
    with repeatable(seed):
        asked = problems.make_distinct(random.Random(seed), plan.prompts)
        pairs = make_examples(plan, {problem.prompt for problem in asked}, seed + 1)
        tokenizer = train_tokenizer([prompt + answer for prompt, answer in pairs[:5000]], plan.vocab)
        end = tokenizer.token_to_id(END)
        prompts = tokenizer.encode_batch([prompt for prompt, _ in pairs])
        answers = tokenizer.encode_batch([answer for _, answer in pairs])
        examples = [(prompt.ids, [*answer.ids, end]) for prompt, answer in zip(prompts, answers, strict=True)]
        policy = lm.Policy(lm.Shape(tokenizer.get_vocab_size(), plan.width, plan.layers))
        rounds = lm.train(
            policy, examples, steps=plan.steps, extra=plan.extra, batch=plan.batch, seed=seed + 2, rate=plan.rate
        )
        loss = next(rounds)
        sampling = copy.deepcopy(policy)
        later_loss = next(rounds)
        table = roll_out(plan, asked, tokenizer, sampling, policy, seed)
    figures = measure(table) | {"parameters": sum(weight.numel() for weight in policy.parameters())}
    return Outcome(table, tokenizer, sampling, policy, figures | {"loss": loss, "later_loss": later_loss})


def write(outcome: Outcome, out: Path) -> None:
    """Write the tokenizer, the rollouts and the policy that sampled them into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    torch.save(outcome.sampling.state_dict(), out / "policy.pt")
    outcome.tokenizer.save(str(out / "tokenizer.json"))
    pq.write_table(outcome.table, out / "rollouts.parquet", compression="zstd", compression_level=9)


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Make the sample rollouts and their tokenizer.")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json and rollouts.parquet")
    parser.add_argument("--seed", type=int, default=7, help="seed of everything random (default 7)")
    parser.add_argument("--quick", action="store_true", help="a tiny version in seconds: 4 prompts, 4 rollouts each")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    outcome = build(options.seed, options.quick)
    write(outcome, options.out)
    plan = asdict(QUICK if options.quick else Plan())
    print(json.dumps({"plan": plan, **outcome.figures, "seconds": round(time.perf_counter() - start, 1)}, indent=1))


if __name__ == "__main__":
    main()
