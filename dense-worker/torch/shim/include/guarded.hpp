// How a call of ours tells Rust that it failed: no exception leaves it, it answers 0, or 1 with the reason in `why`, which
// has `room` bytes (`call` in src/lib.rs).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>

#include <c10/util/Exception.h>

namespace zagros {

inline void tell(const char* text, char* why, size_t room) {
  const size_t length = std::min(std::strlen(text), room - 1);
  std::memcpy(why, text, length);
  why[length] = '\0';
}

template <typename Call>
int guarded(char* why, size_t room, Call&& call) noexcept {
  try {
    call();
    return 0;
  } catch (const c10::Error& error) {
    tell(error.what_without_backtrace(), why, room);
  } catch (const std::exception& error) {
    tell(error.what(), why, room);
  } catch (...) {
    tell("an exception that is none of the standard library's", why, room);
  }
  return 1;
}

} // namespace zagros
