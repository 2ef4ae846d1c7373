"""Starts the program with the bundled model and points the clients at it."""

import os
import pathlib
import re
import signal
import subprocess
import threading

import anthropic
import openai
import pytest

PROGRAM = os.environ["NIBBLE_PROGRAM"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "tiny-v4"
START_SECONDS = 120
STOP_SECONDS = 30


class Server:
    """A running `nibble serve`; its log is kept and read to the end."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", str(MODEL), "--port", "0", *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []
        self.port = None
        self._is_listening = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        assert self._is_listening.wait(START_SECONDS) and self.port, "".join(self.log)

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"listening on \S+:(\d+)", line):
                self.port = int(match[1])
                self._is_listening.set()
        self._is_listening.set()

    def url(self, path=""):
        return f"http://127.0.0.1:{self.port}{path}"

    def client(self, cls=openai.OpenAI, **options):
        options = {"api_key": "unused", "max_retries": 0, "timeout": 60} | options
        return cls(base_url=self.url("/v1"), **options)

    def anthropic(self, cls=anthropic.Anthropic, **options):
        options = {"api_key": "unused", "max_retries": 0, "timeout": 60} | options
        return cls(base_url=self.url(), **options)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait(STOP_SECONDS)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()


@pytest.fixture
def start_server():
    """Starts servers with flags of the test's choice; all have ended after it."""
    servers = []

    def start(*flags):
        servers.append(Server(*flags))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.wait()


@pytest.fixture(scope="session")
def server():
    """One server for all tests that need nothing special; it must end cleanly."""
    running = Server("--temperature", "0")
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def claude(server):
    """Anthropic's client."""
    return server.anthropic()


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id
