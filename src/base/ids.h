// Strong ids: passing a SlotId for a PageId does not compile.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace nibble {

template <class Tag>
struct Id {
  int32_t value = -1;

  constexpr bool is_valid() const { return value >= 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

// A unit of KV memory, `page_size` tokens long, in every layer of one device.
using PageId = Id<struct PageTag>;
// The per-sequence fixed state of one device: window rings and compressor rows.
using SlotId = Id<struct SlotTag>;
// A sequence inside the engine; reused only after the process restarts.
using SequenceId = Id<struct SequenceTag>;

}  // namespace nibble

template <class Tag>
struct std::hash<nibble::Id<Tag>> {
  size_t operator()(nibble::Id<Tag> id) const noexcept { return std::hash<int32_t>()(id.value); }
};
