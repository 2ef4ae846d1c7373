"""`nibble pull` against a hub that works, and one that does not."""
import os
import re
import resource
import signal
import subprocess
import tempfile
import pathlib
import unittest

from fake_hub import FakeHub, Faults, RepoFile
from hub_testing import (BLOCK, DATA_LOSS, DENIED, EXHAUSTED, HubTest, INTERRUPTED, NIBBLE, NOT_FOUND, UNAVAILABLE,
                         USAGE, seeded_bytes, small_repo)

TOKEN = "hf_SecretSecretSecret"


def tiny_model():
    model = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v4"
    return [RepoFile(path.name, path.read_bytes(), is_lfs=path.suffix == ".safetensors")
            for path in sorted(model.iterdir())]


class Layout(HubTest):
    def test_writes_the_cache_that_other_tools_read(self):
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub)
            self.assertEqual(outcome.snapshot, self.root / "snapshots" / hub.commit)
            self.assert_complete(hub)
            self.assertEqual((self.root / "refs" / "main").read_text(), hub.commit)

    def test_a_second_pull_fetches_nothing(self):
        with FakeHub(small_repo()) as hub:
            self.pull(hub)
            count = len(self.storage_requests(hub))
            self.assertEqual(self.pull(hub).received_bytes(), 0)
            self.assertEqual(len(self.storage_requests(hub)), count)

    def test_follows_pages_of_the_file_list(self):
        files = [RepoFile("file-%02d.txt" % i, b"%d" % i, is_lfs=False) for i in range(25)]
        with FakeHub(files, page_size=7) as hub:
            self.pull(hub)
            self.assert_complete(hub)

    def test_refuses_a_file_list_that_goes_on_elsewhere(self):
        with FakeHub(small_repo(), page_size=2) as hub, FakeHub() as other:
            first = hub.endpoint
            type(hub).endpoint, kept = property(lambda self: other.storage_origin), type(hub).endpoint
            try:
                process = self.start_at(first)
            finally:
                type(hub).endpoint = kept
            self.assertEqual(process.returncode, DATA_LOSS, process.stderr)
            self.assertIn("another host", process.stderr)
            self.assertEqual(other.requests, [])

    def start_at(self, endpoint):
        class Somewhere:
            pass
        hub = Somewhere()
        hub.endpoint = endpoint
        return self.finish(self.start(hub))

    def test_revisions_are_pinned_and_remembered(self):
        with FakeHub(small_repo()) as hub:
            self.pull(hub, repo="acme/tiny@refs/pr/1")
            self.assertEqual((self.root / "refs" / "refs" / "pr" / "1").read_text(), hub.commit)
            self.pull(hub, repo="acme/tiny@" + hub.commit)
            self.assertFalse((self.root / "refs" / hub.commit).exists())
            self.pull(hub, repo=hub.endpoint + "/acme/tiny/tree/main")
            self.assertTrue((self.root / "refs" / "main").exists())

    def test_a_new_commit_shares_blobs(self):
        files = small_repo()
        with FakeHub(files) as hub:
            self.pull(hub)
        files[0] = RepoFile("config.json", b'{"hidden_size": 128}\n', is_lfs=False)
        with FakeHub(files, commit="e" * 40) as hub:
            self.pull(hub)
            self.assert_complete(hub)
            self.assertEqual(self.storage_requests(hub), [])
            self.assertTrue((self.root / "snapshots" / ("c" * 40) / "config.json").exists())

    def test_patterns_select_files(self):
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub, "--include", "*.json", "--include", "sub/", "--exclude", "*.txt")
            names = [str(p.relative_to(outcome.snapshot)) for p in outcome.snapshot.rglob("*") if p.is_symlink()]
            self.assertEqual(names, ["config.json"])
            self.pull(hub, "--include", "*.nothing", expect=NOT_FOUND)

    def test_other_formats_of_the_same_weights_are_left_out(self):
        files = small_repo() + [RepoFile("pytorch_model.bin", seeded_bytes(1000, 5), is_lfs=True)]
        with FakeHub(files) as hub:
            outcome = self.pull(hub)
            self.assertFalse((outcome.snapshot / "pytorch_model.bin").exists())
            self.assertIn("pytorch_model.bin: left out", outcome.stderr)
            self.pull(hub, "--include", "*.bin")
            self.assertTrue((outcome.snapshot / "pytorch_model.bin").exists())

    def test_blobs_of_other_tools_are_checked_and_used(self):
        files = small_repo()
        (self.root / "blobs").mkdir(parents=True)
        (self.root / "blobs" / files[3].etag).write_bytes(files[3].data)
        wrong = bytearray(files[4].data)
        wrong[7] ^= 1
        (self.root / "blobs" / files[4].etag).write_bytes(wrong)
        with FakeHub(files) as hub:
            self.pull(hub)
            self.assert_complete(hub)
            asked = {request[1].split("?")[0] for request in self.storage_requests(hub)}
            self.assertEqual(asked, {"/blobs/" + files[4].path})

    def test_offline_answers_from_the_cache(self):
        with FakeHub(small_repo()) as hub:
            self.pull(hub, env={"HF_HUB_OFFLINE": "1"}, expect=NOT_FOUND)
            self.pull(hub)
            count = len(hub.requests)
            outcome = self.pull(hub, "--verify", env={"HF_HUB_OFFLINE": "1"})
            self.assertEqual(outcome.snapshot, self.root / "snapshots" / hub.commit)
            blob = self.root / "blobs" / hub.files["config.json"].etag
            blob.write_bytes(b"x" * blob.stat().st_size)
            outcome = self.pull(hub, "--verify", env={"HF_HUB_OFFLINE": "1"}, expect=DATA_LOSS)
            self.assertIn("config.json", outcome.stderr)
            self.assertEqual(len(hub.requests), count)

    def test_snapshots_without_symbolic_links(self):
        files = small_repo()
        env = {"HF_HUB_DISABLE_SYMLINKS": "1"}
        with FakeHub(files) as hub:
            snapshot = self.pull(hub, env=env).snapshot
            for file in files:
                path = snapshot / file.path
                self.assertFalse(path.is_symlink(), path)
                self.assertTrue(path.samefile(self.root / "blobs" / file.etag))
            blob = self.root / "blobs" / files[3].etag
            blob.write_bytes(b"x" * len(files[3].data))
            offline = {**env, "HF_HUB_OFFLINE": "1"}
            self.assertIn(files[3].path, self.pull(hub, "--verify", env=offline, expect=DATA_LOSS).stderr)
            self.pull(hub, "--verify", env=env)
            self.assertEqual((snapshot / files[3].path).read_bytes(), files[3].data)
            self.pull(hub, "--verify", env=offline)
            self.assert_no_leftovers()

    def test_the_plan_follows_when_it_is_wanted(self):
        with FakeHub(tiny_model()) as hub:
            lines = self.pull(hub, "--plan").stdout.splitlines()
            self.assertEqual(lines[0], str(self.root / "snapshots" / hub.commit))
            self.assertIn("mxfp4", "\n".join(lines[1:]))
            self.assertEqual(len(self.pull(hub).stdout.splitlines()), 1)

    def test_a_plan_that_fails_does_not_fail_the_pull(self):
        with FakeHub(small_repo()) as hub:
            self.assertIn("plan: ", self.pull(hub, "--plan").stderr)

    def test_the_record_holds_hashes_of_blocks_and_tensors(self):
        import json
        header = json.dumps({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]},
                             "b": {"dtype": "U8", "shape": [0], "data_offsets": [5, 5]}}).encode()
        data = len(header).to_bytes(8, "little") + header + b"hello"
        with FakeHub([RepoFile("model.safetensors", data, is_lfs=True)]) as hub:
            self.pull(hub)
            etag = hub.files["model.safetensors"].etag
            record = json.loads((self.root / ".nibble" / (etag + ".json")).read_text())
            self.assertEqual((record["size"], record["etag"], len(record["blocks"])), (len(data), etag, 16))
            # XXH3 of "hello" and of nothing
            self.assertEqual(record["tensors"], {"a": "9555e8555c62dcfd", "b": "2d06800538d394c2"})


