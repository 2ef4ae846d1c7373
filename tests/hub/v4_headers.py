"""The headers of DeepSeek-V4-Flash: every tensor's name, dtype and shape in 46 shards, and no weights.

Weights read as zeros; asking for them is what the tests forbid."""
import hashlib
import json

from fake_hub import RepoFile

SIZES = {"BF16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1}

HIDDEN, LAYERS, HEADS, HEAD_DIM, Q_RANK, GROUPS, O_RANK = 4096, 43, 64, 512, 1024, 8, 1024
INDEX_HEADS, INDEX_DIM, EXPERTS, TOP, INTERMEDIATE, VOCAB, STREAMS, HASH_LAYERS = 64, 128, 256, 6, 2048, 129280, 4, 3


class HeaderOnlyData:
    """A shard as bytes: its header, then as many zeros as it has weights."""

    def __init__(self, header, weights):
        self.header = len(header).to_bytes(8, "little") + header
        self.size = len(self.header) + weights

    def __len__(self):
        return self.size

    def __getitem__(self, span):
        begin, end, _ = span.indices(self.size)
        known = self.header[begin:end]
        return known + bytes(max(0, end - begin - len(known)))


class HeaderOnlyShard(RepoFile):
    def __init__(self, path, tensors):
        entries, at = {}, 0
        for name, dtype, shape in tensors:
            size = SIZES[dtype]
            for dim in shape:
                size *= dim
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        self.path, self.is_lfs = path, True
        self.data = HeaderOnlyData(header, at)
        self.weight_bytes = at
        self.etag = hashlib.sha256(path.encode()).hexdigest()

    def tree_entry(self):
        return {"type": "file", "path": self.path, "size": len(self.data), "oid": "0" * 40,
                "lfs": {"oid": self.etag, "size": len(self.data), "pointerSize": 134}}


def ratio(layer):
    return 0 if layer < 2 or layer >= LAYERS else 4 if layer % 2 == 0 else 128


def fp8(name, n, k):
    return [(name + ".weight", "F8_E4M3", [n, k]), (name + ".scale", "F8_E8M0", [-(-n // 128), -(-k // 128)])]


def bf16(name, *shape):
    return [(name + ".weight", "BF16", list(shape))]


def expert(name, n, k, is_nvfp4):
    if is_nvfp4:
        return [(name + ".weight", "U8", [n, k // 2]), (name + ".weight_scale", "F8_E4M3", [n, k // 16]),
                (name + ".weight_scale_2", "F32", []), (name + ".input_scale", "F32", [])]
    return [(name + ".weight", "I8", [n, k // 2]), (name + ".scale", "F8_E8M0", [n, k // 32])]


def mixer(prefix, rows, scales):
    return [(prefix + "fn", "F32", [rows, STREAMS * HIDDEN]), (prefix + "base", "F32", [rows]),
            (prefix + "scale", "F32", [scales])]


def compressor(prefix, layer_ratio, width):
    channels = 2 * width if layer_ratio == 4 else width
    return ([(prefix + "ape", "F32", [layer_ratio, channels])] + bf16(prefix + "wkv", channels, HIDDEN) +
            bf16(prefix + "wgate", channels, HIDDEN) + bf16(prefix + "norm", width))


def attention(p, layer_ratio):
    tensors = [(p + "attn_sink", "F32", [HEADS])] + fp8(p + "wq_a", Q_RANK, HIDDEN) + bf16(p + "q_norm", Q_RANK)
    tensors += fp8(p + "wq_b", HEADS * HEAD_DIM, Q_RANK) + fp8(p + "wkv", HEAD_DIM, HIDDEN)
    tensors += bf16(p + "kv_norm", HEAD_DIM) + fp8(p + "wo_a", GROUPS * O_RANK, HEADS * HEAD_DIM // GROUPS)
    tensors += fp8(p + "wo_b", HIDDEN, GROUPS * O_RANK)
    if layer_ratio:
        tensors += compressor(p + "compressor.", layer_ratio, HEAD_DIM)
    if layer_ratio == 4:
        tensors += fp8(p + "indexer.wq_b", INDEX_HEADS * INDEX_DIM, Q_RANK)
        tensors += bf16(p + "indexer.weights_proj", INDEX_HEADS, HIDDEN)
        tensors += compressor(p + "indexer.compressor.", 4, INDEX_DIM)
    return tensors


def block(p, layer, is_nvfp4):
    tensors = bf16(p + "attn_norm", HIDDEN) + bf16(p + "ffn_norm", HIDDEN)
    tensors += mixer(p + "hc_attn_", 2 * STREAMS + STREAMS ** 2, 3) + mixer(p + "hc_ffn_", 2 * STREAMS + STREAMS ** 2, 3)
    tensors += attention(p + "attn.", ratio(layer)) + bf16(p + "ffn.gate", EXPERTS, HIDDEN)
    if layer < HASH_LAYERS:
        tensors += [(p + "ffn.gate.tid2eid", "I64", [VOCAB, TOP])]
    else:
        tensors += [(p + "ffn.gate.bias", "F32", [EXPERTS])]
    for e in range(EXPERTS):
        m = p + "ffn.experts.%d." % e
        tensors += expert(m + "w1", INTERMEDIATE, HIDDEN, is_nvfp4) + expert(m + "w3", INTERMEDIATE, HIDDEN, is_nvfp4)
        tensors += expert(m + "w2", HIDDEN, INTERMEDIATE, is_nvfp4)
    m = p + "ffn.shared_experts."
    return (tensors + fp8(m + "w1", INTERMEDIATE, HIDDEN) + fp8(m + "w3", INTERMEDIATE, HIDDEN) +
            fp8(m + "w2", HIDDEN, INTERMEDIATE))


def config(form_b):
    ratios = [ratio(layer) for layer in range(LAYERS)] + [0]
    section = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
               "weight_block_size": [128, 128]}
    if form_b:
        section.update(quant_algo="MIXED_PRECISION", moe_quant_algo="NVFP4", group_size=16, kv_cache_quant_algo=None,
                       quantized_layers={"layers.%d.ffn.experts" % layer: {"quant_algo": "NVFP4", "group_size": 16}
                                         for layer in range(LAYERS)},
                       ignore=["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
                       producer={"name": "modelopt", "version": "dsv4-nvfp4-experts"})
    return {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "vocab_size": VOCAB,
            "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": 1, "head_dim": HEAD_DIM, "qk_rope_head_dim": 64, "q_lora_rank": Q_RANK,
            "o_groups": GROUPS, "o_lora_rank": O_RANK, "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM,
            "index_topk": 512, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": TOP,
            "moe_intermediate_size": INTERMEDIATE, "hc_mult": STREAMS, "num_hash_layers": HASH_LAYERS,
            "num_nextn_predict_layers": 1, "max_position_embeddings": 1048576, "compress_ratios": ratios,
            "routed_scaling_factor": 1.5, "expert_dtype": "fp4", "quantization_config": section}


def flash(form_b=False):
    """The files of the repository: config.json, index and 46 shards."""
    groups = [bf16("embed", VOCAB, HIDDEN)]
    groups += [block("layers.%d." % layer, layer, form_b) for layer in range(LAYERS)]
    draft = block("mtp.0.", LAYERS, False) + fp8("mtp.0.e_proj", HIDDEN, HIDDEN) + fp8("mtp.0.h_proj", HIDDEN, HIDDEN)
    for norm in ("enorm", "hnorm", "norm"):
        draft += bf16("mtp.0." + norm, HIDDEN)
    groups += [draft + mixer("mtp.0.hc_head_", STREAMS, 1)]
    groups += [bf16("norm", HIDDEN) + bf16("head", VOCAB, HIDDEN) + mixer("hc_head_", STREAMS, 1)]
    shards = [HeaderOnlyShard("model-%05d-of-%05d.safetensors" % (i + 1, len(groups)), tensors)
              for i, tensors in enumerate(groups)]
    index = {"metadata": {"total_size": sum(shard.weight_bytes for shard in shards)},
             "weight_map": {name: shard.path for shard, tensors in zip(shards, groups) for name, _, _ in tensors}}
    files = [RepoFile("config.json", json.dumps(config(form_b)).encode(), is_lfs=False),
             RepoFile("model.safetensors.index.json", json.dumps(index).encode(), is_lfs=True),
             RepoFile("tokenizer.json", b"{}", is_lfs=False)]
    if form_b:
        quantization = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "group_size": 16,
                        "exclude_modules": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]}
        files.append(RepoFile("hf_quant_config.json", json.dumps({"quantization": quantization}).encode(), is_lfs=False))
    return files, shards
