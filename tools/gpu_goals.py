"""What an H200 must reach and should, and the table that holds a run of `tools/gpu run table` against it.

A row: what it is, its unit, must and aim in it, and how to find the measured line and the peers' in the run's JSON lines.
Units: "%" is the share of the run's read stream (for steps: of their byte floor), "us" time, "TFLOP/s" and "GB/s" rates,
"MFU" the share of cublasLt's BF16 rate in the same run.
"""

EXPERT_FLOPS = 2 * 6 * 3 * 4096 * 2048  # of a token, 6 experts
ATTENTION_FLOPS = 4 * 512 * 640 * 64    # of a token, 640 keys, 64 heads


def _line(what, tokens=None):
    return lambda line: line.get("what") == what and tokens in (None, line.get("tokens"))


def _load(line):
    return line.get("what") == "load, mxfp4"


def _experts(name, tokens, must=None, aim=None):
    """Without bounds of their own experts stay within 5 points of MXFP4's."""
    return {"what": f"{name} experts, T={tokens}", "unit": "%", "must": must, "aim": aim, "tokens": tokens,
            "of": _line(f"{name.lower()}_experts_t{tokens}_"), "near": None if must else f"MXFP4 experts, T={tokens}",
            "peers": ["triton mxfp4 experts fc1", "torch grouped bf16 experts"] if must else []}


def _attention(tokens, keys, unit, must, aim, name, ahead):
    return {"what": f"sparse MLA T={tokens}, {keys.upper()} keys{name}", "unit": unit, "must": must, "aim": aim, "tokens": tokens,
            "of": _line(f"attention_{keys}_128+512_ahead_{ahead}", tokens), "flops": ATTENTION_FLOPS * tokens,
            "peers": ["torch attention 640 keys", "triton attention 640 keys"] if keys == "bf16" else []}


def _step(batch, must, aim):
    return {"what": f"8-layer decode, T={batch}", "unit": "%", "must": must, "aim": aim, "batch": batch, "peers": []}


GOALS = [
    _experts("MXFP4", 1, 70, 80), _experts("MXFP4", 16, 84, 90), _experts("MXFP4", 64, 85, 91), _experts("MXFP4", 256, 82, 90),
    *[_experts(name, tokens) for name in ("NVFP4", "INT4_G32") for tokens in (1, 16, 64, 256)],
    {"what": "MXFP4 expert prefill, 8,192 tokens", "unit": "TFLOP/s", "must": 500, "aim": 750, "of": _line("mxfp4_experts_t8192_"),
     "flops": EXPERT_FLOPS * 8192, "peers": []},
    *[{"what": f"FP8 chain, T={tokens}", "unit": "%", "must": 75, "aim": 82, "of": _line("chain", tokens), "tokens": tokens,
       "peers": ["wo_b cublaslt_fp8_blocks", "torch fp8 wo_b"]} for tokens in (1, 4, 16)],
    _attention(1, "bf16", "us", 5.5, 4.5, ", window early", "window"),
    _attention(1, "bf16", "us", 5.5, 4.5, ", all early", "keys"),
    _attention(1, "fp8", "us", 5.5, 4.5, ", window early", "window"),
    _attention(1, "fp8", "us", 5.5, 4.5, ", all early", "keys"),
    _attention(256, "bf16", "TFLOP/s", 350, 450, "", "keys"),
    _attention(256, "fp8", "TFLOP/s", 350, 450, "", "keys"),
    *[{"what": f"top-512 of {entries:,}", "unit": "us", "must": must, "aim": aim, "of": _line(f"top_512_of_{entries}"),
       "peers": [f"torch topk 512 of {entries}"]} for entries, must, aim in ((4096, 6, 4), (65536, 10, 6), (262144, 16, 10))],
    _step(1, 55, 70), _step(16, 70, 80), _step(64, 74, 82),
    {"what": "prefill in 2K chunks", "unit": "MFU", "must": 35, "aim": 45, "peers": []},
    {"what": "load from page cache", "unit": "GB/s", "must": 12, "aim": 20, "of": _load, "peers": []},
]