class Access(HubTest):
    def test_the_token_goes_to_the_hub_and_nowhere_else(self):
        with FakeHub(small_repo(), token=TOKEN) as hub, FakeHub(small_repo()) as elsewhere:
            outcome = self.pull(hub, "--log-level", "debug", env={"HF_TOKEN": TOKEN})
            self.assert_complete(hub)
            hub_requests = [r for r in hub.requests if r[0].startswith("127.0.0.1")]
            self.assertTrue(all(request[3] == "Bearer " + TOKEN for request in hub_requests))
            storage = self.storage_requests(hub)
            self.assertTrue(storage)
            self.assertTrue(all(request[3] is None for request in storage))
            self.assertNotIn(TOKEN, outcome.stdout + outcome.stderr)

    def test_the_token_does_not_follow_a_redirect_to_another_port(self):
        with FakeHub(small_repo(), token=TOKEN) as hub, FakeHub(small_repo()) as other:
            hub.redirect_to = other.endpoint
            self.pull(hub, "--attempts", "2", env={"HF_TOKEN": TOKEN}, expect=NOT_FOUND)
            self.assertTrue(other.requests)
            self.assertTrue(all(request[3] is None for request in other.requests))

    def test_the_token_does_not_go_to_a_target_of_another_host(self):
        with FakeHub(small_repo()) as hub, FakeHub(small_repo()) as other:
            self.pull(hub, repo=other.endpoint + "/acme/tiny", env={"HF_TOKEN": TOKEN})
            self.assertEqual(hub.requests, [])
            self.assertTrue(all(request[3] is None for request in other.requests))

    def test_the_token_is_read_from_its_file(self):
        with FakeHub(small_repo(), token=TOKEN) as hub:
            (self.home / "token").write_text(TOKEN + "\n")
            self.pull(hub)
            named = self.home / "named"
            named.write_text("wrong")
            self.pull(hub, env={"HF_TOKEN_PATH": str(named)}, expect=NOT_FOUND)
            self.pull(hub, env={"HF_TOKEN_PATH": str(self.home / "absent")}, expect=USAGE)

    def test_a_token_cannot_forge_headers(self):
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub, env={"HF_TOKEN": "good\r\nX-Evil: 1"}, expect=USAGE)
            self.assertEqual(hub.requests, [])
            self.assertNotIn("X-Evil", outcome.stderr)

    def test_refusals_have_their_own_exit_codes(self):
        with FakeHub(small_repo(), token=TOKEN) as hub:
            outcome = self.pull(hub, expect=NOT_FOUND)
            self.assertIn("does not exist or is private", outcome.stderr)
            self.assertIn("HF_TOKEN", outcome.stderr)
        with FakeHub(small_repo(), token=TOKEN, gated=True) as hub:
            outcome = self.pull(hub, env={"HF_TOKEN": "hf_other"}, expect=DENIED)
            self.assertIn("gated", outcome.stderr)
            self.assertIn("Access is restricted.", outcome.stderr)
            self.assertNotIn("hf_other", outcome.stderr)
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub, repo="acme/tiny@nowhere", expect=NOT_FOUND)
            self.assertIn("Invalid rev id: nowhere", outcome.stderr)
            self.pull(hub, repo="acme", expect=NOT_FOUND)
            self.pull(hub, repo="../../etc", expect=USAGE)

    def test_an_endpoint_that_is_not_there_is_a_network_failure(self):
        with FakeHub() as hub:
            endpoint = hub.endpoint
        hub.__dict__["hub"] = None
        outcome = self.finish(subprocess.Popen(
            [os.environ["NIBBLE_BINARY"], "pull", "acme/tiny", "--retry-delay-ms", "1", "--attempts", "3"],
            env={"HOME": str(self.home), "HF_ENDPOINT": endpoint}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True))
        self.assertEqual(outcome.returncode, UNAVAILABLE, outcome.stderr)
        self.assertIn("Gave up after 3 attempts", outcome.stderr)


