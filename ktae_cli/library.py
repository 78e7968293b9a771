"""The library: the commands as functions, with the options' names; frames in, frames out."""

from pathlib import Path
from typing import Any

from ktae_cli.errors import KtaeError


def score(
    rollouts: Any,
    estimator: str | list[str] = "ktae",
    *,
    output: str | Path | None = None,
    tokens_out: str | Path | None = None,
    force: bool = False,
    **options: Any,
) -> Any:
    """Score rollouts: a path (or a list of them) into a file, or a frame into a frame.

    A path is scored as `ktae score` does: `output` (default beside the input) and its token table are written, and the
    summary comes back as a dict. A pyarrow Table, a polars or a pandas DataFrame comes back as one of its kind with
    the columns of `ktae score` added, and nothing is written.
    options: device, jobs, limit, group_by, map (a dict), correct_threshold, reward_from, truncated, columns, on_error,
    tokenizer, eos_ids, verify, gold, null, seed, strict, format and those of reading as on the command line; notice and
    warn are called with each message; by default warnings go to Python's `warnings`. null is for a path: its figures
    stand in the summary and in the file.
    Raises `KtaeError` and its kinds for what the command would exit 2 on.
    """
    from ktae_cli.scoring import score_files, score_table

    chosen = _options(estimator, options)
    if isinstance(rollouts, str | Path | list | tuple):
        inputs = [rollouts] if isinstance(rollouts, str | Path) else rollouts
        paths = (Path(p) if p is not None else None for p in (output, tokens_out))
        return score_files([str(path) for path in inputs], *paths, force, chosen)
    if output is not None or tokens_out is not None:
        raise KtaeError("a frame comes back as a frame: leave out output and tokens_out, or give a path to score")
    table, restore = _as_table(rollouts)
    return restore(score_table(table, chosen))


def read(inputs: str | Path | list[str | Path], format: str = "auto", **options: Any) -> Any:
    """Read rollouts or a scored file, a directory or a glob into one pyarrow Table under one schema.

    Parquet of canonical or any other columns comes as it is, any other dump under the names that its reader gives.
    options: unsafe_pickle, skip_bad_lines, on_mismatch, keep_duplicates as on the command line; notice and warn are
    called with each message; by default warnings go to Python's `warnings`.
    """
    import tempfile

    import pyarrow as pa

    from ktae_cli.inputs import open_rollouts

    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        source = open_rollouts(_paths(inputs), scratch, _reading(format, options))
        return pa.Table.from_batches(list(source.batches()), source.schema)


def convert(
    rollouts: Any,
    output: str | Path | None = None,
    *,
    format: str = "auto",
    map: dict[str, str] | None = None,
    group_by: Any = (),
    correct_threshold: float | None = None,
    tokenizer: str | Path | None = None,
    force: bool = False,
    **options: Any,
) -> Any:
    """Convert a dump as `ktae convert` does: write canonical Parquet and return the summary, of a frame a frame.

    options: strict, unsafe_pickle, skip_bad_lines, on_mismatch, keep_duplicates as on the command line; notice and warn
    are called with each message; by default warnings go to Python's `warnings`.
    """
    from ktae_cli.converting import ConvertOptions, convert_files, convert_table
    from ktae_cli.readers._memory import TableRollouts

    strict = options.pop("strict", False)
    reading = _reading(format, options, (map or {}).get("correct"), strict)
    chosen = ConvertOptions(
        reading, (group_by,) if isinstance(group_by, str) else tuple(group_by), map or {}, correct_threshold,
        Path(tokenizer) if tokenizer is not None else None, strict, reading.reader.notice, reading.reader.warn,
    )  # fmt: skip
    if isinstance(rollouts, str | Path | list | tuple):
        return convert_files(_paths(rollouts), Path(output) if output is not None else None, force, chosen)
    if output is not None:
        raise KtaeError("a frame comes back as a frame: leave out output, or give a path to convert")
    table, restore = _as_table(rollouts)
    return restore(convert_table(TableRollouts(table), chosen))


