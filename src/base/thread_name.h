// Names of threads, as `top -H`, debuggers and the watchdog's reports show them.
#pragma once

#include <pthread.h>

namespace nibble {

// Of the calling thread. At most 15 characters.
inline void name_this_thread(const char* name) { ::pthread_setname_np(::pthread_self(), name); }

}  // namespace nibble