class BadNetwork(HubTest):
    def assert_survives(self, faults, *arguments):
        with FakeHub(small_repo(), faults=faults) as hub:
            outcome = self.pull(hub, *arguments)
            self.assert_complete(hub)
            return hub, outcome

    def test_connections_cut_at_random_bytes(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                self.assert_survives(Faults(seed, cut=0.6), "--attempts", "40")
                self.setUp()

    def test_busy_servers(self):
        self.assert_survives(Faults(1, status={429: 0.15, 500: 0.1, 503: 0.05, 408: 0.05},
                                    hub_status={429: 0.2, 502: 0.2}), "--attempts", "40")

    def test_retry_after_is_honoured(self):
        faults = Faults(1, status={429: 1.0}, retry_after=100000)
        with FakeHub(small_repo(), faults=faults) as hub:
            outcome = self.pull(hub, expect=UNAVAILABLE)
            self.assertIn("The server asks to wait 100000 s", outcome.stderr)
            self.assertNotIn("signature", outcome.stderr)

    def test_stalled_connections_are_cut(self):
        self.assert_survives(Faults(1, stall_first=3), "--stall-timeout", "1")

    def test_a_slow_trickle_arrives(self):
        self.assert_survives(Faults(1, slow_pieces=20, slow_seconds=0.01))

    def test_servers_without_ranges(self):
        self.assert_survives(Faults(1, ignore_ranges=True))

    def test_servers_without_ranges_that_cut(self):
        self.assert_survives(Faults(3, ignore_ranges=True, cut=0.5), "--attempts", "60")

    def test_signatures_that_expire(self):
        self.assert_survives(Faults(1, expire_after=1))

    def test_wrong_lengths_now_and_then(self):
        self.assert_survives(Faults(1, wrong_length=0.4), "--attempts", "40")

    def test_etags_that_change_now_and_then(self):
        self.assert_survives(Faults(1, changed_etag=0.4), "--attempts", "40")

    def test_a_wrong_byte_starts_the_file_again(self):
        faults = Faults(1)
        files = small_repo()
        with FakeHub(files, faults=faults) as hub:
            remaining = [1]

            def happens(probability):
                if probability == 0.5 and remaining:
                    remaining.pop()
                    return True
                return False
            faults.wrong_byte = 0.5
            faults.happens = happens
            outcome = self.pull(hub)
            self.assertIn("wrong bytes", outcome.stderr)
            self.assert_complete(hub)

    def test_lasting_faults_end_in_a_clear_message_and_a_state_that_resumes(self):
        cases = [
            (dict(wrong_byte_always=True), DATA_LOSS, "wrong bytes: hash"),
            (dict(wrong_length=1.0), DATA_LOSS, "wrong length"),
            (dict(hub_etag="f" * 64), DATA_LOSS, "changed on the hub"),
            (dict(status={503: 1.0}), UNAVAILABLE, "HTTP 503"),
            (dict(status={404: 1.0}), NOT_FOUND, "HTTP 404"),
            (dict(status={403: 1.0}), DENIED, "HTTP 403"),
            (dict(hub_status={500: 1.0}), UNAVAILABLE, "HTTP 500"),
        ]
        for settings, code, text in cases:
            with self.subTest(text=text):
                self.setUp()
                with FakeHub(small_repo(), faults=Faults(1, **settings)) as hub:
                    outcome = self.pull(hub, "--attempts", "3", expect=code)
                    self.assertIn(text, outcome.stderr)
                    self.assertFalse((self.root / "refs" / "main").exists())
                    self.assertFalse((self.root / "snapshots" / hub.commit).exists())
                    if (self.root / "blobs").exists():
                        self.assert_only_right_blobs(hub)
                with FakeHub(small_repo()) as hub:
                    self.pull(hub)
                    self.assert_complete(hub)

    def test_what_arrived_before_a_failure_is_not_fetched_again(self):
        with FakeHub(small_repo(), faults=Faults(1, stop_after_bytes=4 * BLOCK + 77)) as hub:
            self.pull(hub, "--connections", "2", "--attempts", "2", expect=UNAVAILABLE)
            sent = hub.body_bytes
            self.assertGreaterEqual(sent, 4 * BLOCK + 77)
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub)
            self.assert_complete(hub)
            total = sum(len(file.data) for file in hub.files.values())
            self.assertLessEqual(hub.body_bytes, total - sent + 2 * BLOCK)  # an unfinished block of each connection
            self.assertIn("from an earlier attempt", outcome.stderr)

    def test_an_interrupt_keeps_what_arrived(self):
        with FakeHub(small_repo(), faults=Faults(1, throttle=2_000_000)) as hub:
            process = self.start(hub)
            wait_for_bytes(hub, 3 * BLOCK)
            process.send_signal(signal.SIGINT)
            outcome = self.finish(process)
            self.assertEqual(outcome.returncode, INTERRUPTED, outcome.stderr)
            hub.faults.throttle = 0
            self.pull(hub)
            self.assert_complete(hub)


