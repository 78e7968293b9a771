"""NeMo-RL: JSON lines of training and validation, one for each rollout, each value in a list of one."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._equal_lengths import unequal
from ktae_cli.readers._fields import as_list, kind_of, place, with_rest
from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers._messages import content_text, text_of
from ktae_cli.readers._sequences import Cut, cut_at_first_sampled
from ktae_cli.readers.base import ReaderOptions, Record, reader

_TOKEN_COLUMNS = {
    "generation_logprobs": "rollout_log_probs",
    "prev_logprobs": "old_log_probs",
    "reference_policy_logprobs": "ref_log_probs",
    "advantages": "trainer_advantages",
}


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("rewards", "idx"),
    supplies=(
        "prompt", "response", "prompt_ids", "response_ids", "response_mask", "reward", "rollout_log_probs",
        "old_log_probs", "ref_log_probs", "step",
    ),
    threshold=0.0,
)  # fmt: skip
def nemo_rl(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read `train_data_step<N>.jsonl` and `val_data_step<N>.jsonl`.

    Source: NeMo-RL `algorithms/grpo.py` and `utils/logger.py` (`log_batched_dict_as_jsonl`). A token sequence is padded
    on the right to the longest of its batch and is cut at `input_lengths`; the first 1 of `token_loss_mask` begins the
    response, zeros after it are tool text. Log-probs and advantages stand at the token they belong to.
    reward is `filtered_rewards` where dynamic sampling wrote it, else `rewards`, after the trainer's scaling and
    shaping. There is no group key: rows of one prompt (its ids, in validation its text) in one step are a group.
    """
    for record in records:
        rest = {name: _only(name, value, record) for name, value in record.value.items()}
        rewards, filtered = rest.pop("rewards", None), rest.pop("filtered_rewards", None)
        reward = rewards if filtered is None else filtered
        row = {"reward": reward, "step": step_in(record.file, r"(?:train|val)_data_step(\d{1,12})\.jsonl.*")}
        content = rest.pop("content", None)
        if rest.get("token_ids") is not None:
            tokens = _tokens(rest, content, record, options)
            if tokens is None:
                continue
            row = tokens | row
        else:
            row |= _texts(content)
            rest = {name: value for name, value in rest.items() if name not in _LISTS}
        yield with_rest(row, rest)


_LISTS = ("token_ids", "token_loss_mask", *_TOKEN_COLUMNS)


def _fits(value: dict[str, Any]) -> bool:
    rewards = value["rewards"]
    return isinstance(rewards, list) and len(rewards) == 1 and not isinstance(value["idx"], list | dict)


nemo_rl.fits = _fits


def _only(name: str, value: Any, record: Record) -> Any:
    """Return the one value of a list."""
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise InputError(f"{place(record)}: {name} is a list of {len(value)}, expected a list of one value")
    return value[0]


def _tokens(rest: dict[str, Any], content: Any, record: Record, options: ReaderOptions) -> dict[str, Any] | None:
    """Take the token columns out of a row and return them without padding, or None for a row that is dropped."""
    lists = {name: as_list(values, name, record) for name in _LISTS if (values := rest.pop(name, None)) is not None}
    if "token_loss_mask" not in lists:
        raise InputError(f"{place(record)}: token_ids without token_loss_mask, which says where the response begins")
    if unequal(lists, record, options, f"idx {rest.get('idx')}"):
        return None
    length = rest.pop("input_lengths", len(lists["token_ids"]))
    if type(length) is not int or not 0 <= length <= len(lists["token_ids"]):
        found = length if isinstance(length, int) else kind_of(length)
        raise InputError(f"{place(record)}: input_lengths is {found}, token_ids has {len(lists['token_ids'])} values")
    cut = cut_at_first_sampled(lists["token_loss_mask"][:length], "token_loss_mask", record)
    ids = lists["token_ids"]
    row = _split_texts(content, cut)
    row |= {"prompt_ids": ids[: cut.start], "response_ids": ids[cut.start : length], "response_mask": cut.response_mask}
    for name, canonical in _TOKEN_COLUMNS.items():
        if name in lists:
            row[canonical] = lists[name][cut.start : length]
    return row


def _split_texts(content: Any, cut: Cut) -> dict[str, Any]:
    """Return prompt and response of a list of message texts without roles, nothing where the split is in doubt.

    The stretches of the mask are the last messages: the policy's own and the tool texts between and after them.
    """
    mask = cut.response_mask
    stretches = 1 + int(np.count_nonzero(np.diff(mask))) if len(mask) else 0
    if not isinstance(content, list) or not all(isinstance(text, str) for text in content):
        return _texts(content)
    if not 0 < stretches < len(content):
        return {} if len(content) != 1 else {"prompt": content[0]}
    return {"prompt": "".join(content[:-stretches]), "response": "".join(content[-stretches:])}


def _texts(content: Any) -> dict[str, Any]:
    """Return prompt and response of chat messages, or of [prompt, response] texts."""
    if not isinstance(content, list) or not content:
        return {"prompt": None, "response": text_of(content) if isinstance(content, str) else None}
    first = 1
    if all(isinstance(message, dict) for message in content):
        first = next((i for i, message in enumerate(content) if message.get("role") == "assistant"), len(content))
        response = "".join(content_text(message.get("content")) for message in content[first:])
    else:
        response = "".join(text_of(message) or "" for message in content[first:])
    return {"prompt": text_of(content[:first]), "response": response}
