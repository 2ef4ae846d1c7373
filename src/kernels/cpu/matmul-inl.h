// Matrix products on kInterleaved16 weights, compiled once per ISA inside an ISA region.
//
// One vector lane is one output row, so a register holds the sums of kLanes rows for one token.
// Every output is computed in one order, whatever m, chunk or thread: along `kSumK` values of k in
// one group one chain of multiply-adds, then sum = chain * scale + sum over ascending chains. Both
// routines below keep that order, so they give the same bits: multiply_streaming for up to four
// tokens decodes in registers; multiply_tiled decodes a tile of weights into the L1 cache and
// reuses it for all tokens.
//
// The includer defines, before this file:
//   struct Math: the multiply-add and its types. Vec: f32 sums. Weight: decoded weights of one
//   step.
//     Input: activations of one step, kStepK values of k.
//   struct ...Decoder: kFormat; kIsPlain (codes are already Weights); decode(codes, out): kLanes
//   rows
//     of one 64-byte code vector.
//   load_scales(pointer, dtype): kLanes scales as f32.
//
// Cost of both: n * k * bits / 8 bytes and the scales, once per token chunk; 2 * m * n * k FLOPs.

// Row vectors per block of 16 rows.
inline constexpr int kVectorsPerBlock = static_cast<int>(kInterleavedRows) / Math::kLanes;
// Bytes of a code vector that belong to one row vector.
inline constexpr int64_t kRowVectorBytes = kInterleavedVectorBytes / kVectorsPerBlock;
inline constexpr int64_t kChunkSteps = kMatMulChunkK / Math::kStepK;

// How far ahead of its use a code line is asked for.
inline constexpr int64_t kPrefetchBytes = 1024;

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Constants of a weight format for one decoder.
template <class Decoder>
struct Geometry {
  static constexpr const quant::FormatInfo& kInfo = quant::format_info(Decoder::kFormat);
  static constexpr bool kHasScales = kInfo.has_scales();
  static constexpr int64_t kGroupK = kHasScales ? kInfo.block_shape.k : kMatMulChunkK;
  // Values of k whose products are summed before they meet their scale. In f32, MXFP4 is summed by
  // halves of its groups: a weight then gives the same bits as the NVFP4 one that it can be cast
  // to without loss.
  static constexpr int64_t kSumK =
      Decoder::kFormat == quant::Format::kMxfp4 && Math::kStepK == 1 ? kGroupK / 2 : kGroupK;
  static constexpr int64_t kSumSteps = kSumK / Math::kStepK;
  static constexpr int64_t kSumsPerGroup = kGroupK / kSumK;
  static constexpr int64_t kGroupSteps = kGroupK / Math::kStepK;
  static constexpr int64_t kGroupsPerChunk = kMatMulChunkK / kGroupK;
  // Steps in one 64-byte code vector.
  static constexpr int kVectorSteps =
      static_cast<int>(interleaved_vector_k(Decoder::kFormat)) / Math::kStepK;
};

// Where the parts of a packed weight lie; row vector v of block b.
struct WeightCursor {
  const std::byte* codes;
  const std::byte* scales;
  int64_t block_bytes;        // codes of one block
  int64_t scale_block_bytes;  // scales of one block
  int64_t scale_group_bytes;  // 16 scales
  DType scale_dtype;

  const std::byte* code_vector(int vector) const {
    return codes + vector / kVectorsPerBlock * block_bytes +
           vector % kVectorsPerBlock * kRowVectorBytes;
  }
  Math::Vec load_group_scales(int vector, int64_t group) const {
    const int64_t lanes_before = int64_t{Math::kLanes} * (vector % kVectorsPerBlock);
    return load_scales(scales + vector / kVectorsPerBlock * scale_block_bytes +
                           group * scale_group_bytes +
                           lanes_before * (scale_group_bytes / kInterleavedRows),
                       scale_dtype);
  }
};

