"""GRPOTrainer on saved rollouts: no generation, the advantages of a scored file."""

from typing import TYPE_CHECKING, Any

from ktae_cli.errors import InputError, PrerequisiteError
from ktae_cli.integrations._trl_recorder import named_as

if TYPE_CHECKING:
    from torch import Tensor

NEEDED = ("prompt", "prompt_ids", "completion_ids", "completion_mask", "advantages", "reward")
_OLD = "old_per_token_logps"


def saved_rollouts(trainer_class: type) -> type:
    """Return a subclass of `GRPOTrainer` that trains on the dataset which `ktae export --to trl` writes.

    It is used like the class itself, without `reward_funcs`: `train_dataset` holds one saved completion a row, which is
    seen once in an epoch and `num_iterations` times in a row. Nothing is generated. The loss is the trainer's own, with
    the advantages (B, T) of the dataset, without the tokens of completion_mask 0, and, where the dataset has
    `old_per_token_logps`, with the ratio to the policy that sampled; without them the ratio is 1 at the first step on a
    completion. `num_generations` has to divide the batch and means nothing else; the advantages and deviations of
    rewards that TRL logs come from rows that happen to lie together. Rows that do not fill a last batch are left out of
    the epoch. An empty completion is one masked token.

    Source: TRL 1.16 `grpo_trainer.py`: `rollout_func` gives the tokens, `_generate_and_score_completions` the rest.
    Raises `PrerequisiteError` for another class, `InputError` for a dataset without these columns or without a length.
    """
    if not any(one.__name__ == "GRPOTrainer" for one in getattr(trainer_class, "__mro__", ())):
        found = getattr(trainer_class, "__name__", str(trainer_class))
        raise PrerequisiteError(f"{found} is no GRPOTrainer; give GRPOTrainer of TRL 1.x")

    class Saved(trainer_class):
        def __init__(self, *arguments, **named):
            _check(named.get("train_dataset"))
            super().__init__(*arguments, **{"reward_funcs": saved_reward, "rollout_func": _saved_tokens} | named)

        def _set_signature_columns_if_needed(self):
            self._signature_columns = [*NEEDED, _OLD]

        def _get_train_sampler(self, dataset=None):
            from trl.trainer.utils import RepeatSampler

            return RepeatSampler(
                data_source=self.train_dataset if dataset is None else dataset,
                mini_repeat_count=1,
                batch_size=self.args.generation_batch_size,
                repeat_count=self.num_iterations * self.args.steps_per_generation,
                shuffle=self.shuffle_dataset,
                seed=self.args.seed,
            )

        def _generate_and_score_completions(self, inputs):
            self._ktae_saved = inputs
            output = super()._generate_and_score_completions(inputs)
            for name in ("advantages", _OLD):
                if all(row.get(name) is not None for row in inputs):
                    output[name] = _padded([row[name] for row in inputs], output["completion_ids"])
            return output

    return named_as(trainer_class, Saved)


def saved_reward(completions: list[Any], reward: list[float | None], **_columns) -> list[float | None]:
    """Return the rewards of the dataset, for the trainer's log."""
    return reward


def _saved_tokens(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Give the trainer the saved tokens where it would generate."""
    rows, padding = trainer._ktae_saved, trainer._tokenizer.pad_token_id
    for row in rows:
        if not row["prompt_ids"]:
            raise InputError(f"rollout {row.get('rollout_id')!r} has no prompt_ids: nothing precedes its first token")
    return {
        "prompt_ids": [row["prompt_ids"] for row in rows],
        "completion_ids": [row["completion_ids"] or [padding] for row in rows],
        "env_mask": [row["completion_mask"] or [0] for row in rows],
        "logprobs": None,
    }


def _padded(rows: list[list[float]], like: "Tensor") -> "Tensor":
    """Return values padded with 0 to the shape of the ids (B, T) float32."""
    import torch

    out = torch.zeros(like.shape, dtype=torch.float32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out.to(like.device)


def _check(dataset: Any) -> None:
    columns = getattr(dataset, "column_names", None)
    if columns is None or not hasattr(dataset, "__len__"):
        raise InputError(
            "train_dataset has to be a dataset with a length: load_from_disk what ktae export --to trl wrote"
        )
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(
            f"train_dataset has no column {missing[0]}; it has {', '.join(columns)}: write it with ktae export --to trl"
        )
