"""The cache of `nibble pull` and that of huggingface_hub are one: each reads what the other wrote."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hub"))
from fake_hub import FakeHub  # noqa: E402
from hub_testing import small_repo  # noqa: E402

PROGRAM = os.environ["NIBBLE_PROGRAM"]
REPO = "acme/tiny"


@pytest.fixture
def hub():
    with FakeHub(small_repo()) as running:
        yield running


@pytest.fixture
def environment(hub, tmp_path):
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def pull(environment, *arguments, **more):
    run = subprocess.run([PROGRAM, "pull", REPO, *arguments], env=environment | more, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return pathlib.Path(run.stdout.strip())


def snapshot_download(environment, **more):
    """In a process of its own: the library reads its environment once."""
    code = "import huggingface_hub as h; print(h.snapshot_download(%r))" % REPO
    run = subprocess.run([sys.executable, "-c", code], env=environment | more, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return pathlib.Path(run.stdout.strip())


def assert_has_all(snapshot, hub):
    for file in hub.files.values():
        assert (snapshot / file.path).read_bytes() == file.data, file.path


def test_huggingface_hub_reads_what_pull_wrote(hub, environment):
    snapshot = pull(environment)
    sent = hub.body_bytes
    assert snapshot_download(environment) == snapshot
    assert snapshot_download(environment, HF_HUB_OFFLINE="1") == snapshot
    assert hub.body_bytes == sent
    assert_has_all(snapshot, hub)


def test_pull_uses_what_huggingface_hub_wrote(hub, environment):
    snapshot = snapshot_download(environment)
    sent = hub.body_bytes
    assert pull(environment) == snapshot
    assert pull(environment, "--verify", HF_HUB_OFFLINE="1") == snapshot
    assert hub.body_bytes == sent
    assert_has_all(snapshot, hub)


def test_pull_repairs_what_huggingface_hub_wrote(hub, environment):
    snapshot = snapshot_download(environment)
    blob = (snapshot / "model-00001-of-00002.safetensors").resolve()
    blob.write_bytes(b"x" * blob.stat().st_size)
    pull(environment, "--verify")
    assert_has_all(snapshot, hub)
    assert snapshot_download(environment, HF_HUB_OFFLINE="1") == snapshot


def test_hard_links_are_read_as_well(hub, environment):
    snapshot = pull(environment, HF_HUB_DISABLE_SYMLINKS="1")
    sent = hub.body_bytes
    assert snapshot_download(environment) == snapshot
    assert hub.body_bytes == sent
    assert_has_all(snapshot, hub)


def test_pull_uses_what_huggingface_hub_wrote_without_links(hub, environment):
    snapshot = snapshot_download(environment, HF_HUB_DISABLE_SYMLINKS="1")
    assert not any(path.is_symlink() for path in snapshot.rglob("*"))
    sent = hub.body_bytes
    assert pull(environment) == snapshot
    assert hub.body_bytes == sent
    assert_has_all(snapshot, hub)
    assert pull(environment, "--verify", HF_HUB_OFFLINE="1") == snapshot


def test_pull_repairs_what_huggingface_hub_wrote_without_links(hub, environment):
    snapshot = snapshot_download(environment, HF_HUB_DISABLE_SYMLINKS="1")
    shard = snapshot / "model-00001-of-00002.safetensors"
    shard.write_bytes(b"x" * shard.stat().st_size)
    pull(environment)
    assert_has_all(snapshot, hub)


def test_an_unfinished_pull_does_not_mislead_huggingface_hub(hub, environment):
    hub.faults.stop_after_bytes = 2 << 20
    run = subprocess.run([PROGRAM, "pull", REPO, "--attempts", "1"], env=environment, capture_output=True)
    assert run.returncode == 7
    hub.faults.stop_after_bytes = None
    snapshot = snapshot_download(environment)
    assert_has_all(snapshot, hub)
    assert pull(environment, "--verify") == snapshot
    assert list((snapshot.parents[1] / "blobs").glob("*incomplete")) == []


def test_the_library_lists_the_cache(hub, environment):
    pull(environment)
    code = ("import huggingface_hub as h; i = h.scan_cache_dir(); r, = i.repos;"
            "print(r.repo_id, r.nb_files, len(i.warnings), [v.commit_hash for v in r.revisions] == [%r])" % hub.commit)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.stdout == "%s %d 0 True\n" % (REPO, len(hub.files)), run.stderr
