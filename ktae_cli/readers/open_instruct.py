"""open-instruct: the rollout shards that `save_traces` writes, one JSON line for each rollout."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.readers._equal_lengths import unequal
from ktae_cli.readers._fields import as_list, with_rest
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("prompt_tokens", "response_tokens", "finish_reason", "reward"),
    supplies=("prompt_ids", "response_ids", "reward", "rollout_log_probs", "ground_truth", "finish_reason", "step"),
    threshold=0.0,
)
def open_instruct(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read `<run>_rollouts_<shard>.jsonl`.

    Source: open-instruct `rl_utils.py` (`RolloutRecord`, `_save_rollouts`). Rows of one prompt (its token ids) in one
    step are a group: `prompt_idx` counts rows in steps of n and is wrong once the trainer has dropped a row. reward is
    0 or `verification_reward` (10 by default), -10 with the penalty for responses that did not stop; above 0 is right,
    so a run that adds a reward for the format needs `--correct-threshold`. The scalar `advantage` passes through, a
    ground truth of token ids as `ground_truth_ids`. The mask of tool text is not saved: rows whose `request_info`
    says that a tool was called are counted.
    """
    for record in records:
        rest = dict(record.value)
        ids = as_list(rest.pop("response_tokens", None), "response_tokens", record)
        log_probs = rest.pop("logprobs", None)
        if log_probs is not None:
            log_probs = as_list(log_probs, "logprobs", record)
        of = f"sample_idx {rest.get('sample_idx')}"
        if unequal({"response_tokens": ids, "logprobs": log_probs}, record, options, of):
            continue
        if _are_ids(rest.get("ground_truth")):
            rest["ground_truth_ids"] = rest.pop("ground_truth")
        yield with_rest(
            {
                "prompt_ids": as_list(rest.pop("prompt_tokens", None), "prompt_tokens", record),
                "response_ids": ids,
                "reward": rest.pop("reward", None),
                "rollout_log_probs": log_probs,
                "finish_reason": finish_reason(rest.pop("finish_reason", None)),
                "step": rest.pop("step", None),
            },
            rest,
        )
        if isinstance(rest.get("request_info"), dict) and rest["request_info"].get("tool_calleds"):
            options.count("rollouts with tool text that the dump does not mask")


def _are_ids(truth: Any) -> bool:
    return isinstance(truth, list) and bool(truth) and all(type(token) is int for token in truth)
