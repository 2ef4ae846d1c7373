"""`nibble plan` on repositories of the hub: headers by range, never weights."""
import json
import pathlib
import subprocess
import time
import unittest

import v4_headers
from fake_hub import FakeHub, Faults, RepoFile
from hub_testing import DATA_LOSS, NIBBLE, NOT_FOUND, OK, UNSUPPORTED, HubTest

TINY = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v4"


def tiny_files():
    return [RepoFile(path.name, path.read_bytes(), is_lfs=path.suffix == ".safetensors")
            for path in sorted(TINY.iterdir())]


def header_bytes(file):
    return 8 + int.from_bytes(file.data[0:8], "little")


class Plan(HubTest):
    def plan(self, hub, *arguments, expect=OK):
        command = [NIBBLE, "plan", "--json", *arguments]
        run = subprocess.run(command, env=self.environment(hub), capture_output=True, text=True, timeout=300)
        self.assertEqual(run.returncode, expect, run.stdout[-2000:] + run.stderr)
        return json.loads(run.stdout) if run.stdout else run.stderr

    def ranges(self, hub, file):
        return [request for request in hub.requests
                if request[0].startswith("127.0.0.2") and request[1].startswith("/blobs/" + file.path)]

    def formats(self, plan):
        return {(module["class"], module["format"]) for module in plan["modules"]}

    def check_bound(self, hub, shards, index):
        """At most two ranges a shard, at most headers + index + 10% in bytes."""
        for shard in shards:
            self.assertLessEqual(len(self.ranges(hub, shard)), 2, shard.path)
        allowed = sum(header_bytes(shard) for shard in shards) + len(index.data)
        self.assertLessEqual(hub.body_bytes, allowed * 1.1)
        return allowed

    def check_no_sizes(self, plan):
        self.assertEqual([plan["memory"], plan["performance"]], [None, None])
        self.assertEqual(plan["why_no_sizes"], "files are missing or damaged")
        self.assertFalse(plan["download"]["complete"])

    def test_a_repository_is_planned_like_its_directory(self):
        files = tiny_files()
        with FakeHub(files) as hub:
            remote = self.plan(hub, "acme/tiny", "--gpu", "cpu")
            local = self.plan(hub, str(TINY), "--gpu", "cpu")
        self.assertEqual(remote["modules"], local["modules"])
        self.assertEqual(remote["memory"], local["memory"])
        self.assertEqual(remote["download"]["bytes"] > sum(len(f.data) for f in files if f.is_lfs), True)

    def test_flash_stays_within_the_byte_bound(self):
        for form_b, tensors, experts in ((False, 69_000, "mxfp4"), (True, 135_000, "nvfp4")):
            with self.subTest(form_b=form_b):
                files, shards = v4_headers.flash(form_b)
                with FakeHub(files + shards) as hub:
                    begin = time.monotonic()
                    plan = self.plan(hub, "acme/tiny", "--gpu", "rtx-pro-6000x8")
                    seconds = time.monotonic() - begin
                    allowed = self.check_bound(hub, shards, files[1])
                print("plan of Flash, %s: %.1f s, %.1f MB of %.1f" % (experts, seconds, hub.body_bytes / 1e6,
                                                                       allowed / 1e6))
                self.assertEqual(plan["errors"], [])
                self.assertLess(abs(plan["download"]["tensors"] - tensors), 1000)
                self.assertIn(("routed_experts", experts), self.formats(plan))
                self.assertIn(("draft_routed_experts", "mxfp4"), self.formats(plan))
                if not form_b:
                    self.assertAlmostEqual(plan["download"]["bytes"] / 1e9, 159.61, delta=0.03)

    def test_a_bad_network_is_survived(self):
        # One fault fewer than the attempts of a request, whichever requests they hit.
        with FakeHub(tiny_files(), faults=Faults(3, cut=0.3, status={503: 0.2}, limit=5)) as hub:
            self.assertEqual(self.plan(hub, "acme/tiny", "--gpu", "h200")["errors"], [])

    def test_a_shard_that_is_too_short_is_named(self):
        files = tiny_files()
        for file in files:
            if file.path.startswith("model-00002"):
                file.data = file.data[:-1]
        with FakeHub(files) as hub:
            plan = self.plan(hub, "acme/tiny", "--gpu", "h200", expect=UNSUPPORTED)
        self.assertIn("Q-F1", [error["code"] for error in plan["errors"]])
        self.assertTrue(plan["modules"])
        self.check_no_sizes(plan)

    def test_a_repository_without_its_weights_has_no_sizes(self):
        with FakeHub([file for file in tiny_files() if not file.is_lfs]) as hub:
            plan = self.plan(hub, "acme/tiny", "--gpu", "h200", expect=UNSUPPORTED)
        self.assertIn("Q-F3", [error["code"] for error in plan["errors"]])
        self.assertEqual(plan["modules"], [])
        self.check_no_sizes(plan)

    def test_sizes_that_cannot_be_are_refused(self):
        for size in (1 << 62, (1 << 63) - 1):
            entry = {"type": "file", "path": "model-9.safetensors", "size": size, "oid": "0" * 40,
                     "lfs": {"oid": "a" * 64, "size": size, "pointerSize": 134}}
            with FakeHub(tiny_files(), extra_entries=[entry, dict(entry, path="model-8.safetensors")]) as hub:
                self.assertIn("the hub lists model-", self.plan(hub, "acme/tiny", expect=DATA_LOSS))

    def test_malformed_answers_end_with_a_message(self):
        """Whatever stands in index and headers: an exit code of the table, a message, and no weights."""
        index = json.loads((TINY / "model.safetensors.index.json").read_text())
        shard = sorted(TINY.glob("*.safetensors"))[0].read_bytes()
        deep = b'{"a":' * 5000
        cases = [("model.safetensors.index.json", b""), ("model.safetensors.index.json", b"[]"),
                 ("model.safetensors.index.json", deep), ("model.safetensors.index.json", b"{\"weight_map\":{}}"),
                 ("model.safetensors.index.json",
                  json.dumps({"weight_map": {name: "../" + path for name, path in index["weight_map"].items()}}).encode()),
                 ("config.json", b""), ("config.json", b"null"), ("config.json", deep), ("config.json", b"\xff\xfe"),
                 ("model-00001-of-00003.safetensors", b"\xff" * 8 + shard[8:]),
                 ("model-00001-of-00003.safetensors", bytes(8) + shard[8:]),
                 ("model-00001-of-00003.safetensors", shard[:8] + b"x" * (len(shard) - 8)),
                 ("model-00001-of-00003.safetensors", shard[:7])]
        for path, data in cases:
            with self.subTest(path=path, data=data[:20]):
                files = [RepoFile(path, data, file.is_lfs) if file.path == path else file for file in tiny_files()]
                with FakeHub(files) as hub:
                    command = [NIBBLE, "plan", "--json", "acme/tiny", "--gpu", "h200"]
                    run = subprocess.run(command, env=self.environment(hub), capture_output=True, text=True, timeout=60)
                    self.assertIn(run.returncode, (UNSUPPORTED, NOT_FOUND, DATA_LOSS), run.stderr)
                    self.assertRegex(run.stderr, r"nibble: error(: |\[Q-)")
                    self.assertNotIn("error: error", run.stderr)
                    self.assertLess(hub.body_bytes, 2_000_000)

    def test_unknown_repositories_are_not_found(self):
        with FakeHub(tiny_files()) as hub:
            self.plan(hub, "acme/other", expect=NOT_FOUND)


if __name__ == "__main__":
    unittest.main()
