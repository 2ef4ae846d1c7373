#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"

namespace nibble::text {
namespace {

// Below this length scanning all pairs per merge is cheaper than a heap.
constexpr size_t kShortPieceBytes = 40;

constexpr uint32_t kNoSymbol = UINT32_MAX;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Finaliser of MurmurHash3: every input bit reaches every output bit.
uint64_t mix(uint64_t h) {
  h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCDULL;
  h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53ULL;
  return h ^ (h >> 33);
}

uint64_t hash_bytes(std::string_view bytes) { return std::hash<std::string_view>{}(bytes); }

size_t table_capacity(size_t num_entries) { return std::bit_ceil(num_entries * 2 + 1); }

}  // namespace

MergeRanks::MergeRanks(std::span<const Merge> merges) : slots_(table_capacity(merges.size())) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    Slot& slot = slots_[probe(pair)];
    CHECK(slot.rank == kNone) << "merge " << rank << " repeats merge " << slot.rank;
    slot = {.pair = pair, .rank = static_cast<uint32_t>(rank)};
  }
}

uint32_t MergeRanks::find(int32_t left, int32_t right) const {
  return slots_[probe(pair_key(left, right))].rank;
}

// The slot that holds `pair`, or the empty one where it belongs.
size_t MergeRanks::probe(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = mix(pair) & mask;
  while (slots_[slot].rank != kNone && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

Bpe::Bpe(const std::array<int32_t, 256>& byte_tokens,
         std::span<const Merge> merges,
         std::vector<std::string> token_bytes)
    : byte_tokens_(byte_tokens), ranks_(merges), token_bytes_(std::move(token_bytes)) {
  results_.reserve(merges.size());
  for (const Merge& merge : merges) results_.push_back(merge.result);
  index_whole_pieces();
}

void Bpe::index_whole_pieces() {
  whole_pieces_.resize(table_capacity(token_bytes_.size()));
  const size_t mask = whole_pieces_.size() - 1;
  Scratch scratch;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < token_bytes_.size(); ++i) {
    const std::string& bytes = token_bytes_[i];
    const auto id = static_cast<int32_t>(i);
    ids.clear();
    merge(bytes, scratch, ids);
    if (ids.size() != 1 || ids[0] != id) continue;
    const uint64_t hash = hash_bytes(bytes);
    size_t slot = hash & mask;
    while (whole_pieces_[slot].id >= 0) slot = (slot + 1) & mask;
    whole_pieces_[slot] = {.hash_high = static_cast<uint32_t>(hash >> 32), .id = id};
    whole_piece_bytes_max_ = std::max(whole_piece_bytes_max_, bytes.size());
  }
}

int32_t Bpe::find_whole_piece(std::string_view piece) const {
  if (piece.size() > whole_piece_bytes_max_) return -1;
  const size_t mask = whole_pieces_.size() - 1;
  const uint64_t hash = hash_bytes(piece);
  for (size_t slot = hash & mask; whole_pieces_[slot].id >= 0; slot = (slot + 1) & mask) {
    const WholePiece& candidate = whole_pieces_[slot];
    if (candidate.hash_high == static_cast<uint32_t>(hash >> 32) &&
        token_bytes_[static_cast<size_t>(candidate.id)] == piece) {
      return candidate.id;
    }
  }
  return -1;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  const int32_t id = find_whole_piece(piece);
  if (id >= 0) {
    out.push_back(id);
  } else {
    merge(piece, scratch, out);
  }
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  if (piece.size() <= kShortPieceBytes) {
    merge_short(piece, out);
  } else {
    merge_long(piece, scratch, out);
  }
}

// Quadratic in a length of at most kShortPieceBytes.
void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortPieceBytes> ids;
  std::array<uint32_t, kShortPieceBytes> ranks;  // of the pair (i, i + 1)
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) ids[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = ranks_.find(ids[i], ids[i + 1]);

  while (n > 1) {
    const auto best =
        std::min_element(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(n - 1));
    if (*best == MergeRanks::kNone) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    ids[at] = results_[*best];
    std::copy(ids.begin() + static_cast<ptrdiff_t>(at + 2),
              ids.begin() + static_cast<ptrdiff_t>(n),
              ids.begin() + static_cast<ptrdiff_t>(at + 1));
    std::copy(ranks.begin() + static_cast<ptrdiff_t>(std::min(at + 2, n - 1)),
              ranks.begin() + static_cast<ptrdiff_t>(n - 1),
              ranks.begin() + static_cast<ptrdiff_t>(at + 1));
    --n;
    if (at > 0) ranks[at - 1] = ranks_.find(ids[at - 1], ids[at]);
    if (at + 1 < n) ranks[at] = ranks_.find(ids[at], ids[at + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n));
}

// A linked list of symbols and a heap of candidate pairs. A heap entry is stale when its left
// symbol is gone or makes another pair by now, which its rank tells. Every merge adds at most two
// entries, so there are at most 3n of them.
void Bpe::merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto n = static_cast<uint32_t>(piece.size());
  symbols.resize(n);
  heap.clear();
  for (uint32_t i = 0; i < n; ++i) {
    symbols[i] = {.id = byte_tokens_[static_cast<uint8_t>(piece[i])],
                  .rank = MergeRanks::kNone,
                  .previous = i - 1,  // wraps to kNoSymbol for the first
                  .next = i + 1 < n ? i + 1 : kNoSymbol};
  }
  // Looks up the pair that starts at symbol i and returns whether it is a candidate.
  const auto update_rank = [&](uint32_t i) {
    Scratch::Symbol& left = symbols[i];
    left.rank =
        left.next == kNoSymbol ? MergeRanks::kNone : ranks_.find(left.id, symbols[left.next].id);
    if (left.rank == MergeRanks::kNone) return false;
    heap.push_back((static_cast<uint64_t>(left.rank) << 32) | i);
    return true;
  };
  for (uint32_t i = 0; i < n; ++i) update_rank(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>{});

  while (!heap.empty()) {
    const auto rank = static_cast<uint32_t>(heap.front() >> 32);
    const auto at = static_cast<uint32_t>(heap.front());
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    heap.pop_back();
    Scratch::Symbol& left = symbols[at];
    if (left.rank != rank) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = results_[rank];
    left.next = right.next;
    right.rank = MergeRanks::kNone;
    if (left.next != kNoSymbol) symbols[left.next].previous = at;
    if (update_rank(at)) std::push_heap(heap.begin(), heap.end(), std::greater<>{});
    if (left.previous != kNoSymbol && update_rank(left.previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>{});
    }
  }
  for (uint32_t i = 0; i != kNoSymbol; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace nibble::text
