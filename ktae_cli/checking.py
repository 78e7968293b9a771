"""The health rules run over an input: one pass, every rule sees every batch, findings with their places."""

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import Declaration, declaration, names, rule_names, unknown_name
from ktae_cli.checks._rows import Input, Rows
from ktae_cli.checks._table import TableBuilder
from ktae_cli.checks._tokenizer import padding_ids
from ktae_cli.checks.base import SEVERITIES, Finding
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.groups import group_keys
from ktae_cli.inputs import ReadInputs, open_rollouts, remaining_map, threshold_of
from ktae_cli.mapping import Mapping, fits, resolve_mapping
from ktae_cli.names import parse_spec
from ktae_cli.off_policy_rows import find_pairs
from ktae_cli.readers.base import ReaderOptions, Source, column_at, decoded, root_of
from ktae_cli.schema import BY_NAME
from ktae_cli.token_text import choose_decoder
from ktae_cli.tokenizer_file import end_of_text_ids

REPORT_VERSION = 1
_LENIENT: dict[str, tuple[str, dict[str, Any]]] = {
    "bad lines": ("--skip-bad-lines", {"skip_bad_lines": True}),
    "unequal length": ("--on-mismatch drop", {"on_mismatch": "drop"}),
}
"""What a reader counts as left out -> the option that makes it do so, on the command line and in `ReaderOptions`."""


@dataclass(frozen=True)
class CheckOptions:
    """The options of `ktae check`, under their names on the command line."""

    select: tuple[str, ...] = ()
    """Ids, their first letters, or names of rules; () is all."""
    ignore: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    """Parameters of rules, as `KT306.share=0.5`."""
    strict: bool = False
    limit: int = 0
    group_by: tuple[str, ...] = ()
    map: dict[str, str] = field(default_factory=dict)
    correct_threshold: float | None = None
    tokenizer: Path | None = None
    eos_ids: tuple[int, ...] = ()
    pad_ids: tuple[int, ...] = ()
    input: ReadInputs = field(default_factory=lambda: ReadInputs(reader=ReaderOptions()))
    progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True)
class Located:
    """A finding with the rule that made it and the place where it shows first."""

    id: str
    rule: str
    severity: str
    message: str
    file: str
    line: int | None
    """Of a file of lines, from 1."""
    row: int | None
    """Of other files, from 0."""
    place: str
    count: int | None
    of: int | None