class HostileNames(HubTest):
    def test_names_that_leave_the_snapshot_are_refused(self):
        for name in ["../evil", "a/../../evil", "/etc/evil", "a\\..\\evil", "a//b", ".", "a/./b", "nul\u0000byte",
                     "line\nbreak", "x" * 300, ""]:
            with self.subTest(name=name):
                entry = {"type": "file", "path": name, "size": 3, "oid": "a" * 40}
                with FakeHub(small_repo(), extra_entries=[entry]) as hub:
                    outcome = self.pull(hub, expect=DATA_LOSS)
                    self.assertIn("refused", outcome.stderr)
                    self.assertFalse(self.root.exists())

    def test_names_of_blobs_must_be_hashes(self):
        for oid in ["../../evil", "A" * 40, "a" * 39, "", None]:
            with self.subTest(oid=oid):
                entry = {"type": "file", "path": "x", "size": 3, "oid": oid}
                with FakeHub(small_repo(), extra_entries=[entry]) as hub:
                    self.pull(hub, expect=DATA_LOSS)
                    self.assertFalse(self.root.exists())

    def test_a_name_cannot_be_a_file_and_a_directory(self):
        for name in ["config.json", "config.json/below"]:
            entry = {"type": "file", "path": name, "size": 3, "oid": "a" * 40}
            with FakeHub(small_repo(), extra_entries=[entry]) as hub:
                self.pull(hub, expect=DATA_LOSS)

    def test_links_inside_the_cache_do_not_lead_out(self):
        outside = self.home / "outside"
        outside.mkdir()
        with FakeHub(small_repo()) as hub:
            snapshot = self.root / "snapshots" / hub.commit
            snapshot.mkdir(parents=True)
            (snapshot / "sub").symlink_to(outside)
            self.pull(hub, expect=EXHAUSTED)
            self.assertEqual(list(outside.iterdir()), [])


