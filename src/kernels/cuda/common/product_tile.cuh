// Which part of a dense product a block or cluster works on. Device code only.
#pragma once

namespace nibble::kernels::cuda {

// A tile of results and a part of k.
struct ProductTile {
  int rows;    // which range of rows
  int tokens;  // which range of tokens
  int split;
};

// The order in which tiles are taken. Within a band of token ranges those of one range of rows
// follow each other, so that what runs at a time shares rows and tokens in the cache.
__device__ __forceinline__ ProductTile product_tile(int index, int row_tiles, int token_tiles) {
  constexpr int kBand = 16;
  const int per_split = row_tiles * token_tiles;
  const int split = index / per_split;
  const int in_split = index - split * per_split;
  const int band = in_split / (row_tiles * kBand);
  const int in_band = in_split - band * row_tiles * kBand;
  const int width = min(kBand, token_tiles - band * kBand);
  const int rows = in_band / width;
  return {rows, band * kBand + in_band - rows * width, split};
}

// Ranges of up to `width` panels of 64 rows, none of which lies in two groups.
struct PanelRanges {
  int panels_per_group, per_group, width;

  __device__ __forceinline__ PanelRanges(int panels_in_group, int panels_in_range)
      : panels_per_group(panels_in_group),
        per_group((panels_in_group + panels_in_range - 1) / panels_in_range),
        width(panels_in_range) {}

  __device__ __forceinline__ int group(int range) const { return range / per_group; }
  // Panel `i` of a range; the last of the group where the range has fewer.
  __device__ __forceinline__ int panel(int range, int i) const {
    const int in_group = range % per_group * width + i;
    return group(range) * panels_per_group + min(in_group, panels_per_group - 1);
  }
  __device__ __forceinline__ bool has(int range, int i) const {
    return range % per_group * width + i < panels_per_group;
  }
};

}  // namespace nibble::kernels::cuda
