"""Every estimator as an advantage estimator of verl.

verl gives a registered function rewards, mask and `uid`, neither the tokens nor the verdicts. They stand in the batch
of the trainer that calls it: `register` has the two trainers of verl keep that batch within reach during the call.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ktae_cli.catalogue import missing_needs, needs, resolve_spec
from ktae_cli.errors import InputError, KtaeError, PrerequisiteError
from ktae_cli.integrations._verl_recorder import SCORES, TOKEN_COLUMNS, session_of, verdict_of
from ktae_cli.names import Spec
from ktae_cli.schema import STAND_INS

if TYPE_CHECKING:
    from torch import Tensor

    from ktae_cli.estimators._fixed_gate import FixedGate

SPECS = {"ktae": "ktae", "ktae_bounded": "ktae(tf=bounded)", "ktae_loo": "ktae(loo=true)"}
"""What `register()` registers: name in verl -> spec."""

_ALWAYS = {"response_ids", "reward", "correct"}
_held: ContextVar[Callable[[list[str]], "Held"] | None] = ContextVar("ktae_verl_batch", default=None)


@dataclass(frozen=True)
class Held:
    """What the trainer holds of its batch beside what it gives an estimator, one row for each row of its rewards.

    responses (n, T); inside (n, T) bool, false at padding; scores (n,) float64 before a KL penalty; correct: the
    verdicts, None = unknown; sessions: rows with one name are parts of one rollout; columns: by verl's name, (n, T).
    """

    responses: "Tensor"
    inside: "Tensor"
    scores: "Tensor | None" = None
    correct: list[bool | None] | None = None
    sessions: list[str] | None = None
    columns: "dict[str, Tensor]" = field(default_factory=dict)


def register(
    spec: str | None = None,
    name: str | None = None,
    *,
    threshold: float = 0.0,
    evidence: str | os.PathLike | None = None,
) -> None:
    """Add estimators to verl's registry, for `algorithm.adv_estimator`.

    spec: any estimator of `ktae list estimators`, with parameters; name: what verl calls it, by default the spec's slug
    (`ktae__tf_bounded`). Without a spec: `ktae`, `ktae_bounded` = ktae(tf=bounded) and `ktae_loo` = ktae(loo=true).

    The function that is registered takes `token_level_rewards` and `response_mask` (n, T) and `index` (n,), verl's
    `uid`; it returns advantages and returns, two equal tensors (n, T) float32. The reward is the sum of
    `token_level_rewards`. Right is `acc` of the reward function (true, false, or a number above 0), and where it gives
    none a score above `threshold`, before any KL penalty. The outputs of one session are parts of one rollout.
    Masked tokens, those that rejection sampling masked too, do not count and get 0. A group of one gets 0.

    evidence: a table of `ktae tokens`, for a spec such as `ktae(gate=0.05)`: the ids that pass there shift, in every
    group. Without it such a spec takes its evidence from the batch of the step. Take a table of other rollouts than
    those that are trained on.

    Called elsewhere than by `PPOTrainer` or `RayPPOTrainer` it needs `responses=` (n, T) as well, takes `correct=`, a
    verdict for each row, and further per-token columns by verl's name; a response then ends at its last unmasked token.

    Source: verl 0.9.1, `verl/trainer/ppo/core_algos.py` and `ray_trainer.py: compute_advantage`.
    Raises `KtaeError` for a name that verl has, for a spec that needs what verl does not hold, and for evidence that it
    does not take; `InputError` for evidence that is no such table.
    """
    from verl.trainer.ppo import core_algos

    if evidence is not None and spec is None:
        raise KtaeError("evidence is for a spec that takes some: give one, such as ktae(gate=0.05)")
    gate = None if evidence is None else gate_of(spec, os.fspath(evidence))
    _hold_batches()
    for key, one in SPECS.items() if spec is None else [(name, spec)]:
        resolved = resolve_spec(one)
        missing = missing_needs(resolved, _ALWAYS | set(TOKEN_COLUMNS.values()))
        if missing:
            raise KtaeError(f"{resolved} needs {', '.join(missing)}, which verl does not hold while it trains")
        key = key or resolved.slug
        try:
            core_algos.register_adv_est(key)(estimator_of(resolved, float(threshold), gate))
        except ValueError:
            raise KtaeError(f"verl has another estimator {key!r}; give another name=") from None


@cache
def gate_of(spec: str, path: str) -> "FixedGate":
    """Read the evidence for a spec: once, so that registering again changes nothing."""
    from ktae_cli.estimators._fixed_gate import gate_for

    return gate_for(spec, path)


@cache
def estimator_of(spec: Spec, threshold: float, gate: "FixedGate | None" = None) -> Callable:
    """Return the function to register for a resolved spec: one for each, so that registering again changes nothing."""
    wanted = {*needs(spec), *(STAND_INS.get(name) for name in needs(spec))}
    names = [name for name, column in TOKEN_COLUMNS.items() if column in wanted]

    def estimator(token_level_rewards, response_mask, index=None, config=None, responses=None, correct=None, **given):
        if index is None:
            raise InputError(f"{spec} works on groups, and the batch has no uid")
        if responses is not None:
            columns = {name: given[name] for name in names if name in given}
            held = Held(responses, _up_to_the_last(response_mask), correct=correct, columns=columns)
        else:
            held = _batch_in_reach()(names)
        advantages = _advantages(spec, threshold, held, token_level_rewards, response_mask, index, gate)
        return advantages, advantages.clone()

    estimator.__name__ = estimator.__qualname__ = spec.slug
    return estimator


def _advantages(
    spec: Spec,
    threshold: float,
    held: Held,
    rewards: "Tensor",
    mask: "Tensor",
    index: Any,
    gate: "FixedGate | None",
) -> "Tensor":
    import torch

    from ktae_cli.integrations._padded import PaddedRollouts, padded_advantages

    if held.responses.shape != mask.shape:
        found, wanted = tuple(held.responses.shape), tuple(mask.shape)
        raise InputError(f"responses have shape {found}, response_mask has {wanted}; they must be equal")
    reward = _sum(rewards)
    if held.correct is None:
        correct = ((reward if held.scores is None else held.scores) > threshold).to(torch.int8)
    else:
        correct = torch.tensor([-1 if one is None else int(one) for one in held.correct], dtype=torch.int8)
    mask = mask.bool()
    rows = PaddedRollouts(
        responses=held.responses,
        inside=held.inside,
        mask=None if torch.equal(mask, held.inside) else mask,
        rewards=reward,
        correct=correct,
        groups=_codes(index),
        trajectories=None if held.sessions is None else _codes(held.sessions),
        columns={TOKEN_COLUMNS[name]: matrix for name, matrix in held.columns.items()},
    )
    return padded_advantages(spec, rows, gate)


def _sum(matrix: "Tensor") -> "Tensor":
    """Sum the tokens of each row in float64, without a copy of the matrix: (n, T) -> (n,)."""
    import torch

    return torch.from_numpy(matrix.detach().float().cpu().numpy().sum(1, dtype=np.float64))


def _codes(names: Any) -> np.ndarray:
    """Number names in the order of their first appearance: rows that stand together keep their places."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(str(name), len(numbers)) for name in names], np.int64)


