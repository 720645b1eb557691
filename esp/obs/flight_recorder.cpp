#include "esp/obs/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <new>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::obs {
namespace {

void* map_file(const std::string& path, size_t bytes) {
  unlink(path.c_str());
  File file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  // Allocates the disk space now; otherwise a full disk would cause SIGBUS while a record is written.
  if (int error = posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes)); error != 0) {
    unlink(path.c_str());
    throw IoError(fmt::format("{}: cannot allocate {} bytes: {}", path, bytes, errno_text(error)));
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (memory == MAP_FAILED) file.fail("cannot map");
  return memory;
}

void* map_memory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw IoError(fmt::format("cannot map {} bytes for the flight recorder: {}", bytes, errno_text(errno)));
  return memory;
}

// Reads the tick counter and the clock at almost the same instant. Keeps the attempt with the smallest gap of three,
// because the thread may be descheduled between the two reads.
void read_anchor(bool steady, FlightAnchor& anchor) {
  uint64_t best_gap = ~uint64_t{0}, best_ticks = 0, best_ns = 0;
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = steady ? fast_ticks() : static_cast<uint64_t>(now_ns());
    const auto ns = static_cast<uint64_t>(now_ns());
    const uint64_t after = steady ? fast_ticks() : static_cast<uint64_t>(now_ns());
    if (after - before >= best_gap) continue;
    best_gap = after - before;
    best_ticks = before + best_gap / 2;
    best_ns = ns;
  }
  anchor.ticks.store(best_ticks, std::memory_order_release);
  anchor.mono_ns.store(best_ns, std::memory_order_release);
}

}  // namespace

FlightRecorder::FlightRecorder(const FlightOptions& options) {
  ESP_CHECK(options.capacity >= 1 && options.capacity <= kMaxFlightCapacity, "capacity: got {}; expected 1 to {}",
            options.capacity, kMaxFlightCapacity);
  const uint64_t capacity = std::bit_ceil(options.capacity);
  mask_ = capacity - 1;
  bytes_ = kFlightHeaderBytes + capacity * kFlightRecordBytes;
  auto* memory = static_cast<std::byte*>(options.path.empty() ? map_memory(bytes_) : map_file(options.path, bytes_));
  header_ = new (memory) FlightHeader{};
  slots_ = reinterpret_cast<FlightSlot*>(memory + kFlightHeaderBytes);  // new pages are zero, which means "no record"
  // Touches every page now, so that writing a record never causes a page fault.
  for (uint64_t i = 0; i < capacity; i += 4096 / kFlightRecordBytes) slots_[i].words[0].store(0);

  header_->capacity = capacity;
  header_->rank = static_cast<uint64_t>(static_cast<int64_t>(options.rank));
  header_->world = static_cast<uint64_t>(options.world);
  header_->pid = static_cast<uint64_t>(getpid());
  auto wall = std::chrono::system_clock::now().time_since_epoch();
  header_->wall_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count());
  read_anchor(steady_, header_->first);
  // Waits 200 µs, then takes a second anchor: it gives a first rate in case the process dies before the next anchor.
  const int64_t until = now_ns() + 200'000;
  while (now_ns() < until) {
  }
  drop_anchor();
  header_->magic.store(kFlightMagic, std::memory_order_release);
}

FlightRecorder::~FlightRecorder() {
  drop_anchor();
  munmap(header_, bytes_);
}

void FlightRecorder::drop_anchor() noexcept {
  const uint64_t at = header_->num_anchors.load(std::memory_order_acquire) + 1;
  read_anchor(steady_, header_->latest[at % 2]);
  header_->num_anchors.store(at, std::memory_order_release);
}

std::string FlightRecorder::snapshot() {
  drop_anchor();
  std::string copy(bytes_, '\0');
  auto* from = reinterpret_cast<const FlightWord*>(header_);
  auto put = [&](size_t word, uint64_t value) { std::memcpy(copy.data() + word * 8, &value, 8); };
  for (size_t word = 0; word < kFlightHeaderBytes / 8; ++word) put(word, from[word].load(std::memory_order_acquire));
  for (uint64_t i = 0; i <= mask_; ++i) {
    auto& words = slots_[i].words;
    const size_t base = (kFlightHeaderBytes + i * kFlightRecordBytes) / 8;
    const uint64_t number = words[0].load(std::memory_order_acquire);
    for (size_t w = 1; w < 8; ++w) put(base + w, words[w].load(std::memory_order_acquire));
    // If the record changed during the copy, its number stays 0 in the copy, and readers skip it.
    if (words[0].load(std::memory_order_relaxed) == number) put(base, number);
  }
  return copy;
}

}  // namespace esp::obs
