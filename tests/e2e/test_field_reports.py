"""Faults that users of other engines met in public, each by its number: they must not happen here."""

import json

import pytest

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather for a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
WEATHER = [{"role": "user", "content": "What is the weather in Rome?"}]
SUM = [{"role": "user", "content": "What is 2+2?"}]


def test_b30_length_comes_with_text(client, model):
    """All tokens went into fields that were null."""
    for limit in (1, 2, 8, 512):
        choice = client.chat.completions.create(
            model=model, messages=SUM, max_tokens=limit, extra_body={"ignore_eos": True}
        ).choices[0]
        assert choice.finish_reason == "length"
        assert choice.message.content


def test_b43_thinking_hard_with_tools_never_ends_in_nothing(client, model):
    """Finish "stop" with empty content and no call."""
    completion = client.chat.completions.create(
        model=model, messages=WEATHER, tools=TOOLS, tool_choice="auto", reasoning_effort="max"
    )
    choice = completion.choices[0]
    says_so = choice.model_dump().get("finish_details") == {"ended_in": "reasoning"}
    assert choice.message.content or choice.message.tool_calls or says_so


LONG = " ".join(f"The number {i} follows the number {i - 1}." for i in range(1, 160))


def cached_share(client, model, messages):
    usage = client.chat.completions.create(model=model, messages=messages, max_tokens=4).usage
    return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens


def test_b45_an_identical_prompt_hits_the_cache(client, model):
    """The same request again hit 0 cached tokens."""
    messages = [{"role": "user", "content": "B45. " + LONG}]
    cached_share(client, model, messages)
    cached, prompt = cached_share(client, model, messages)
    assert cached >= (prompt - 1) // 256 * 256


def test_b47_long_conversations_stay_cached(client, model):
    """Long agent sessions had 0 cached tokens, short ones 98 %."""
    messages = [{"role": "user", "content": "B47. " + LONG}]
    previous = 0
    for turn in range(6):
        cached, prompt = cached_share(client, model, messages)
        if turn > 0:
            assert cached >= previous // 256 * 256, turn
        previous = prompt
        messages += [
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": f"Turn {turn}: " + LONG[:600]},
        ]


def test_b62_a_change_midway_keeps_what_precedes_it(client, model):
    """One changed old message lost the whole cache."""
    first = [{"role": "user", "content": "B62. " + LONG}, {"role": "assistant", "content": "Yes."}]
    cached_share(client, model, first + [{"role": "user", "content": "Then? " + LONG[:2000]}])
    _, common = cached_share(client, model, first + [{"role": "user", "content": "T"}])
    cached, _ = cached_share(
        client, model, first + [{"role": "user", "content": "Changed. " + LONG[:2000]}]
    )
    assert cached >= (common - 16) // 256 * 256


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", None])
def test_b53_reasoning_of_tool_turns_may_come_back_or_not(client, model, key):
    """400 unless the reasoning was sent back under one certain name."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": "Rome"})},
    }
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    if key:
        answer[key] = "I should look."
    result = {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 22}'}
    completion = client.chat.completions.create(
        model=model, messages=WEATHER + [answer, result], tools=TOOLS, reasoning_effort="high"
    )
    assert completion.choices[0].finish_reason in ("stop", "tool_calls", "length")


def test_b54_sampling_while_thinking_is_announced(client, model):
    """Temperature and penalties acted in thinking mode, where the vendor's API ignores them."""
    response = client.chat.completions.with_raw_response.create(
        model=model,
        messages=SUM,
        max_tokens=5,
        reasoning_effort="high",
        temperature=1.9,
        presence_penalty=2,
    )
    assert "vendor" in response.headers["x-nibble-note"]
