// Worker side of `bench comm`: one rank of one library. It receives requests over a socket and answers with times.
//
// All libraries use the same protocol, so all are driven and timed in the same way. Between requests a rank blocks in
// read() and uses no core. Standard C++ only: this header is also compiled into the programs of the baselines.
//
// Lines end in a newline; words are key=value:
//   worker   hello label=L rank=R size=N [more for the coordinator]
//   coord.   run op=all_reduce bytes=B dtype=f32 reduce=sum root=0 algo=auto samples=S batch=K warmup=W
//                registered=0 inplace=0 check=1        |  quit
//   worker   done wrong=W ns=t1,t2,… [more]   |  no why=…   |  failed why=…
//
// For a sample, the ranks first pass the library's own barrier. Then the monotonic clock is read before and after K
// calls back to back, and the difference is divided by K. The coordinator takes the slowest rank of each sample.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/peers/pattern.h"

namespace esp::bench {

using Words = std::map<std::string, std::string>;

inline Words split_words(const std::string& line, std::string& verb) {
  Words words;
  size_t at = 0;
  bool first = true;
  while (at < line.size()) {
    size_t end = line.find(' ', at);
    if (end == std::string::npos) end = line.size();
    std::string word = line.substr(at, end - at);
    at = end + 1;
    if (first) {
      verb = word;
      first = false;
      continue;
    }
    size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    // The value of `why` is free text, so `why` is the last word.
    if (word.substr(0, equals) == "why") {
      words["why"] = line.substr(at - 1 - word.size() + equals + 1);
      break;
    }
    words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

// A connected stream socket that transfers text lines.
class LineChannel {
 public:
  explicit LineChannel(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  // Reads one line; false at end of file.
  bool read_line(std::string& line) {
    for (;;) {
      size_t newline = buffer_.find('\n');
      if (newline != std::string::npos) {
        line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        return true;
      }
      char bytes[65536];
      ssize_t got = ::read(fd_, bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      buffer_.append(bytes, static_cast<size_t>(got));
    }
  }
  bool write_line(std::string line) {
    for (char& c : line)
      if (c == '\n') c = ' ';
    line += '\n';
    for (size_t at = 0; at < line.size();) {
      ssize_t wrote = ::send(fd_, line.data() + at, line.size() - at, MSG_NOSIGNAL);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return false;
      at += static_cast<size_t>(wrote);
    }
    return true;
  }

 private:
  int fd_;
  std::string buffer_;
};

// An address in Linux's abstract namespace leaves no file after a kill. The coordinator checks the peer's credentials.
inline sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) throw std::runtime_error("socket name too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

inline int connect_coordinator(const std::string& name) {
  socklen_t length = 0;
  sockaddr_un address = abstract_address(name, length);
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw std::runtime_error("cannot reach the coordinator");
  return fd;
}

struct Request {
  std::string op, dtype, reduce, algo;
  size_t bytes = 0;  // bytes of the full logical buffer, as in the size column of nccl-tests
  int root = 0, samples = 1, batch = 1, warmup = 0;
  bool registered = false, inplace = false, check = false;
};

inline std::string to_line(const Request& r) {
  return "run op=" + r.op + " bytes=" + std::to_string(r.bytes) + " dtype=" + r.dtype + " reduce=" + r.reduce +
         " root=" + std::to_string(r.root) + " algo=" + r.algo + " samples=" + std::to_string(r.samples) +
         " batch=" + std::to_string(r.batch) + " warmup=" + std::to_string(r.warmup) +
         " registered=" + std::to_string(r.registered) + " inplace=" + std::to_string(r.inplace) +
         " check=" + std::to_string(r.check);
}

inline Request parse_request(Words& words) {
  Request r;
  r.op = words["op"], r.dtype = words["dtype"], r.reduce = words["reduce"], r.algo = words["algo"];
  r.bytes = std::strtoull(words["bytes"].c_str(), nullptr, 10);
  r.root = std::atoi(words["root"].c_str()), r.samples = std::atoi(words["samples"].c_str());
  r.batch = std::atoi(words["batch"].c_str()), r.warmup = std::atoi(words["warmup"].c_str());
  r.registered = words["registered"] == "1", r.inplace = words["inplace"] == "1", r.check = words["check"] == "1";
  return r;
}

// Element counts of one rank's buffers for a request.
struct Layout {
  size_t element = 4, count = 0, chunk = 0;  // chunk: count / size, for the operations that split the buffer
  size_t in_count = 0, out_count = 0;
};

inline bool splits(const std::string& op) {
  return op == "all_gather" || op == "reduce_scatter" || op == "all_to_all" || op == "gather" || op == "scatter";
}

inline Layout layout_of(const Request& request, int size) {
  Layout layout;
  layout.element = element_size(request.dtype);
  layout.count = request.bytes / layout.element;
  layout.chunk = layout.count / static_cast<size_t>(size);
  if (splits(request.op)) layout.count = layout.chunk * static_cast<size_t>(size);
  bool small_in = request.op == "all_gather" || request.op == "gather";
  bool small_out = request.op == "reduce_scatter" || request.op == "scatter";
  layout.in_count = small_in ? layout.chunk : layout.count;
  layout.out_count = small_out ? layout.chunk : layout.count;
  return layout;
}

// Interface of one rank of a benchmarked library.
class Library {
 public:
  virtual ~Library() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Reason why this library does not support the request; empty: supported.
  virtual std::string refuses(const Request& request) = 0;
  virtual void barrier() = 0;
  // Called once per request, before its calls. `call` then runs the operation once.
  virtual void prepare(const Request& request, const Layout& layout, void* in, void* out) = 0;
  virtual void call() = 0;
  // Allocates memory that is registered with the library; null: not supported.
  virtual void* allocate_registered(size_t) { return nullptr; }
  virtual void release_registered(void*) {}
  // Additional words of the reply, for example the algorithm that ran.
  virtual std::string report() { return ""; }
};

// A buffer for the calls: anonymous memory, or memory that the library registered.
class BenchBuffer {
 public:
  BenchBuffer(Library& library, size_t bytes, bool registered) : library_(library), bytes_(bytes ? bytes : 1) {
    if (registered) {
      data_ = library.allocate_registered(bytes_);
      own_ = data_ == nullptr;
    }
    if (own_) {
      data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data_ == MAP_FAILED) throw std::runtime_error("out of memory");
    }
  }
  ~BenchBuffer() {
    if (own_)
      ::munmap(data_, bytes_);
    else
      library_.release_registered(data_);
  }
  BenchBuffer(const BenchBuffer&) = delete;
  BenchBuffer& operator=(const BenchBuffer&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  Library& library_;
  size_t bytes_;
  void* data_ = nullptr;
  bool own_ = true;
};

inline std::string run_request(Library& library, const Request& request) {
  Layout layout = layout_of(request, library.size());
  Pattern pattern{request.op,     request.dtype, request.reduce, library.size(),
                  library.rank(), request.root,  layout.count,   layout.chunk};
  size_t in_bytes = layout.in_count * layout.element, out_bytes = layout.out_count * layout.element;
  bool one_buffer = request.inplace || request.op == "broadcast";
  BenchBuffer out_buffer(library, one_buffer ? layout.count * layout.element : out_bytes, request.registered);
  BenchBuffer in_buffer(library, one_buffer ? 1 : in_bytes, request.registered && !one_buffer);
  // In place, the smaller buffer is the rank's own chunk of the larger one, as in NCCL.
  size_t own_chunk = static_cast<size_t>(library.rank()) * layout.chunk * layout.element;
  std::byte* in = in_buffer.data();
  std::byte* out = out_buffer.data();
  if (one_buffer) {
    in = out = out_buffer.data();
    if (layout.in_count < layout.count) in += own_chunk;
    if (layout.out_count < layout.count) out += own_chunk;
  } else {
    std::memset(out, 0, out_bytes);
  }
  pattern.fill(in, layout.in_count);
  library.prepare(request, layout, in, out);

  uint64_t wrong = 0;
  library.barrier();
  if (request.check) {
    library.call();
    wrong = pattern.count_wrong(out, layout.out_count);
  }
  for (int i = 0; i < request.warmup; ++i) library.call();
  std::string times;
  for (int sample = 0; sample < request.samples; ++sample) {
    library.barrier();
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < request.batch; ++i) library.call();
    auto end = std::chrono::steady_clock::now();
    char text[32];
    std::snprintf(text, sizeof text, "%s%.1f", sample ? "," : "",
                  std::chrono::duration<double, std::nano>(end - begin).count() / request.batch);
    times += text;
  }
  library.barrier();  // no rank may read the buffers when they are freed
  return "done wrong=" + std::to_string(wrong) + " ns=" + times + " " + library.report();
}

// Serves requests. Returns 0 after «quit», 1 after the coordinator disconnected.
inline int serve(Library& library, LineChannel& channel, const std::string& label, const std::string& more = "") {
  channel.write_line("hello label=" + label + " rank=" + std::to_string(library.rank()) +
                     " size=" + std::to_string(library.size()) + " pid=" + std::to_string(::getpid()) + " " + more);
  std::string line;
  while (channel.read_line(line)) {
    std::string verb;
    Words words = split_words(line, verb);
    if (verb == "quit") return 0;
    std::string answer;
    try {
      Request request = parse_request(words);
      std::string why = library.refuses(request);
      answer = why.empty() ? run_request(library, request) : "no why=" + why;
    } catch (const std::exception& error) {
      answer = std::string("failed why=") + error.what();
    }
    if (!channel.write_line(answer)) break;
  }
  return 1;
}

}  // namespace esp::bench
