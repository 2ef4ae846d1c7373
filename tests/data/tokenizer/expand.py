#!/usr/bin/env python3
"""Writes a tokenizer.json from its compact form: expand.py COMPACT OUT.

The compact form has the vocabulary as a list in the order of ids and no merges: a merge is what remains of a token when
those of lower ids are applied to its characters, and merges come in the order of the tokens that they make. `sha256` is
that of the file to write; another one is an error.
"""
import hashlib
import json
import sys


def merged_parts(token, ids):
    """The parts that merges into tokens of lower ids than its own leave of a token."""
    parts = list(token)
    while True:
        joined = [(ids.get(a + b, ids[token]), at) for at, (a, b) in enumerate(zip(parts, parts[1:]))]
        best, at = min(joined, default=(ids[token], 0))
        if best >= ids[token]:
            return parts
        parts[at:at + 2] = [parts[at] + parts[at + 1]]


def expand(compact):
    sha256 = compact.pop("sha256")
    model = compact["model"]
    ids = {token: at for at, token in enumerate(model["vocab"])}
    parts = (merged_parts(token, ids) for token in model["vocab"] if len(token) > 1)
    model["merges"] = [" ".join(pair) for pair in parts if len(pair) == 2]
    model["vocab"] = ids
    text = json.dumps(compact, ensure_ascii=False, indent=4).encode()
    found = hashlib.sha256(text).hexdigest()
    if found != sha256:
        sys.exit(f"the expanded tokenizer has the SHA-256 {found}, expected {sha256}")
    return text


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as source:
        expanded = expand(json.load(source))
    with open(sys.argv[2], "wb") as out:
        out.write(expanded)