def check(
    rollouts: Any,
    *,
    select: Any = (),
    ignore: Any = (),
    set: Any = (),
    strict: bool = False,
    limit: int = 0,
    map: dict[str, str] | None = None,
    group_by: Any = (),
    correct_threshold: float | None = None,
    tokenizer: str | Path | None = None,
    eos_ids: Any = (),
    pad_ids: Any = (),
    format: str = "auto",
    **options: Any,
) -> dict[str, Any]:
    """Return the report that `ktae check --json` prints, for a path, a list of them or a frame.

    select, ignore: ids of rules or their beginnings, one or a list. set: texts such as "KT306.share=0.5". options: as
    of `read`.
    """
    from ktae_cli.checking import CheckOptions, check_files, check_source
    from ktae_cli.readers._memory import TableRollouts

    reading = _reading(format, options, (map or {}).get("correct"), strict)
    chosen = CheckOptions(
        _several(select), _several(ignore), _several(set), strict, limit, _several(group_by), map or {},
        correct_threshold, Path(tokenizer) if tokenizer is not None else None, _several(eos_ids), _several(pad_ids),
        reading,
    )  # fmt: skip
    if isinstance(rollouts, str | Path | list | tuple):
        return check_files(_paths(rollouts), chosen).as_dict()
    return check_source(TableRollouts(_as_table(rollouts)[0]), chosen).as_dict()


def _several(value: Any) -> tuple:
    return (value,) if isinstance(value, str | int) else tuple(value)


def verify(
    rollouts: Any,
    *,
    output: str | Path | None = None,
    force: bool = False,
    **options: Any,
) -> Any:
    """Grade responses against their gold answers: a path (or a list of them) into a file, or a frame into a frame.

    A path is graded as `ktae verify` does, and the summary comes back as a dict. A frame comes back as one of its kind
    with `correct`, `verify_status`, `answer_parsed`, `gold_parsed` and `verify_path`, and nothing is written.
    options: gold, answer_format, verifier, argument, units, percent, tolerance, compare, correct_threshold, jobs,
    timeout, memory, limit, group_by, map (a dict), strict as on the command line; notice and warn are called with each
    message; by default warnings go to Python's `warnings`.
    Raises `KtaeError` and its kinds for what the command would exit 2 on, `MachineError` where it would exit 3.
    """
    from ktae_cli.verifying import verify_files, verify_table

    chosen = _verify_options(options)
    if isinstance(rollouts, str | Path | list | tuple):
        inputs = [rollouts] if isinstance(rollouts, str | Path) else rollouts
        target = Path(output) if output is not None else None
        return verify_files([str(path) for path in inputs], target, force, chosen)
    if output is not None:
        raise KtaeError("a frame comes back as a frame: leave out output, or give a path to verify")
    table, restore = _as_table(rollouts)
    return restore(verify_table(table, chosen))


def inspect(
    rollouts: Any,
    *,
    map: dict[str, str] | None = None,
    group_by: Any = (),
    correct_threshold: float | None = None,
    clip: tuple[float, float] = (0.8, 1.28),
    cap: float = 2.0,
    mask: tuple[float, float] | None = None,
    key_threshold: float = 0.5,
    output: str | Path | None = None,
    force: bool = False,
    format: str = "auto",
    **options: Any,
) -> dict:
    """Return the facts that `ktae inspect --json` prints, for a path or a frame.

    Of a path the off-policy facts of every token are written to `output` where it is given. options: as of `read`.
    """
    import tempfile

    from ktae_cli.inputs import open_rollouts, remaining_map, threshold_of
    from ktae_cli.inspection import inspect_rollouts
    from ktae_cli.off_policy_facts import Bounds
    from ktae_cli.readers._memory import TableRollouts

    keys = [group_by] if isinstance(group_by, str) else list(group_by)
    bounds = Bounds(tuple(clip), cap, tuple(mask) if mask is not None else None, key_threshold)
    if isinstance(rollouts, str | Path):
        target = Path(output) if output is not None else None
        with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
            source = open_rollouts([str(rollouts)], scratch, _reading(format, options, (map or {}).get("correct")))
            mapped, threshold = remaining_map(source, map or {}), threshold_of(source, correct_threshold)
            return inspect_rollouts(source, mapped, keys, threshold, bounds, target, force)
    if output is not None:
        raise KtaeError("of a frame nothing is written: leave out output, or give a path to inspect")
    source = TableRollouts(_as_table(rollouts)[0])
    return inspect_rollouts(source, map or {}, keys, threshold_of(source, correct_threshold), bounds)


