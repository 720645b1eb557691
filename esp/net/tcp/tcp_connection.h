// TcpConnection: one connection to a peer, with queues of frames to send and frames expected. Owned by its transport
// and used by the thread that drives it.
//
// One system call moves several frames, header and payload together, directly from and to the callers' memory. A read
// never requests more than the posted receives need, so nothing is buffered here. It may fill the memory of a posted
// receive before the frame's header has been checked; therefore a receive that ends as mismatched leaves its
// destination undefined. Receives with `apply` pass through a staging buffer small enough to stay in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "esp/net/socket.h"
#include "esp/net/tcp/frame.h"
#include "esp/net/tcp/tls.h"
#include "esp/net/transport.h"

namespace esp::net {

// One stripe of a posted transfer.
struct StripeTransfer {
  Transfer* transfer = nullptr;
  size_t offset = 0, bytes = 0;
  uint64_t number = 0;
  uint8_t num_stripes = 1;
  size_t summed = 0;  // payload bytes that are already in the checksum
  uint32_t crc = 0;
};

// FIFO ring buffer; grows when full and keeps its memory.
class StripeQueue {
 public:
  bool empty() const { return begin_ == end_; }
  size_t size() const { return end_ - begin_; }
  StripeTransfer& operator[](size_t i) { return slots_[(begin_ + i) % slots_.size()]; }
  void push(const StripeTransfer& stripe);
  void pop() { ++begin_; }
  void clear() { begin_ = end_ = 0; }

 private:
  std::vector<StripeTransfer> slots_ = std::vector<StripeTransfer>(16);
  size_t begin_ = 0, end_ = 0;
};

class TcpConnection {
 public:
  TcpConnection(int index, int peer, bool checked) : index_(index), peer_(peer), checked_(checked) {}

  // With `tls` (encrypted job), all data is sent and received through it.
  void attach(Socket socket, std::unique_ptr<Tls> tls = nullptr) {
    socket_ = std::move(socket);
    tls_ = std::move(tls);
  }
  bool attached() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.fd(); }
  bool idle() const { return outgoing.empty() && incoming.empty(); }

  // push sends and pull receives. Each makes one system call and returns true if bytes moved. They mark finished
  // transfers and count their traffic. They throw CommError(corrupt).
  bool push(Traffic& traffic);
  bool pull(Traffic& traffic, std::span<std::byte> staging);

  // True if the connection has ended in a direction in which frames are still queued.
  bool broken() const { return (out_closed_ && !outgoing.empty()) || (in_closed_ && !incoming.empty()); }
  void abandon();

  StripeQueue outgoing, incoming;

 private:
  static constexpr size_t kBatch = 8;                    // maximum of frames per system call
  static constexpr size_t kCallBytes = size_t{1} << 20;  // maximum of payload bytes per system call
  // payload bytes whose checksum is computed before they are sent; they stay in the L2 cache
  static constexpr size_t kSumBytes = size_t{128} << 10;

  size_t frame_bytes(const StripeTransfer& stripe) const;
  bool arrived(Traffic& traffic, size_t bytes);
  bool header_arrived(const StripeTransfer& stripe, ConstFrameBytes wire);
  void payload_arrived(StripeTransfer& stripe, size_t from, size_t bytes, std::byte* staged);
  void trailer_arrived(const StripeTransfer& stripe, const std::byte* wire);

  const int index_;
  const int peer_;  // world rank of the peer, for messages
  const bool checked_;
  Socket socket_;
  std::unique_ptr<Tls> tls_;  // destroyed before the socket

  std::array<std::byte, kBatch * kFrameHeaderBytes> out_headers_, in_headers_;
  std::array<std::byte, kBatch * kFrameTrailerBytes> out_trailers_, in_trailers_;
  // the position in the staging buffer where this read stores the payload of each frame; null: the payload goes
  // directly into the memory of the receive
  std::array<std::byte*, kBatch> staged_{};
  size_t out_at_ = 0, in_at_ = 0;  // bytes of the first queued frame that are already sent or received
  // received bytes that were not applied yet, because `apply` needs blocks of 64 bytes
  std::array<std::byte, 64> tail_;
  size_t tail_bytes_ = 0;
  bool out_closed_ = false, in_closed_ = false;
  // a header did not match its receive; reading stops. If the message is a later one, connection 0 reports the
  // mismatch.
  bool ahead_ = false;
};

}  // namespace esp::net
