// Lobby: where the launchers of a job whose hosts may come and go find each other. The first host keeps it at the job's
// endpoint for as long as the job lives; every host that comes gets a number and waits to be called.
//
// Time is cut into epochs. An epoch has fixed members, chosen by the first host, and a meeting place of its own. It
// ends when a member is lost or, in order, when another has come: the first host then says that a change is due, ranks
// stop with a checkpoint, and the next epoch is called. The first host itself cannot be replaced: with it the job ends.
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/net/store/hub.h"
#include "esp/net/store/hub_store.h"
#include "esp/net/world.h"

namespace esp::launch {

struct Epoch {
  int number = 0;
  std::vector<int> members;  // numbers of hosts, in the order of their ranks
  std::string endpoint;      // host:port
  // Where host `number` stands in it; -1: it is not called.
  int place_of(int host) const;
};
std::string text_of(const Epoch& epoch);
Epoch epoch_of(const std::string& text);  // IoError

// What the first host is to say, or an error that tells for how long it was waited for.
std::string word_of_first_host(const std::function<std::string(Deadline)>& get, Duration timeout);

struct LobbyOptions {
  std::string endpoint;  // host:port
  bool first = false;    // keeps it
  std::string job;
  net::Secret secret;
  net::NetOptions net;
  Log log;
};

class Lobby {
 public:
  // Comes in, waiting for the first host if need be. UsageError, CommError.
  Lobby(const LobbyOptions& options, Deadline deadline);

  int number() const { return number_; }  // this host's, 0 for the first
  const std::string& address() const { return address_; }
  int num_arrived() const;
  // The first host's: an epoch is called, a change of one is due.
  void call(const Epoch& epoch);
  void say_change_is_due(int epoch);
  // Everybody's. CommError when the first host is gone.
  bool change_is_due(int epoch) const;
  Epoch await(int epoch, Duration timeout);

 private:
  std::unique_ptr<net::Hub> hub_;  // the first host's
  std::unique_ptr<net::HubStore> store_;
  std::string address_;  // of the first host, as this one reaches it
  int number_ = 0;
};

}  // namespace esp::launch