@dataclass(frozen=True)
class Report:
    """What `ktae check` found. not_checked: id -> what the input lacks for it."""

    inputs: list[str]
    reader: str
    rollouts: int
    groups: int
    findings: list[Located]
    checked: list[str]
    not_checked: dict[str, list[str]]
    strict: bool = False

    def count(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(found.severity == severity for found in self.findings)

    @property
    def status(self) -> int:
        """Return the exit status: 1 with an error or a warning, or with a note under --strict, else 0."""
        return int(any(found.severity != "note" or self.strict for found in self.findings))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it; docs/checks.md describes it."""
        return {
            "report_version": REPORT_VERSION,
            "inputs": self.inputs,
            "reader": self.reader,
            "rollouts": self.rollouts,
            "groups": self.groups,
            "findings": [dict(vars(found)) for found in self.findings],
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "checked": self.checked,
            "not_checked": self.not_checked,
            "status": self.status,
        }


def check_files(inputs: list[str], options: CheckOptions) -> Report:
    """Run the rules over files, directories, globs or `-`."""
    chosen = choose_rules(options)
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        source, read, refused = _open(inputs, scratch, options.input)
        return check_source(source, replace(options, input=read), chosen, refused)


def _open(inputs: list[str], scratch: str, read: ReadInputs) -> tuple[Source, ReadInputs, dict[str, str]]:
    """Open the inputs; where a line or row stops that, leave such out, and return what was said of the first.

    The message that stops reading names the option that leaves such lines or rows out.
    """
    refused: dict[str, str] = {}
    while True:
        try:
            return open_rollouts(inputs, scratch, read), read, refused
        except InputError as error:
            loss = next((loss for loss, (option, _) in _LENIENT.items() if option in str(error)), "")
            if not loss or loss in refused or "-" in inputs:  # standard input can be read once
                raise
            refused[loss] = str(error).partition("; ")[0]
            lenient = replace(read.reader, notice=lambda text: None, counts={}, **_LENIENT[loss][1])
            read = replace(read, reader=lenient)


def check_source(
    source: Source,
    options: CheckOptions,
    chosen: dict[str, dict[str, Any]] | None = None,
    refused: dict[str, str] | None = None,
) -> Report:
    """Run the rules over a source, reading it once; memory grows by about a hundred bytes a row.

    chosen: rule name -> parameters, as `choose_rules` gives them. refused: what was said of the first line and of
    the first row that was left out. Raises `InputError` for an input without rows.
    """
    if source.n_rows == 0:
        raise InputError(f"{_name_of(source)}: no rollouts (0 rows)")
    chosen = choose_rules(options) if chosen is None else chosen
    input = replace(_input_of(source, options), refused=refused or {})
    available, rules, not_checked = _available(input), {}, {}
    for name, parameters in chosen.items():
        declared = declaration("checks", name)
        missing = [need for need in declared.needs if not available & set(need.split("|"))]
        if missing:
            not_checked[declared.id] = missing
        else:
            rules[name] = (declared, partial(_function(name), **parameters))
    found, n_rows, n_groups = _run(source, input, rules, options)
    found.sort(key=lambda one: (SEVERITIES.index(one[0].severity), one[0].id))
    paths = [str(path) for path in getattr(source, "paths", [])]
    checked = sorted(declared.id for declared, _ in rules.values())
    located = [_locate(source, *one) for one in found]
    return Report(paths, source.reader, n_rows, n_groups, located, checked, not_checked, options.strict)


def _run(source: Source, input: Input, rules: dict, options: CheckOptions) -> tuple[list, int, int]:
    """Send every batch to every rule; return (rule, finding) pairs, rows looked at, groups."""
    found: list[tuple[Declaration, Finding]] = []
    watching, on_table = [], []
    for declared, function in rules.values():
        if declared.sees == "input":
            found += [(declared, finding) for finding in function(input)]
        elif declared.sees == "rows":
            watch = function(input)
            next(watch)
            watching.append((declared, watch))
        else:
            on_table.append((declared, function))
    codes: dict[str, int] = {}
    builder, n_rows = TableBuilder(input), 0
    for rows in _stream(source, input, codes, options):
        n_rows += len(rows.numbers)
        for _, watch in watching:
            watch.send(rows)
        if on_table:
            builder.add(rows)
    for declared, watch in watching:
        found += [(declared, finding) for finding in _rest(watch)]
    if on_table and builder.parts:
        table = builder.table(list(codes)[: options.limit or None])
        for declared, function in on_table:
            found += [(declared, finding) for finding in function(table)]
    return found, n_rows, min(len(codes), options.limit or len(codes))


def _rest(watch) -> Iterator[Finding]:
    """Tell a rule that there are no more rows, and return what it found."""
    try:
        finding = watch.send(None)
        while True:
            yield finding
            finding = next(watch)
    except StopIteration:
        return


def _stream(source: Source, input: Input, codes: dict[str, int], options: CheckOptions) -> Iterator[Rows]:
    paths = [*input.mapping.columns.values(), *input.mapping.group_key]
    roots = list(dict.fromkeys(root_of(source.schema, path) for path in paths))
    roots += [name for name in ("advantages",) if name in source.schema.names and name not in roots]
    first = 0
    for batch in source.batches(roots) if roots else ():
        numbers = np.arange(first, first + len(batch))
        group = _codes(batch, input, codes, first)
        first += len(batch)
        if options.limit:
            kept = group < options.limit
            batch, numbers, group = batch.filter(pa.array(kept)), numbers[kept], group[kept]
        if len(batch):
            yield Rows(batch, input, numbers, group)
        options.progress(first, source.n_rows)


def _codes(batch: pa.RecordBatch, input: Input, codes: dict[str, int], first: int) -> np.ndarray:
    """Return the group code of each row by first appearance, -1 where a part of the key is null."""
    valid = np.ones(len(batch), bool)
    for path in input.mapping.group_key:
        valid &= np.asarray(column_at(batch, path).is_valid())
    group = np.full(len(batch), -1, np.int64)
    if input.mapping.group_key and valid.any():
        known = batch if valid.all() else batch.filter(pa.array(valid))
        keys = group_keys(known, input.mapping, lambda i: input.place(first + i)).dictionary_encode()
        distinct = decoded(keys.dictionary, "the group key", input.place(first))
        own = np.array([codes.setdefault(key, len(codes)) for key in distinct], np.int64)
        group[valid] = own[np.asarray(keys.indices)]
    return group


def _input_of(source: Source, options: CheckOptions) -> Input:
    overrides = remaining_map(source, options.map)
    mapping, problem = _mapping(source.schema, overrides, list(options.group_by))
    threshold = threshold_of(source, options.correct_threshold)
    if not np.isfinite(threshold):
        raise InputError(f"--correct-threshold takes a finite number, found {threshold}")
    decoder, _ = choose_decoder(options.tokenizer, getattr(source, "paths", []))
    tokenizer = getattr(decoder, "tokenizer", None)
    return Input(
        source.schema, mapping, source.place, problem, threshold, tokenizer,
        options.eos_ids or end_of_text_ids(decoder), options.pad_ids or padding_ids(tokenizer),
        options.input.reader.counts,
    )  # fmt: skip


def _mapping(schema: pa.Schema, overrides: dict[str, str], group_by: list[str]) -> tuple[Mapping, str]:
    """Return the mapping and "", or what can be mapped of columns that make no groups, and why they make none."""
    try:
        return resolve_mapping(schema, overrides, group_by), ""
    except KtaeError as error:
        if overrides or group_by:
            raise
        problem = str(error)
    fit = pa.schema([f for f in schema if f.name not in BY_NAME or fits(f.type, BY_NAME[f.name].dtype)])
    try:
        return resolve_mapping(fit), problem
    except KtaeError:
        columns = resolve_mapping(fit, {}, [fit.names[0]]).columns if fit.names else {}
        return Mapping(columns, ()), problem


def _available(input: Input) -> set[str]:
    found = {name for name in BY_NAME if input.has(name)}
    further = {
        "group": input.mapping.group_key,
        "advantages": input.has("advantages"),
        "tokenizer": input.tokenizer,
        "end-of-text": input.eos_ids,
        "padding": input.pad_ids,
        "ratio": find_pairs(input.mapping.columns),
    }
    return found | {name for name, there in further.items() if there}


def choose_rules(options: CheckOptions) -> dict[str, dict[str, Any]]:
    """Return the rules that --select and --ignore leave, in the order of their ids, with the parameters of --set."""
    by_id = rule_names()
    selected = _matching(options.select, by_id) if options.select else set(by_id.values())
    selected -= _matching(options.ignore, by_id)
    parameters: dict[str, dict[str, Any]] = {name: {} for name in by_id.values()}
    for text in options.set:
        name, key, value = _setting(text, by_id)
        parameters[name][key] = value
    return {name: parameters[name] for name in by_id.values() if name in selected}


def _matching(texts: tuple[str, ...], by_id: dict[str, str]) -> set[str]:
    found, unknown = set(), []
    for text in texts:
        matching = {name for id, name in by_id.items() if id.startswith(text.upper()) or name == text}
        found |= matching
        unknown += [] if matching else [text]
    if unknown:
        raise unknown_name("rule", unknown, [*by_id, *by_id.values()])
    return found


def _setting(text: str, by_id: dict[str, str]) -> tuple[str, str, Any]:
    """Return (rule, parameter, value) of `KT306.share=0.5`; the rule may be named."""
    parts = re.fullmatch(r"(\w+)\.(\w+)=(.+)", text)
    if not parts:
        raise KtaeError(f"--set {text}: expected RULE.parameter=value, as in --set KT306.share=0.5")
    name = by_id.get(parts[1].upper(), parts[1])
    accepted = declaration("checks", name).parameters if name in names("checks") else None
    if accepted is None:
        raise unknown_name("rule", [parts[1]], [*by_id, *by_id.values()])
    if parts[2] not in accepted:
        raise unknown_name(f"parameter of {parts[1]}:", [parts[2]], accepted or ["none"])
    value = dict(parse_spec(f"{name}({parts[2]}={parts[3]})").arguments)[parts[2]]
    return name, parts[2], accepted[parts[2]].accept(value, parts[1])


def _function(name: str) -> Callable:
    return getattr(import_module(f"ktae_cli.checks.{name}"), name)


def _locate(source: Source, declared: Declaration, found: Finding) -> Located:
    place = _name_of(source) if found.row is None else source.place(found.row)
    file, line, row = (_file_of(source), None, None) if found.row is None else _parts(place)
    return Located(
        declared.id, declared.name, declared.severity, found.message, file, line, row, place, found.count, found.of
    )


def _parts(place: str) -> tuple[str, int | None, int | None]:
    """Return (file, line, row) of a place such as `x.jsonl, line 3, rollout 0` or `x.parquet, row 7`."""
    base = re.sub(r", rollout \d+$", "", place)
    parts = re.fullmatch(r"(?:(.*), )?(line|row|record) (\d+)", base, re.DOTALL)
    if not parts:
        return base, None, None
    number = int(parts[3])
    return parts[1] or "", number if parts[2] == "line" else None, number if parts[2] != "line" else None


def _file_of(source: Source) -> str:
    paths = getattr(source, "paths", [])
    return str(paths[0]) if paths else ""


def _name_of(source: Source) -> str:
    paths = getattr(source, "paths", [])
    return "the frame" if not paths else str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
