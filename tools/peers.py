#!/usr/bin/env python3
"""Times what other programs make of the products and selections that Nibble benchmarks, on a GPU.

  tools/peers.py [--tokens 1,16,64] [--repeats 15] [PART OF A NAME]...

PyTorch: dense products in BF16 and FP8, grouped BF16 products of experts, attention over gathered keys, topk. Triton: a
BF16 product, MXFP4 experts and attention over gathered keys by its compiler. One JSON line each, in the form of the GPU benchmarks; a peer that is not there says "not installed". The read
stream of the same run is the first line. Launches are replayed in a CUDA graph; weights are rotated beyond the cache.
"""
import argparse
import json
import statistics

GRAPH_LAUNCHES = 32
COLD_BYTES = 320 << 20
PRODUCTS = {"wq_b": (32768, 1024), "wo_b": (4096, 8192), "shared_w13": (4096, 4096), "shared_w2": (4096, 2048),
            "head": (129280, 4096)}


def absent(name, why="not installed"):
    print(json.dumps({"what": name, "note": why}), flush=True)


def triton_for(name):
    """Triton and its language; says of the measurement `name` that they are not there."""
    try:
        import triton
        import triton.language
    except ImportError:
        absent(name)
        return None, None
    return triton, triton.language


class Run:
    def __init__(self, torch, arguments):
        self.torch = torch
        self.arguments = arguments
        self.roof = None

    def wants(self, name):
        return not self.arguments.names or any(part in name for part in self.arguments.names)

    def time_us(self, calls):
        """Microseconds of one call: a graph of all of them, over their number."""
        torch = self.torch
        torch.cuda.synchronize()  # what the calls read was made on another stream
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for call in calls[:3]:
                call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        times = []
        for repeat in range(self.arguments.repeats + 3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if repeat >= 3:
                times.append(begin.elapsed_time(end) * 1e3 / len(calls))
        return times

    def report(self, name, tokens, num_bytes, flops, calls):
        if not self.wants(name):
            return
        try:
            times = self.time_us(calls)
        except Exception as fault:  # a peer that refuses a shape is a result, too
            absent(name, f"{type(fault).__name__}: {str(fault).splitlines()[0][:160]}")
            return
        us = statistics.median(times)
        rate = num_bytes / us * 1e-6
        if self.roof is None:
            self.roof = rate
        print(json.dumps({"what": name, "tokens": tokens, "bytes": num_bytes, "us": round(us, 2),
                          "us_low": round(min(times), 2), "us_high": round(max(times), 2),
                          "tb_per_s": round(rate, 3), "roof_tb_per_s": round(self.roof, 3),
                          "share": round(rate / self.roof, 3), "tflops": round(flops / us * 1e-6, 1)}), flush=True)

    def rotated(self, make, num_bytes):
        """Enough copies that none is in a cache when its turn comes."""
        return [make() for _ in range(max(2, min(GRAPH_LAUNCHES, COLD_BYTES // num_bytes + 1)))]


def read_stream(run):
    torch = run.torch
    data = torch.ones(1 << 30, dtype=torch.int8, device="cuda").view(torch.int64)
    names, run.arguments.names = run.arguments.names, []
    run.report("torch sum of 1 GB", 0, data.numel() * 8, 0, [lambda: torch.sum(data)])
    run.arguments.names = names


def dense_bf16(run, tokens):
    torch = run.torch
    for name, (n, k) in PRODUCTS.items():
        weights = run.rotated(lambda: torch.randn(n, k, device="cuda", dtype=torch.bfloat16), n * k * 2)
        x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
        calls = [lambda w=w: torch.nn.functional.linear(x, w) for w in weights]
        run.report(f"torch bf16 {name}", tokens, 2 * (n * k + tokens * (n + k)), 2 * tokens * n * k, calls)


def dense_fp8(run, tokens):
    torch = run.torch
    rows = max(tokens, 16)  # the least that it takes
    one = torch.ones((), device="cuda")
    for name, (n, k) in PRODUCTS.items():
        weights = run.rotated(lambda: torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn), n * k)
        x = torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)
        calls = [lambda w=w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
                 for w in weights]
        run.report(f"torch fp8 {name}", tokens, n * k + rows * (2 * n + k), 2 * rows * n * k, calls)


def experts_bf16(run, tokens):
    torch = run.torch
    if not hasattr(torch, "_grouped_mm"):
        absent("torch grouped bf16 experts", "this PyTorch has no _grouped_mm")
        return
    experts, choices, n, k = 64, 6, 4096, 4096
    weights = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(0, experts, (tokens * choices,), device="cuda").sort().values
    counts = torch.bincount(ids, minlength=experts)
    ends = torch.cumsum(counts, 0).to(torch.int32)
    x = torch.randn(tokens * choices, k, device="cuda", dtype=torch.bfloat16)
    used = int((counts > 0).sum())
    call = lambda: torch._grouped_mm(x, weights.transpose(1, 2), offs=ends)
    run.report(f"torch grouped bf16 experts ({used} of {experts} used)", tokens,
               2 * (used * n * k + tokens * choices * (n + k)), 2 * tokens * choices * n * k, [call] * 8)


def selection(run):
    torch = run.torch
    for entries in (4096, 65536, 262144):
        rows = run.rotated(lambda: torch.randn(1, entries, device="cuda"), entries * 4)
        run.report(f"torch topk 512 of {entries}", 1, entries * 4, 0,
                   [lambda r=r: torch.topk(r, 512, sorted=False) for r in rows])


def triton_product(run, tokens):
    triton, tl = triton_for("triton bf16 product")
    if triton is None:
        return
    torch = run.torch

    @triton.jit
    def product(x, w, y, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
        rows = tl.arange(0, bm)
        columns = tl.program_id(0) * bn + tl.arange(0, bn)
        total = tl.zeros((bm, bn), dtype=tl.float32)
        for begin in range(0, k, bk):
            at = begin + tl.arange(0, bk)
            a = tl.load(x + rows[:, None] * k + at[None, :], mask=rows[:, None] < m, other=0.0)
            b = tl.load(w + columns[None, :] * k + at[:, None])
            total = tl.dot(a, b, total)
        tl.store(y + rows[:, None] * n + columns[None, :], total.to(tl.bfloat16), mask=rows[:, None] < m)

    block = max(16, 1 << (tokens - 1).bit_length())
    if block > 64:
        return
    for name, (n, k) in PRODUCTS.items():
        weights = run.rotated(lambda: torch.randn(n, k, device="cuda", dtype=torch.bfloat16), n * k * 2)
        x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
        y = torch.empty(tokens, n, device="cuda", dtype=torch.bfloat16)
        calls = [lambda w=w: product[(n // 32,)](x, w, y, tokens, n, k, block, 32, 128) for w in weights]
        run.report(f"triton bf16 {name}", tokens, 2 * (n * k + tokens * (n + k)), 2 * tokens * n * k, calls)


def attention_inputs(run, tokens):
    """Queries [tokens, 64, 512], and per call a pool of keys and 640 rows of it for each token."""
    torch = run.torch
    q = torch.randn(tokens, 64, 512, device="cuda", dtype=torch.bfloat16)
    pool = torch.randn(1 << 20, 512, device="cuda", dtype=torch.bfloat16)
    rows = [torch.randint(0, pool.shape[0], (tokens, 640), device="cuda", dtype=torch.int32) for _ in range(8)]
    return q, pool, rows, 1024 * tokens * (640 + 2 * 64), 4 * 512 * 640 * 64 * tokens


def attention_torch(run, tokens):
    torch = run.torch
    name = "torch attention 640 keys"
    if not run.wants(name):
        return
    q, pool, rows, num_bytes, flops = attention_inputs(run, tokens)

    def attend(at):
        keys = pool.index_select(0, at.view(-1)).view(tokens, 1, 640, 512)
        return torch.nn.functional.scaled_dot_product_attention(q.view(tokens, 1, 64, 512), keys, keys)

    run.report(name, tokens, num_bytes, flops, [lambda at=at: attend(at) for at in rows])


def attention_triton(run, tokens):
    name = "triton attention 640 keys"
    if not run.wants(name):
        return
    triton, tl = triton_for(name)
    if triton is None:
        return
    torch = run.torch

    @triton.jit
    def attend(q, pool, rows, y, scale, count: tl.constexpr, heads: tl.constexpr, bk: tl.constexpr):
        token = tl.program_id(0)
        head = tl.program_id(1) * heads + tl.arange(0, heads)
        column = tl.arange(0, 512)
        at = (token * 64 + head)[:, None] * 512 + column[None, :]
        queries = tl.load(q + at)
        most = tl.full((heads,), float("-inf"), tl.float32)
        total = tl.zeros((heads,), tl.float32)
        out = tl.zeros((heads, 512), tl.float32)
        for begin in range(0, count, bk):
            row = tl.load(rows + token * count + begin + tl.arange(0, bk)).to(tl.int64)
            keys = tl.load(pool + row[:, None] * 512 + column[None, :])
            logits = tl.dot(queries, tl.trans(keys)) * scale
            new_most = tl.maximum(most, tl.max(logits, 1))
            weights = tl.exp2(logits - new_most[:, None])
            factor = tl.exp2(most - new_most)
            total = total * factor + tl.sum(weights, 1)
            out = tl.dot(weights.to(tl.bfloat16), keys, out * factor[:, None])
            most = new_most
        tl.store(y + at, (out / total[:, None]).to(tl.bfloat16))

    q, pool, rows, num_bytes, flops = attention_inputs(run, tokens)
    y = torch.empty_like(q)
    scale = 1.4426950408889634 / 512 ** 0.5
    calls = [lambda at=at: attend[(tokens, 4)](q, pool, at, y, scale, 640, 16, 32, num_warps=4, num_stages=2) for at in rows]
    run.report(name, tokens, num_bytes, flops, calls)


def experts_triton(run, tokens):
    """The first product of 256 MXFP4 experts of Flash: 4,096 rows of 4,096, codes in two nibbles, a scale for 32."""
    name = "triton mxfp4 experts fc1"
    if not run.wants(name):
        return
    triton, tl = triton_for(name)
    if triton is None:
        return
    torch = run.torch

    @triton.jit
    def decoded(code, scale):
        exponent = (code >> 1) & 3
        magnitude = tl.where(exponent == 0, 0.5 * (code & 1), (1.0 + 0.5 * (code & 1)) * tl.exp2(exponent.to(tl.float32) - 1.0))
        return (tl.where(code > 7, -magnitude, magnitude) * scale).to(tl.bfloat16)

    @triton.jit
    def product(x, codes, scales, experts, rows, y, n: tl.constexpr, k: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
        slot = tl.program_id(1)
        expert = tl.load(experts + slot).to(tl.int64)
        row = tl.load(rows + slot * 16 + tl.arange(0, 16))
        column = tl.program_id(0) * bn + tl.arange(0, bn)
        total = tl.zeros((16, bn), dtype=tl.float32)
        for begin in range(0, k, bk):
            pair = begin // 2 + tl.arange(0, bk // 2)
            packed = tl.load(codes + (expert * n + column)[None, :] * (k // 2) + pair[:, None]).to(tl.int32)
            scale = tl.load(scales + (expert * n + column)[None, :] * (k // 32) + (pair // 16)[:, None]).to(tl.float32)
            scale = tl.exp2(scale - 127.0)
            at = row[:, None] * k + 2 * pair[None, :]
            mask = row[:, None] >= 0
            total = tl.dot(tl.load(x + at, mask=mask, other=0.0), decoded(packed & 15, scale), total)
            total = tl.dot(tl.load(x + at + 1, mask=mask, other=0.0), decoded(packed >> 4, scale), total)
        tl.store(y + (slot * 16 + tl.arange(0, 16))[:, None] * n + column[None, :], total.to(tl.bfloat16))

    experts, choices, n, k = 256, 6, 4096, 4096
    codes = torch.randint(0, 256, (experts, n, k // 2), device="cuda", dtype=torch.uint8)
    scales = torch.randint(115, 125, (experts, n, k // 32), device="cuda", dtype=torch.uint8)
    x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
    lists = {}
    for token in range(tokens):
        for expert in torch.randperm(experts)[:choices].tolist():
            lists.setdefault(expert, []).append(token)
    slots = [(expert, lists[expert][i:i + 16]) for expert in sorted(lists) for i in range(0, len(lists[expert]), 16)]
    ids = torch.tensor([expert for expert, _ in slots], device="cuda", dtype=torch.int32)
    rows = torch.tensor([tokens_of + [-1] * (16 - len(tokens_of)) for _, tokens_of in slots], device="cuda", dtype=torch.int32)
    y = torch.empty(len(slots) * 16, n, device="cuda", dtype=torch.bfloat16)
    bits = len(lists) * n * k * 17 // 32
    # One token's experts fit the cache: calls take others in turn.
    turns = [(ids + 41 * turn) % experts for turn in range(8)]
    calls = [lambda at=at: product[(n // 32, len(slots))](x, codes, scales, at, rows, y, n, k, 32, 128, num_warps=4, num_stages=4) for at in turns]
    run.report(name, tokens, bits, 2 * tokens * choices * n * k, calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tokens", default="1,16,64")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        absent("torch")
        absent("triton")
        return
    if not torch.cuda.is_available():
        absent("torch", "installed, but it finds no GPU")
        return
    run = Run(torch, arguments)
    torch.manual_seed(1)
    read_stream(run)
    for tokens in (int(text) for text in arguments.tokens.split(",")):
        for measure in (dense_bf16, dense_fp8, experts_bf16, experts_triton, triton_product, attention_torch, attention_triton):
            measure(run, tokens)
    selection(run)


if __name__ == "__main__":
    main()
