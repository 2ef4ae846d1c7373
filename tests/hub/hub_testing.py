"""What the hub's tests share: repositories of seeded bytes, running `nibble pull`, looking into the cache."""
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import unittest

from fake_hub import RepoFile

NIBBLE = os.environ.get("NIBBLE_BINARY", "build/ci/bin/nibble")
BLOCK = 1 << 20

OK, USAGE, UNSUPPORTED, NOT_FOUND, DATA_LOSS, EXHAUSTED, UNAVAILABLE, DENIED, INTERRUPTED = 0, 2, 3, 4, 5, 6, 7, 8, 130


def seeded_bytes(size, seed):
    return random.Random(seed).randbytes(size)


def small_repo(seed=1):
    """A config, a nested file, an empty one, and two large ones that are no multiples of the block."""
    return [
        RepoFile("config.json", b'{"hidden_size": 64}\n', is_lfs=False),
        RepoFile("sub/dir/notes.txt", b"nested\n", is_lfs=False),
        RepoFile("empty.txt", b"", is_lfs=False),
        RepoFile("model-00001-of-00002.safetensors", seeded_bytes(5 * BLOCK + 4321, seed), is_lfs=True),
        RepoFile("model-00002-of-00002.safetensors", seeded_bytes(3 * BLOCK - 17, seed + 1), is_lfs=True),
    ]


class Outcome:
    def __init__(self, returncode, stdout, stderr):
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr

    @property
    def snapshot(self):
        return pathlib.Path(self.stdout.strip())

    def received_bytes(self):
        """Of the summary line, to three digits."""
        number, unit = re.search(r"; ([0-9.]+) (B|kB|MB|GB) received", self.stderr).groups()
        return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


class HubTest(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="nibble-hub-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.cache = self.home / "hub"
        self.root = self.cache / "models--acme--tiny"

    def environment(self, hub, **more):
        keep = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "TSAN_OPTIONS",
                                                    "UBSAN_OPTIONS") if name in os.environ}
        return {**keep, "HOME": str(self.home), "HF_HOME": str(self.home), "HF_ENDPOINT": hub.endpoint, **more}

    def start(self, hub, *arguments, env=(), repo="acme/tiny", **options):
        command = [NIBBLE, "pull", repo, "--retry-delay-ms", "2", *arguments]
        return subprocess.Popen(command, env=self.environment(hub, **dict(env)), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **options)

    def finish(self, process):
        stdout, stderr = process.communicate(timeout=120)
        return Outcome(process.returncode, stdout, stderr)

    def pull(self, hub, *arguments, expect=OK, **options):
        outcome = self.finish(self.start(hub, *arguments, **options))
        self.assertEqual(outcome.returncode, expect, outcome.stderr)
        return outcome

    def assert_complete(self, hub, commit=None, files=None):
        """Every file is a relative link to a blob of the right name and bytes, and nothing is left over."""
        snapshot = self.root / "snapshots" / (commit or hub.commit)
        for file in files or hub.files.values():
            path = snapshot / file.path
            self.assertTrue(path.is_symlink(), path)
            target = os.readlink(path)
            self.assertFalse(os.path.isabs(target), target)
            self.assertEqual((path.parent / target).resolve(), (self.root / "blobs" / file.etag).resolve())
            self.assertEqual(path.read_bytes(), file.data, file.path)
        if files is None:
            found = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if not path.is_dir()}
            self.assertEqual(found, set(hub.files))
            self.assertEqual([path.name for path in (self.root / "refs").iterdir()], ["main"])
        self.assert_no_leftovers()

    def assert_no_leftovers(self):
        names = [path.name for path in (self.root / "blobs").iterdir()]
        self.assertEqual([name for name in names if "." in name], [])
        owners = [path.name for path in self.cache.glob(".locks/*/*.owner*")]
        self.assertEqual(owners, [])

    def assert_only_right_blobs(self, hub):
        """Whatever happened: a blob under its final name is right."""
        right = {file.etag: file.data for file in hub.files.values()}
        for path in (self.root / "blobs").glob("*"):
            if "." not in path.name:
                self.assertEqual(path.read_bytes(), right[path.name], path.name)

    def storage_requests(self, hub):
        return [request for request in hub.requests if request[0].startswith("127.0.0.2")]
