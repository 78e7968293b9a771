"""Every estimator inside GRPOTrainer: an advantage for each token instead of one for each completion."""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ktae_cli.catalogue import missing_needs, needs, resolve_spec, scope
from ktae_cli.errors import KtaeError, PrerequisiteError
from ktae_cli.integrations._trl_recorder import TOKEN_COLUMNS, named_as, verdict_name
from ktae_cli.names import Spec
from ktae_cli.schema import STAND_INS

if TYPE_CHECKING:
    from torch import Tensor

    from ktae_cli.estimators._fixed_gate import FixedGate

_ALWAYS = {"response_ids", "reward", "correct"}


def token_advantages(
    trainer_class: type,
    spec: str = "ktae",
    *,
    correct: str | None = None,
    threshold: float = 0.0,
    evidence: str | os.PathLike | None = None,
) -> type:
    """Return a subclass of `GRPOTrainer` that trains with the advantages (B, T) of a spec.

    trainer_class: `GRPOTrainer` or a class made from it, that of `record` too. spec: any estimator of `ktae list
    estimators`, with parameters. correct: the reward function whose value above 0 means right; by default the only one
    whose name begins with acc or correct, and where none or several do a reward above `threshold` is right.
    evidence: a table of `ktae tokens`, for a spec such as `ktae(gate=0.05)`: the ids that pass there shift, in every
    group; without it the spec takes its evidence from the batch. Take a table of other rollouts than are trained on.

    The reward is the sum weighted by `reward_weights` without NaN; a completion for which every function gives NaN
    gets 0 and is in no statistic. A group is `num_generations` completions in a row over all processes; where processes
    share a group, or the spec pools over the batch, the tokens of all of them are gathered. The base advantage is the
    spec's: `scale_rewards` and `multi_objective_aggregation` have no effect but on what TRL logs. Tokens of tools, and
    of completions that `mask_truncated_completions` masks, do not count and get 0.

    Source: TRL 1.16 `grpo_trainer.py`: `_compute_loss` takes advantages (B, T) as they are.
    With `off_policy_mask_threshold` and `loss_type="vespo"` the sign of the advantage is asked token by token.
    Raises `PrerequisiteError` for a class that is no `GRPOTrainer` or whose loss takes one advantage a completion
    (`RLOOTrainer`, `GMPOTrainer`), `KtaeError` for a spec that needs what the trainer does not hold.
    """
    classes = {one.__name__ for one in getattr(trainer_class, "__mro__", ())}
    if "GRPOTrainer" not in classes or "GMPOTrainer" in classes:
        found = getattr(trainer_class, "__name__", str(trainer_class))
        raise PrerequisiteError(f"the loss of {found} takes no advantage per token; give GRPOTrainer of TRL 1.x")
    resolved = resolve_spec(spec)
    missing = missing_needs(resolved, _ALWAYS | set(TOKEN_COLUMNS.values()))
    if missing:
        raise KtaeError(f"{resolved} needs {', '.join(missing)}, which TRL does not hold while it trains")
    gate = None
    if evidence is not None:
        from ktae_cli.estimators._fixed_gate import gate_for

        gate = gate_for(resolved, evidence)
    judge = _Judge(resolved, gate, correct, threshold)

    class Credited(trainer_class):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list, *rest, **named):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list, *rest, **named)
            self._ktae_generated = _Generated([len(ids) for ids in completion_ids_list], rewards)
            return rewards

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            generated = self.__dict__.pop("_ktae_generated")
            return output | {"advantages": _advantages(self, judge, output, generated)}

    return named_as(trainer_class, Credited)


class _Judge(NamedTuple):
    """What turns completions into advantages."""

    spec: Spec
    gate: "FixedGate | None"
    correct: str | None
    threshold: float


class _Generated(NamedTuple):
    """Lengths of the completions of a process, and the rewards of all processes, (completions, functions)."""

    lengths: list[int]
    rewards: "Tensor"


def _advantages(trainer: Any, judge: _Judge, output: dict[str, Any], generated: _Generated) -> "Tensor":
    import torch

    from ktae_cli.integrations._padded import PaddedRollouts, padded_advantages

    accelerator, matrices = trainer.accelerator, _matrices(output, generated.lengths, judge.spec)
    size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    n, width = matrices["responses"].shape
    own = slice(accelerator.process_index * n, (accelerator.process_index + 1) * n)
    rewards = generated.rewards
    if accelerator.num_processes > 1 and (n % size or scope(judge.spec) == "batch"):
        matrices = {name: _gathered(accelerator, matrix) for name, matrix in matrices.items()}
    else:
        rewards, own = rewards[own], slice(0, n)
    inside, mask = matrices.pop("inside").bool(), matrices.pop("mask").bool()
    reward, verdict = _judged(trainer, rewards.double(), judge.correct, judge.threshold)
    rows = PaddedRollouts(
        responses=matrices.pop("responses"),
        inside=inside,
        mask=None if torch.equal(mask, inside) else mask,
        rewards=reward,
        correct=verdict,
        groups=np.arange(len(reward)) // size,
        columns=matrices,
    )
    return padded_advantages(judge.spec, rows, judge.gate)[own, :width]


def _matrices(output: dict[str, Any], lengths: list[int], spec: Spec) -> "dict[str, Tensor]":
    """Return what the estimator sees of each token of a process, all (B, T)."""
    import torch

    ids, mask = output["completion_ids"], output["completion_mask"].bool()
    if output.get("tool_mask") is not None:
        mask = mask & output["tool_mask"].bool()
    places = torch.arange(ids.shape[1], device=ids.device)
    inside = places < torch.tensor(lengths, device=ids.device)[:, None]
    wanted = {*needs(spec), *(STAND_INS.get(name) for name in needs(spec))}
    columns = {new: output[old] for old, new in TOKEN_COLUMNS.items() if new in wanted and output.get(old) is not None}
    return {"responses": ids, "inside": inside, "mask": mask, **columns}


def _gathered(accelerator: Any, matrix: "Tensor") -> "Tensor":
    """Return the rows of all processes, padded to one width."""
    import torch

    matrix = matrix.to(torch.uint8) if matrix.dtype == torch.bool else matrix
    return accelerator.gather(accelerator.pad_across_processes(matrix, dim=1))


def _judged(trainer: Any, values: "Tensor", correct: str | None, threshold: float) -> "tuple[Tensor, Tensor]":
    """Return rewards (n,) float64, NaN where every function gives none, and verdicts (n,) int8."""
    import torch

    names = trainer.reward_func_names
    reward = (values * trainer.reward_weights.to(values)).nansum(1)
    reward[values.isnan().all(1)] = torch.nan
    name = verdict_name(names, correct)
    judged, limit = (reward, threshold) if name is None else (values[:, names.index(name)], 0.0)
    return reward, (judged > limit).to(torch.int8).masked_fill(judged.isnan(), -1)
