#include "base/unique_fd.h"

#include <unistd.h>

namespace nibble {

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace nibble
