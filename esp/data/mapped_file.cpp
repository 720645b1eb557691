#include "esp/data/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <mutex>

#include <fmt/format.h>

#include "esp/obs/file.h"

namespace esp::data {

// One mapping, as the signal handler sees it. Guards form a list that never shrinks; the guard of an unmapped file is
// reused.
struct MappedFile::Guard {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> cut = false, used = true;
  Guard* next = nullptr;
};

namespace {

std::atomic<MappedFile::Guard*> guards = nullptr;
struct sigaction former_action;

// SIGBUS: a page beyond the end of a mapped file was read. Only system calls and atomics are allowed in a signal
// handler.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedFile::Guard* guard = guards; guard; guard = guard->next) {
    const uintptr_t begin = guard->begin, end = guard->end;
    if (info->si_code <= 0 || at < begin || at >= end) continue;
    const uintptr_t page = at & ~(static_cast<uintptr_t>(::getpagesize()) - 1);
    guard->cut = true;
    if (::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
      break;
    errno = saved;
    return;
  }
  // The address is in no mapping of this process's MappedFiles: restore the previous handler and let it run.
  ::sigaction(SIGBUS, &former_action, nullptr);
  if (info->si_code <= 0) ::raise(signal);
  errno = saved;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &former_action);
  });
}

MappedFile::Guard* take_guard(const std::byte* data, uint64_t size) {
  MappedFile::Guard* guard = guards;
  for (; guard; guard = guard->next)
    if (bool used = false; guard->used.compare_exchange_strong(used, true)) break;
  const bool made = !guard;
  if (made) guard = new MappedFile::Guard;
  guard->cut = false;
  guard->begin = reinterpret_cast<uintptr_t>(data);
  guard->end = reinterpret_cast<uintptr_t>(data) + size;
  if (!made) return guard;
  guard->next = guards;
  while (!guards.compare_exchange_weak(guard->next, guard)) continue;
  return guard;
}

int64_t time_of(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const obs::File file = obs::open_input_file(path);
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) file.fail("cannot stat");
  size_ = static_cast<uint64_t>(info.st_size);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  changed_ns_ = time_of(info);
  if (size_ == 0) return;
  install_handler();
  void* address = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (address == MAP_FAILED) file.fail("cannot map");
  data_ = static_cast<const std::byte*>(address);
  guard_ = take_guard(data_, size_);
  if (size_ <= kMaxHashedBytes) hash_ = XXH3_64bits(data_, size_);
}

MappedFile::~MappedFile() {
  if (!data_) return;
  guard_->begin = guard_->end = 0;
  guard_->used = false;
  munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::check() const {
  struct stat info {};
  const bool there = stat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
  const uint64_t bytes = there ? static_cast<uint64_t>(info.st_size) : size_;
  if (bytes != size_)
    throw obs::FileChanged(
        fmt::format("{} was changed while it was read: got {} bytes; expected {}", path_, bytes, size_));
  if (guard_ && guard_->cut) throw obs::FileChanged(fmt::format("{} was truncated while it was read", path_));
  if (!there || time_of(info) == changed_ns_) return;
  if (size_ > kMaxHashedBytes)
    throw obs::FileChanged(
        fmt::format("{} was written while it was read, and it is too large to compare its content (more than {} MiB). "
                    "Start the run again: it resumes from its last checkpoint",
                    path_, kMaxHashedBytes >> 20));
  if (size_ > 0 && XXH3_64bits(data_, size_) != hash_)
    throw obs::FileChanged(
        fmt::format("{} was changed while it was read: its content differs from the content at the start of the run. "
                    "Restore the file and start the run again: it resumes from its last checkpoint",
                    path_));
  changed_ns_ = time_of(info);
}

}  // namespace esp::data
