#include "apps/espalier/bench_job.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <random>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::app {
namespace {

void set_read_timeout(int fd, Deadline deadline) {
  auto left = std::chrono::ceil<std::chrono::microseconds>(deadline.left()).count();
  left = std::max<int64_t>(left, 1);
  timeval limit{static_cast<time_t>(left / 1'000'000), static_cast<suseconds_t>(left % 1'000'000)};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

}  // namespace

std::vector<double> parse_times(const std::string& text) {
  std::vector<double> times;
  for (size_t at = 0; at < text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    times.push_back(std::strtod(text.c_str() + at, nullptr));
    at = comma + 1;
  }
  return times;
}

std::string executable_path() {
  char path[PATH_MAX];
  ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) throw IoError("cannot find the path of this program: " + errno_text(errno));
  return std::string(path, static_cast<size_t>(length));
}

RankListener::RankListener() {
  std::random_device random;
  name_ = fmt::format("espalier-bench-{}-{:08x}{:08x}", ::getpid(), random(), random());
  socklen_t length = 0;
  sockaddr_un address = bench::abstract_address(name_, length);
  listener_ = net::Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener_ || ::bind(listener_.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.fd(), 512) != 0)
    throw IoError("cannot open the benchmark's control socket: " + errno_text(errno));
}

RankListener::RankConnection RankListener::accept(Deadline deadline) {
  for (;;) {
    pollfd waiting{listener_.fd(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.left_ms()) <= 0 && deadline.passed())
      throw CommError(CommError::Kind::timeout, -1, "timeout waiting for a rank to connect");
    net::Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    ucred peer{};
    socklen_t length = sizeof peer;
    if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != ::geteuid()) continue;
    RankConnection connection;
    connection.channel = std::make_unique<bench::LineChannel>(socket.fd());
    // Limits the time in which a connected rank must send its first line.
    set_read_timeout(socket.fd(), Deadline::after(std::chrono::seconds(5)));
    connection.socket = std::move(socket);
    std::string line, verb;
    if (!connection.channel->read_line(line)) continue;
    connection.registration = bench::split_words(line, verb);
    if (verb == "hello") return connection;
  }
}

BenchJob::BenchJob(std::string label, int num_ranks, std::unique_ptr<launch::LocalJob> job, RankListener& listener,
                   Deadline deadline)
    : label_(std::move(label)), job_(std::move(job)), ranks_(static_cast<size_t>(num_ranks)) {
  for (int missing = num_ranks; missing > 0;) {
    RankListener::RankConnection connection;
    try {
      connection = listener.accept(deadline.earlier(std::chrono::milliseconds(200)));
    } catch (const CommError&) {
      // No rank connected within 200 ms. This is an error if the processes have ended or the deadline has passed.
      if (job_->wait(Deadline::after_ms(0)) || deadline.passed()) fail_rank(-1, "did not start");
      continue;
    }
    int rank = std::atoi(connection.registration["rank"].c_str());
    if (connection.registration["label"] != label_ || rank < 0 || rank >= num_ranks ||
        std::atoi(connection.registration["size"].c_str()) != num_ranks || ranks_[static_cast<size_t>(rank)].socket)
      throw CommError(CommError::Kind::mismatch, rank,
                      fmt::format("{}: a process registered as label {}, rank {}, size {}; expected label {}, size {} "
                                  "and every rank exactly once",
                                  label_, connection.registration["label"], rank, connection.registration["size"],
                                  label_, num_ranks));
    ranks_[static_cast<size_t>(rank)] = std::move(connection);
    --missing;
  }
}

BenchJob::~BenchJob() {
  for (RankListener::RankConnection& connection : ranks_)
    if (connection.channel) connection.channel->write_line("quit");
  job_->wait(Deadline::after(std::chrono::seconds(5)));
}

void BenchJob::fail_rank(int rank, const std::string& how) {
  job_->wait(Deadline::after_ms(500));
  std::string text = rank < 0 ? fmt::format("{} {}", label_, how) : fmt::format("{}: rank {} {}", label_, rank, how);
  if (auto failure = job_->failure()) text += "; " + launch::describe(*failure);
  throw CommError(CommError::Kind::lost, rank, text);
}

std::vector<Reply> BenchJob::exchange(const std::string& line, Deadline deadline) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].channel->write_line(line)) fail_rank(static_cast<int>(rank), "has disconnected");
  std::vector<Reply> replies(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    set_read_timeout(ranks_[rank].socket.fd(), deadline);
    std::string answer;
    if (!ranks_[rank].channel->read_line(answer))
      fail_rank(static_cast<int>(rank), deadline.passed() ? "did not reply in time" : "ended during: " + line);
    replies[rank].words = bench::split_words(answer, replies[rank].verb);
  }
  return replies;
}

BenchResult BenchJob::execute(const bench::Request& request, Deadline deadline) {
  return merge_replies(label_, request, exchange(bench::to_line(request), deadline));
}

BenchResult merge_replies(const std::string& label, const bench::Request& request, std::vector<Reply> replies) {
  BenchResult answer;
  std::string failed;
  for (size_t rank = 0; rank < replies.size(); ++rank) {
    auto& [verb, words] = replies[rank];
    if (verb == "failed" && failed.empty()) failed = fmt::format("rank {}: {}", rank, words["why"]);
    if (verb == "no") answer.refusal = words["why"];
    if (verb != "done") continue;
    answer.ran = true;
    answer.wrong += std::strtoull(words["wrong"].c_str(), nullptr, 10);
    std::vector<double> times = parse_times(words["ns"]);
    answer.sample_us.resize(times.size());
    for (size_t i = 0; i < times.size(); ++i) answer.sample_us[i] = std::max(answer.sample_us[i], times[i] / 1000);
    answer.words.push_back(std::move(words));
  }
  if (!failed.empty())
    throw CommError(CommError::Kind::aborted, -1,
                    fmt::format("{}: {} of {} bytes failed: {}", label, request.op, request.bytes, failed));
  return answer;
}

}  // namespace esp::app
