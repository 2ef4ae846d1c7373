"""Headers of weight files by range: what `plan` reads of a model that is not here."""
import json
import os
import subprocess
import unittest

from fake_hub import FakeHub, Faults, RepoFile
from hub_testing import BLOCK, seeded_bytes

PROBE = os.environ.get("HUB_PROBE", "build/ci/bin/hub_probe")


def shard(name, num_tensors, seed, weights=2 * BLOCK):
    """A header of about 90 bytes per tensor, and weights that nobody should ask for."""
    each = weights // num_tensors
    entries = {"layers.%d.weight" % i: {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]}
               for i in range(num_tensors)}
    header = json.dumps(entries).encode()
    return RepoFile(name, len(header).to_bytes(8, "little") + header + seeded_bytes(each * num_tensors, seed),
                    is_lfs=True)


def header_bytes(file):
    return 8 + int.from_bytes(file.data[:8], "little")


class Headers(unittest.TestCase):
    def probe(self, hub, files, first=100_000, expect=0):
        command = [PROBE, hub.endpoint, "acme/tiny", str(first), *[file.path for file in files]]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, expect, run.stdout + run.stderr)
        if expect:
            return run.stdout
        return dict(line.split(" ", 1) for line in run.stdout.splitlines() if not line.startswith("header"))

    def shards(self):
        return [shard("s-%02d.safetensors" % i, count, i) for i, count in enumerate([3, 500, 4000, 9000])]

    def ranges(self, hub, file):
        return [request[2] for request in hub.requests
                if file.path in request[1] and request[0].startswith("127.0.0.2")]

    def test_at_most_two_ranges_per_file_and_no_weights_behind_the_first(self):
        files = self.shards()
        config = RepoFile("config.json", b'{"hidden_size": 64}', is_lfs=False)
        with FakeHub(files + [config]) as hub:
            found = self.probe(hub, files)
            self.assertEqual(found["config"], '{"hidden_size": 64}')
            self.assertEqual((found["commit"], found["files"], found["done"]), (hub.commit, "5", "4"))
            for file in files:
                ranges = self.ranges(hub, file)
                length = header_bytes(file)
                expected = ["bytes=0-99999"] + (["bytes=100000-%d" % (length - 1)] if length > 100_000 else [])
                self.assertEqual(ranges, expected)
            redirects = len(b"Found. Redirecting") * 8
            self.assertLessEqual(int(found["bytes"]), sum(max(100_000, header_bytes(f)) for f in files) + redirects)

    def test_a_good_guess_needs_one_range(self):
        files = [shard("a.safetensors", 4000, 1)]
        with FakeHub(files) as hub:
            length = header_bytes(files[0])
            found = self.probe(hub, files, first=length)
            self.assertEqual(self.ranges(hub, files[0]), ["bytes=0-%d" % (length - 1)])
            self.assertLessEqual(int(found["bytes"]), length + 100)

    def test_servers_without_ranges_are_cut_off_behind_the_header(self):
        files = [shard("a.safetensors", 4000, 1, weights=40 * BLOCK)]
        with FakeHub(files, faults=Faults(1, ignore_ranges=True)) as hub:
            found = self.probe(hub, files)
            self.assertLess(int(found["bytes"]), 4 * BLOCK)

    def test_faults_are_survived(self):
        files = self.shards()
        with FakeHub(files, faults=Faults(1, cut=0.4, status={503: 0.2}, wrong_length=0.1, limit=5)) as hub:
            self.assertEqual(self.probe(hub, files)["done"], "4")

    def test_nonsense_lengths_are_refused_before_they_are_read(self):
        for length in [26_000_000, (1 << 63) + 5, 3 * BLOCK]:
            with self.subTest(length=length):
                data = length.to_bytes(8, "little") + seeded_bytes(2 * BLOCK, 1)
                files = [RepoFile("a.safetensors", data, is_lfs=True)]
                with FakeHub(files) as hub:
                    output = self.probe(hub, files, expect=1)
                    self.assertIn("hub_integrity: acme/tiny: a.safetensors: header of", output)
                    self.assertEqual(len(self.ranges(hub, files[0])), 1)

    def test_files_shorter_than_a_length_are_refused(self):
        files = [RepoFile("a.safetensors", b"1234567", is_lfs=True)]
        with FakeHub(files) as hub:
            self.assertIn("too short", self.probe(hub, files, expect=1))

    def test_a_small_file_with_wrong_bytes_is_refused(self):
        config = RepoFile("config.json", b'{"hidden_size": 64}' * 100, is_lfs=False)
        with FakeHub([config], faults=Faults(1, wrong_byte_always=True)) as hub:
            self.assertIn("hub_integrity: acme/tiny: config.json: wrong bytes", self.probe(hub, [], expect=1))


if __name__ == "__main__":
    unittest.main()
