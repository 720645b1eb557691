// Transport: moves messages between the members of one group. Implementations: inproc, shm, tcp, mpi, virtual; the
// table is in transports.cpp, and tests/conformance runs one suite over every row.
//
// One communicator owns one transport and drives it from one thread at a time; data moves only while that thread polls
// or sleeps. Messages from one rank to another arrive in the order they were sent. The caller owns a Transfer and its
// buffer and keeps both in place until its state is done. Element boundaries are preserved: offset and size of each
// block that `apply` receives are multiples of 64 bytes, except for the size of the last block.
//
// Every message carries a Tag. A receive with another tag or size than the message ends as `mismatched`, with the
// message's tag in `got`; the transport must not be used after that. After the loss of a peer, poll and sleep throw
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

// Opaque to the transport. comm packs the call into it (comm/call.h), so that an error can describe a mismatch. 32
// bytes on the wire.
struct Tag {
  uint64_t sequence = 0;
  uint64_t what = 0;
  uint64_t count = 0;
  uint32_t step = 0;
  uint32_t schedule = 0;  // id of a user-supplied schedule; 0 if none
  bool operator==(const Tag&) const = default;
};
static_assert(sizeof(Tag) == 32);

// Reduction on receive: dst[i] = dst[i] op src[i] over `bytes` received bytes. `context` is Transfer::context.
using Apply = void (*)(const void* context, std::byte* dst, const std::byte* src, size_t bytes);

struct Transfer {
  enum class State : uint8_t { idle, posted, done, mismatched };

  int peer = -1;              // the other rank's number in the group
  std::byte* data = nullptr;  // the caller's buffer; a send only reads it
  size_t bytes = 0;
  Tag tag;
  Apply apply = nullptr;  // for receives: the reduction; null: copy
  const void* context = nullptr;

  State state = State::idle;
  size_t moved = 0;  // bytes moved so far; used by the transport
  Tag got;           // if mismatched: the tag of the received message
  size_t got_bytes = 0;
  // virtual clock, in picoseconds so that formulas are exact: time at which the input data was ready. Real transports
  // ignore ready_ps and end_ps.
  int64_t ready_ps = 0;
  int64_t end_ps = 0;        // virtual clock: time at which the transfer ended
  Transfer* next = nullptr;  // next transfer in the same queue of the transport
};

// Counts of payload; header bytes are counted separately. Messages of zero bytes count as messages.
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

  // Posts a message. Never blocks. The peer must be another rank.
  virtual void send(Transfer& transfer) = 0;
  virtual void receive(Transfer& transfer) = 0;
  // Moves as much as possible without waiting; true if anything moved. Throws the failures recorded in PeerStatus.
  virtual bool poll() = 0;
  // Waits until poll may move something, until the deadline, or until a failure is recorded. Spins for a bounded time,
  // then blocks.
  virtual void sleep(Deadline deadline) = 0;
  // True if the order in which transfers are posted over all peers affects the result (virtual clock). The executor
  // then posts them strictly in order.
  virtual bool ordered() const { return false; }
  // Virtual time at which this rank's last finished transfer ended. 0 on real transports.
  virtual int64_t clock_ps() const { return 0; }
  // Cancels all transfers. After it returns, neither this rank nor a peer touches a buffer of a posted transfer. poll
  // and sleep call it before they throw. A caller that stops waiting (deadline) must call it too. No sends are possible
  // afterwards.
  virtual void abandon() noexcept {}

  const Traffic& traffic(int peer) const { return traffic_[static_cast<size_t>(peer)]; }
  Traffic total() const;

 protected:
  // Called by poll and sleep. If PeerStatus has changed since the last check and has an error for this group, cancels
  // all transfers and throws that error. Returns true if PeerStatus has changed.
  bool check_peer_status();

  const World& world_;
  const Group group_;
  std::vector<Traffic> traffic_;  // index: peer; written by the driving thread
  uint32_t epoch_ = 0;            // epoch of PeerStatus at the last successful check
};

// One row of the table in transports.cpp. Rows are in order of preference.
struct TransportRow {
  std::string_view name;
  std::string_view help;
  bool (*reaches)(const World& world, int a, int b);
  std::unique_ptr<Transport> (*open)(const World& world, const Group& group);  // collective over the group
};
std::span<const TransportRow> transports();

// `name` is the name of a row, or "auto". "auto" selects the row that is the first choice of every pair. If pairs have
// different first choices, it mixes these rows (net/mixed/mixed.h). UsageError if the named transport does not reach
// all pairs; the message lists the transports that do.
std::unique_ptr<Transport> open_transport(std::string_view name, const World& world, const Group& group);

}  // namespace esp::net