template <class Decoder>
WeightCursor cursor_at(const PackedWeight& weight, int64_t block) {
  using G = Geometry<Decoder>;
  WeightCursor cursor{};
  cursor.block_bytes = interleaved_block_bytes(Decoder::kFormat, weight.k);
  cursor.codes = weight.codes + block * cursor.block_bytes;
  if constexpr (G::kHasScales) {
    cursor.scale_dtype = weight.scale_dtype;
    cursor.scale_group_bytes = kInterleavedRows * dtype_size(weight.scale_dtype);
    cursor.scale_block_bytes = ceil_div(weight.k, G::kGroupK) * cursor.scale_group_bytes;
    cursor.scales = weight.scales + block * cursor.scale_block_bytes;
  }
  return cursor;
}

inline const Math::Input* chunk_inputs(const MatMulWork& work, const TokenChunk& chunk) {
  const int64_t steps_per_token = interleaved_padded_k(work.weights->k) / Math::kStepK;
  return reinterpret_cast<const Math::Input*>(work.inputs) + chunk.begin * steps_per_token;
}

// Writes the sums of the rows of `block` that exist.
template <class Decoder>
void store_block(const PackedWeight& weight, int64_t block, const Math::Vec* sums, float* y) {
  for (int v = 0; v < kVectorsPerBlock; ++v) {
    const int64_t row = block * kInterleavedRows + int64_t{Math::kLanes} * v;
    if (row >= weight.n) return;
    Math::Vec sum = sums[v];
    if constexpr (Geometry<Decoder>::kInfo.has_global_scale) {
      sum = Math::mul(sum, Math::load_floats(weight.global_scales + row));
    }
    Math::store(y + row, sum, static_cast<int>(smaller(weight.n - row, Math::kLanes)));
  }
}

// sum + group * scale, or sum + group where the format has no scales.
template <class Decoder>
Math::Vec add_group(Math::Vec sum, Math::Vec group, Math::Vec scale) {
  if constexpr (Geometry<Decoder>::kHasScales) return Math::fma(group, scale, sum);
  return Math::add(sum, group);
}

// --- few tokens: codes are read once, decoded in registers
// -----------------------------------------

// kBlocks blocks side by side: as many independent chains hide the latency of a multiply-add.
//   x: as MatMulWork::inputs of a chunk of kTokens tokens
template <class Decoder, int kBlocks, int kTokens>
void multiply_streaming(const MatMulWork& work, const TokenChunk& chunk, int64_t block) {
  using G = Geometry<Decoder>;
  constexpr int kVectors = kBlocks * kVectorsPerBlock;
  const PackedWeight& weight = work.weights[chunk.group];
  const WeightCursor cursor = cursor_at<Decoder>(weight, block);
  const int64_t num_steps = interleaved_padded_k(weight.k) / Math::kStepK;
  const Math::Input* x = chunk_inputs(work, chunk);
  Math::Vec sums[kTokens][kVectors];
  NIBBLE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    NIBBLE_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[t][v] = Math::zero();
  }
  int64_t code_offset = 0;
  int64_t sum_index = 0;
  for (int64_t chunk_begin = 0; chunk_begin < num_steps; chunk_begin += kChunkSteps) {
    const int64_t steps = smaller(kChunkSteps, num_steps - chunk_begin);
    for (int64_t begin = 0; begin < steps; begin += G::kSumSteps, ++sum_index) {
      const int64_t end = smaller(begin + G::kSumSteps, steps);
      Math::Vec group[kTokens][kVectors];
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        NIBBLE_UNROLL
        for (int v = 0; v < kVectors; ++v) group[t][v] = Math::zero();
      }
      for (int64_t step = begin; step < end; step += G::kVectorSteps) {
        NIBBLE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          const std::byte* const codes = cursor.code_vector(v) + code_offset;
          if (v % kVectorsPerBlock == 0) __builtin_prefetch(codes + kPrefetchBytes);
          Math::Weight w[G::kVectorSteps];
          Decoder::decode(codes, w);
          NIBBLE_UNROLL
          for (int s = 0; s < G::kVectorSteps; ++s) {
            NIBBLE_UNROLL
            for (int t = 0; t < kTokens; ++t) {
              const auto xt = Math::broadcast(x + t * steps + step + s);
              group[t][v] = Math::multiply_add(group[t][v], w[s], xt);
            }
          }
        }
        code_offset += kInterleavedVectorBytes;
      }
      NIBBLE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        Math::Vec scale = Math::zero();
        if constexpr (G::kHasScales)
          scale = cursor.load_group_scales(v, sum_index / G::kSumsPerGroup);
        NIBBLE_UNROLL
        for (int t = 0; t < kTokens; ++t) {
          sums[t][v] = add_group<Decoder>(sums[t][v], group[t][v], scale);
        }
      }
    }
    x += kTokens * steps;
  }
  for (int t = 0; t < kTokens; ++t) {
    float* const y = work.y_row(chunk.begin + t);
    for (int b = 0; b < kBlocks; ++b) {
      store_block<Decoder>(weight, block + b, sums[t] + b * kVectorsPerBlock, y);
    }
  }
}

