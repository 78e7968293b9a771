"""The sample rollouts and their generator."""

import math
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from ktae_cli.schema import BY_NAME

FOLDER = Path(__file__).parents[1] / "sample_data"
TOKEN_COLUMNS = ("old_log_probs", "old_entropy", "log_probs", "entropy")
SEED = 3


@pytest.fixture(scope="module")
def code():
    """The generator's modules; their plain names are not left importable."""
    names = ("generate", "policy", "problems")
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        import generate
        import policy
        import problems

        yield SimpleNamespace(generate=generate, policy=policy, problems=problems)
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


@pytest.fixture(scope="module")
def quick(code):
    return code.generate.build(SEED, quick=True)


@pytest.fixture(scope="module")
def committed():
    return pq.read_table(FOLDER / "rollouts.parquet")


@pytest.fixture(scope="module", params=["quick", "committed"])
def rollouts(request):
    """Rows and tokenizer of a fresh tiny run, and of the committed files."""
    made = request.getfixturevalue(request.param)
    if request.param == "quick":
        return SimpleNamespace(table=made.table, rows=made.table.to_pylist(), tokenizer=made.tokenizer)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    return SimpleNamespace(table=made, rows=made.to_pylist(), tokenizer=tokenizer)


def by_group(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    return groups


def test_columns_are_canonical(rollouts):
    names = {
        "string": "string",
        "double": "float64",
        "bool": "bool",
        "int64": "int64",
        "list<element: int32>": "list<int32>",
        "list<item: int32>": "list<int32>",
        "list<element: float>": "list<float32>",
        "list<item: float>": "list<float32>",
    }
    assert [field.name for field in rollouts.table.schema] == [
        name for name in BY_NAME if name in rollouts.table.column_names
    ]
    for field in rollouts.table.schema:
        assert names[str(field.type)] == BY_NAME[field.name].dtype, field.name
        assert rollouts.table[field.name].null_count == 0, field.name
    assert set(TOKEN_COLUMNS) < set(rollouts.table.column_names)


def test_token_columns_are_aligned_and_in_range(rollouts):
    size = rollouts.tokenizer.get_vocab_size()
    for row in rollouts.rows:
        assert {len(row[name]) for name in TOKEN_COLUMNS} == {len(row["response_ids"])}
        assert all(-math.inf < value <= 0 for name in ("old_log_probs", "log_probs") for value in row[name])
        assert all(0 <= value <= math.log(size) for name in ("old_entropy", "entropy") for value in row[name])
        assert all(0 <= token < size for token in row["prompt_ids"] + row["response_ids"])


def test_later_checkpoint_differs_from_the_sampling_one(rollouts):
    assert all(row["old_log_probs"] != row["log_probs"] for row in rollouts.rows)
    assert all(row["old_entropy"] != row["entropy"] for row in rollouts.rows)


def test_ids_decode_to_the_text(rollouts):
    for row in rollouts.rows:
        assert rollouts.tokenizer.decode(row["prompt_ids"]) == row["prompt"]
        assert rollouts.tokenizer.decode(row["response_ids"], skip_special_tokens=True) == row["response"]


def test_end_of_text_stands_last_exactly_where_the_rollout_stopped(rollouts):
    end = rollouts.tokenizer.token_to_id("<|endoftext|>")
    longest = max(len(row["response_ids"]) for row in rollouts.rows)
    for row in rollouts.rows:
        assert end not in row["response_ids"][:-1]
        assert row["finish_reason"] == ("stop" if row["response_ids"][-1] == end else "length")
        assert row["finish_reason"] == "stop" or len(row["response_ids"]) == longest


def test_reward_is_the_verdict_on_the_text(rollouts):
    for row in rollouts.rows:
        answers = [line[8:] for line in row["response"].split("\n") if re.fullmatch(r"Answer: -?[0-9]+", line)]
        assert row["correct"] == (answers[-1:] == [row["ground_truth"]])
        assert row["reward"] == float(row["correct"])


def test_groups_are_contiguous_and_share_one_prompt(rollouts):
    order = [row["group_id"] for row in rollouts.rows]
    assert order == sorted(order)
    for group, rows in by_group(rollouts.rows).items():
        assert [row["rollout_id"] for row in rows] == [f"{group}/{at:02d}" for at in range(len(rows))]
        for name in ("prompt", "prompt_ids", "ground_truth", "step"):
            assert all(row[name] == rows[0][name] for row in rows), name
    assert len({row["prompt"] for row in rollouts.rows}) == len(by_group(rollouts.rows))


def test_committed_set_has_the_promised_size_and_mixture(committed):
    rows = committed.to_pylist()
    groups = by_group(rows)
    assert (FOLDER / "rollouts.parquet").stat().st_size < 2_000_000
    assert len(groups) >= 64
    assert {len(members) for members in groups.values()} == {16}
    assert 0.2 < sum(row["correct"] for row in rows) / len(rows) < 0.8
    mixed = [members for members in groups.values() if len({row["correct"] for row in members}) == 2]
    assert len(mixed) >= 0.8 * len(groups)
    assert 0 < sum(row["finish_reason"] == "length" for row in rows) < 0.2 * len(rows)


def test_committed_problems_are_those_of_the_seeded_generator(code, committed):
    groups = list(by_group(committed.to_pylist()).values())
    asked = code.problems.make_distinct(random.Random(7), len(groups))
    assert [rows[0]["prompt"] for rows in groups] == [problem.prompt for problem in asked]
    assert [rows[0]["ground_truth"] for rows in groups] == [str(problem.answer) for problem in asked]


def test_readme_states_the_measured_figures(code, committed):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    figures = code.generate.measure(committed)
    for name, shown in {
        "rollouts": f"{figures['rollouts']:,}",
        "groups": str(figures["groups"]),
        "mixed groups": str(figures["groups_mixed"]),
        "pass rate": f"{figures['pass_rate']:.1%}",
        "response tokens": f"{figures['tokens']:,}",
        "longest response": f"{figures['tokens_max']} tokens",
        "truncated": f"{figures['truncated']:.1%}",
    }.items():
        assert f"| {name} | {shown} |" in text
    assert all(f"`{name}`" in text for name in committed.column_names)


def test_quick_run_has_the_asked_shape(quick):
    assert {group: len(rows) for group, rows in by_group(quick.table.to_pylist()).items()} == {
        f"arith-{number:03d}": 4 for number in range(4)
    }
    assert quick.figures["loss"] < math.log(quick.tokenizer.get_vocab_size()) - 1


def test_log_probs_are_those_of_the_checkpoints(quick):
    """Probabilities of the whole vocabulary sum to one, and re-scoring by hand gives the stored values."""
    import torch

    for row in quick.table.to_pylist():
        prompt, response = row["prompt_ids"], row["response_ids"]
        for model, log_probs, entropy in (
            (quick.sampling, row["old_log_probs"], row["old_entropy"]),
            (quick.later, row["log_probs"], row["entropy"]),
        ):
            for at in (0, len(response) // 2, len(response) - 1):
                with torch.no_grad():
                    logits = model(torch.tensor([prompt + response[:at]]))[0, -1].double()
                p = logits.exp() / logits.exp().sum()
                assert p.sum().item() == pytest.approx(1)
                assert math.exp(log_probs[at]) == pytest.approx(p[response[at]].item(), abs=1e-5, rel=1e-4)
                assert entropy[at] == pytest.approx(-(p * p.log()).sum().item(), abs=1e-4)


def test_cached_sampling_draws_from_the_scored_distribution(code, quick):
    """Frequencies of many sampled first tokens match the probabilities that `score` states."""
    prompt = quick.table["prompt_ids"][0].as_py()
    drawn = code.policy.sample(quick.sampling, prompt, 4000, 2, 0, seed=1)
    for place in (0, 1):
        start = [row for row in drawn if len(row) == 2] if place else drawn
        prefix = max((row[:place] for row in start), key=lambda head: sum(row[:place] == head for row in start))
        seconds = [row[place] for row in start if row[:place] == prefix]
        common = max(set(seconds), key=seconds.count)
        p = code.policy.score(quick.sampling, prompt, [*prefix, common])[0][-1].exp().item()
        spread = math.sqrt(p * (1 - p) / len(seconds))
        assert abs(seconds.count(common) / len(seconds) - p) < 5 * spread


def test_one_seed_gives_the_same_files_and_another_seed_does_not(code, quick, tmp_path):
    script = [sys.executable, str(FOLDER / "generate.py"), "--quick"]
    subprocess.run([*script, "--seed", str(SEED), "--out", str(tmp_path / "b")], check=True, capture_output=True)
    code.generate.write(quick, tmp_path / "a")
    for name in ("tokenizer.json", "rollouts.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert pq.read_table(tmp_path / "b" / "rollouts.parquet").equals(quick.table)
    assert code.generate.build(SEED + 1, quick=True).table["response"] != quick.table["response"]


def test_settings_of_the_caller_come_back(code):
    import torch

    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().tolist())
    with code.generate.repeatable(1):
        assert torch.get_num_threads() == 1
        torch.rand(3)
    after = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().tolist())
    assert after == before


def test_sampled_prompts_are_not_in_the_training_text(code):
    plan = code.generate.Plan(prompts=40, examples=3000)
    asked = {problem.prompt for problem in code.problems.make_distinct(random.Random(1), plan.prompts)}
    pairs = code.generate.make_examples(plan, asked, seed=1)
    assert len(pairs) == 3000
    assert not asked & {prompt for prompt, _ in pairs}


def test_worked_answers_differ_in_quality_by_style(code):
    rng = random.Random(5)
    shares = {}
    for style, _ in code.problems.STYLES:
        asked = [code.problems.make_problem(rng) for _ in range(3000)]
        right = [code.problems.write_solution(rng, one, style).endswith(f"Answer: {one.answer}") for one in asked]
        shares[style.__name__] = sum(right) / len(right)
    assert shares.pop("write_careful") == 1
    expected = {"write_plain": 0.92, "write_wait": 0.75, "write_hedged": 0.45, "write_sloppy": 0.5}
    assert shares == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("Answer: 17", True),
        ("First, 8 + 9 = 17\nAnswer: 17", True),
        ("Answer: 3\nAnswer: 17", True),
        ("Answer: 17\nAnswer: 3", False),
        ("Answer: 170", False),
        ("Answer: 17 pens", False),
        ("8 + 9 = 17", False),
        ("Answer: -17", False),
        ("", False),
    ],
)
def test_verdict(code, response, right):
    assert code.problems.is_right(response, "17") is right


def test_worked_example(code):
    """24 pens in 4 boxes of 6, less 7, is 17; a slip of +2 in the first step is carried on."""
    steps = (code.problems.Step(4, "*", 6), code.problems.Step(code.problems.Result(0), "-", 7))
    assert code.problems.evaluate(steps) == [(4, "*", 6, 24), (24, "-", 7, 17)]
    assert code.problems.evaluate(steps, {0: 2}) == [(4, "*", 6, 26), (26, "-", 7, 19)]


def test_importing_the_generator_does_nothing(tmp_path):
    script = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import generate"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
