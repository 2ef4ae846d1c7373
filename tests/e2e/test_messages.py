"""/v1/messages through Anthropic's client: plain, streamed, tools, errors, tokens."""

import asyncio
import concurrent.futures
import json
import signal
import urllib.request

import anthropic
import pytest

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
SUM = [{"role": "user", "content": "What is 47 + 38?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather for a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city name"}},
        "required": ["city"],
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Rome?"}]
THINK = {"type": "enabled", "budget_tokens": 1024}


def test_answers(claude, model):
    message = claude.messages.create(model=model, max_tokens=100, messages=CAPITAL)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    assert [block.type for block in message.content] == ["text"]
    assert "Paris" in message.content[0].text
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    assert message._request_id


def test_stream_helper_accumulates(claude, model):
    whole = claude.messages.create(model=model, max_tokens=100, messages=CAPITAL)
    with claude.messages.stream(model=model, max_tokens=100, messages=CAPITAL) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == final.content[0].text == whole.content[0].text
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_raw_events_are_well_ordered(claude, model):
    events = list(
        claude.messages.create(model=model, max_tokens=100, messages=CAPITAL, stream=True)
    )
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.index("content_block_start") < kinds.index("content_block_delta")
    assert kinds.index("content_block_delta") < kinds.index("content_block_stop")


def test_thinks_in_blocks_of_its_own(claude, model):
    message = claude.messages.create(
        model=model, max_tokens=500, messages=SUM, thinking=THINK
    )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking and message.content[0].signature
    with claude.messages.stream(
        model=model, max_tokens=500, messages=SUM, thinking=THINK
    ) as stream:
        thinking = "".join(event.thinking for event in stream if event.type == "thinking")
        final = stream.get_final_message()
    assert thinking == message.content[0].thinking == final.content[0].thinking
    assert final.content[1].text == message.content[1].text


def test_thinking_ends_with_its_budget(claude, model):
    free = claude.messages.create(model=model, max_tokens=500, messages=SUM, thinking=THINK)
    spent = free.usage.output_tokens_details.thinking_tokens
    for budget in (1, spent - 2, spent, spent + 5):
        message = claude.messages.create(
            model=model,
            max_tokens=500,
            messages=SUM,
            thinking={"type": "enabled", "budget_tokens": budget},
        )
        assert message.usage.output_tokens_details.thinking_tokens == min(budget, spent)
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert "think>" not in message.content[1].text
    assert message.content == free.content


def test_models(claude, model):
    listed = list(claude.models.list())
    assert [info.id for info in listed] == [model]
    assert (listed[0].type, listed[0].max_input_tokens) == ("model", 16384)
    assert claude.models.retrieve(model) == listed[0]
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.models.retrieve("claude")
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_thinking_goes_back_and_forth(claude, model):
    first = claude.messages.create(model=model, max_tokens=500, messages=SUM, thinking=THINK)
    messages = SUM + [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "What is 1 + 1?"},
    ]
    second = claude.messages.create(model=model, max_tokens=500, messages=messages, thinking=THINK)
    assert second.content[-1].type == "text" or second.stop_reason == "end_turn"