// Blocks [begin, end), in the largest pieces that fit.
template <class Decoder, int kBlocks, int kTokens>
void stream_blocks(const MatMulWork& work, const TokenChunk& chunk, int64_t begin, int64_t end) {
  for (; begin + kBlocks <= end; begin += kBlocks) {
    multiply_streaming<Decoder, kBlocks, kTokens>(work, chunk, begin);
  }
  if constexpr (kBlocks > 1) {
    if (begin < end) stream_blocks<Decoder, kBlocks / 2, kTokens>(work, chunk, begin, end);
  }
}

// stream_blocks for a number of tokens known only at run time, at most kTokens. Sums of one step
// fill kStreamBlocks blocks for one token, accordingly fewer for more.
template <class Decoder, int kTokens>
void stream_tokens(const MatMulWork& work, const TokenChunk& chunk, int64_t begin, int64_t end) {
  if (chunk.count == kTokens) {
    constexpr int kBlocks = Math::kStreamBlocks >> (kTokens > 2 ? 2 : kTokens - 1);
    stream_blocks < Decoder, kBlocks<1 ? 1 : kBlocks, kTokens>(work, chunk, begin, end);
  } else if constexpr (kTokens > 1) {
    stream_tokens<Decoder, kTokens - 1>(work, chunk, begin, end);
  }
}

// --- many tokens: a tile of weights is decoded once ----------------------------------------------

// A tile of decoded weights, one k chunk long: step s of row vector v of block b is
// weights[b * block_stride + s * kVectorsPerBlock + v].
struct WeightTile {
  const Math::Weight* weights;
  int64_t block_stride;
  const Math::Vec* scales;  // [row vector][group of the chunk]
  int64_t num_steps;

  const Math::Weight* row_vector(int64_t vector) const {
    return weights + vector / kVectorsPerBlock * block_stride + vector % kVectorsPerBlock;
  }
};

// Adds one k chunk to the sums of kVectors row vectors and kTokens tokens, held in registers.
//   x: [kTokens][num_steps]    sums: [kVectors][sum_stride]
template <class Decoder, int kVectors, int kTokens>
void multiply_tile(const WeightTile& tile,
                   int64_t vector,
                   const Math::Input* x,
                   Math::Vec* sums,
                   int64_t sum_stride) {
  using G = Geometry<Decoder>;
  const Math::Weight* w[kVectors];
  for (int v = 0; v < kVectors; ++v) w[v] = tile.row_vector(vector + v);
  const Math::Vec* const scales = tile.scales + vector * G::kGroupsPerChunk;
  int64_t sum_index = 0;
  for (int64_t begin = 0; begin < tile.num_steps; begin += G::kSumSteps, ++sum_index) {
    const int64_t end = smaller(begin + G::kSumSteps, tile.num_steps);
    Math::Vec group[kVectors][kTokens];
    NIBBLE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) group[v][t] = Math::zero();
    }
    for (int64_t step = begin; step < end; ++step) {
      Math::Weight wv[kVectors];
      NIBBLE_UNROLL
      for (int v = 0; v < kVectors; ++v) wv[v] = w[v][step * kVectorsPerBlock];
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const auto xt = Math::broadcast(x + t * tile.num_steps + step);
        NIBBLE_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          group[v][t] = Math::multiply_add(group[v][t], wv[v], xt);
        }
      }
    }
    NIBBLE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Math::Vec scale = Math::zero();
      if constexpr (G::kHasScales)
        scale = scales[v * G::kGroupsPerChunk + sum_index / G::kSumsPerGroup];
      NIBBLE_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        Math::Vec& sum = sums[v * sum_stride + t];
        sum = add_group<Decoder>(sum, group[v][t], scale);
      }
    }
  }
}

