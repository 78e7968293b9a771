"""What an estimator from elsewhere raises or returns wrongly is one line; afterwards it is like any other."""

import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from ktae_cli.errors import KtaeError
from ktae_cli.schema import holds_flags


def describe_error(error: BaseException, path: Path | None = None) -> str:
    """Return an exception as one line, with the last line of the file `path` that it went through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    message = " ".join(str(error).split())
    return type(error).__name__ + (f": {message}" if message else "") + (f" (line {lines[-1]})" if lines else "")


def guard(function: Any, name: str, source: str, path: Path) -> Callable:
    """Return an estimator's function with what it gives checked; raise `KtaeError` when it is not declared as one."""
    who = f"estimator {name!r} of {source}"
    if not callable(function) or not hasattr(function, "scope"):
        raise KtaeError(f"{who}: @estimator(...) of ktae_cli.estimators.base is not the outermost decorator")
    if function.scope == "batch" and not callable(getattr(function, "pool", None)):
        raise KtaeError(f'{who}: scope "batch" needs {function.__name__}.pool = gather, a function (batch, known, …)')

    def guarded(call: Callable, check: Callable) -> Callable:
        @wraps(call)
        def checked(batch, *rest, **parameters):
            before = _versions(batch)
            try:
                found = call(batch, *rest, **parameters)
                problem = "changes its input in place" if _versions(batch) != before else check(found, batch, call)
            except Exception as error:
                if isinstance(error, KtaeError) or _is_out_of_memory(error):
                    raise
                raise KtaeError(f"{who} failed: {describe_error(error, path)}") from error
            except SystemExit as error:
                raise KtaeError(f"{who} failed: {describe_error(error, path)}") from error
            if problem:
                raise KtaeError(f"{who} {problem}")
            return found

        return checked

    result = guarded(function, _result_problem)
    for attribute, check in (("pool", _pool_problem), ("in_loss", _in_loss_problem)):
        if hasattr(function, attribute):
            setattr(result, attribute, guarded(getattr(function, attribute), check))
    return result


def _versions(batch: Any) -> dict[str, int]:
    """Return the counts of in-place changes of the batch's tensors."""
    tensors = ((name, value) for name, value in vars(batch).items() if hasattr(value, "is_inference"))
    return {name: value._version for name, value in tensors if not value.is_inference()}


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "defaultcpuallocator" in text


def _result_problem(found: Any, batch: Any, function: Callable) -> str:
    """Say what is wrong with the result of an estimator: kind, columns, shape, type, device, values off the mask."""
    if not hasattr(found, "advantages"):
        if function.level == "token":
            return f"is of level token and returns {_shown(found)}; expected Estimate(advantages, columns)"
        return _tensor_problem("advantages", found, (batch.n_rollouts,), ("torch.float64", "torch.float32"), batch)
    returned, declared = {"advantages", *found.columns}, {"advantages", *function.columns}
    if returned != declared:
        return f"returns {', '.join(sorted(returned))}; it declares {', '.join(sorted(declared))}"
    for name, values in {"advantages": found.advantages, **found.columns}.items():
        dtype = "torch.bool" if holds_flags(name) else "torch.float32"
        problem = _tensor_problem(name, values, tuple(batch.token_ids.shape), (dtype,), batch)
        if not problem and batch.response_mask is not None and (values.ne(0) & ~batch.response_mask).any():
            problem = f"returns {name} that are not 0 where response_mask is false"
        if problem:
            return problem
    return ""


def _pool_problem(found: Any, batch: Any, function: Callable) -> str:
    if callable(getattr(found, "merge", None)) and hasattr(found, "complete"):
        return ""
    return f"pools {_shown(found)}; expected an object with merge(other) and complete"


def _in_loss_problem(found: Any, batch: Any, function: Callable) -> str:
    return _tensor_problem("in_loss", found, (batch.n_rollouts,), ("torch.bool",), batch)


def _tensor_problem(name: str, found: Any, shape: tuple[int, ...], dtypes: tuple[str, ...], batch: Any) -> str:
    is_tensor = hasattr(found, "requires_grad")
    if not is_tensor or tuple(found.shape) != shape or str(found.dtype) not in dtypes:
        return f"returns {name}: {_shown(found)}; expected a tensor of shape {shape} and {' or '.join(dtypes)}"
    if found.device != batch.offsets.device:
        return f"returns {name} on {found.device}; the batch is on {batch.offsets.device}"
    return f"returns {name} with a gradient; compute it under torch.no_grad()" if found.requires_grad else ""


def _shown(found: Any) -> str:
    if hasattr(found, "requires_grad"):
        return f"a tensor of shape {tuple(found.shape)} and {found.dtype}"
    return "nothing" if found is None else f"a {type(found).__name__}"