def export(
    scored: str | Path,
    to: str,
    output: str | Path | None = None,
    *,
    rollouts: str | Path | None = None,
    shards: int = 1,
    force: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Export a scored file as `ktae export` does and return the summary.

    options: advantages, normalize, clip, drop_dead_groups, null_advantages, mask_truncated, max_length,
    allow_retokenized, loss, as on the command line.
    """
    from dataclasses import fields

    from ktae_cli.catalogue import unknown_name
    from ktae_cli.exporting import write_export
    from ktae_cli.exports.base import ExportOptions

    known = [field.name for field in fields(ExportOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise unknown_name("option of export:", unknown, known)
    original = Path(rollouts) if rollouts is not None else None
    target = str(output) if output is not None else None
    return write_export(Path(scored), to, target, rollouts=original, shards=shards, force=force, **options)


def compare(
    rollouts: Any,
    estimator: str | list[str] = (),
    *,
    by: str | None = None,
    null: int = 3,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
    **options: Any,
) -> dict:
    """Return the report that `ktae compare --json` prints.

    With estimators: a path, a list of them, or a frame, and the options of `score`. Without: a list of two scored files
    of the same rollouts, and the options limit, tokenizer, rollouts, strict. `output` gets one row a rollout.
    """
    target = Path(output) if output is not None else None
    if not estimator:
        return _compare_files(rollouts, by, target, force, options)
    from ktae_cli.comparing import CompareOptions, compare_inputs, compare_rollouts
    from ktae_cli.readers._memory import TableRollouts

    if by is not None:
        raise KtaeError("by is for two scored files, without estimators")
    chosen, more = _options(estimator, options), CompareOptions(null, seed)
    if isinstance(rollouts, str | Path | list | tuple):
        inputs = [rollouts] if isinstance(rollouts, str | Path) else rollouts
        return compare_inputs([str(path) for path in inputs], target, force, chosen, more)
    if target is not None:
        raise KtaeError("of a frame nothing is written: leave out output, or give a path to compare")
    return compare_rollouts(TableRollouts(_as_table(rollouts)[0]), None, force, chosen, more)


_UNITS = ("unit", "within", "before", "outcome", "verdict_noise")
_TESTS = ("length_control", "min_groups", "tarone", "level", "permutations", "resamples", "seed")


def tokens(
    rollouts: Any,
    estimator: str = "ktae",
    *,
    output: str | Path | None = None,
    force: bool = False,
    **options: Any,
) -> Any:
    """Pool key tokens over all prompts as `ktae tokens` does.

    Of a path (or a list of them) the table is written to `output` where it is given, and the report that
    `ktae tokens --json` prints comes back as a dict. Of a frame the table comes back as a frame of its kind.
    options: unit, within, before, outcome, verdict_noise, length_control, min_groups, tarone, level, permutations,
    resamples, seed, and those of `score` as far as `ktae tokens` has them.
    """
    from ktae_cli.evidence.pooling import UnitOptions, pool_files, pool_rollouts
    from ktae_cli.evidence.unit_tests import TestOptions
    from ktae_cli.readers._memory import TableRollouts

    units = UnitOptions(**{name: options.pop(name) for name in _UNITS if name in options})
    tests = TestOptions(**{name: options.pop(name) for name in _TESTS if name in options})
    chosen = _options(estimator, options)
    if isinstance(rollouts, str | Path | list | tuple):
        target = Path(output) if output is not None else None
        return pool_files(_paths(rollouts), target, force, units, tests, chosen)
    if output is not None:
        raise KtaeError("a frame comes back as a frame: leave out output, or give a path")
    table, restore = _as_table(rollouts)
    return restore(pool_rollouts(TableRollouts(table), units, tests, chosen).table)


def load_estimator(spec: str) -> Any:
    """Return a function GroupBatch -> Estimate for a spec such as `ktae(loo=true)`."""
    from functools import partial

    from ktae_cli.estimators.base import estimate, load

    return partial(estimate, load(spec)[1])


def _paths(inputs: Any) -> list[str]:
    return [str(path) for path in ([inputs] if isinstance(inputs, str | Path) else inputs)]


_READING = ("unsafe_pickle", "skip_bad_lines", "on_mismatch", "keep_duplicates", "notice", "warn")


def _reading(format: str, options: dict[str, Any], correct: str | None = None, strict: bool = False) -> Any:
    import warnings

    from ktae_cli.catalogue import unknown_name
    from ktae_cli.inputs import ReadInputs
    from ktae_cli.readers.base import ReaderOptions

    unknown = [name for name in options if name not in _READING]
    if unknown:
        raise unknown_name("option of reading:", unknown, _READING)
    if options.get("on_mismatch", "error") not in ("error", "drop"):
        raise KtaeError(f"on_mismatch is error or drop, found {options['on_mismatch']!r}")
    options.setdefault("warn", lambda text: warnings.warn(text, stacklevel=4))
    return ReadInputs(format, ReaderOptions(**options, correct_column=correct), strict)


def _options(estimator: str | list[str], options: dict[str, Any]) -> Any:
    import warnings
    from dataclasses import fields

    from ktae_cli.catalogue import unknown_name
    from ktae_cli.plan import ScoreOptions

    if not isinstance(options.get("map", {}), dict):
        raise KtaeError("map takes a dict, as in map={'reward': 'score'}")
    options.setdefault("warn", lambda text: warnings.warn(text, stacklevel=4))
    reading = {name: options.pop(name) for name in (*_READING[:4], "format") if name in options}
    known = {f.name for f in fields(ScoreOptions)} - {"estimators", "input"}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise unknown_name("option of score:", unknown, sorted({*known, *_READING[:4], "format"}))
    reading |= {name: options[name] for name in ("notice", "warn") if name in options}
    options["input"] = _reading(
        reading.pop("format", "auto"), reading, options.get("map", {}).get("correct"), options.get("strict", False)
    )
    specs = (estimator,) if isinstance(estimator, str) else tuple(estimator)
    if isinstance(options.get("group_by"), str):
        options["group_by"] = (options["group_by"],)
    if isinstance(options.get("tokenizer"), str):
        options["tokenizer"] = Path(options["tokenizer"])
    return ScoreOptions(estimators=specs, **options)


def _verify_options(options: dict[str, Any]) -> Any:
    import warnings
    from dataclasses import fields

    from ktae_cli.catalogue import unknown_name
    from ktae_cli.grading.verdict import GradingOptions
    from ktae_cli.verifying import VerifyOptions

    grading = {field.name for field in fields(GradingOptions)}
    known = {field.name for field in fields(VerifyOptions)} - {"grading"}
    unknown = [name for name in options if name not in known | grading]
    if unknown:
        raise unknown_name("option of verify:", unknown, sorted(known | grading))
    if isinstance(options.get("group_by"), str):
        options["group_by"] = (options["group_by"],)
    options.setdefault("warn", lambda text: warnings.warn(text, stacklevel=4))
    chosen = GradingOptions(**{name: value for name, value in options.items() if name in grading})
    return VerifyOptions(grading=chosen, **{name: value for name, value in options.items() if name in known})


def _compare_files(paths: Any, by: str | None, output: Path | None, force: bool, options: dict[str, Any]) -> dict:
    import warnings
    from dataclasses import fields

    from ktae_cli.catalogue import unknown_name
    from ktae_cli.comparison.files import FileOptions, compare_files

    if not isinstance(paths, list | tuple) or len(paths) != 2:
        raise KtaeError("give estimators, two or more, or a list of two scored files")
    known = {field.name for field in fields(FileOptions)} - {"by"}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise unknown_name("option of compare:", unknown, sorted(known))
    options.setdefault("warn", lambda text: warnings.warn(text, stacklevel=4))
    for name in ("tokenizer", "rollouts"):
        if isinstance(options.get(name), str):
            options[name] = Path(options[name])
    first, second = (Path(path) for path in paths)
    return compare_files((first, second), output, force, FileOptions(by or "advantages", **options))


def _as_table(frame: Any) -> tuple[Any, Any]:
    """Return a frame as a pyarrow Table, and the way back to its own kind."""
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame, lambda table: table
    kind = type(frame).__module__.partition(".")[0]
    if kind == "polars":
        import polars

        collected = frame.collect() if isinstance(frame, polars.LazyFrame) else frame
        return collected.to_arrow(), polars.from_arrow
    if kind == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False), lambda table: table.to_pandas().set_axis(frame.index)
    raise KtaeError(
        f"cannot score a {type(frame).__name__}: give a path, a pyarrow Table, or a polars or pandas DataFrame"
    )
