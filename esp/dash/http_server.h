// A small HTTP server on loopback. Each connection serves one request.
//
// One thread runs an epoll loop over non-blocking sockets. The loop itself answers the requests that `respond_inline`
// handles (rejections, static pages). A few worker threads answer the others, which read files. At most one worker at a
// time answers requests with the same key (a run), so a long request delays only its own run.
//
// No client can block a thread or starve other clients. Receiving a request, sending a response and closing each have a
// deadline. At the connection limit, the server closes the connection that has been silent longest. At the limit of
// unsent bytes, it closes the connection whose client has been reading longest.
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
  std::string policy;  // the Content-Security-Policy header; empty: blocks all scripts and loads
};

// Functions that answer requests. An exception in one becomes status 500 without details.
struct Handlers {
  // Called in the loop's thread, so it must not block. nullopt: a worker answers the request.
  std::function<std::optional<Response>(const Request& request)> respond_inline;
  // Called by several worker threads at once, but by at most one at a time for the same key.
  std::function<Response(const Request& request)> respond;
  std::function<std::string(const Request& request)> key;  // key of a request; called in the loop's thread
};

class HttpServer {
 public:
  static constexpr size_t kMaxConnections = 256, kMaxUnsentBytes = size_t{64} << 20;

  // Listens on `port`; 0: any free port. IoError: the port is in use, or the socket cannot be created.
  explicit HttpServer(int port);
  ~HttpServer();  // calls stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  void start(Handlers handlers);
  void stop();

 private:
  class Loop;
  struct PendingRequest {
    uint64_t connection = 0;
    std::string key;
    Request request;
  };
  struct CompletedResponse {
    uint64_t connection = 0;
    Response response;
  };

  void run_worker();
  std::optional<PendingRequest> next_request();  // blocks; nullopt: the server is stopping
  Response call_handler(const Request& request) const;
  void wake_loop() const;

  int listener_ = -1, wake_ = -1;  // wake_ is an eventfd
  int port_ = 0;
  Handlers handlers_;
  std::unique_ptr<Loop> loop_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable request_ready_;
  bool stopping_ = false;
  std::deque<PendingRequest> pending_;
  std::vector<std::string> busy_keys_;
  std::vector<CompletedResponse> completed_;  // responses that the loop must send
};

}  // namespace esp::dash
