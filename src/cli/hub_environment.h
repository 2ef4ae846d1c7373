// The environment variables that hub tools share, as a HubConfig. The only reader of them.
#pragma once

#include "base/result.h"
#include "hub/config.h"

namespace nibble::cli {

// HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE,
// HF_HUB_DISABLE_SYMLINKS, HF_HUB_DOWNLOAD_TIMEOUT, HF_HUB_ETAG_TIMEOUT, XDG_CACHE_HOME,
// HTTPS_PROXY, http_proxy, ALL_PROXY, NO_PROXY, SSL_CERT_FILE. kInvalidArgument when HF_TOKEN_PATH
// names a file that cannot be read, a timeout is no time, or no directory can be found for the
// cache.
Result<hub::HubConfig> hub_config_from_environment();

}  // namespace nibble::cli
