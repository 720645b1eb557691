// A small HTTP server on the loopback: one request per connection.
//
// One thread runs an epoll loop over non-blocking sockets. Requests that the `screen` answers (refusals, static pages)
// are answered in the loop; all others are answered by a few worker threads, because they read files. At most one
// worker at a time answers requests of one key (a run), so a long request holds up its own run only.
// No client can hold a thread or keep another client out. A request, the sending of its answer and the closing each
// have a deadline. At the limit of connections the one that has been silent for longest is closed; at the limit of
// bytes in unsent answers the one whose client has been reading for longest.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "esp/dash/http_request.h"

namespace esp::dash {

struct Response {
  int status = 200;
  std::string type = "application/json", body;
  std::string policy;  // Content-Security-Policy; empty: nothing may run or load
};

// What an exception escapes from becomes a 500 without details.
struct Handlers {
  // In the loop: must not block. Nothing: the request is for a worker.
  std::function<std::optional<Response>(const Request& request)> screen;
  // In a worker: called by several threads at once, but by one at a time for requests of one key.
  std::function<Response(const Request& request)> answer;
  std::function<std::string(const Request& request)> key;  // in the loop
};

class HttpServer {
 public:
  static constexpr size_t kMaxConnections = 256, kMaxUnsentBytes = size_t{64} << 20;

  // Port 0: any free one. IoError: the port is taken, or sockets cannot be had.
  explicit HttpServer(int port);
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  void start(Handlers handlers);
  void stop();

 private:
  class Loop;
  struct Job {
    uint64_t connection = 0;
    std::string key;
    Request request;
  };
  struct Answer {
    uint64_t connection = 0;
    Response response;
  };

  void work();
  std::optional<Job> next_job();  // waits; nothing: the server stops
  Response handled(const Request& request) const;
  void wake_loop() const;

  int listener_ = -1, wake_ = -1;  // an eventfd
  int port_ = 0;
  Handlers handlers_;
  std::unique_ptr<Loop> loop_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable job_came_;
  bool stopping_ = false;
  std::deque<Job> jobs_;
  std::vector<std::string> keys_in_work_;
  std::vector<Answer> answers_;  // for the loop to send
};

}  // namespace esp::dash
