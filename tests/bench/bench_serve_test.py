"""`nibble bench serve` from outside: against the second server, and against `nibble serve` with the bundled model."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree

from second_server import SecondServer

BINARY = os.environ["NIBBLE_BINARY"]
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v4"
LENGTHS = ["--random-input-len", "16", "--random-output-len", "4"]
QUICK = [*LENGTHS, "--num-prompts", "6"]
NUM_PROBES = 2 * 36 + 1  # for words of one token, and for the template


def bench(*flags, key=None):
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    if key is not None:
        environment["OPENAI_API_KEY"] = key
    return subprocess.run([BINARY, "bench", "serve", *flags], capture_output=True, text=True, timeout=300,
                          env=environment)


def row(output, name):
    return re.search(rf"^{re.escape(name)}\s+(\S+)", output, re.M).group(1)


class BenchCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def second(self, **settings):
        server = SecondServer(**settings)
        self.addCleanup(server.stop)
        return server

    def run_json(self, *flags, key=None):
        """The lines that --output-file got, and what the run printed."""
        path = self.folder / "out.jsonl"
        result = bench(*flags, "--output-file", str(path), key=key)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in path.read_text().splitlines()], result.stdout


class Load(BenchCase):
    def test_chat_lengths_are_exact_by_the_servers_usage(self):
        server = self.second()
        lines, output = self.run_json("--base-url", server.url + "/v1", *QUICK)
        self.assertEqual(row(output, "Successful requests:"), "6")
        self.assertEqual(row(output, "Total input tokens:"), str(6 * 16))
        self.assertEqual(row(output, "Total generated tokens:"), str(6 * 4))
        self.assertEqual(lines[0]["template_tokens"], 3)
        self.assertEqual(lines[0]["other_input_length"], 0)
        self.assertEqual(lines[0]["model_id"], "second/model")
        self.assertEqual(len(server.bodies), NUM_PROBES + 1 + 6)  # and the warm-up
        self.assertTrue(all(body["ignore_eos"] and body["temperature"] == 0 for body in server.bodies))

    def test_text_completions(self):
        server = self.second()
        _, output = self.run_json("--base-url", server.url, "--backend", "vllm", *QUICK)
        self.assertEqual(row(output, "Total input tokens:"), str(6 * 16))
        self.assertEqual(set(server.paths), {"/v1/completions"})

    def test_the_concurrency_is_a_limit_and_a_sweep_makes_a_line_each(self):
        server = self.second(token_seconds=0.005)
        plot = self.folder / "plot.svg"
        lines, output = self.run_json("--base-url", server.url, *QUICK, "--max-concurrency", "1,3", "--plot", str(plot))
        self.assertEqual([line["max_concurrency"] for line in lines], [1, 3])
        self.assertEqual([line["max_concurrent_requests"] for line in lines], [1, 3])
        self.assertEqual(server.max_active, 3)
        self.assertNotEqual(lines[0]["dataset_hash"], lines[1]["dataset_hash"])
        self.assertEqual(output.count("Serving Benchmark Result"), 2)
        circles = xml.etree.ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(list(circles)), 8)

    def test_the_request_rate_sets_the_duration(self):
        lines, _ = self.run_json("--base-url", self.second().url, *QUICK, "--request-rate", "10", "--seed", "3")
        self.assertGreaterEqual(lines[0]["duration"], 0.5)  # five gaps of 0.1 s
        self.assertEqual(lines[0]["request_rate"], 10)

    def test_goodput_counts_requests_that_keep_every_goal(self):
        server = self.second()
        flags = ["--base-url", server.url, *QUICK]
        lines, output = self.run_json(*flags, "--goodput", "ttft:60000", "tpot:60000")
        self.assertEqual(row(output, "Request goodput (req/s):"), row(output, "Request throughput (req/s):"))
        self.assertEqual(lines[0]["request_goodput"], lines[0]["request_throughput"])
        self.assertEqual(lines[0]["goodput"], {"ttft": 60000, "tpot": 60000})
        lines, output = self.run_json(*flags, "--goodput", "ttft:60000", "e2el:0.001")
        self.assertEqual(row(output, "Request goodput (req/s):"), "0.00")

    def test_a_seed_repeats_the_prompts(self):
        server = self.second()
        first, _ = self.run_json("--base-url", server.url, *QUICK, "--seed", "5")
        both, _ = self.run_json("--base-url", server.url, *QUICK, "--seed", "5")
        self.assertEqual(first[0]["dataset_hash"], both[1]["dataset_hash"])

    def test_turns_carry_the_answers_before_them(self):
        server = self.second()
        _, output = self.run_json("--base-url", server.url, *LENGTHS, "--dataset-name", "multi-turn", "--num-turns", "3",
                                  "--num-prompts", "2")
        self.assertEqual(row(output, "Successful requests:"), "6")
        last = max(server.bodies, key=lambda body: len(body["messages"]))
        self.assertEqual([m["role"] for m in last["messages"]], ["user", "assistant"] * 2 + ["user"])
        self.assertEqual(last["messages"][1]["content"], " word" * 4)

    def test_shared_prefixes(self):
        server = self.second()
        self.run_json("--base-url", server.url, *QUICK, "--dataset-name", "generated-shared-prefix",
                      "--gsp-num-groups", "2", "--gsp-prompts-per-group", "3", "--gsp-system-prompt-len", "40")
        prompts = [body["messages"][0]["content"] for body in server.bodies[-6:]]
        self.assertEqual(len({tuple(prompt.split()[:40]) for prompt in prompts}), 2)
        self.assertEqual(len(set(prompts)), 6)

    def test_a_file_of_prompts(self):
        server = self.second()
        path = self.folder / "prompts.jsonl"
        path.write_text('{"prompt": "a b c", "output_tokens": 2}\n{"prompt": "d e", "output_tokens": 3}\n')
        _, output = self.run_json("--base-url", server.url, "--dataset-name", "custom", "--dataset-path", str(path))
        self.assertEqual(row(output, "Total input tokens:"), str(5 + 2 * 3))
        self.assertEqual(row(output, "Total generated tokens:"), "5")

    def test_answers_without_usage_are_counted_by_events(self):
        path = self.folder / "prompts.jsonl"
        path.write_text('{"prompt": "a b c", "output_tokens": 4}\n')
        server = self.second(usage=False)
        lines, output = self.run_json("--base-url", server.url, "--dataset-name", "file", "--dataset-path", str(path))
        self.assertEqual(lines[0]["total_output_tokens"], 4)
        self.assertIn("no usage in 1 answers: their tokens are counted by events", output)

    def test_whole_answers(self):
        _, output = self.run_json("--base-url", self.second().url, *QUICK, "--disable-stream")
        self.assertEqual(row(output, "Total generated tokens:"), str(6 * 4))
        self.assertNotIn("TTFT", output)

    def test_a_profile_of_each_run(self):
        server = self.second()
        self.run_json("--base-url", server.url, *QUICK, "--max-concurrency", "1,2", "--profile")
        orders = [path for path in server.paths if path.endswith("_profile")]
        self.assertEqual(orders, ["/start_profile", "/stop_profile"] * 2)
        self.assertNotIn("/start_profile", server.paths[:2])

    def test_extra_members_and_details(self):
        server = self.second()
        lines, _ = self.run_json("--base-url", server.url, *QUICK, "--extra-request-body", '{"top_k": 5}',
                                 "--output-details", "--flush-cache")
        self.assertTrue(all(body["top_k"] == 5 for body in server.bodies))
        self.assertEqual(server.paths.count("/flush_cache"), 1)
        self.assertEqual([len(request["token_times"]) for request in lines[0]["requests"]], [4] * 6)
        self.assertEqual(lines[0]["extra_request_body"], {"top_k": 5})
        self.assertTrue(lines[0]["machine"] and lines[0]["commit"])


class Faults(BenchCase):
    def fails(self, code, words, *flags, key=None):
        result = bench(*flags, key=key)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(words, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_no_server(self):
        server = SecondServer()
        server.stop()
        self.fails(7, "start the server, or name another with --base-url", "--base-url", server.url)

    def test_another_model(self):
        self.fails(4, 'has no model "other"; it serves second/model', "--base-url", self.second().url, "--model",
                   "other")

    def test_a_server_without_a_list_of_models_needs_a_name(self):
        server = self.second(models=None)
        self.fails(2, "name one with --model", "--base-url", server.url)
        self.run_json("--base-url", server.url, *QUICK, "--model", "anything")

    def test_keys(self):
        server = self.second(key="sesame")
        self.fails(2, "set OPENAI_API_KEY", "--base-url", server.url)
        self.fails(2, "does not accept the key", "--base-url", server.url, key="wrong")
        self.fails(2, "no HTTP header can carry", "--base-url", server.url, key="a\nb")
        lines, output = self.run_json("--base-url", server.url, *QUICK, key="sesame")
        self.assertNotIn("sesame", json.dumps(lines) + output)

    def test_refusals_are_counted_and_not_retried_unless_asked(self):
        flags = [*QUICK, "--num-warmups", "0", "--max-concurrency", "1"]
        server = self.second(refusals=2, faults_after=NUM_PROBES)
        lines, output = self.run_json("--base-url", server.url, *flags)
        self.assertEqual(lines[0]["completed"], 4)
        self.assertEqual(lines[0]["failures"]["http_429"], {"count": 2, "example": "queue full"})
        self.assertIn("failed: 2 x http_429: queue full", output)
        server = self.second(refusals=2, faults_after=NUM_PROBES)
        lines, _ = self.run_json("--base-url", server.url, *flags, "--max-retries", "3")
        self.assertEqual((lines[1]["completed"], lines[1]["retries"]), (6, 2))
        self.assertGreaterEqual(lines[1]["max_e2el_ms"], 2000)  # two waits of Retry-After: 1

    def test_every_kind_of_broken_answer_is_counted(self):
        for fault, kind in [("error_event", "stream_error"), ("cut", "truncated"), ("garbage", "malformed"),
                            ("status_500", "http_500")]:
            with self.subTest(fault):
                # Three good answers, then broken ones.
                server = self.second(fault=fault, faults_after=NUM_PROBES + 3)
                lines, _ = self.run_json("--base-url", server.url, *QUICK, "--num-warmups", "0", "--max-concurrency",
                                         "1")
                self.assertEqual(lines[-1]["completed"], 3)
                self.assertEqual(lines[-1]["failures"][kind]["count"], 3)

    def test_a_broken_warm_up_ends_it(self):
        server = self.second(fault="error_event", faults_after=NUM_PROBES)
        self.fails(7, "warm-up: ", "--base-url", server.url, *QUICK)

    def test_no_success_at_all_is_an_error(self):
        server = self.second(fault="cut", faults_after=NUM_PROBES)
        result = bench("--base-url", server.url, *QUICK, "--num-warmups", "0")
        self.assertEqual(result.returncode, 7)
        self.assertIn("no request succeeded", result.stderr)
        self.assertEqual(row(result.stdout, "Failed requests:"), "6")

    def test_a_failed_turn_ends_its_conversation(self):
        server = self.second(fault="cut", faults_after=NUM_PROBES + 2)
        lines, output = self.run_json("--base-url", server.url, *LENGTHS, "--dataset-name", "multi-turn",
                                      "--num-turns", "4", "--num-prompts", "1", "--num-warmups", "0")
        self.assertEqual((lines[0]["completed"], lines[0]["failed"], lines[0]["unsent"]), (2, 1, 1))
        self.assertIn("not sent: 1 turns behind a failed one", output)

    def test_an_interrupt_ends_it(self):
        server = self.second(token_seconds=1)
        process = subprocess.Popen([BINARY, "bench", "serve", "--base-url", server.url, "--dataset-name", "file",
                                    "--dataset-path", str(self.prompts()), "--num-warmups", "0"],
                                   stderr=subprocess.PIPE, text=True)
        while not server.bodies:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted", errors)

    def prompts(self):
        path = self.folder / "prompts.jsonl"
        path.write_text('{"prompt": "a", "output_tokens": 100}\n')
        return path

    def test_flags(self):
        self.fails(2, '"fast" is no rate', "--request-rate", "fast")
        self.fails(2, '"-1" is no rate', "--request-rate=-1")
        self.fails(2, "needs --dataset-path", "--dataset-name", "sharegpt")
        self.fails(2, "is no JSON object", "--extra-request-body", "[]")
        self.fails(2, "is none of", "--backend", "triton")
        for goal in ["ttft", "ttft:", "ttft:fast", "itl:5", "tpot:-1"]:
            self.fails(2, "is none of ttft:MS", "--goodput", goal)
        self.fails(2, "xcludes", "--base-url", "http://a", "--port", "1")


class Nibble(BenchCase):
    """Against our own server."""

    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen([BINARY, "serve", str(MODEL), "--port", "0"], stderr=subprocess.PIPE, text=True)
        for line in cls.process.stderr:
            if match := re.search(r"listening on (\S+)", line):
                cls.url = "http://" + match.group(1)
                return

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        cls.process.wait(60)
        cls.process.stderr.close()

    def test_lengths_are_exact_with_and_without_a_tokenizer(self):
        flags = ["--base-url", self.url, *QUICK, "--random-range-ratio", "0.5"]
        for extra in [[], ["--tokenizer", str(MODEL)]]:
            for backend in ["openai-chat", "openai"]:
                with self.subTest(backend, extra=extra):
                    lines, _ = self.run_json(*flags, *extra, "--backend", backend)
                    self.assertEqual(lines[-1]["completed"], 6)
                    self.assertEqual(lines[-1]["other_input_length"], 0)
                    self.assertEqual(lines[-1]["other_output_length"], 0)

    def test_there_is_no_profiler(self):
        result = bench("--base-url", self.url, *QUICK, "--profile")
        self.assertEqual(result.returncode, 3)
        self.assertIn("--profile: POST", result.stderr)
        self.assertIn("perf record", result.stderr)

    def test_conversations(self):
        lines, _ = self.run_json("--base-url", self.url, *QUICK, "--dataset-name", "multi-turn", "--num-turns", "2")
        self.assertEqual((lines[0]["completed"], lines[0]["failed"]), (12, 0))
        self.assertEqual(lines[0]["server_version"], subprocess.run([BINARY, "--version"], capture_output=True,
                                                                    text=True).stdout.split()[1])


if __name__ == "__main__":
    unittest.main()
