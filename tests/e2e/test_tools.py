"""A tool call of the bundled model from the question to the final answer."""

import json

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city name"}},
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]


def check_call(call):
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Rome"}


def test_calls_the_tool(client, model):
    completion = client.chat.completions.create(model=model, messages=QUESTION, tools=[WEATHER])
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls) == 1
    check_call(choice.message.tool_calls[0])
    assert "DSML" not in (choice.message.content or "")


def test_streams_the_call(client, model):
    chunks = list(
        client.chat.completions.create(
            model=model, messages=QUESTION, tools=[WEATHER], tool_choice="auto", stream=True
        )
    )
    assert "DSML" not in "".join(chunk.model_dump_json() for chunk in chunks)
    fragments = [
        fragment for chunk in chunks for fragment in chunk.choices[0].delta.tool_calls or []
    ]
    first, rest = fragments[0], fragments[1:]
    assert (first.index, first.type, first.function.arguments) == (0, "function", "")
    assert first.id.startswith("call_") and first.function.name == "get_weather"
    assert all(f.id is None and f.function.name is None and f.index == 0 for f in rest)
    assert json.loads("".join(f.function.arguments for f in fragments)) == {"city": "Rome"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_stream_helper_assembles_the_call(client, model):
    with client.chat.completions.stream(model=model, messages=QUESTION, tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    check_call(final.choices[0].message.tool_calls[0])


def test_answers_from_the_result(client, model):
    first = client.chat.completions.create(model=model, messages=QUESTION, tools=[WEATHER])
    message = first.choices[0].message
    messages = QUESTION + [
        message.model_dump(exclude_none=True),
        {
            "role": "tool",
            "tool_call_id": message.tool_calls[0].id,
            "content": '{"temperature": 22, "condition": "sunny"}',
        },
    ]
    second = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content


def test_a_cut_call_ends_with_length(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, tools=[WEATHER])
    for limit in range(1, whole.usage.completion_tokens - 1):
        cut = client.chat.completions.create(
            model=model, messages=QUESTION, tools=[WEATHER], max_tokens=limit
        )
        assert cut.choices[0].finish_reason == "length", limit
        assert "DSML" not in (cut.choices[0].message.content or "")


def test_tool_choice_none_hides_the_tools(client, model):
    bare = client.chat.completions.create(model=model, messages=QUESTION)
    hidden = client.chat.completions.create(
        model=model, messages=QUESTION, tools=[WEATHER], tool_choice="none"
    )
    assert hidden.choices[0].message.tool_calls is None
    assert hidden.usage.prompt_tokens == bare.usage.prompt_tokens