def test_uses_a_tool_and_answers_from_its_result(claude, model):
    first = claude.messages.create(
        model=model, max_tokens=200, messages=QUESTION, tools=[WEATHER]
    )
    assert first.stop_reason == "tool_use"
    use = first.content[-1]
    assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Rome"})
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": '{"temperature": 22, "condition": "sunny"}'}],
    }
    messages = QUESTION + [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = claude.messages.create(model=model, max_tokens=200, messages=messages, tools=[WEATHER])
    assert second.stop_reason == "end_turn"
    assert second.content[0].text


def test_streams_tool_input(claude, model):
    with claude.messages.stream(
        model=model, max_tokens=200, messages=QUESTION, tools=[WEATHER]
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert json.loads("".join(pieces)) == {"city": "Rome"}
    assert final.content[-1].input == {"city": "Rome"}
    assert final.stop_reason == "tool_use"


def test_tool_runner_runs_the_loop(claude, model):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather for a city

        Args:
            city: The city name
        """
        asked.append(city)
        return '{"temperature": 22, "condition": "sunny"}'

    runner = claude.beta.messages.tool_runner(
        model=model, max_tokens=200, messages=QUESTION, tools=[get_weather]
    )
    final = runner.until_done()
    assert asked == ["Rome"]
    assert final.stop_reason == "end_turn"


def test_tool_choice_none_hides_the_tools(claude, model):
    message = claude.messages.create(
        model=model,
        max_tokens=200,
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice={"type": "none"},
    )
    assert all(block.type == "text" for block in message.content)


def test_stops(claude, model):
    stopped = claude.messages.create(
        model=model, max_tokens=100, messages=CAPITAL, stop_sequences=[" France", "@"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " France")
    cut = claude.messages.create(model=model, max_tokens=3, messages=CAPITAL)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)


def test_continues_a_prefilled_answer(claude, model):
    messages = CAPITAL + [{"role": "assistant", "content": "The capital of"}]
    message = claude.messages.create(model=model, max_tokens=50, messages=messages)
    assert "France" in message.content[0].text


def test_system_prompts_count(claude, model):
    plain = claude.messages.count_tokens(model=model, messages=CAPITAL)
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    for system in ("Be brief.", blocks):
        counted = claude.messages.count_tokens(model=model, messages=CAPITAL, system=system)
        message = claude.messages.create(
            model=model, max_tokens=1, messages=CAPITAL, system=system
        )
        assert plain.input_tokens < counted.input_tokens
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


def test_asynchronous_clients(server, model):
    async def ask():
        async with server.anthropic(anthropic.AsyncAnthropic) as client:
            async with client.messages.stream(
                model=model, max_tokens=100, messages=CAPITAL
            ) as stream:
                return await stream.get_final_text()

    assert "Paris" in asyncio.run(ask())


def test_error_classes(claude, model):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model=model, max_tokens=0, messages=CAPITAL)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert "max_tokens" in str(caught.value)
    assert caught.value.body["request_id"] == caught.value.request_id
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="claude", max_tokens=5, messages=CAPITAL)
    assert caught.value.body["error"]["type"] == "not_found_error"
    image = {"type": "image", "source": {"type": "url", "url": "http://x.test/a.png"}}
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(
            model=model, max_tokens=5, messages=[{"role": "user", "content": [image]}]
        )
    with pytest.raises(anthropic.RequestTooLargeError):
        claude.messages.create(
            model=model, max_tokens=5, messages=[{"role": "user", "content": "x" * (10 << 20)}]
        )
    with pytest.raises(anthropic.PermissionDeniedError):
        claude.messages.create(
            model=model, max_tokens=5, messages=CAPITAL, extra_headers={"Origin": "http://evil.test"}
        )
    with pytest.raises(anthropic.DeadlineExceededError) as caught:
        claude.messages.create(
            model=model,
            max_tokens=8000,
            messages=CAPITAL,
            extra_body={"ignore_eos": True},
            extra_headers={"x-request-timeout-ms": "50"},
        )
    assert caught.value.body["error"]["type"] == "timeout_error"


def test_errors_in_a_stream_are_raised(start_server):
    server = start_server("--shutdown-seconds", "0")
    client = server.anthropic()
    model = client.models.list().data[0].id
    with client.messages.stream(
        model=model, max_tokens=8000, messages=CAPITAL, extra_body={"ignore_eos": True}
    ) as stream:
        texts = iter(stream.text_stream)
        next(texts)
        server.signal(signal.SIGTERM)
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(texts)
    assert caught.value.body["error"]["type"] == "overloaded_error"


def test_keys_come_in_either_header(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    keys.chmod(0o600)
    server = start_server("--api-key-file", str(keys))
    with pytest.raises(anthropic.AuthenticationError) as caught:
        server.anthropic(api_key="wrong").models.list()
    assert caught.value.status_code == 401
    body = {"max_tokens": 1, "messages": CAPITAL}
    for name, value in (("x-api-key", "sesame"), ("Authorization", "Bearer sesame")):
        request = urllib.request.Request(
            server.url("/v1/messages"),
            data=json.dumps(body).encode(),
            headers={name: value, "anthropic-version": "2023-06-01"},
        )
        assert urllib.request.urlopen(request).status == 200
    assert server.anthropic(api_key="sesame").messages.create(
        model=server.client(api_key="sesame").models.list().data[0].id, **body
    ).content


def test_leaving_a_stream_is_harmless(claude, model):
    with claude.messages.stream(
        model=model, max_tokens=3000, messages=[{"role": "user", "content": "Tell me a story."}]
    ) as stream:
        next(iter(stream.text_stream))
    assert claude.messages.create(model=model, max_tokens=3, messages=CAPITAL).content


def test_a_full_queue_is_overloaded_and_retried(start_server):
    server = start_server("--max-queued-requests", "1", "--max-running-requests", "1")
    model = server.client().models.list().data[0].id

    def ask(max_retries):
        client = server.anthropic(max_retries=max_retries)
        return client.messages.create(
            model=model, max_tokens=60, messages=CAPITAL, extra_body={"ignore_eos": True}
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        faults = [future.exception() for future in [pool.submit(ask, 0) for _ in range(8)]]
    refused = [fault for fault in faults if fault]
    assert refused and len(refused) < 8
    for fault in refused:
        assert fault.status_code == 529
        assert fault.body["error"]["type"] == "overloaded_error"
        assert int(fault.response.headers["retry-after"]) >= 1
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        patient = [pool.submit(ask, 10) for _ in range(4)]
        assert all(future.result().content for future in patient)
