#include "base/result.h"

namespace nibble {

const char* errc_name(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return "invalid_argument";
    case Errc::kNotFound:
      return "not_found";
    case Errc::kUnsupported:
      return "unsupported";
    case Errc::kDataLoss:
      return "data_loss";
    case Errc::kExhausted:
      return "exhausted";
    case Errc::kUnavailable:
      return "unavailable";
    case Errc::kCancelled:
      return "cancelled";
    case Errc::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace nibble
