"""Which estimators have key weights, and the form of each that leaves a rollout out of its own weights."""

from ktae_cli.catalogue import columns, declaration, resolve_spec
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import check_parameters
from ktae_cli.names import Spec


def with_key_weight(specs: list[Spec]) -> list[Spec]:
    """Return the specs that shift a base by key weights."""
    return [spec for spec in specs if "key_weight" in columns(spec)]


def left_out_twin(spec: Spec, eos_ids: tuple[int, ...] = ()) -> Spec | None:
    """Return the spec with loo=true, or None where it has no such form."""
    if "loo" not in declaration("estimators", spec.name).parameters:
        return None
    try:
        twin = resolve_spec(Spec(spec.name, tuple(sorted((dict(spec.arguments) | {"loo": True}).items()))))
        check_parameters(twin, eos_ids)
    except KtaeError:
        return None
    return twin


def left_out_twins(specs: list[Spec], eos_ids: tuple[int, ...] = ()) -> tuple[dict[Spec, Spec | None], list[Spec]]:
    """Return the twin of each spec, and the twins that are not among the specs themselves."""
    twins = {spec: left_out_twin(spec, eos_ids) for spec in specs}
    return twins, [twin for twin in dict.fromkeys(twins.values()) if twin and twin not in specs]
