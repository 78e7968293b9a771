"""The spec grammar and its canonical text, which is also repr, equality, slug and metadata."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.catalogue import declaration, names, resolve_spec, spell_out
from ktae_cli.errors import KtaeError, UnknownNameError
from ktae_cli.names import Spec, parse_spec, print_value

WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True).filter(lambda word: word not in ("true", "false"))
ITEMS = st.one_of(st.integers(-(10**20), 10**20), st.floats(-1e30, 1e30), st.booleans(), WORDS)
LISTS = st.lists(ITEMS, min_size=2, max_size=4).map(tuple)
BLANKS = st.sampled_from(["", "", " ", "\t", "\n ", "\u2003"])


def spec_of(name, arguments) -> Spec:
    return Spec(name, tuple(sorted(arguments.items())))


SPECS = st.recursive(
    st.builds(spec_of, WORDS, st.dictionaries(WORDS, ITEMS | LISTS, min_size=1, max_size=3)) | WORDS.map(Spec),
    lambda inner: st.builds(spec_of, WORDS, st.dictionaries(WORDS, ITEMS | inner.filter(lambda s: s.arguments))),
    max_leaves=5,
)


def values_of(parameter) -> st.SearchStrategy:
    """Draw what a declared parameter accepts."""
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    ids = st.integers(0, 2**31 - 1)
    return {
        "float": st.floats(-1e30, 1e30) | st.integers(-(2**60), 2**60),
        "int": st.integers(-(2**31) + 1, 2**31 - 1),
        "bool": st.booleans(),
        "Spec": st.deferred(rollout_level_specs),
        "Numbers": st.floats(-1e30, 1e30) | st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=4).map(tuple),
        "Ids": st.sampled_from(["none", "eos"]) | ids | st.lists(ids, min_size=2, max_size=4).map(tuple),
    }[parameter.kind]


@st.composite
def estimator_texts(draw, level=None):
    """Draw a spec of an estimator as a user may write it: any order, blanks, and defaults spelled out."""
    name = draw(st.sampled_from([n for n in names("estimators") if level in (None, declared(n).level)]))
    chosen = draw(st.lists(st.sampled_from(sorted(declared(name).parameters) or [""]), unique=True, max_size=5))
    pairs = [
        f"{key}{draw(BLANKS)}={draw(BLANKS)}{print_value(draw(values_of(declared(name).parameters[key])))}"
        for key in draw(st.permutations([key for key in chosen if key]))
    ]
    return f"{name}({','.join(pairs)}{draw(BLANKS)})" if pairs else name


def declared(name):
    return declaration("estimators", name)


def rollout_level_specs():
    return estimator_texts(level="rollout")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-3", -3), ("+4", 4), ("007", 7), ("0.5", 0.5), (".5", 0.5), ("2.", 2.0), ("-0.25", -0.25),
        ("1e-6", 1e-6), ("1E3", 1000.0), ("-2.5e+2", -250.0), ("true", True), ("false", False), ("True", True),
        ("code", "code"), ("_x1", "_x1"), ("1+2+3", (1, 2, 3)), ("1+-2", (1, -2)), ("1++2", (1, 2)),
        ("1e+5", 1e5), ("a+b", ("a", "b")), ("151643+true+x", (151643, True, "x")),
    ],
)  # fmt: skip
def test_values_are_read_in_their_type(text, value):
    found = dict(parse_spec(f"name(key={text})").arguments)["key"]
    assert found == value
    assert type(found) is type(value)


def test_blanks_are_ignored_everywhere():
    text = " ktae\t( base = dapo ( max_length = 40 96 ) ,\n tf = bounded ) "
    assert str(parse_spec(text)) == "ktae(base=dapo(max_length=4096),tf=bounded)"


def test_the_order_of_keys_does_not_matter():
    assert parse_spec("a(c=3,b=d(f=2,e=1))") == parse_spec("a(b=d(e=1,f=2),c=3)")
    assert str(parse_spec("a(c=3,b=2)")) == "a(b=2,c=3)"


def test_specs_nest_in_specs():
    outer = parse_spec("a(b=c(d=e(f=1)),g=2)")
    assert outer.name == "a"
    assert dict(outer.arguments)["b"].name == "c"
    assert dict(dict(dict(outer.arguments)["b"].arguments)["d"].arguments) == {"f": 1}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ktae", "ktae"),
        ("ktae(tf=code)", "ktae"),
        ("ktae(alpha=1,beta=1.0,top=1e0)", "ktae"),
        ("ktae(tf=bounded,alpha=2)", "ktae(alpha=2.0,tf=bounded)"),
        ("ktae(tf_eps=0.000001)", "ktae(tf_eps=1e-06)"),
        ("ktae(alpha=.5e1)", "ktae(alpha=5.0)"),
        ("ktae(top=-0.5)", "ktae(top=-0.5)"),
        ("ktae(loo=true)", "ktae(loo=true)"),
        ("ktae(base=grpo)", "ktae"),
        ("ktae(base=grpo(eps=1e-6))", "ktae"),
        ("ktae(base=grpo(singleton=raw))", "ktae(base=grpo(singleton=raw))"),
        ("ktae_reference(base=grpo(singleton=raw))", "ktae_reference"),
        ("ktae_reference(base=grpo)", "ktae_reference(base=grpo)"),
        ("ktae(zero_ids=3+1+3)", "ktae(zero_ids=1+3)"),
        ("ktae(zero_ids=7+7)", "ktae(zero_ids=7)"),
        ("ktae_reference(zero_ids=151643)", "ktae_reference"),
        ("dapo(max_length=+4096,floor=false)", "dapo(floor=false,max_length=4096)"),
    ],
)
def test_canonical_text_holds_sorted_parameters_that_are_not_default(text, canonical):
    assert str(resolve_spec(text)) == canonical


def test_canonical_text_is_repr_and_equality():
    one, other = resolve_spec("ktae( tf=bounded, alpha=2 )"), resolve_spec("ktae(alpha=2.0,beta=1,tf=bounded)")
    assert repr(one) == str(one) == "ktae(alpha=2.0,tf=bounded)"
    assert one == other
    assert hash(one) == hash(other)
    assert one != resolve_spec("ktae(alpha=2)")
    assert one != str(one)


def test_values_that_print_differently_are_different():
    assert parse_spec("a(b=1)") != parse_spec("a(b=true)")
    assert parse_spec("a(b=1)") != parse_spec("a(b=1.0)")
    assert len({parse_spec("a(b=1)"), parse_spec("a(b=true)"), parse_spec("a( b = 1 )")}) == 2


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("ktae", "ktae"),
        ("ktae(loo=true)", "ktae__loo_true"),
        ("ktae(tf=bounded,alpha=0.5)", "ktae__alpha_0p5__tf_bounded"),
        ("ktae(top=-1.5)", "ktae__top_m1p5"),
        ("ktae(tf_eps=1e-6)", "ktae__tf_eps_1em06"),
        ("ktae(zero_ids=2+1)", "ktae__zero_ids_1_2"),
        ("ktae(base=dapo,top=0.5)", "ktae__base_dapo__top_0p5"),
        ("ktae(base=dapo(max_length=4096))", "ktae__base_dapo__max_length_4096"),
    ],
)
def test_slug_is_safe_in_a_column_name(text, slug):
    assert resolve_spec(text).slug == slug
    assert slug.isidentifier()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a name, found the end"),
        ("   ", "expected a name, found the end"),
        ("(a=1)", "expected a name"),
        ("1", "expected a name"),
        ("ktae(", "expected key=value or )"),
        ("ktae(loo=true", "expected , or )"),
        ("ktae(loo=true))", "expected the end; give several estimators with -e each, found"),
        ("ktae)", "expected the end"),
        ("ktae loo=true", "expected the end"),
        ("ktae(loo)", "loo needs a value, as in loo=true"),
        ("ktae(=1)", "expected key=value or )"),
        ("ktae(,)", "expected key=value or )"),
        ("ktae(loo=)", "expected a value"),
        ("ktae(loo=true,,top=1)", "expected key=value or )"),
        ("ktae(zero_ids=1+)", "expected a value"),
        ("ktae(base=dapo(floor=true)", "expected , or )"),
        ("ktae(top=1x)", "expected , or )"),
        ("ktae(top=-x)", "expected a value"),
        ("ktae(top=1;beta=2)", "expected , or \\), found ';beta=2\\)'"),
    ],
)
def test_unreadable_specs_say_what_is_expected_and_found(text, problem):
    with pytest.raises(KtaeError, match=problem.replace(" )", " \\)")):
        parse_spec(text)


def test_a_repeated_key_is_refused_at_its_level():
    with pytest.raises(KtaeError, match="'top' stands twice"):
        parse_spec("ktae(top=1,beta=2,top=1)")
    with pytest.raises(KtaeError, match="'eps' stands twice"):
        parse_spec("ktae(base=grpo(eps=1,eps=2))")
    assert str(resolve_spec("ktae(beta=2,base=grpo(eps=1))")) == "ktae(base=grpo(eps=1.0),beta=2.0)"


def test_a_number_of_endless_digits_is_refused():
    with pytest.raises(KtaeError, match="too long"):
        parse_spec(f"ktae(alpha={'9' * 5000})")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 330], ids=["inf", "-inf", "a long whole number"])
def test_a_number_beyond_float64_is_refused(number):
    with pytest.raises(KtaeError, match="alpha takes a number up to 1e30"):
        resolve_spec(f"ktae(alpha={number})")


def test_parameters_unknown_to_an_estimator_are_named_together_with_the_nearest():
    with pytest.raises(UnknownNameError) as error:
        resolve_spec("ktae(alpa=1,loop=true)")
    assert "unknown parameters of ktae: 'alpa' (nearest: alpha), 'loop' (nearest: loo)" in str(error.value)


@settings(max_examples=200, deadline=None)
@given(SPECS)
def test_printed_specs_are_read_back(spec):
    assert parse_spec(str(spec)) == spec
    assert str(parse_spec(str(spec))) == str(spec)


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e30, 1e30))
def test_numbers_survive_printing_to_the_last_bit(number):
    found = dict(parse_spec(f"a(b={print_value(number)})").arguments)["b"]
    assert (found, math.copysign(1, found)) == (number, math.copysign(1, number))


@settings(max_examples=200, deadline=None)
@given(estimator_texts())
def test_canonical_specs_resolve_to_themselves(text):
    spec = resolve_spec(text)
    assert resolve_spec(str(spec)) == spec
    assert str(resolve_spec(str(spec))) == str(spec)
    assert spell_out(resolve_spec(str(spec))) == spell_out(spec)
