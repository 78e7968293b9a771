"""prime-rl: the trainer's token exports, packed sequences with log-probs and advantages but without rewards."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._equal_lengths import unequal
from ktae_cli.readers._fields import as_list, place, with_rest
from ktae_cli.readers._sequences import cut_at_first_sampled
from ktae_cli.readers.base import ReaderOptions, Record, reader

_NAMES = {
    "inference_logprobs": "rollout_log_probs",
    "trainer_logprobs": "log_probs",
    "entropy": "old_entropy",
    "advantages": "trainer_advantages",
}
_SHAPE = ("token_ids", "position_ids", "loss_mask")


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("token_ids", "position_ids", "loss_mask", "inference_logprobs", "trainer_logprobs"),
    supplies=("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "log_probs", "old_entropy", "step"),
)
def prime_rl_tokens(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read `token_exports/step_<N>/rank_<R>.jsonl`, one rollout for each sequence of a pack.

    Source: prime-rl `trainer/rl/token_export.py` (`TokenExporter._write`). A new sequence begins where `position_ids`
    falls back; the first true of `loss_mask` begins its response. Sequences without a trained token (padding, or
    rollouts that a filter took out) are left out and counted. `trainer_logprobs` are `log_probs`: the loss takes their
    ratio to the engine's. Other lists pass through, cut to the response, where they hold anything.
    There is no reward, no verdict and no group key: the file can be converted and inspected, and scored only once a
    reward is joined to it. A warning says where the marker `STABLE` of a finished step is missing.
    """
    options.notice("token exports hold no reward and no verdict; the same step's rollouts/step_<N> traces hold both")
    checked: set[Path] = set()
    for record in records:
        folder = Path(record.file).parent
        if folder not in checked:
            checked.add(folder)
            if not (folder / "STABLE").exists():
                options.warn(f"{folder}: no file STABLE, which prime-rl writes when a step is complete")
        lists = {name: values for name, values in record.value.items() if isinstance(values, list)}
        rest = {name: value for name, value in record.value.items() if name not in (*lists, *_SHAPE, "schema_version")}
        lists |= {name: as_list(record.value.get(name), name, record) for name in _SHAPE}
        if unequal(lists, record, options, f"sequence {record.value.get('export_sequence_idx')}"):
            continue
        row = {"step": rest.pop("step", None)}
        for start, end in _sequences(lists["position_ids"], record):
            part = {name: values[start:end] for name, values in lists.items()}
            cut = cut_at_first_sampled(part["loss_mask"], "loss_mask", record)
            if cut.start == end - start:
                options.count("sequences left out, none of their tokens was trained on")
                continue
            tokens = {"prompt_ids": part["token_ids"][: cut.start], "response_ids": part["token_ids"][cut.start :]}
            tokens["response_mask"] = cut.response_mask
            others = {n: v[cut.start :] for n, v in part.items() if n not in _SHAPE}
            others = {_NAMES.get(n, n): v for n, v in others.items() if any(value is not None for value in v)}
            yield with_rest(tokens | row, others | rest)


def _sequences(positions: list[Any], record: Record) -> list[tuple[int, int]]:
    """Return where each sequence of a pack begins and ends: positions fall back at a new one."""
    if not all(type(position) is int for position in positions):
        raise InputError(f"{place(record)}: position_ids is no list of whole numbers")
    starts = [i for i in range(1, len(positions)) if positions[i] <= positions[i - 1]]
    bounds = [0, *starts, len(positions)] if positions else []
    return list(pairwise(bounds))