// multiply_tile for a number of tokens known only at run time, at most kTokens.
template <class Decoder, int kVectors, int kTokens>
void multiply_tokens(const WeightTile& tile,
                     int64_t vector,
                     int64_t num_tokens,
                     const Math::Input* x,
                     Math::Vec* sums,
                     int64_t sum_stride) {
  if (num_tokens == kTokens) {
    multiply_tile<Decoder, kVectors, kTokens>(tile, vector, x, sums, sum_stride);
  } else if constexpr (kTokens > 1) {
    multiply_tokens<Decoder, kVectors, kTokens - 1>(tile, vector, num_tokens, x, sums, sum_stride);
  }
}

// Decodes `num_vectors` code vectors of kBlocks blocks into tile order.
template <class Decoder>
void decode_tile(const WeightCursor& cursor,
                 int64_t num_blocks,
                 int64_t code_offset,
                 int64_t num_steps,
                 Math::Weight* out) {
  using G = Geometry<Decoder>;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const std::byte* codes = cursor.codes + b * cursor.block_bytes + code_offset;
    Math::Weight* block_out = out + b * kChunkSteps * kVectorsPerBlock;
    for (int64_t step = 0; step < num_steps; step += G::kVectorSteps) {
      __builtin_prefetch(codes + kPrefetchBytes);
      NIBBLE_UNROLL
      for (int v = 0; v < kVectorsPerBlock; ++v) {
        Math::Weight w[G::kVectorSteps];
        Decoder::decode(codes + v * kRowVectorBytes, w);
        NIBBLE_UNROLL
        for (int s = 0; s < G::kVectorSteps; ++s) block_out[s * kVectorsPerBlock + v] = w[s];
      }
      codes += kInterleavedVectorBytes;
      block_out += G::kVectorSteps * kVectorsPerBlock;
    }
  }
}

