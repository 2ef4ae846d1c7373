"""Answers of a given form and forced calls in all three protocols, through the clients' helpers."""

from typing import Literal

import openai
import pydantic
import pytest

ANNA = "Give me a JSON object for Anna, aged 31, living in Oslo."


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=40)
    age: int = pydantic.Field(ge=0, le=150)
    city: Literal["Oslo", "Rome", "Paris"]


class GetWeather(pydantic.BaseModel):
    """Get the weather for a city"""

    city: Literal["Oslo", "Rome", "Paris"]


def ask(text):
    return [{"role": "user", "content": text}]


def test_chat_parses_into_a_model(client, model):
    completion = client.chat.completions.parse(
        model=model, messages=ask(ANNA), response_format=Person, max_tokens=200
    )
    person = completion.choices[0].message.parsed
    assert isinstance(person, Person)


def test_chat_stream_parses_into_a_model(client, model):
    with client.chat.completions.stream(
        model=model, messages=ask(ANNA), response_format=Person, max_tokens=200
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


def test_chat_parses_after_thinking(client, model):
    completion = client.chat.completions.parse(
        model=model,
        messages=ask(ANNA),
        response_format=Person,
        reasoning_effort="low",
        max_tokens=1500,
    )
    choice = completion.choices[0]
    assert choice.message.parsed or choice.finish_reason == "length"


def test_responses_parse_into_a_model(client, model):
    response = client.responses.parse(
        model=model, input=ANNA, text_format=Person, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Person)


def test_responses_stream_parses_into_a_model(client, model):
    with client.responses.stream(
        model=model, input=ANNA, text_format=Person, max_output_tokens=200
    ) as stream:
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Person)


def test_messages_stream_parses_into_a_model(claude, model):
    with claude.messages.stream(
        model=model, max_tokens=200, messages=ask(ANNA), output_format=Person
    ) as stream:
        final = stream.get_final_message()
    assert isinstance(final.parsed_output, Person)


def test_responses_parse_the_arguments_of_a_tool(client, model):
    response = client.responses.parse(
        model=model,
        input="What is the weather in Rome?",
        tools=[openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}],
        tool_choice="required",
        max_output_tokens=200,
    )
    GetWeather.model_validate_json(response.output[-1].arguments)


def test_chat_stream_parses_the_arguments_of_a_tool(client, model):
    with client.chat.completions.stream(
        model=model,
        messages=ask("What is the weather in Rome?"),
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice="required",
        max_tokens=200,
    ) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
    assert isinstance(done[0].parsed_arguments, GetWeather)


def test_a_cut_answer_is_said_so(client, model):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=model, messages=ask(ANNA), response_format=Person, max_tokens=3
        )


def test_messages_parse_into_a_model(claude, model):
    message = claude.messages.parse(
        model=model, max_tokens=200, messages=ask(ANNA), output_format=Person
    )
    assert isinstance(message.parsed_output, Person)


def test_chat_parses_the_arguments_of_a_tool(client, model):
    completion = client.chat.completions.parse(
        model=model,
        messages=ask("What is the weather in Rome?"),
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice="required",
        max_tokens=200,
    )
    call = completion.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, GetWeather)


NAMED = {"type": "function", "function": {"name": "GetWeather"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("effort", ["none", "high"])
def test_b52_forced_calls_in_both_modes(client, model, choice, effort):
    """Field report B52: a forced call was rejected while thinking."""
    completion = client.chat.completions.create(
        model=model,
        messages=ask("Tell me a story."),
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice=choice,
        reasoning_effort=effort,
        max_tokens=3000,
    )
    answer = completion.choices[0]
    if answer.finish_reason == "length":
        pytest.skip("it thought until the end")
    assert answer.finish_reason == "tool_calls"
    call = answer.message.tool_calls[0]
    assert call.function.name == "GetWeather"
    GetWeather.model_validate_json(call.function.arguments)


def test_messages_force_a_tool(claude, model):
    tool = {"name": "look", "input_schema": GetWeather.model_json_schema(), "strict": True}
    for choice in ({"type": "any"}, {"type": "tool", "name": "look"}):
        message = claude.messages.create(
            model=model,
            max_tokens=200,
            messages=ask("Tell me a story."),
            tools=[tool],
            tool_choice=choice,
        )
        assert message.stop_reason == "tool_use"
        GetWeather.model_validate(message.content[-1].input)


def test_responses_force_a_tool(client, model):
    tool = {
        "type": "function",
        "name": "look",
        "parameters": GetWeather.model_json_schema(),
        "strict": True,
    }
    response = client.responses.create(
        model=model,
        input="Tell me a story.",
        tools=[tool],
        tool_choice={"type": "function", "name": "look"},
        max_output_tokens=200,
    )
    GetWeather.model_validate_json(response.output[-1].arguments)
