"""The server as a process: signals, addresses, clients that leave."""

import signal
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest

from conftest import MODEL, PROGRAM

STORY = [{"role": "user", "content": "Tell me a story."}]
# Long enough that the work is still going on when the test acts.
LONG = {"messages": STORY, "stream": True, "max_tokens": 8000, "extra_body": {"ignore_eos": True}}


def metric(server, name):
    text = urllib.request.urlopen(server.url("/metrics")).read().decode()
    values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)]
    return sum(values)


def eventually(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_refuses_other_addresses_without_a_key():
    result = subprocess.run(
        [PROGRAM, "serve", str(MODEL), "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 2
    assert "--api-key-file" in result.stderr


def test_a_client_that_leaves_frees_its_sequence(server, client, model):
    aborted = 'nibble_requests_aborted_total{cause="disconnect"}'
    before = metric(server, aborted)
    stream = client.chat.completions.create(model=model, **LONG)
    next(iter(stream))
    stream.close()
    eventually(lambda: metric(server, aborted) == before + 1)
    eventually(lambda: metric(server, "vllm:num_requests_running") == 0)


def test_finishes_accepted_work_on_sigterm(start_server):
    server = start_server()
    client = server.client()
    model = client.models.list().data[0].id
    options = LONG | {"max_tokens": 300}
    stream = iter(client.chat.completions.create(model=model, **options))
    next(stream)
    server.signal(signal.SIGTERM)
    eventually(lambda: status(server.url("/ready")) == 503)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=model, messages=STORY)
    assert caught.value.status_code == 503
    assert list(stream)[-1].choices[0].finish_reason == "length"
    assert server.wait() == 0


def status(url):
    try:
        return urllib.request.urlopen(url).status
    except urllib.error.HTTPError as fault:
        return fault.code


def test_ends_streams_with_an_error_after_the_shutdown_timeout(start_server):
    server = start_server("--shutdown-seconds", "0")
    client = server.client()
    model = client.models.list().data[0].id
    stream = iter(client.chat.completions.create(model=model, **LONG))
    next(stream)
    server.signal(signal.SIGTERM)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "shutting_down"
    assert server.wait() == 0


def test_a_second_signal_ends_it_at_once(start_server):
    server = start_server("--shutdown-seconds", "600")
    client = server.client()
    model = client.models.list().data[0].id
    stream = iter(client.chat.completions.create(model=model, **LONG))
    next(stream)
    server.signal(signal.SIGTERM)
    eventually(lambda: status(server.url("/ready")) == 503)
    server.signal(signal.SIGTERM)
    assert server.wait() == -signal.SIGTERM


def test_foreign_hosts_and_origins_are_kept_away(server):
    for headers in ({"Host": "evil.test"}, {"Origin": "http://evil.test"}):
        request = urllib.request.Request(server.url("/v1/models"), headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 403
        assert not any(name.lower().startswith("access-control") for name in refused.value.headers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads_ends_it_well(number):
    command = [PROGRAM, "serve", str(MODEL), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "is not ready until then" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(30) == 0
    # Should the model have been loaded by then, it ends as always.
    assert f"signal {int(number)}: stopped before the model was loaded" in rest or "listening on" in rest


def test_sighup_reads_the_keys_again(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    keys.chmod(0o600)
    server = start_server("--api-key-file", str(keys))

    def status_with(key):
        try:
            server.client(api_key=key).models.list()
            return 200
        except openai.AuthenticationError as refusal:
            return refusal.status_code

    keys.write_text("\n")
    server.signal(signal.SIGHUP)
    eventually(lambda: "the API keys stay as they are" in "".join(server.log))
    assert (status_with("old"), status_with("new")) == (200, 401)
    keys.write_text("new\n")
    server.signal(signal.SIGHUP)
    eventually(lambda: status_with("new") == 200)
    assert status_with("old") == 401
    assert server.stop() == 0
