"""Constrained answers beside everything else that a request can ask for."""

import concurrent.futures
import json
import re

import jsonschema
import pytest

MESSAGES = [{"role": "user", "content": "Give me a JSON object for Anna, aged 31, living in Oslo."}]
NO_THINKING = {"thinking": {"type": "disabled"}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]+$", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def strict(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def ask(client, model, **fields):
    options = {"max_tokens": 200, "temperature": 0, "seed": 1, "extra_body": NO_THINKING} | fields
    return client.chat.completions.create(model=model, messages=MESSAGES, **options)


def content(completion):
    return completion.choices[0].message.content


def test_streams_say_the_same(client, model):
    whole = content(ask(client, model, response_format=strict(PERSON)))
    jsonschema.validate(json.loads(whole), PERSON)
    stream = ask(client, model, response_format=strict(PERSON), stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == whole


def test_choices_all_hold(client, model):
    completion = ask(client, model, response_format=strict(PERSON), n=4, temperature=1.2)
    assert len(completion.choices) == 4
    for choice in completion.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_cut_answers_are_beginnings(client, model):
    whole = content(ask(client, model, response_format=strict(PERSON)))
    cut = ask(client, model, response_format=strict(PERSON), max_tokens=5)
    assert cut.choices[0].finish_reason == "length"
    assert whole.startswith(content(cut))


def test_stop_strings_cut(client, model):
    whole = content(ask(client, model, response_format=strict(PERSON)))
    cut = ask(client, model, response_format=strict(PERSON), stop=[","])
    assert cut.choices[0].finish_reason == "stop"
    assert content(cut) == whole.split(",")[0]


def test_bias_chooses_among_what_is_allowed(client, model):
    """A bias cannot bring in what the form forbids, nor take away all that it permits."""
    fields = {"extra_body": NO_THINKING | {"guided_choice": ["yes", "no"]}}
    first = content(ask(client, model, **fields))
    ids = {}
    for word in ("yes", "no"):
        reply = client.post("../tokenize", cast_to=object, body={"prompt": word, "add_special_tokens": False})
        ids[word] = reply["tokens"][0]
    other = "no" if first == "yes" else "yes"
    biased = ask(client, model, logit_bias={str(ids[first]): -100}, **fields)
    assert content(biased) in ("yes", "no")
    everything = ask(client, model, logit_bias={str(i): -100 for i in ids.values()}, **fields)
    assert content(everything) in ("yes", "no")
    forbidden = ask(client, model, logit_bias={str(ids[other] + 7): 100}, **fields)
    assert content(forbidden) in ("yes", "no")


def tool(name, properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


TOOLS = [
    tool("roll", {"sides": {"enum": [6, 20]}, "why": {"type": "string", "pattern": "^[a-z]{2,5}$"}}),
    tool("wait", {"seconds": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10}}),
]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_parallel_strict_calls_hold(client, model, is_streamed):
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    fields = {"tools": TOOLS, "tool_choice": "required", "temperature": 1.3, "max_tokens": 700}
    for seed in range(4):
        calls = {}
        if is_streamed:
            for chunk in ask(client, model, stream=True, **(fields | {"seed": seed})):
                for delta in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                    name, arguments = calls.setdefault(delta.index, ["", ""])
                    calls[delta.index] = [
                        name + (delta.function.name or ""),
                        arguments + (delta.function.arguments or ""),
                    ]
                finish = chunk.choices[0].finish_reason if chunk.choices else finish
        else:
            choice = ask(client, model, **(fields | {"seed": seed})).choices[0]
            finish = choice.finish_reason
            calls = {i: [c.function.name, c.function.arguments] for i, c in enumerate(choice.message.tool_calls or [])}
        if finish == "length":
            continue
        assert finish == "tool_calls" and calls
        for name, arguments in calls.values():
            jsonschema.validate(json.loads(arguments), schemas[name])


def test_crowded_answers_are_those_of_a_request_alone(start_server, model):
    """Greedy answers under --deterministic, many at once, with and without cached prefixes."""
    server = start_server("--deterministic", "--temperature", "0")
    client = server.client()
    forms = [
        {"response_format": strict(PERSON)},
        {"extra_body": NO_THINKING | {"regex": "([a-z]{2,9} ){20,40}[a-z]+\\."}},
        {"extra_body": NO_THINKING | {"ebnf": 'root ::= ([0-9]+ " + "){10,20} [0-9]+'}},
    ]
    alone = [content(ask(client, model, **form)) for form in forms]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda i: content(ask(client, model, **forms[i % 3])), range(24)))
    assert together == [alone[i % 3] for i in range(24)]
    jsonschema.validate(json.loads(alone[0]), PERSON)
    assert re.fullmatch(r"([a-z]{2,9} ){0,40}[a-z]*\.?", alone[1])
