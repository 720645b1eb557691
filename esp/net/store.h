// Store: a small shared key-value map for the rendezvous of ranks. Implementations: memory (threads of one process),
// file (a shared directory), tcp (a client of the Hub). Values are bytes, at most 64 KiB; keys at most 256 bytes.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "esp/base/clock.h"

namespace esp::net {

inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{64} << 10;

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until the key exists. Throws CommError(timeout) at the deadline. The caller adds the purpose of the wait to
  // the error.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  // Adds to a decimal counter that starts at 0; returns the sum.
  virtual int64_t add(std::string_view key, int64_t delta) = 0;
  virtual void erase(std::string_view key) = 0;
};

struct World;
struct Group;
// Like store.get, but also ends with an error when the group fails. `from`: the world rank that writes the key, or -1
// if any member may; only the text of a timeout error uses it.
std::string wait_for_key(const World& world, const Group& group, std::string_view key, int from, Deadline deadline);

}  // namespace esp::net