class Disk(HubTest):
    def mount(self, size):
        point = pathlib.Path(tempfile.mkdtemp(prefix="nibble-disk-"))
        self.addCleanup(point.rmdir)
        command = ["mount", "-t", "tmpfs", "-o", "size=%d" % size, "tmpfs", str(point)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            print("\n*** SKIPPED: a full disk is not tested, because mounting a tmpfs is not permitted here ***")
            self.skipTest("mounting a tmpfs is not permitted")
        self.addCleanup(subprocess.run, ["umount", "-l", str(point)], check=True)
        return point

    def test_too_little_room_is_said_before_the_first_byte(self):
        point = self.mount(6 * BLOCK)
        other = point / "models--old--model" / "blobs"
        other.mkdir(parents=True)
        (other / ("b" * 64)).write_bytes(b"x" * BLOCK)
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub, env={"HF_HUB_CACHE": str(point)}, expect=EXHAUSTED)
            self.assertEqual(self.storage_requests(hub), [])
            self.assertRegex(outcome.stderr, r"needs [0-9.]+ MB more on the disk of .* of which [0-9.]+ MB are free")
            self.assertIn("1.0 MB in %s" % other.parent, outcome.stderr)

    def test_a_disk_that_fills_up_on_the_way(self):
        point = self.mount(12 * BLOCK)
        with FakeHub(small_repo(), faults=Faults(1, throttle=4_000_000)) as hub:
            process = self.start(hub, "--connections", "2", env={"HF_HUB_CACHE": str(point)})
            wait_for_bytes(hub, BLOCK)
            filler = point / "filler"
            with filler.open("wb") as file:
                try:
                    while True:
                        file.write(b"x" * 65536)
                        file.flush()
                except OSError:
                    pass
            outcome = self.finish(process)
            self.assertEqual(outcome.returncode, EXHAUSTED, outcome.stderr)
            self.assertIn("No space left on device", outcome.stderr)
            self.assertIn("Free space and run the same command again", outcome.stderr)
            filler.unlink()
            hub.faults.throttle = 0
            self.root = point / "models--acme--tiny"
            self.cache = point
            self.pull(hub, env={"HF_HUB_CACHE": str(point)})
            self.assert_complete(hub)

    def test_the_limit_of_file_sizes(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 * BLOCK, 4 * BLOCK))
        with FakeHub(small_repo()) as hub:
            outcome = self.pull(hub, preexec_fn=limit, expect=EXHAUSTED)
            self.assertIn("takes files of at most 4.2 MB", outcome.stderr)
            self.assertEqual(self.storage_requests(hub), [])


