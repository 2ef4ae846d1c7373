"""Several processes on one cache, and processes that die at any byte.

NIBBLE_KILL_RUNS (default 20) is the number of seeded kills.
"""
import os
import random
import signal
import time
import unittest

from fake_hub import FakeHub, Faults
from hub_testing import BLOCK, HubTest, small_repo

KILL_RUNS = int(os.environ.get("NIBBLE_KILL_RUNS", "20"))


class TwoAtOnce(HubTest):
    def test_processes_share_the_work_and_agree(self):
        with FakeHub(small_repo(), faults=Faults(1, throttle=8_000_000)) as hub:
            processes = [self.start(hub) for _ in range(3)]
            outcomes = [self.finish(process) for process in processes]
            self.assertEqual([outcome.returncode for outcome in outcomes], [0, 0, 0],
                             "".join(outcome.stderr for outcome in outcomes))
            self.assert_complete(hub)
            # Nothing was fetched twice.
            self.assertEqual(hub.body_bytes, sum(len(file.data) for file in hub.files.values()))

    def test_a_waiting_process_says_for_whom(self):
        with FakeHub(small_repo(), faults=Faults(1, throttle=32_000)) as hub:
            first = self.start(hub)
            while hub.body_bytes < 100_000:
                time.sleep(0.001)
            second = self.start(hub)
            self.assertIn("waiting for process %d on " % first.pid, second.stderr.readline())
            hub.faults.throttle = 0
            self.assertEqual(self.finish(second).returncode, 0)
            self.assertEqual(self.finish(first).returncode, 0)

    def test_other_tools_lock_the_same_files(self):
        import fcntl
        with FakeHub(small_repo()) as hub:
            etag = hub.files["config.json"].etag
            lock = self.cache / ".locks" / "models--acme--tiny" / (etag + ".lock")
            lock.parent.mkdir(parents=True)
            with lock.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                process = self.start(hub)
                while sum(1 for request in hub.requests if "/resolve/" in request[1]) < 2:
                    time.sleep(0.001)
                self.assertIsNone(process.poll())
            self.assertEqual(self.finish(process).returncode, 0)
            self.assertTrue(all("config.json" not in request[1] or request[4] == 206 for request in hub.requests))
            self.assert_complete(hub)


class Killed(HubTest):
    def test_the_end_is_always_a_verified_snapshot(self):
        for seed in range(KILL_RUNS):
            with self.subTest(seed=seed):
                self.setUp()
                self.kill_and_resume(random.Random(seed))

    def kill_and_resume(self, draw):
        faults = Faults(draw.random(), throttle=60_000_000, cut=draw.choice([0.0, 0.2]))
        with FakeHub(small_repo(), faults=faults) as hub:
            total = sum(len(file.data) for file in hub.files.values())
            for _ in range(draw.randrange(1, 4)):
                self.kill_after(hub, draw.randrange(total + BLOCK))
                if (self.root / "blobs").exists():
                    self.assert_only_right_blobs(hub)
            faults.throttle = 0
            self.pull(hub, "--attempts", "40")
            self.assert_complete(hub)
            self.pull(hub, "--verify")

    def kill_after(self, hub, count):
        """Kills a pull once it was sent `count` more bytes; one that ends before has done its work."""
        target = hub.body_bytes + count
        process = self.start(hub, "--attempts", "40")
        while hub.body_bytes < target and process.poll() is None:
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertIn(process.returncode, (0, -signal.SIGKILL))


if __name__ == "__main__":
    unittest.main()