// Up to kTileBlocks blocks for all tokens of a chunk.
template <class Decoder>
void multiply_tiled(const MatMulWork& work,
                    const TokenChunk& chunk,
                    int64_t block,
                    int64_t num_blocks) {
  using G = Geometry<Decoder>;
  constexpr int64_t kMaxVectors = Math::kTileBlocks * kVectorsPerBlock;
  const PackedWeight& weight = work.weights[chunk.group];
  const WeightCursor cursor = cursor_at<Decoder>(weight, block);
  const int64_t num_vectors = num_blocks * kVectorsPerBlock;
  const int64_t num_steps = interleaved_padded_k(weight.k) / Math::kStepK;
  const int64_t num_tokens = chunk.count;

  Math::Vec sums[kMaxVectors * kMatMulChunkTokens];
  for (int64_t i = 0; i < num_vectors * num_tokens; ++i) sums[i] = Math::zero();
  Math::Weight decoded[Decoder::kIsPlain ? 1 : kMaxVectors * kChunkSteps];
  Math::Vec scales[kMaxVectors * G::kGroupsPerChunk];

  const Math::Input* x = chunk_inputs(work, chunk);
  for (int64_t begin = 0; begin < num_steps; begin += kChunkSteps) {
    const int64_t steps = smaller(kChunkSteps, num_steps - begin);
    const int64_t code_offset = begin / G::kVectorSteps * kInterleavedVectorBytes;
    WeightTile tile{decoded, kChunkSteps * kVectorsPerBlock, scales, steps};
    if constexpr (Decoder::kIsPlain) {
      tile.weights = reinterpret_cast<const Math::Weight*>(cursor.codes + code_offset);
      tile.block_stride = cursor.block_bytes / static_cast<int64_t>(sizeof(Math::Weight));
    } else {
      decode_tile<Decoder>(cursor, num_blocks, code_offset, steps, decoded);
    }
    if constexpr (G::kHasScales) {
      const int64_t first_group = begin / G::kGroupSteps;
      for (int64_t g = 0; g * G::kGroupSteps < steps; ++g) {
        for (int v = 0; v < num_vectors; ++v) {
          scales[v * G::kGroupsPerChunk + g] = cursor.load_group_scales(v, first_group + g);
        }
      }
    }
    const int64_t num_tiles = ceil_div(num_tokens, Math::kTileTokens);
    for (int64_t i = 0; i < num_tiles; ++i) {
      // Equal tiles: a last one with few tokens would wait for its own multiply-adds.
      const int64_t first = i * num_tokens / num_tiles;
      const int64_t count = (i + 1) * num_tokens / num_tiles - first;
      const Math::Input* const x_tile = x + first * steps;
      int64_t v = 0;
      for (; v + 2 <= num_vectors; v += 2) {
        multiply_tokens<Decoder, 2, Math::kTileTokens>(
            tile, v, count, x_tile, sums + v * num_tokens + first, num_tokens);
      }
      if (kVectorsPerBlock == 1 && v < num_vectors) {
        multiply_tokens<Decoder, 1, Math::kTileTokens>(
            tile, v, count, x_tile, sums + v * num_tokens + first, num_tokens);
      }
    }
    x += num_tokens * steps;
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* const y = work.y_row(chunk.begin + t);
    for (int64_t b = 0; b < num_blocks; ++b) {
      Math::Vec block_sums[kVectorsPerBlock];
      for (int v = 0; v < kVectorsPerBlock; ++v) {
        block_sums[v] = sums[(b * kVectorsPerBlock + v) * num_tokens + t];
      }
      store_block<Decoder>(weight, block + b, block_sums, y);
    }
  }
}

// --- the ISA's part of MatMulCode ----------------------------------------------------------------

inline void prepare_inputs(const MatMulWork& work, const TokenChunk& chunk) {
  const int64_t k = work.weights->k;
  const int64_t num_steps = interleaved_padded_k(k) / Math::kStepK;
  auto* x = const_cast<Math::Input*>(chunk_inputs(work, chunk));
  for (int64_t begin = 0; begin < k; begin += kMatMulChunkK) {
    const int64_t steps = smaller(kChunkSteps, num_steps - begin / Math::kStepK);
    for (int64_t t = 0; t < chunk.count; ++t, x += steps) {
      Math::prepare(work.x_row(chunk.begin + t) + begin, smaller(kMatMulChunkK, k - begin), x);
    }
  }
}

template <class Decoder>
void compute_blocks(const MatMulWork& work,
                    const TokenChunk& chunk,
                    int64_t block_begin,
                    int64_t block_end) {
  if (chunk.count <= Math::kStreamTokens) {
    stream_tokens<Decoder, Math::kStreamTokens>(work, chunk, block_begin, block_end);
    return;
  }
  for (int64_t block = block_begin; block < block_end; block += Math::kTileBlocks) {
    multiply_tiled<Decoder>(work, chunk, block, smaller(Math::kTileBlocks, block_end - block));
  }
}

template <class Decoder>
inline constexpr MatMulCode kCode = {
    .input_bytes = static_cast<int64_t>(sizeof(Math::Input)) / Math::kStepK,
    .prepare = &prepare_inputs,
    .compute = &compute_blocks<Decoder>,
};

template <class Decoder>
Result<void> matmul(const MatMulArgs& args, device::Stream& stream) {
  return run_matmul(args, *stream.pool, kCode<Decoder>);
}

template <class Decoder>
Result<void> grouped_matmul(const GroupedMatMulArgs& args, device::Stream& stream) {
  return run_grouped_matmul(args, *stream.pool, kCode<Decoder>);
}
