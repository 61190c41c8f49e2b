"""The options of event facets, as every front end writes them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from flowengine.errors import InvalidProgram
from flowengine.evaluator.admission import read_keys, stated_keys, write_keys
from flowengine.evaluator.records import RunView
from flowengine.program import link_program, parse_program
from flowengine.program.event_options import Cache, EventOptions, Limit, Rate, RetryPolicy
from flowengine.program.limit_keys import LONGEST_KEY, rendered
from flowengine.program.option_checks import MAX_COUNT
from flowengine.program.serializer import write_program
from tests.builders import block, event, given, mixed, program, signed, step, workflow

RETRY = {"attempts": 4, "jitter": 0.5, "on": ["OSError"], "never_on": ["PermissionError"]}
OPTIONS: dict[str, Any] = {
    "retry": RETRY,
    "limit": [{"key": "customer:{x}", "count": 2}],
    "rate": [{"key": "mail", "count": 100, "per": 60.0}],
    "cache": {"key": "sent:{x}", "max_age": 60.0},
}


def document(*declarations: Any, call: Any = None) -> Any:
    body = block(call or step("a", "Send", x=1))
    return program(*declarations, workflow("W", "", "", body))


def problems_of(document: Any) -> str:
    with pytest.raises(InvalidProgram) as caught:
        link_program(parse_program(document))
    return str(caught.value)


def test_options_keep_their_values_through_the_stored_form() -> None:
    parsed = parse_program(document(event("Send", "x", "y", options=OPTIONS)))
    (facet, _) = parsed.declarations
    assert facet.options == EventOptions(  # type: ignore[union-attr]
        retry=RetryPolicy(4, jitter=0.5, on=(OSError,), never_on=PermissionError),
        limit=(Limit("customer:{x}", 2),),
        rate=(Rate("mail", 100, per=timedelta(minutes=1)),),
        cache=Cache("sent:{x}", timedelta(minutes=1)),
    )
    written = json.loads(json.dumps(write_program(parsed)))
    assert parse_program(written) == parsed


def test_a_key_that_names_no_parameter_is_refused_with_a_suggestion() -> None:
    options = {"limit": [{"key": "customer:{custmer}", "count": 2}]}
    found = problems_of(
        document(event("Send", "customer", options=options), call=step("a", "Send", customer="c"))
    )
    assert (
        "limit: the key 'customer:{custmer}' names 'custmer', which is no parameter; "
        "did you mean 'customer'?" in found
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limit": [{"key": "a", "count": 0}]}, "the count 0 is not a whole number, 1 or more"),
        ({"limit": [{"key": "", "count": 1}]}, "the key '' is not a text"),
        ({"limit": [{"key": "a{", "count": 1}]}, "'a{' is not a text with names of parameters"),
        ({"limit": [{"key": "a{x!r}", "count": 1}]}, "is not a text with names of parameters"),
        ({"limit": [{"key": "a", "count": 1}] * 2}, "limit 'a' is given twice"),
        ({"limit": {"key": "a", "count": 1}}, "'limit' must be a list"),
        ({"limit": [{"key": "a"}]}, "unreadable options"),
        ({"rate": [{"key": "a", "count": 1, "per": 0}]}, "per=0.0 is not a number of seconds"),
        (
            {"rate": [{"key": "a", "count": 20_000, "per": 60}]},
            "the count 20,000 is above 10,000; give a shorter period, as Rate('a', 10000, per=30)",
        ),
        ({"retry": {"jitter": 2}}, "retry.jitter=2 is not a share of the wait, 0 to 1"),
        ({"retry": {"on": [3]}}, "retry.on=(3,) is not a list of exception classes"),
        ({"cache": {"key": "a", "max_age": -1}}, "max_age=-1.0 is not a number of seconds above 0"),
        ({"cache": {"key": "a{z}", "max_age": 1}}, "cache: the key 'a{z}' names 'z', which is no"),
        ({"cache": {"key": "a"}}, "unreadable options"),
        (
            {"limit": [{"key": "a", "count": 10**10}]},
            "count is 10000000000, and may be at most 1,000,000,000",
        ),
        ({"limit": [{"key": "a", "count": 10**400}]}, "and may be at most 1,000,000,000"),
        ({"retry": {"attempts": 10**10}}, "retry.attempts is 10000000000, and may be at most"),
        ({"retry": {"factor": 1e300}}, "retry.factor is 1e+300, and may be at most 1,000,000,000"),
        ({"retry": {"first_wait": 10**400}}, "and may be at most 3,153,600,000"),
        ({"max_losses": 10**40}, "max_losses is 0x1d63"),
        ({"cache": {"key": "a", "max_age": 1}}, "the facet has no result that could be kept"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(document(event("Send", "x", options=options)))


def test_a_stored_program_with_larger_numbers_still_runs_with_them_cut() -> None:
    options = {"limit": [{"key": "a", "count": 10**40}], "retry": {"attempts": 3, "factor": 1e300}}
    plan = link_program(
        parse_program(document(event("Send", "x", options=options))), is_stored=True
    )
    keys = stated_keys(plan.facets["Send"].options, lambda _: "", RunView("r", "W", "W", ""), 0)
    assert [key.number for key in read_keys(write_keys(keys))] == [MAX_COUNT]


def test_a_mixin_with_too_large_a_number_is_refused() -> None:
    call = mixed(step("a", "Send", x=1), "Limit", key="a", count=10**40)
    assert "may be at most 1,000,000,000" in problems_of(document(event("Send", "x"), call=call))
    call = mixed(step("a", "Send", x=1), "Timeout", seconds=10**400)
    assert "must be a constant number" in problems_of(document(event("Send", "x"), call=call))


def test_one_key_with_two_numbers_is_refused() -> None:
    one = event("Send", "x", options={"limit": [{"key": "api", "count": 2}]})
    other = event("Call", "x", options={"limit": [{"key": "api", "count": 3}]})
    found = problems_of(document(one, other))
    assert "the key 'api' has a limit of 2 in 'Send' and a limit of 3 in 'Call'" in found


def test_mixins_set_options_at_a_call_and_in_a_signature() -> None:
    send = signed(event("Send", "x"), "Limit", key="mail:{x}", count=3)
    call = mixed(step("a", "Send", x=1), "Retry", attempts=5, jitter=0.1)
    plan = link_program(parse_program(document(send, call=call)))
    (statement,) = [each for each in plan.statements.values() if each.name == "a"]
    assert statement.options.retry == RetryPolicy(5, jitter=0.1)
    assert statement.options.limit == (Limit("mail:{x}", 3),)
    assert plan.facets["Send"].options.retry == RetryPolicy()


def test_a_mixin_sets_the_cache_of_a_call() -> None:
    call = mixed(step("a", "Send", x=1), "Cache", key="sent:{x}", max_age=60)
    plan = link_program(parse_program(document(event("Send", "x", "y"), call=call)))
    (statement,) = [each for each in plan.statements.values() if each.name == "a"]
    assert statement.options.cache == Cache("sent:{x}", 60)


def test_a_declared_facet_of_that_name_stays_a_mixin_of_the_program() -> None:
    send = event("Send", "x attempts")
    call = mixed(step("a", "Send", x=1), "Retry", attempts=5)
    plan = link_program(parse_program(document(send, call=call)))
    (statement,) = [each for each in plan.statements.values() if each.name == "a"]
    assert statement.options.retry == RetryPolicy()
    assert "attempts" in dict(statement.arguments)


@pytest.mark.parametrize(
    ("mixin", "given", "problem"),
    [
        ("Retry", {"tries": 3}, "Retry has no parameter 'tries': it has attempts"),
        ("Limit", {"key": "a"}, "Limit needs 'count'"),
        ("Rate", {"key": "a{y}", "count": 1}, "names 'y', which is no parameter"),
        ("Retry", {"jitter": 9}, "retry.jitter=9 is not a share of the wait"),
        ("Cache", {"key": "a"}, "Cache needs 'max_age'"),
        ("Cache", {"key": "a", "max_age": -1}, "max_age=-1.0 is not a number of seconds above 0"),
        ("Cache", {"key": "a", "max_age": 5}, "the facet has no result that could be kept"),
        ("Cache", {"key": "a", "age": 5}, "Cache has no parameter 'age': it has key, max_age"),
    ],
)
def test_mistakes_in_option_mixins_are_named(
    mixin: str, given: dict[str, Any], problem: str
) -> None:
    call = mixed(step("a", "Send", x=1), mixin, **given)
    assert problem in problems_of(document(event("Send", "x"), call=call))


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ({"type": {"type": "ArrayType", "elementType": "String"}}, "list"),
        ({"type": "Json", "schema": {"type": "array"}}, "list"),
        ({"type": "Json", "schema": {"type": "object"}}, "map"),
    ],
)
def test_a_key_of_lists_or_maps_is_refused_before_a_run_begins(
    declared: dict[str, Any], kind: str
) -> None:
    options = {"limit": [{"key": "a:{x}", "count": 2}]}
    send = event("Send", "x", options=options)
    send["params"][0] |= declared
    assert f"limit: the key 'a:{{x}}' names 'x', which is a {kind}" in problems_of(document(send))


def test_a_part_of_a_map_may_be_in_a_key() -> None:
    options = {"limit": [{"key": "a:{x.id}", "count": 2}]}
    send = event("Send", "x", options=options)
    send["params"][0] |= {"type": "Json", "schema": {"type": "object"}}
    body = block(step("a", "Send", x=given("x")))
    link_program(parse_program(program(send, workflow("W", "x", "", body))))


# --- keys ---


def key(template: str, tenant: str = "", **values: Any) -> str:
    return rendered(template, values.__getitem__, RunView("r7", "w", "", tenant=tenant))


def test_a_key_is_made_of_arguments() -> None:
    assert key("customer:{customer}", customer="eva") == "customer:eva"
    assert key("{a}/{b.c}/{d}", a=3, b={"c": "x"}, d=None) == "3/x/null"
    assert key("{{fixed}}") == "{fixed}"
    assert key("{tenant}:{x}", tenant="acme", x=True) == "acme:true"
    assert key("{$run}:{x}", x=1) == "r7:1"


def test_a_key_has_no_character_that_a_database_refuses_and_a_bounded_length() -> None:
    assert key("k:{x}", x="a\0\ud800") == 'k:"a\\u0000\\ud800"'
    long, other = key("k:{x}", x="a" * 500), key("k:{x}", x="a" * 501)
    assert len(long) == len(other) == LONGEST_KEY
    assert long != other


def test_a_list_is_no_part_of_a_key() -> None:
    with pytest.raises(TypeError):
        key("{x}", x=[1])
    with pytest.raises(KeyError):
        key("{x.y}", x=1)