def spread_of(goal, lines):
    """(median, low, high) in the goal's unit, from the lines of a run; None where nothing was measured."""
    if "batch" in goal:
        for line in lines:
            for row in line.get("rows", []) if line.get("bench") == "decode" else []:
                if row["batch"] == goal["batch"]:
                    us, share = row["us"], 100 * row["share_of_floor"]
                    return share, share * us["median"] / us["high"], share * us["median"] / us["low"]
        return None
    if goal["unit"] == "MFU":
        for line in lines:
            if line.get("bench") == "prefill":
                us, mfu = line["us"], 100 * line["mfu"]
                return mfu, mfu * us["median"] / us["high"], mfu * us["median"] / us["low"]
        return None
    found = [line for line in lines if goal["of"](line)]
    if not found:
        return None
    if goal["unit"] == "GB/s":
        rates = sorted(line["gb_per_s"] for line in found)
        return rates[len(rates) // 2], rates[0], rates[-1]
    line = found[0]
    return value_of(goal, line, line["us"]), *sorted((value_of(goal, line, line["us_high"]), value_of(goal, line, line["us_low"])))


def value_of(goal, line, us):
    if goal["unit"] == "us":
        return us
    if goal["unit"] == "TFLOP/s":
        return goal["flops"] / us * 1e-6
    return 100 * line["bytes"] / us * 1e-6 / line["roof_tb_per_s"]


def on_one_roof(lines):
    """The lines with shares of one read stream, that of the first program: peers measure a slower one themselves."""
    roof = next((line["roof_tb_per_s"] for line in lines if line.get("what") == "stream_read"), None)
    return [line if roof is None or "roof_tb_per_s" not in line else {**line, "roof_tb_per_s": roof} for line in lines]


def verdict(goal, value, lines):
    """Whether a value meets the goal, and by how much it misses."""
    if goal["must"] is None:
        behind = spread_of(next(other for other in GOALS if other["what"] == goal["near"]), lines)[0] - value
        return "within 5 points" if behind <= 5 else f"{behind:.1f} points behind MXFP4 (must 5)"
    falls_short = (lambda bound: value > bound) if goal["unit"] == "us" else (lambda bound: value < bound)
    if falls_short(goal["must"]):
        return f"must missed by {abs(value - goal['must']):.1f}"
    return f"aim missed by {abs(value - goal['aim']):.1f}" if falls_short(goal["aim"]) else "aim met"


def peer_text(goal, lines):
    texts = []
    for name in goal["peers"]:
        for line in lines:
            if not line.get("what", "").startswith(name) or line.get("tokens", goal.get("tokens")) != goal.get("tokens", line.get("tokens")):
                continue
            texts.append(f"{name}: {line['note']}" if "note" in line else f"{name}: {value_of(goal, line, line['us']):.1f}")
            break
    return "; ".join(texts)


def table(lines):
    """Markdown rows of all goals."""
    lines = on_one_roof(lines)
    rows = ["| what | unit | measured (low to high) | must | aim | | peers in the same unit |", "|---|---|---|---|---|---|---|"]
    for goal in GOALS:
        spread = spread_of(goal, lines)
        must, aim = ("" if bound is None else f"{bound:g}" for bound in (goal["must"], goal["aim"]))
        if spread is None:
            rows.append(f"| {goal['what']} | {goal['unit']} | not measured | {must} | {aim} | | |")
            continue
        value, low, high = spread
        digits = 2 if goal["unit"] == "us" else 1
        rows.append(f"| {goal['what']} | {goal['unit']} | {value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}) | {must} | {aim} | "
                    f"{verdict(goal, value, lines)} | {peer_text(goal, lines)} |")
    return rows
