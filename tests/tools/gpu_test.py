"""tools/gpu without a GPU: stand-ins for nvidia-smi, the sanitizer and the programs, and lines as programs print them."""
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOLS))
import gpu_goals  # noqa: E402

FACTS = "NVIDIA H200, 580.1, 1980 MHz, 3201 MHz, 400.00 W, 50"


def bench_line(what, tokens, num_bytes, us):
    return {"what": what, "tokens": tokens, "bytes": num_bytes, "us": us, "us_low": us * 0.9, "us_high": us * 1.25, "roof_tb_per_s": 4.0}


class Goals(unittest.TestCase):
    def row(self, lines, what):
        return next(row for row in gpu_goals.table(lines) if row.startswith(f"| {what} |")).split(" | ")

    def test_shares_are_of_the_first_read_stream_and_peers_stand_beside(self):
        lines = [{"what": "stream_read", "roof_tb_per_s": 4.0}, bench_line("mxfp4_experts_t1_", 1, 80e6, 25.0),
                 {**bench_line("triton mxfp4 experts fc1", 1, 50e6, 125.0), "roof_tb_per_s": 1.0},
                 {"what": "torch grouped bf16 experts", "note": "not installed"}]
        self.assertEqual(self.row(lines, "MXFP4 experts, T=1")[2:],
                         ["80.0 (64.0 to 88.9)", "70", "80", "aim met",
                          "triton mxfp4 experts fc1: 10.0; torch grouped bf16 experts: not installed |"])

    def test_says_by_how_much_a_bound_is_missed(self):
        lines = [bench_line("attention_fp8_128+512_ahead_keys", 1, 1, 5.8), bench_line("attention_bf16_128+512_ahead_keys", 1, 1, 5.0)]
        self.assertEqual(self.row(lines, "sparse MLA T=1, FP8 keys, all early")[2:6], ["5.80 (5.22 to 7.25)", "5.5", "4.5", "must missed by 0.3"])
        self.assertEqual(self.row(lines, "sparse MLA T=1, BF16 keys, all early")[5], "aim missed by 0.5")

    def test_other_formats_are_held_against_mxfp4(self):
        lines = [bench_line("mxfp4_experts_t16_", 16, 80e6, 25.0), bench_line("nvfp4_experts_t16_", 16, 80e6, 27.0),
                 bench_line("int4_g32_experts_t16_", 16, 80e6, 26.0)]
        self.assertEqual(self.row(lines, "NVFP4 experts, T=16")[5], "5.9 points behind MXFP4 (must 5)")
        self.assertEqual(self.row(lines, "INT4_G32 experts, T=16")[5], "within 5 points")

    def test_what_did_not_run_is_named(self):
        self.assertIn("not measured", self.row([], "load from page cache"))

    def test_steps_prefill_and_load(self):
        us = {"median": 100.0, "low": 80.0, "high": 125.0}
        lines = [{"bench": "decode", "rows": [{"batch": 16, "us": us, "share_of_floor": 0.79}]}, {"bench": "prefill", "us": us, "mfu": 0.46},
                 *({"what": "load, mxfp4", "gb_per_s": rate} for rate in (33.0, 31.0, 32.0))]
        self.assertEqual(self.row(lines, "8-layer decode, T=16")[2:6], ["79.0 (63.2 to 98.8)", "70", "80", "aim missed by 1.0"])
        self.assertEqual(self.row(lines, "prefill in 2K chunks")[2:6], ["46.0 (36.8 to 57.5)", "35", "45", "aim met"])
        self.assertEqual(self.row(lines, "load from page cache")[2:6], ["32.0 (31.0 to 33.0)", "12", "20", "aim met"])


class Phases(unittest.TestCase):
    """A tree with tools/gpu and a staged program that lists its tests, or says which shard it is."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(TOOLS, self.root / "tools")
        stage = self.root / "build" / "gpu-stage"
        (self.root / "build" / "gpu").mkdir(parents=True)
        (self.root / "build" / "gpu" / "stage.tar.xz").touch()
        os.utime(self.root / "build" / "gpu" / "stage.tar.xz", (0, 0))
        stage.mkdir(parents=True)
        (stage / "commit").write_text("abc")
        program = ('case "$*" in *list_tests*) printf "Suite.\\n  A\\n  B\\n";; '
                   '*) echo "{\\"shard\\": \\"$GTEST_SHARD_INDEX/$GTEST_TOTAL_SHARDS\\"}";; esac')
        for name in ("cuda_test", "cuda_test_racecheck"):
            self.script(stage / name, program)
        self.script(self.root / "bin" / "nvidia-smi", f'case "$*" in *loop*) echo "1980 MHz, 3201 MHz, 400 W, 50, 0x1"; exec sleep 60;; *) echo "{FACTS}";; esac')
        self.script(self.root / "bin" / "compute-sanitizer", 'for last; do :; done; while [ "$1" != --error-exitcode ]; do shift; done; shift 2; exec "$@"')

    def script(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_phase(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        run = subprocess.run([sys.executable, self.root / "tools" / "gpu", "run", *arguments, "--out", self.root / "out"],
                             capture_output=True, text=True, env=environment)
        return run, [json.loads(line) for line in (self.root / "out" / f"{arguments[0]}.jsonl").read_text().splitlines()]

    def test_no_shard_is_without_tests(self):
        run, lines = self.run_phase("sanitize")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        shards = sorted(line["shard"] for line in lines if "shard" in line)
        self.assertEqual(shards, ["0/1", "0/2", "0/2", "0/2", "1/2", "1/2", "1/2"])

    def test_the_limit_is_that_of_the_phase(self):
        tool = self.root / "tools" / "gpu"
        tool.write_text(tool.read_text().replace("PHASE_LIMIT_S = 540", "PHASE_LIMIT_S = 0"))
        run, lines = self.run_phase("correctness")
        self.assertEqual(run.returncode, 1)
        self.assertIn("not run: the phase's 0 s are spent", run.stdout)
        self.assertEqual(lines[-2]["exit"], 124)

    def test_clocks_are_those_during_the_run(self):
        _, lines = self.run_phase("correctness")
        self.assertIn("during", lines[-1])


if __name__ == "__main__":
    unittest.main()
