"""/v1/responses through OpenAI's client: plain, streamed, tools, kept, in the background."""

import json
import time

import openai
import pytest

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
