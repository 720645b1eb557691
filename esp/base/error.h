// What the world does to us, as exceptions; what must hold, as ESP_CHECK (base/check.h).
//
// Each family maps to one exit code of the binary, so a launcher can tell whether a restart makes sense. A message says
// what was given, where, and what would have worked. Errors are values: safe to copy and to carry across threads in a
// std::exception_ptr.
#pragma once

#include <stdexcept>
#include <string>

namespace esp {

enum class ExitCode : int { done = 0, internal = 1, usage = 2, comm = 3, files = 4, requeue = 75 };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

// A wrong argument, run file or call: nothing was started, nothing lost.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ExitCode::usage, message) {}
};

// A peer was lost, fell silent, or called something else. `peer` is the rank blamed, -1 when none can be named.
class CommError : public Error {
 public:
  enum class Kind { lost, timeout, mismatch, refused, corrupt, aborted };
  CommError(Kind kind, int peer, const std::string& message)
      : Error(ExitCode::comm, message), kind_(kind), peer_(peer) {}
  Kind kind() const { return kind_; }
  int peer() const { return peer_; }

 private:
  Kind kind_;
  int peer_;
};

// A file, a disk or their contents.
class IoError : public Error {
 public:
  explicit IoError(const std::string& message) : Error(ExitCode::files, message) {}
};

// An accelerator or its memory.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(ExitCode::internal, message) {}
};

// Our own bug: thrown by ESP_CHECK only.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ExitCode::internal, message) {}
};

// "No such file or directory (ENOENT)" for an errno value.
std::string errno_text(int error_number);

}  // namespace esp
