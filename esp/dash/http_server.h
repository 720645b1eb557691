// A small HTTP server on the loopback: one request per connection, answered by a handler.
//
// A few threads accept and answer, so a slow answer (a search of the planner) does not hold up the others. Each
// connection has a deadline for its request and one for its answer; nothing a client does can hold a thread longer.
// The handler is called by several threads at once. What it throws becomes a 500 without details.
#pragma once

#include <atomic>
#include <functional>
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

using Handler = std::function<Response(const Request& request)>;

class HttpServer {
 public:
  // Port 0: any free one. IoError: the port is taken, or sockets cannot be had.
  explicit HttpServer(int port);
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  void start(Handler handler);
  void stop();

 private:
  void serve();
  void answer(int client) const;

  int listener_ = -1, wake_ = -1;
  int port_ = 0;
  Handler handler_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace esp::dash
