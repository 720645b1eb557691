#include "esp/net/tcp/tcp_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/tcp/crc32c.h"

namespace esp::net {
namespace {

bool try_again(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// The list of memory ranges (iovec) of one sendmsg or recvmsg call.
template <size_t kMax>
struct Parts {
  std::array<iovec, kMax> parts;
  size_t count = 0;
  void add(std::byte* data, size_t bytes) {
    if (bytes > 0) parts[count++] = {data, bytes};
  }
  msghdr message() {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    return message;
  }
};

}  // namespace

void StripeQueue::push(const StripeTransfer& stripe) {
  if (size() == slots_.size()) {
    std::vector<StripeTransfer> larger(2 * slots_.size());
    for (size_t i = 0; i < size(); ++i) larger[i] = (*this)[i];
    end_ = size();
    begin_ = 0;
    slots_ = std::move(larger);
  }
  slots_[end_ % slots_.size()] = stripe;
  ++end_;
}

size_t TcpConnection::frame_bytes(const StripeTransfer& stripe) const {
  return kFrameHeaderBytes + stripe.bytes + (checked_ ? kFrameTrailerBytes : 0);
}

void TcpConnection::abandon() {
  outgoing.clear();
  incoming.clear();
  tls_.reset();
  socket_.close();
}

bool TcpConnection::push(Traffic& traffic) {
  if (outgoing.empty() || out_closed_) return false;
  Parts<3 * kBatch> parts;
  size_t budget = checked_ ? kSumBytes : kCallBytes;
  for (size_t i = 0; i < std::min(kBatch, outgoing.size()) && budget > 0; ++i) {
    StripeTransfer& stripe = outgoing[i];
    Transfer& transfer = *stripe.transfer;
    size_t at = i == 0 ? out_at_ : 0;
    if (at < kFrameHeaderBytes) {
      std::byte* header = &out_headers_[i * kFrameHeaderBytes];
      encode_frame(
          {transfer.tag, transfer.bytes, stripe.number, static_cast<uint8_t>(index_), stripe.num_stripes, checked_},
          FrameBytes(header, kFrameHeaderBytes));
      parts.add(header + at, kFrameHeaderBytes - at);
      at = kFrameHeaderBytes;
    }
    size_t from = std::min(at - kFrameHeaderBytes, stripe.bytes);
    size_t bytes = std::min(budget, stripe.bytes - from);
    budget -= bytes;
    parts.add(transfer.data + stripe.offset + from, bytes);
    if (checked_ && stripe.summed < from + bytes) {
      stripe.crc = crc32c(stripe.crc, transfer.data + stripe.offset + stripe.summed, from + bytes - stripe.summed);
      stripe.summed = from + bytes;
    }
    if (from + bytes < stripe.bytes) break;
    if (checked_) {
      std::byte* trailer = &out_trailers_[i * kFrameTrailerBytes];
      encode_u32(stripe.crc, trailer);
      size_t sent = std::max(at, kFrameHeaderBytes + stripe.bytes) - (kFrameHeaderBytes + stripe.bytes);
      parts.add(trailer + sent, kFrameTrailerBytes - sent);
    }
  }

  msghdr message = parts.message();
  ssize_t sent = tls_ ? tls_->send({parts.parts.data(), parts.count})
                      : sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (!try_again(errno)) out_closed_ = true;
    return false;
  }
  for (size_t left = static_cast<size_t>(sent); left > 0;) {
    StripeTransfer& stripe = outgoing[0];
    size_t step = std::min(left, frame_bytes(stripe) - out_at_);
    out_at_ += step;
    left -= step;
    if (out_at_ < frame_bytes(stripe)) break;
    traffic.bytes_sent += stripe.bytes;
    traffic.header_bytes_sent += frame_bytes(stripe) - stripe.bytes;
    Transfer& transfer = *stripe.transfer;
    transfer.moved += stripe.bytes;
    if (transfer.moved == transfer.bytes) {
      transfer.state = Transfer::State::done;
      ++traffic.messages_sent;
    }
    outgoing.pop();
    out_at_ = 0;
  }
  return true;
}

bool TcpConnection::pull(Traffic& traffic, std::span<std::byte> staging) {
  if (incoming.empty() || in_closed_ || ahead_) return false;
  Parts<3 * kBatch> parts;
  size_t budget = kCallBytes;
  for (size_t i = 0; i < std::min(kBatch, incoming.size()) && budget > 0; ++i) {
    StripeTransfer& stripe = incoming[i];
    size_t at = i == 0 ? in_at_ : 0;
    if (at < kFrameHeaderBytes) {
      parts.add(&in_headers_[i * kFrameHeaderBytes] + at, kFrameHeaderBytes - at);
      at = kFrameHeaderBytes;
    }
    size_t from = std::min(at - kFrameHeaderBytes, stripe.bytes);
    size_t bytes = std::min(budget, stripe.bytes - from);
    if (stripe.transfer->apply) {
      size_t tail = i == 0 ? tail_bytes_ : 0;
      if (staging.size() < 128) break;
      bytes = std::min(bytes, staging.size() - 64);
      staged_[i] = staging.data();
      if (tail > 0) std::memcpy(staged_[i], tail_.data(), tail);
      parts.add(staged_[i] + tail, bytes);
      staging = staging.subspan(std::min(staging.size(), (tail + bytes + 63) / 64 * 64));
    } else {
      staged_[i] = nullptr;
      parts.add(stripe.transfer->data + stripe.offset + from, bytes);
    }
    budget -= bytes;
    if (from + bytes < stripe.bytes) break;
    if (checked_) {
      size_t got = std::max(at, kFrameHeaderBytes + stripe.bytes) - (kFrameHeaderBytes + stripe.bytes);
      parts.add(&in_trailers_[i * kFrameTrailerBytes] + got, kFrameTrailerBytes - got);
    }
  }

  msghdr message = parts.message();
  ssize_t got = tls_ ? tls_->receive({parts.parts.data(), parts.count}) : recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
  if (got > 0) return arrived(traffic, static_cast<size_t>(got));
  if (got == 0 || !try_again(errno)) in_closed_ = true;
  return false;
}

bool TcpConnection::arrived(Traffic& traffic, size_t bytes) {
  for (size_t i = 0; bytes > 0; ++i) {
    StripeTransfer& stripe = incoming[0];
    if (in_at_ < kFrameHeaderBytes) {
      size_t step = std::min(bytes, kFrameHeaderBytes - in_at_);
      in_at_ += step;
      bytes -= step;
      std::byte* wire = &in_headers_[i * kFrameHeaderBytes];
      if (in_at_ < kFrameHeaderBytes) {
        if (i > 0) std::memcpy(in_headers_.data(), wire, in_at_);
        return true;
      }
      if (!header_arrived(stripe, ConstFrameBytes(wire, kFrameHeaderBytes))) return true;
    }
    size_t from = std::min(in_at_ - kFrameHeaderBytes, stripe.bytes);
    if (size_t step = std::min(bytes, stripe.bytes - from); step > 0) {
      payload_arrived(stripe, from, step, staged_[i]);
      in_at_ += step;
      bytes -= step;
    }
    if (checked_ && in_at_ >= kFrameHeaderBytes + stripe.bytes) {
      size_t step = std::min(bytes, frame_bytes(stripe) - in_at_);
      in_at_ += step;
      bytes -= step;
      std::byte* wire = &in_trailers_[i * kFrameTrailerBytes];
      if (in_at_ < frame_bytes(stripe) && i > 0) std::memcpy(in_trailers_.data(), wire, kFrameTrailerBytes);
      if (in_at_ == frame_bytes(stripe)) trailer_arrived(stripe, wire);
    }
    if (in_at_ < frame_bytes(stripe)) break;
    traffic.bytes_received += stripe.bytes;
    Transfer& transfer = *stripe.transfer;
    transfer.moved += stripe.bytes;
    if (transfer.moved == transfer.bytes) {
      transfer.state = Transfer::State::done;
      ++traffic.messages_received;
    }
    incoming.pop();
    in_at_ = 0;
  }
  return true;
}

// Checks a received header. Returns false if this connection must stop reading: the message does not match the receive,
// or this connection is ahead and connection 0 will find the mismatch.
bool TcpConnection::header_arrived(const StripeTransfer& stripe, ConstFrameBytes wire) {
  FrameHeader header = decode_frame(wire, peer_);
  Transfer& transfer = *stripe.transfer;
  if (index_ > 0 && header.number > stripe.number) {
    ahead_ = true;
    return false;
  }
  if (header.tag != transfer.tag || header.message_bytes != transfer.bytes) {
    transfer.got = header.tag;
    transfer.got_bytes = header.message_bytes;
    transfer.state = Transfer::State::mismatched;
    ahead_ = true;
    return false;
  }
  if (header.number != stripe.number || header.stripe != index_ || header.num_stripes != stripe.num_stripes ||
      header.checked != checked_)
    throw CommError(
        CommError::Kind::corrupt, peer_,
        fmt::format("rank {}: got message {}, stripe {} of {}{}; expected message {}, stripe {} of {}{}", peer_,
                    header.number, header.stripe, header.num_stripes, header.checked ? " with checksum" : "",
                    stripe.number, index_, stripe.num_stripes, checked_ ? " with checksum" : ""));
  return true;
}

void TcpConnection::payload_arrived(StripeTransfer& stripe, size_t from, size_t bytes, std::byte* staged) {
  std::byte* into = stripe.transfer->data + stripe.offset + from;
  if (checked_) stripe.crc = crc32c(stripe.crc, staged ? staged + tail_bytes_ : into, bytes);
  if (!staged) return;
  size_t have = tail_bytes_ + bytes;
  size_t whole = from + bytes == stripe.bytes ? have : have / 64 * 64;
  if (whole > 0) stripe.transfer->apply(stripe.transfer->context, into - tail_bytes_, staged, whole);
  tail_bytes_ = have - whole;
  std::memcpy(tail_.data(), staged + whole, tail_bytes_);
}

void TcpConnection::trailer_arrived(const StripeTransfer& stripe, const std::byte* wire) {
  if (decode_u32(wire) != stripe.crc)
    throw CommError(
        CommError::Kind::corrupt, peer_,
        fmt::format("rank {}: the payload of message {} ({} bytes) is damaged: got checksum {:08x}; expected {:08x}",
                    peer_, stripe.number, stripe.bytes, stripe.crc, decode_u32(wire)));
}

}  // namespace esp::net