def _up_to_the_last(mask: "Tensor") -> "Tensor":
    """Return true up to the last true of each row: (n, T) -> (n, T)."""
    import torch

    width = mask.shape[1]
    mask = mask.bool().cpu().numpy()
    ends = np.where(mask.any(1), width - mask[:, ::-1].argmax(1), 0) if width else np.zeros(len(mask), np.int64)
    return torch.arange(width) < torch.from_numpy(ends)[:, None]


def _batch_in_reach() -> Callable[[list[str]], Held]:
    batch = _held.get()
    if batch is None:
        raise PrerequisiteError(
            "verl hands an estimator no response ids, and no trainer known here holds them: use PPOTrainer or "
            "RayPPOTrainer of verl 0.9 after register(), or call the estimator with responses="
        )
    return batch


def _hold_batches() -> None:
    """Have verl's trainers keep their batch within reach of an estimator; what of verl cannot be imported is left."""
    with suppress(ImportError, AttributeError):
        _wrap(import_module("verl.trainer.ppo.ray_trainer"), "compute_advantage", _of_dataproto)
    with suppress(ImportError, AttributeError):
        _wrap(import_module("verl.trainer.ppo.v1").PPOTrainer, "_compute_advantage", _of_queue)


def _wrap(owner: Any, name: str, batch_of: Callable) -> None:
    """Run a function of verl while `batch_of` of its arguments is within reach."""
    original = getattr(owner, name)
    if getattr(original, "holds_batch", False):
        return

    @wraps(original)
    def holding(*arguments, **named):
        with _reach(batch_of(*arguments, **named)):
            return original(*arguments, **named)

    holding.holds_batch = True
    setattr(owner, name, holding)


@contextmanager
def _reach(batch: Callable[[list[str]], Held] | None) -> Iterator[None]:
    token = _held.set(batch or _held.get())
    try:
        yield
    finally:
        _held.reset(token)


def _of_dataproto(data: Any, *_rest, **_named) -> Callable[[list[str]], Held] | None:
    """Return what reads the batch of the v0 trainer; None for the v1 trainer's, which has no tokens."""
    tensors, objects = data.batch, data.non_tensor_batch
    if "responses" not in tensors.keys():  # noqa: SIM118 - a TensorDict is no dict
        return None

    def read(names: list[str]) -> Held:
        responses = tensors["responses"]
        attended = tensors["attention_mask"][:, -responses.shape[1] :]
        scores = next((_sum(tensors[name]) for name in SCORES if name in tensors.keys()), None)  # noqa: SIM118
        acc = objects.get("acc")
        return Held(
            responses,
            _up_to_the_last(attended),
            scores,
            None if acc is None else [verdict_of(value) for value in acc],
            columns={name: tensors[name] for name in names if name in tensors.keys()},  # noqa: SIM118
        )

    return read


def _of_queue(_trainer: Any, batch: Any, *_rest, **_named) -> Callable[[list[str]], Held]:
    """Return what fetches the batch of the v1 trainer from its TransferQueue."""
    import torch

    def read(names: list[str]) -> Held:
        import transfer_queue

        fields = ["responses", *SCORES, "extra_fields", *names]
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        present = set(data.keys())

        def padded(name: str) -> "Tensor":
            return torch.nn.utils.rnn.pad_sequence(data[name].unbind(), batch_first=True)

        lengths = torch.tensor([len(row) for row in data["responses"].unbind()])
        responses = padded("responses")
        scores = next((_sum(padded(name)) for name in SCORES if name in present), None)
        extras = data.get("extra_fields").tolist() if "extra_fields" in present else []
        parts = [(one or {}).get("reward_extra_info") or {} for one in extras]
        judged = any("acc" in part for part in parts)
        return Held(
            responses,
            torch.arange(responses.shape[1]) < lengths[:, None],
            scores,
            [verdict_of(part.get("acc")) for part in parts] if judged else None,
            [session_of(key)[1] for key in batch.keys],
            {name: padded(name) for name in names if name in present},
        )

    return read
