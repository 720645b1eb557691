#include "esp/net/store/hub_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <charconv>

#include <fmt/format.h>

#include "esp/net/address.h"
#include "esp/net/link.h"
#include "esp/net/store/limits.h"

namespace esp::net {
namespace {

// how long the query for the missing ranks may take after a join has reached its deadline
constexpr auto kMissingQueryTimeout = std::chrono::seconds(1);

}  // namespace

HubStore::HubStore(Socket socket, Options options, Deadline deadline)
    : socket_(std::move(socket)), options_(std::move(options)), core_(options_.server) {
  configure_keepalive(socket_.fd());
  std::unique_lock lock(mutex_);
  while (core_.hub_info().job.empty()) {
    if (core_.broken()) core_.throw_closed();
    if (deadline.passed())
      throw CommError(CommError::Kind::timeout, -1,
                      fmt::format("{} accepted the connection but sent nothing before the deadline", options_.server));
    read_once(lock, deadline);
  }
}

bool HubStore::broken() {
  std::lock_guard lock(mutex_);
  return core_.broken();
}

uint64_t HubStore::post(FrameKind kind, std::string_view body, Slot* slot, Deadline deadline) {
  std::lock_guard write_lock(write_mutex_);
  uint64_t request = writer_.next_sequence();
  std::string bytes = writer_.encode(kind, body);
  {
    std::lock_guard lock(mutex_);
    if (core_.broken()) core_.throw_closed();
    if (slot) core_.expect(request, slot);
  }
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t sent = send(socket_.fd(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
      continue;
    }
    if (errno == EINTR || (errno == EAGAIN && wait_for(POLLOUT, deadline))) continue;
    // Part of a frame has been sent and cannot be withdrawn, so the connection is unusable.
    std::lock_guard lock(mutex_);
    if (!core_.broken()) core_.closed();
    core_.forget(request);
    changed_.notify_all();
    core_.throw_closed();
  }
  return request;
}

std::optional<HubStore::Slot> HubStore::call(FrameKind kind, std::string_view body, Deadline deadline) {
  Slot slot;
  uint64_t request = post(kind, body, &slot, deadline);
  std::unique_lock lock(mutex_);
  while (!slot.done && !core_.broken() && !deadline.passed()) {
    if (!reading_) {
      read_once(lock, deadline);
    } else {
      changed_.wait_until(lock, deadline.when());
    }
  }
  core_.forget(request);
  if (slot.done) return slot;
  if (core_.broken()) core_.throw_closed();
  lock.unlock();
  post(FrameKind::cancel, encode_number(request), nullptr, Deadline::after(options_.timeout));
  return {};
}

// Waits for socket events. Returns false at the deadline, or if the Hub's host is lost.
bool HubStore::wait_for(short events, Deadline deadline) {
  for (;;) {
    pollfd item{socket_.fd(), events, 0};
    const Deadline look = deadline.earlier(kLinkCheckPeriod);
    if (poll(&item, 1, look.left_ms()) > 0) return true;
    LinkState host(remote_address(socket_.fd()).text(), options_.link_timeout);
    if (host.update(unanswered_time(socket_.fd()), Log(LogLevel::off, -1))) {
      std::lock_guard lock(mutex_);
      core_.closed(fmt::format("is lost: {}", host.text()));
      return false;
    }
    if (deadline.passed()) return false;
  }
}

// Reads once, for all threads that wait for a reply. Called with `lock` held; releases it while waiting.
void HubStore::read_once(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  reading_ = true;
  lock.unlock();
  char buffer[size_t{16} << 10];
  ssize_t got = -1;
  bool ready = wait_for(POLLIN, deadline);
  if (ready) got = recv(socket_.fd(), buffer, sizeof buffer, 0);
  bool retry = !ready || (got < 0 && (errno == EAGAIN || errno == EINTR));
  lock.lock();
  reading_ = false;
  if (got > 0) {
    core_.received({buffer, static_cast<size_t>(got)});
  } else if (!retry) {
    core_.closed();
  }
  changed_.notify_all();
}

HubStore::Slot HubStore::request(FrameKind kind, std::string_view body, std::optional<Deadline> deadline) {
  const auto begun = Clock::now();
  auto slot = call(kind, body, deadline.value_or(Deadline::after(options_.timeout)));
  if (!slot)
    throw CommError(CommError::Kind::timeout, core_.hub_info().hub_rank,
                    fmt::format("timeout: no reply from the other ranks through {} within {:.3g} s", options_.server,
                                std::chrono::duration<double>(Clock::now() - begun).count()));
  if (slot->kind != FrameKind::refused) return std::move(*slot);
  RequestError error = decode_request_error(slot->rest);
  if (error.usage) throw UsageError(error.text);
  throw CommError(CommError::Kind::refused, -1, error.text);
}

void HubStore::set(std::string_view key, std::string_view value) {
  check_store_sizes(key, value);
  request(FrameKind::set, encode_key_value(key, value));
}

std::string HubStore::get(std::string_view key, Deadline deadline) {
  check_store_sizes(key, {});
  return request(FrameKind::get, encode_key(key), deadline).rest;
}

std::optional<std::string> HubStore::try_get(std::string_view key) {
  check_store_sizes(key, {});
  auto slot = request(FrameKind::try_get, encode_key(key));
  if (slot.kind == FrameKind::not_found) return {};
  return std::move(slot.rest);
}

int64_t HubStore::add(std::string_view key, int64_t delta) {
  check_store_sizes(key, {});
  auto text = request(FrameKind::add, encode_add_request(key, delta)).rest;
  int64_t sum = 0;
  std::from_chars(text.data(), text.data() + text.size(), sum);
  return sum;
}

void HubStore::erase(std::string_view key) {
  check_store_sizes(key, {});
  request(FrameKind::erase, encode_key(key));
}

std::vector<Peer> HubStore::join(const JoinRequest& mine, Deadline deadline) {
  auto slot = call(FrameKind::join, encode_join_request(mine), deadline);
  if (slot && slot->kind == FrameKind::table) return decode_table(slot->rest);
  if (slot) {
    RequestError error = decode_request_error(slot->rest);
    if (error.usage) throw UsageError(error.text);
    throw CommError(CommError::Kind::lost, -1, error.text);
  }
  auto missing = call(FrameKind::list_missing, {}, Deadline::after(kMissingQueryTimeout));
  throw CommError(CommError::Kind::timeout, -1,
                  missing ? missing->rest : fmt::format("{} no longer answers", options_.server));
}

}  // namespace esp::net
