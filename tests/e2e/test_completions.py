"""/v1/completions through the OpenAI client."""

import pytest

ALICE = "Alice was beginning to get very tired of"


def test_continues_text(client, model):
    completion = client.completions.create(model=model, prompt=ALICE)
    assert completion.object == "text_completion"
    assert completion.choices[0].text
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.completion_tokens == 16


def test_streams_the_same_text(client, model):
    whole = client.completions.create(model=model, prompt=ALICE, max_tokens=40)
    chunks = list(
        client.completions.create(
            model=model,
            prompt=ALICE,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage


def test_takes_several_prompts(client, model):
    prompts = [ALICE, "It was the best of times, it was"]
    single = [client.completions.create(model=model, prompt=prompt).choices[0].text for prompt in prompts]
    both = client.completions.create(model=model, prompt=prompts)
    assert [choice.text for choice in both.choices] == single
    assert [choice.index for choice in both.choices] == [0, 1]


def test_takes_token_ids(client, model):
    single = client.completions.create(model=model, prompt=[5, 100, 200], max_tokens=4)
    assert single.usage.prompt_tokens == 3
    several = client.completions.create(model=model, prompt=[[5, 100, 200], [7, 8]], max_tokens=4)
    assert several.usage.prompt_tokens == 5
    assert several.choices[0].text == single.choices[0].text


def test_echo_and_logprobs(client, model):
    completion = client.completions.create(
        model=model, prompt=ALICE, max_tokens=4, echo=True, logprobs=2
    )
    choice = completion.choices[0]
    assert choice.text.startswith(ALICE)
    logprobs = choice.logprobs
    count = completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == count
    assert len(logprobs.top_logprobs) == len(logprobs.text_offset) == count
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == choice.text
    for token, offset in zip(logprobs.tokens, logprobs.text_offset):
        assert choice.text[offset : offset + len(token)] == token


def test_scores_a_prompt_without_generating(client, model):
    options = {"model": model, "prompt": ALICE, "echo": True, "logprobs": 0}
    scored = client.completions.create(**options, max_tokens=0)
    longer = client.completions.create(**options, max_tokens=1)
    assert scored.usage.completion_tokens == 0
    assert scored.choices[0].text == ALICE
    expected = longer.choices[0].logprobs.token_logprobs[1:-1]
    assert scored.choices[0].logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)


def test_stops(client, model):
    whole = client.completions.create(model=model, prompt=ALICE, max_tokens=40)
    word = whole.choices[0].text.split()[3]
    cut = client.completions.create(model=model, prompt=ALICE, max_tokens=40, stop=word)
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == whole.choices[0].text[: whole.choices[0].text.index(word)]
