"""Time KTAE inside a trainer: padded tensors of a whole step in, padded advantages out.

    python benchmarks/online.py [--quick] [--markdown]

Input: 1024 groups of 16 rollouts of about 1000 tokens as verl holds them, int64 matrices padded on the right, ids by
the law of _data.py, mixed groups only. `ktae` is the function that `ktae_cli.integrations.verl` registers, on the whole
batch; verl itself is not needed. `dict` scores one group after the other with dicts and cached tests, on DICT_GROUPS
groups; `released` is the released algorithm, one float32 test per distinct id, on RELEASED_GROUPS groups. Both get the
tokens without padding, and their time is extrapolated to the batch by the number of tokens. Results are compared before
anything is timed. Every repeat times all of them one after the other on one thread; a ratio is the median over the
repeats of the ratios within a repeat. Exit status 1 where a target is missed; --quick takes 32 groups and sets none.
"""

import argparse
import resource
import statistics
import sys
import time

import numpy as np
import torch
from _kernel_baselines import Batch, score_as_released, score_with_dicts
from _report import exit_status, format_table, say
from kernel import make_chunks, take_first_group

from ktae_cli.catalogue import resolve_spec
from ktae_cli.integrations._verl_advantages import estimator_of

SPECS = ("ktae", "ktae(tf=bounded)", "ktae(loo=true)")
SIZE, LENGTH = 16, 1000
DICT_GROUPS, RELEASED_GROUPS = 64, 1
TARGETS = {"dict": 5, "released": 100}  # least time of each over the time of `ktae`


def pad(chunks: list[Batch]) -> dict:
    """Lay chunks out as the arguments of a verl estimator."""
    lengths = np.concatenate([np.diff(chunk.offsets) for chunk in chunks])
    inside = np.arange(lengths.max()) < lengths[:, None]
    responses = np.zeros(inside.shape, np.int64)
    responses[inside] = np.concatenate([chunk.token_ids for chunk in chunks])
    rewards = np.zeros(inside.shape, np.float32)
    rewards[np.arange(len(lengths)), lengths - 1] = np.concatenate([chunk.correct for chunk in chunks])
    first = np.cumsum([0] + [chunk.group_index[-1] + 1 for chunk in chunks[:-1]])
    groups = np.concatenate([chunk.group_index + start for chunk, start in zip(chunks, first, strict=True)])
    return {
        "token_level_rewards": torch.from_numpy(rewards),
        "response_mask": torch.from_numpy(inside.astype(np.int64)),
        "index": np.array([f"uid-{group}" for group in groups], dtype=object),
        "responses": torch.from_numpy(responses),
    }


def check_agreement(batch: dict, chunks: list[Batch]) -> None:
    """Assert that `ktae` and dicts agree on the first chunk to 1e-6."""
    advantages, _ = estimator_of(resolve_spec("ktae"), 0.0)(**batch)
    expected, _ = score_with_dicts(chunks[0])
    found = advantages[batch["response_mask"].bool()][: len(expected)].numpy()
    assert np.abs(found - expected).max() <= 1e-6


def seconds(function, *arguments, **named) -> float:
    """Time one call."""
    start = time.perf_counter()
    function(*arguments, **named)
    return time.perf_counter() - start


def time_all(batch: dict, chunks: list[Batch], repeats: int) -> dict[str, list[float]]:
    """Return the ns per token of each repeat."""
    whole = sum(len(chunk.token_ids) for chunk in chunks)
    some = chunks[: max(1, DICT_GROUPS * SIZE // len(chunks[0].correct))]
    times: dict[str, list[float]] = {name: [] for name in (*SPECS, "dict", "released")}
    for repeat in range(repeats):
        for spec in SPECS:
            times[spec].append(seconds(estimator_of(resolve_spec(spec), 0.0), **batch) * 1e9 / whole)
        taken = sum(seconds(score_with_dicts, chunk) for chunk in some)
        times["dict"].append(taken * 1e9 / sum(len(chunk.token_ids) for chunk in some))
        group = take_first_group(chunks[repeat % len(chunks)])
        times["released"].append(seconds(score_as_released, group) * 1e9 / len(group.token_ids))
    return times


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="32 groups, two repeats, no targets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    n_groups, repeats = (32, 2) if options.quick else (1024, options.repeats)
    torch.set_num_threads(1)
    chunks = make_chunks(SIZE, LENGTH, n_groups * SIZE * LENGTH)
    batch = pad(chunks)
    say(f"{len(batch['index']) // SIZE} groups")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_agreement(batch, chunks)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    times = time_all(batch, chunks, repeats)
    tokens = int(batch["response_mask"].sum())
    ratios = {name: statistics.median(np.divide(times[name], times["ktae"])) for name in times}
    groups = {"dict": DICT_GROUPS, "released": RELEASED_GROUPS}
    rows = [
        [name, str(groups.get(name, len(batch["index"]) // SIZE)), f"{median:.1f}", f"{median * tokens / 1e9:.2f}",
         f"{ratios[name]:.2f}x", f">= {TARGETS[name]}x" if name in TARGETS else ""]
        for name, median in ((name, statistics.median(values)) for name, values in times.items())
    ]  # fmt: skip
    head = ["", "groups timed", f"ns/token, median of {repeats}", "s for the batch", "time / ktae", "target"]
    print(format_table(head, rows, options.markdown))
    print(
        f"\n{tokens / 1e6:.1f} M tokens in rows of {batch['responses'].shape[1]}; peak memory grows by {grown:.0f} MiB"
    )
    missed = [
        f"{name} is {ratios[name]:.2f}x, wanted {least}x" for name, least in TARGETS.items() if ratios[name] < least
    ]
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