class Verify(HubTest):
    def pulled(self):
        hub = self.enterContext(FakeHub(small_repo()))
        self.pull(hub)
        return hub, self.root / "blobs" / hub.files["model-00001-of-00002.safetensors"].etag

    def damage(self, blob, offset):
        with blob.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1]))

    def test_only_damaged_blocks_are_fetched_and_the_old_blob_is_replaced(self):
        hub, blob = self.pulled()
        self.damage(blob, 2 * BLOCK + 5)
        self.damage(blob, 5 * BLOCK + 1)
        inode = blob.stat().st_ino
        reader = blob.open("rb")
        before = reader.read()
        sent = hub.body_bytes
        outcome = self.pull(hub, "--verify")
        self.assertIn("2 of 6 blocks of 1 MiB damaged", outcome.stderr)
        self.assertIn("repaired", outcome.stderr)
        self.assertEqual(hub.body_bytes - sent, BLOCK + 4321)
        self.assertNotEqual(blob.stat().st_ino, inode)
        reader.seek(0)
        self.assertEqual(reader.read(), before)  # a running reader sees no change
        reader.close()
        self.assert_complete(hub)

    def test_a_truncated_blob_is_completed(self):
        hub, blob = self.pulled()
        os.truncate(blob, 3 * BLOCK + 100)
        sent = hub.body_bytes
        self.pull(hub, "--verify")
        self.assertEqual(hub.body_bytes - sent, 2 * BLOCK + 4321)
        self.assert_complete(hub)

    def test_a_blob_of_another_size_is_noticed_without_reading(self):
        hub, blob = self.pulled()
        with blob.open("ab") as file:
            file.write(b"more")
        self.pull(hub)
        self.assert_complete(hub)

    def test_without_a_record_the_whole_file_is_fetched(self):
        hub, blob = self.pulled()
        self.damage(blob, 17)
        (self.root / ".nibble" / (blob.name + ".json")).unlink()
        sent = hub.body_bytes
        self.pull(hub, "--verify")
        self.assertEqual(hub.body_bytes - sent, 5 * BLOCK + 4321)
        self.assert_complete(hub)

    def test_a_record_that_lies_cannot_spoil_the_repair(self):
        hub, blob = self.pulled()
        record = self.root / ".nibble" / (blob.name + ".json")
        text = record.read_text()
        self.damage(blob, 17)
        at = text.index('"blocks": "') + 11
        record.write_text(text[:at] + "0" * 16 + text[at + 16:])
        self.pull(hub, "--verify")
        self.assert_complete(hub)

    def test_programs_that_run_a_model_compare_samples_with_the_record(self):
        with FakeHub(tiny_model()) as hub:
            snapshot = self.pull(hub).snapshot
            command = [NIBBLE, "logits", str(snapshot), "--ids", "0,5", "--output", str(self.home / "logits")]
            subprocess.run(command, check=True, capture_output=True)
            blob = (snapshot / "model-00002-of-00003.safetensors").resolve()
            data = blob.read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            blob.write_bytes(data[:begin] + bytes(byte ^ 1 for byte in data[begin:]))
            run = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(run.returncode, DATA_LOSS, run.stderr)
            self.assertIn("changed since it was downloaded and verified", run.stderr)
            self.pull(hub, "--verify")
            subprocess.run(command, check=True, capture_output=True)

    def test_nothing_is_fetched_when_all_is_well(self):
        hub, _ = self.pulled()
        sent = hub.body_bytes
        self.assertEqual(self.pull(hub, "--verify").received_bytes(), 0)
        self.assertEqual(hub.body_bytes, sent)


def wait_for_bytes(hub, count):
    """Returns once the hub has sent that much; the caller's process is still running then."""
    import time
    deadline = time.monotonic() + 60
    while hub.body_bytes < count:
        assert time.monotonic() < deadline, "the transfer does not get on"
        time.sleep(0.001)


if __name__ == "__main__":
    unittest.main()
