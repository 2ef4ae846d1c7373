"""/v1/responses through OpenAI's client: plain, streamed, tools, kept, in the background."""

import asyncio
import json
import re
import time

import openai
import pytest

from test_process import eventually, metric

CAPITAL = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather for a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city name"}},
        "required": ["city"],
    },
}
QUESTION = "What is the weather in Rome?"


def test_answers(client, model):
    response = client.responses.create(model=model, input=CAPITAL)
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert "Paris" in response.output_text
    assert response.usage.total_tokens == (
        response.usage.input_tokens + response.usage.output_tokens
    )
    assert response.usage.input_tokens_details.cached_tokens == 0


def test_streams_the_same_text(client, model):
    whole = client.responses.create(model=model, input=CAPITAL)
    events = list(client.responses.create(model=model, input=CAPITAL, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


def test_stream_helper_accumulates(client, model):
    with client.responses.stream(model=model, input=CAPITAL) as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(snapshots) > 1
    assert snapshots[-1] == final.output_text


def test_reasons_in_an_item_of_its_own(client, model):
    response = client.responses.create(
        model=model, input="What is 47 + 38?", reasoning={"effort": "high"}
    )
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert response.reasoning.effort == "high"


def run_tools(response):
    """The outputs of the calls that the response asks for."""
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Rome"}]
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": '{"temperature": 22, "condition": "sunny"}',
        }
        for call in calls
    ]


def test_tool_loop_by_earlier_response(client, model):
    first = client.responses.create(model=model, input=QUESTION, tools=[WEATHER])
    second = client.responses.create(
        model=model,
        input=run_tools(first),
        tools=[WEATHER],
        previous_response_id=first.id,
    )
    assert second.output_text
    assert second.previous_response_id == first.id


def test_tool_loop_without_a_store(client, model):
    """As coding clients do: everything goes back and forth, reasoning opaquely."""
    options = {
        "model": model,
        "tools": [WEATHER],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
    }
    items = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(input=items, **options)
    items += [item.model_dump(exclude_none=True) for item in first.output]
    if any(item.type == "function_call" for item in first.output):
        items += run_tools(first)
    else:
        items += [{"role": "user", "content": "Go on."}]
    assert client.responses.create(input=items, **options).status == "completed"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_streams_the_call(client, model):
    with client.responses.stream(model=model, input=QUESTION, tools=[WEATHER]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert json.loads(done[0].arguments) == {"city": "Rome"}
    assert "".join(e.delta for e in deltas) == done[0].arguments
    assert final.output[-1].name == "get_weather"


def test_kept_responses(client, model):
    made = client.responses.create(model=model, input=CAPITAL, metadata={"a": "b"})
    kept = client.responses.retrieve(made.id)
    assert kept.output_text == made.output_text
    assert kept.metadata == {"a": "b"}
    longer = client.responses.create(model=model, input="And?", previous_response_id=made.id)
    assert longer.usage.input_tokens > made.usage.input_tokens
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input="And?", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"


def test_works_in_the_background(client, model):
    response = client.responses.create(model=model, input=CAPITAL, background=True)
    assert response.status in ("queued", "in_progress")
    deadline = time.monotonic() + 30
    while response.status == "in_progress":
        assert time.monotonic() < deadline
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"
    assert "Paris" in response.output_text


def test_is_followed_in_the_background(client, model):
    """A stream that broke goes on behind the last event that was seen."""
    begun = client.responses.create(model=model, input=CAPITAL, background=True, stream=True)
    seen = []
    for event in begun:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    begun.close()
    rest = list(
        client.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
        )
    )
    numbers = [event.sequence_number for event in seen + rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    text = "".join(e.delta for e in seen + rest if e.type == "response.output_text.delta")
    assert text == rest[-1].response.output_text
    again = list(client.responses.retrieve(seen[0].response.id, stream=True))
    assert [event.type for event in again] == [event.type for event in seen + rest]


def test_stream_helper_resumes_by_id(client, model):
    response = client.responses.create(model=model, input=CAPITAL, background=True)
    with client.responses.stream(response_id=response.id) as stream:
        final = stream.get_final_response()
    assert "Paris" in final.output_text


def test_lists_what_it_answered(client, model):
    first = client.responses.create(model=model, input=CAPITAL)
    second = client.responses.create(
        model=model,
        input=[{"role": "user", "content": f"And {i}?"} for i in range(25)],
        previous_response_id=first.id,
    )
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert len(items) == 27
    assert items[0].content[0].text == CAPITAL
    assert items[1].content[0].text == first.output_text
    assert items[-1].content[0].text == "And 24?"
    newest = client.responses.input_items.list(second.id, limit=1).data
    assert [item.id for item in newest] == [items[-1].id]


CUSTOM = {"type": "custom", "name": "run_sql", "description": "Runs a query and gives its rows"}


def test_custom_tool_loop(client, model):
    first = client.responses.create(
        model=model, input="Count the users.", tools=[CUSTOM], tool_choice="required", max_output_tokens=300
    )
    call = first.output[-1]
    assert (call.type, call.name) == ("custom_tool_call", "run_sql")
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "42"}
    second = client.responses.create(
        model=model, input=[result], tools=[CUSTOM], previous_response_id=first.id, max_output_tokens=100
    )
    assert second.status in ("completed", "incomplete")


def test_custom_tools_hold_by_their_pattern(client, model):
    tool = CUSTOM | {"format": {"type": "grammar", "syntax": "regex", "definition": "SELECT [a-z]{1,9};"}}
    with client.responses.stream(
        model=model,
        input="List the users.",
        tools=[tool],
        tool_choice={"type": "custom", "name": "run_sql"},
        max_output_tokens=300,
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    done = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    deltas = [e for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(e.delta for e in deltas) == done[0].input == final.output[-1].input
    assert re.fullmatch("SELECT [a-z]{1,9};", done[0].input)


def test_leaving_a_stream_frees_its_sequence(server, client, model):
    before = metric(server, 'nibble_requests_aborted_total{cause="disconnect"}')
    stream = client.responses.create(
        model=model,
        input="Tell me a story.",
        stream=True,
        max_output_tokens=8000,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    eventually(lambda: metric(server, 'nibble_requests_aborted_total{cause="disconnect"}') == before + 1)


def test_asynchronous_clients(server, model):
    async def ask():
        async with server.client(openai.AsyncOpenAI) as client:
            async with client.responses.stream(model=model, input=CAPITAL) as stream:
                return (await stream.get_final_response()).output_text

    assert "Paris" in asyncio.run(ask())


def test_thinking_budget(client, model):
    response = client.responses.create(
        model=model,
        input="What is 47 + 38?",
        reasoning={"effort": "high"},
        extra_body={"thinking_token_budget": 4},
    )
    assert response.usage.output_tokens_details.reasoning_tokens == 4
    assert response.output_text


def test_is_cancelled_in_the_background(client, model):
    response = client.responses.create(
        model=model,
        input="Tell me a story.",
        background=True,
        extra_body={"ignore_eos": True, "max_output_tokens": 3000},
    )
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"


def test_ends_incomplete(client, model):
    response = client.responses.create(model=model, input=CAPITAL, max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_logprobs(client, model):
    response = client.responses.create(
        model=model, input=CAPITAL, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    content = response.output[0].content[0]
    assert "".join(token.token for token in content.logprobs) == content.text
    assert all(len(token.top_logprobs) == 2 for token in content.logprobs)


def test_errors_name_the_field(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input=CAPITAL, max_output_tokens=0)
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input=[{"type": "item_reference", "id": "x"}])
    assert caught.value.param == "input[0].type"
