// HB_CHECK(condition) << nothing: our own mistakes only, never input. Throws Error{kInternal}.
#pragma once

#include <string>

#include "halfbyte/error.h"

#define HB_CHECK(condition)                                                           \
  do {                                                                                \
    if (!(condition))                                                                 \
      throw ::halfbyte::Error(::halfbyte::ErrorKind::kInternal,                       \
                              std::string(__FILE__) + ":" + std::to_string(__LINE__), \
                              "check failed: " #condition);                           \
  } while (false)
