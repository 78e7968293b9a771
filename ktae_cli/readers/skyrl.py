"""SkyRL evaluation dumps: `dumped_evals/global_step_<N>_evals/<data source>.jsonl`."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.readers._fields import as_number, with_rest
from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import ReaderOptions, Record, reader

_DIRECTORY = r"global_step_(\d{1,12})(?:_evals)?"


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("input_prompt", "output_response", "score"),
    supplies=("prompt", "response", "reward", "ground_truth", "finish_reason", "step"),
)
def skyrl(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the evaluation dumps of SkyRL, one rollout a line.

    Source: SkyRL `skyrl/train/utils/trainer_utils.py`, `dump_per_dataset_eval_results`. `score` is a number, or one
    number for each token: then the reward is their sum, and they pass through as `token_scores`, for the dump has no
    token ids to set them against. The step is that of the directory's name; there is no group key, so that rollouts
    of one prompt in one step are a group. Special tokens stay in the text.
    """
    for record in records:
        rest = dict(record.value)
        prompt, response, score = (rest.pop(name, None) for name in ("input_prompt", "output_response", "score"))
        row = {"prompt": text_of(prompt), "response": text_of(response)}
        if isinstance(score, list):
            row["reward"] = sum(as_number(value, "score", record) or 0.0 for value in score)
            rest["token_scores"] = score
        else:
            row["reward"] = score
        row["ground_truth"] = _ground_truth(rest.get("env_extras"))
        row["finish_reason"] = finish_reason(rest.pop("stop_reason", None))
        if (step := step_in(record.file, _DIRECTORY)) is not None:
            row["step"] = step
        yield with_rest(row, rest)


def _ground_truth(extras: Any) -> Any:
    spec = extras.get("reward_spec") if isinstance(extras, dict) else None
    return spec.get("ground_truth") if isinstance(spec, dict) else None
