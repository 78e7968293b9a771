"""Sample rollouts from the sample policy on problems of its own, as `sample_data/rollouts.parquet` was sampled.

    python examples/offline_training/sample.py rollouts.parquet

Verdicts, log-probabilities and entropies come with them.
"""

import argparse
import random
import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer
from train import SAMPLE, load_policy

sys.path.insert(0, str(SAMPLE))

import generate
import problems


def main() -> None:
    """Read the command line, sample and write."""
    parser = argparse.ArgumentParser(description="Sample rollouts from the sample policy.")
    parser.add_argument("out", type=Path, help="Parquet file to write")
    parser.add_argument("--prompts", type=int, default=96, help="number of prompts (default 96)")
    parser.add_argument("--rollouts", type=int, default=16, help="rollouts of each prompt (default 16)")
    parser.add_argument("--seed", type=int, default=11, help="of problems and samples (default 11)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a policy this small is slower on more
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer.json"))
    policy = load_policy(tokenizer)
    asked = problems.make_distinct(random.Random(options.seed), options.prompts)
    plan = generate.Plan(prompts=options.prompts, rollouts=options.rollouts)
    table = generate.roll_out(plan, asked, tokenizer, policy, policy, options.seed)
    pq.write_table(table, options.out)
    rate = sum(table["correct"].to_pylist()) / table.num_rows
    print(f"{table.num_rows} rollouts of {options.prompts} prompts, {rate:.1%} right -> {options.out}")


if __name__ == "__main__":
    main()
