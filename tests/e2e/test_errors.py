"""Every fault reaches the client as the exception class that it expects."""

import asyncio
import concurrent.futures
import urllib.error
import urllib.request

import openai
import pytest

from test_process import eventually, metric

HELLO = [{"role": "user", "content": "Hello"}]


def test_bad_values_name_their_field(client, model):
    for field, value in [
        ("temperature", 3),
        ("top_p", -1),
        ("n", 100),
        ("max_tokens", -5),
        ("presence_penalty", 9),
        ("top_logprobs", 5),
        ("logit_bias", {"999999": 1}),
        ("stop", [""]),
        ("reasoning_effort", "colossal"),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {"not": {}}}}),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=HELLO, **{field: value})
        assert caught.value.param.split(".")[0] == field
        assert caught.value.type == "invalid_request_error"


def test_images_are_refused(client, model):
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": [image]}])
    assert caught.value.code == "unsupported"
    assert caught.value.param == "messages[0].content[0].type"


def test_a_full_context_is_said_in_numbers(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=HELLO, max_tokens=100_000)
    assert caught.value.code == "context_length_exceeded"
    assert "16384" in caught.value.message


def test_errors_precede_the_stream(client, model):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[], stream=True)


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_models(client, model):
    assert client.models.retrieve(model).id == model
    assert client.models.retrieve(model).max_model_len == 16384


def test_other_pages_and_late_answers(client, model):
    with pytest.raises(openai.PermissionDeniedError) as caught:
        client.chat.completions.create(
            model=model, messages=HELLO, extra_headers={"Origin": "http://evil.test"}
        )
    assert caught.value.code == "origin_not_allowed"
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model=model,
            messages=HELLO,
            max_tokens=8000,
            extra_body={"ignore_eos": True},
            extra_headers={"x-request-timeout-ms": "50"},
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


def test_a_client_that_times_out_frees_its_sequence(server, model):
    before = metric(server, 'nibble_requests_aborted_total{cause="disconnect"}')
    with pytest.raises(openai.APITimeoutError):
        server.client(timeout=0.2).chat.completions.create(
            model=model, messages=HELLO, max_tokens=8000, extra_body={"ignore_eos": True}
        )
    eventually(lambda: metric(server, 'nibble_requests_aborted_total{cause="disconnect"}') == before + 1)


def test_a_cancelled_task_frees_its_sequence(server, model):
    before = metric(server, 'nibble_requests_aborted_total{cause="disconnect"}')

    async def begin_and_cancel():
        async with server.client(openai.AsyncOpenAI) as client:
            stream = await client.chat.completions.create(
                model=model, messages=HELLO, max_tokens=8000, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                break
            task = asyncio.create_task(anext(aiter(stream)))
            task.cancel()
            await stream.close()

    asyncio.run(begin_and_cancel())
    eventually(lambda: metric(server, 'nibble_requests_aborted_total{cause="disconnect"}') == before + 1)


def test_large_bodies_are_refused(client, model):
    with pytest.raises(openai.APIStatusError) as caught:
        messages = [{"role": "user", "content": "x" * (10 << 20)}]
        client.chat.completions.create(model=model, messages=messages)
    assert caught.value.status_code == 413


def test_what_it_does_not_do(client):
    with pytest.raises(openai.InternalServerError) as caught:
        client.embeddings.create(model="x", input="y")
    assert caught.value.status_code == 501


def test_keys(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n")
    keys.chmod(0o600)
    server = start_server("--api-key-file", str(keys))
    for wrong in ("unused", "first-secre", "first-secret2"):
        with pytest.raises(openai.AuthenticationError) as caught:
            server.client(api_key=wrong).models.list()
        assert caught.value.code == "invalid_api_key"
    for right in ("first-secret", "second-secret"):
        assert server.client(api_key=right).models.list().data
    assert urllib.request.urlopen(server.url("/health")).status == 200
    for path in ("/metrics", "/version", "/v1/models", "/other"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url(path))
        assert refused.value.code == 401
    assert server.stop() == 0
    assert "secret" not in "".join(server.log)


def test_a_full_queue_asks_to_come_back(start_server):
    server = start_server("--max-queued-requests", "1", "--max-running-requests", "1")
    model = server.client().models.list().data[0].id

    def ask(max_retries):
        client = server.client(max_retries=max_retries)
        options = {"max_tokens": 60, "extra_body": {"ignore_eos": True}}
        return client.chat.completions.create(model=model, messages=HELLO, **options)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        impatient = [pool.submit(ask, 0) for _ in range(8)]
        faults = [future.exception() for future in impatient]
    refused = [fault for fault in faults if fault]
    assert refused and len(refused) < 8
    for fault in refused:
        assert isinstance(fault, openai.RateLimitError)
        assert int(fault.response.headers["retry-after"]) >= 1
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        patient = [pool.submit(ask, 10) for _ in range(4)]
        assert all(future.result().choices for future in patient)
