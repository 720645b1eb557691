// Transport: moves messages between the members of one group. Behind it: inproc, shm, tcp, mpi, virtual; the table is
// in transports.cpp, and tests/conformance holds every row to one suite.
//
// One communicator owns one transport and drives it from one thread at a time; nothing moves unless that thread polls
// or sleeps. Messages from one rank to another arrive in the order they were sent. A Transfer belongs to the caller and
// stays put, with its buffer, until its state is done. Element boundaries survive: `apply` is called with pieces whose
// offset and size are multiples of 64 bytes, except the last.
//
// Every message carries a Tag. A receive that meets another tag or another size than it expects ends as `mismatched`
// with what came in `got`; the transport must not be used after that. A lost peer makes poll or sleep throw
// CommError(lost).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"
#include "esp/net/world.h"

namespace esp::net {

// Opaque here; comm packs the call into it (comm/call.h), so that a mismatch can be told in words. 32 bytes on the
// wire.
struct Tag {
  uint64_t sequence = 0;
  uint64_t what = 0;
  uint64_t count = 0;
  uint32_t step = 0;
  uint32_t schedule = 0;  // which, where the user brought one; else 0
  bool operator==(const Tag&) const = default;
};
static_assert(sizeof(Tag) == 32);

// Consumes `bytes` that arrived: dst[i] = dst[i] op src[i]. `context` is the caller's.
using Apply = void (*)(const void* context, std::byte* dst, const std::byte* src, size_t bytes);

struct Transfer {
  enum class State : uint8_t { idle, posted, done, mismatched };

  int peer = -1;              // rank in the group
  std::byte* data = nullptr;  // sends only read it
  size_t bytes = 0;
  Tag tag;
  Apply apply = nullptr;  // receives: null copies
  const void* context = nullptr;

  State state = State::idle;
  size_t moved = 0;  // bytes done so far, for the transport's use
  Tag got;           // mismatched: what came instead
  size_t got_bytes = 0;
  int64_t ready_ps = 0;      // virtual clock, in picoseconds so that formulas come out exactly: when its inputs were
  int64_t end_ps = 0;        // there, when it ended; real transports ignore both
  Transfer* next = nullptr;  // for the transport's queues
};

// Payload only; headers are counted apart. Zero-byte messages are messages.
struct Traffic {
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t messages_sent = 0, messages_received = 0;
  uint64_t header_bytes_sent = 0;
};

class Transport {
 public:
  Transport(const World& world, Group group)
      : world_(world), group_(std::move(group)), traffic_(group_.members.size()) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual std::string_view name() const = 0;
  int rank() const { return group_.rank; }
  int size() const { return group_.size(); }
  const Group& group() const { return group_; }
  const World& world() const { return world_; }

  // Starts a message. Never blocks. Peers other than oneself.
  virtual void send(Transfer& transfer) = 0;
  virtual void receive(Transfer& transfer) = 0;
  // Moves what can be moved now; true when anything moved. Throws what Fate says.
  virtual bool poll() = 0;
  // Returns when poll may move something, at the deadline, or when a fault was recorded: bounded spinning, then blocks.
  virtual void sleep(Deadline deadline) = 0;
  // Whether issue order over all peers fixes the result (the virtual clock); the executor then issues strictly in
  // order.
  virtual bool ordered() const { return false; }
  // The virtual clock of this rank: when the last of its finished transfers ended. 0 on real transports.
  virtual int64_t clock_ps() const { return 0; }
  // Gives up: once it returns no buffer of a posted transfer is touched any more, by this rank or by a peer. poll and
  // sleep do it before they throw; a caller that stops waiting (its deadline passed) must. Nothing can be sent after.
  virtual void abandon() noexcept {}

  const Traffic& traffic(int peer) const { return traffic_[static_cast<size_t>(peer)]; }
  Traffic total() const;

 protected:
  // When Fate has changed since the last look: gives up and throws what it says, or returns true.
  bool check_fate();

  const World& world_;
  const Group group_;
  std::vector<Traffic> traffic_;  // by peer; written by the driving thread
  uint32_t epoch_ = 0;            // of Fate, when last found well
};

// One row of the table in transports.cpp. Order is preference.
struct TransportRow {
  std::string_view name;
  std::string_view help;
  bool (*reaches)(const World& world, int a, int b);
  std::unique_ptr<Transport> (*open)(const World& world, const Group& group);  // collective over the group
};
std::span<const TransportRow> transports();

// `name` is a row's name, or "auto": the first row that reaches every pair, or the mix of the first row per pair.
// UsageError when the named one does not reach, and says which do.
std::unique_ptr<Transport> open_transport(std::string_view name, const World& world, const Group& group);

}  // namespace esp::net
