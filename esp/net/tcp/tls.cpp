#include "esp/net/tcp/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/bytes.h"
#include "esp/net/crypto.h"

namespace esp::net {
namespace {

constexpr size_t kRecordBytes = size_t{16} << 10;            // maximum TLS record
constexpr size_t kReadAheadBytes = size_t{256} << 10;        // encrypted bytes that one system call may read ahead
constexpr std::array<unsigned char, 2> kCipher{0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr const char* kCipherName = "TLS_AES_128_GCM_SHA256";
constexpr std::string_view kSalt = "espalier tls 1", kIdentity = "espalier";

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* it) const { kFree(it); }
};
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX, SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Freed<SSL, SSL_free>>;

std::string key_of(const Secret& secret, const TlsContext& purpose) {
  std::string words = ByteWriter()
                          .put(static_cast<int32_t>(purpose.caller))
                          .put(static_cast<int32_t>(purpose.callee))
                          .put(purpose.group)
                          .put(purpose.stream)
                          .raw(purpose.job)
                          .take();
  return hkdf_sha256(secret.bytes(), kSalt, words);
}

// An OpenSSL BIO over the socket. OpenSSL's own socket BIO raises SIGPIPE on a write to a closed connection.
int write_bytes(BIO* bio, const char* data, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), data,
                              static_cast<size_t>(count), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int read_bytes(BIO* bio, char* data, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), data,
                             static_cast<size_t>(count), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long control(BIO* bio, int what, long, void*) {
  if (what == BIO_CTRL_FLUSH || what == BIO_CTRL_DUP) return 1;
  return what == BIO_CTRL_EOF ? BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 : 0;
}

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "espalier socket");
    ESP_CHECK(made, "OpenSSL has no memory");
    BIO_meth_set_write(made, write_bytes);
    BIO_meth_set_read(made, read_bytes);
    BIO_meth_set_ctrl(made, control);
    BIO_meth_set_create(made, [](BIO* bio) {
      BIO_set_init(bio, 1);
      return 1;
    });
    return made;
  }();
  return method;
}

SSL_SESSION* session_with(SSL* ssl, const std::string& key) {
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher.data());
  SSL_SESSION* session = SSL_SESSION_new();
  ESP_CHECK(cipher && session, "OpenSSL has no {}", kCipherName);
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  const bool set = SSL_SESSION_set1_master_key(session, bytes, key.size()) == 1 &&
                   SSL_SESSION_set_cipher(session, cipher) == 1 &&
                   SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  ESP_CHECK(set, "OpenSSL did not accept a session with the pre-shared key");
  return session;
}

const std::string& key_in(SSL* ssl) {
  return *static_cast<const std::string*>(SSL_get_app_data(ssl));
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes, SSL_SESSION** session) {
  *session = session_with(ssl, key_in(ssl));
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *bytes = kIdentity.size();
  return 1;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  const bool known = std::string_view(reinterpret_cast<const char*>(identity), bytes) == kIdentity;
  *session = known ? session_with(ssl, key_in(ssl)) : nullptr;
  return 1;
}

Context make_context() {
  Context context(SSL_CTX_new(TLS_method()));
  ESP_CHECK(context, "OpenSSL cannot create a TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  ESP_CHECK(SSL_CTX_set_ciphersuites(context.get(), kCipherName) == 1, "OpenSSL has no {}", kCipherName);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_psk_use_session_callback(context.get(), offer_key);
  SSL_CTX_set_psk_find_session_callback(context.get(), find_key);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), kReadAheadBytes);
  return context;
}

// One OpenSSL context for all connections: it never changes, and creating one takes a millisecond.
SSL_CTX* shared_context() {
  static const Context context = make_context();
  return context.get();
}

}  // namespace

struct Tls::Impl {
  std::string key;
  int other = -1;
  Connection ssl;
  // buffer in which small parts are collected, so that they are encrypted in one record
  std::vector<std::byte> record = std::vector<std::byte>(kRecordBytes);
  size_t begun = 0;  // The first `begun` bytes of the next send are already encrypted and perhaps partly sent.

  // Return value of a send or receive that moved no bytes.
  ssize_t stopped(int result) {
    switch (SSL_get_error(ssl.get(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
      case SSL_ERROR_ZERO_RETURN:
        return 0;
      case SSL_ERROR_SYSCALL:
        errno = ECONNRESET;
        return -1;
      default: {
        std::array<char, 256> text{};
        ERR_error_string_n(ERR_get_error(), text.data(), text.size());
        ERR_clear_error();
        throw CommError(CommError::Kind::corrupt, other,
                        fmt::format("data from rank {} was not encrypted with the job's key, or was changed on the way "
                                    "({})",
                                    other, text.data()));
      }
    }
  }
};

Tls::Tls(int fd, bool calling, const Secret& secret, const TlsContext& purpose) : impl_(std::make_unique<Impl>()) {
  impl_->key = key_of(secret, purpose);
  impl_->other = calling ? purpose.callee : purpose.caller;
  impl_->ssl.reset(SSL_new(shared_context()));
  BIO* const bio = BIO_new(socket_method());
  ESP_CHECK(impl_->ssl && bio, "OpenSSL has no memory");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  SSL_set_bio(impl_->ssl.get(), bio, bio);
  SSL_set_app_data(impl_->ssl.get(), &impl_->key);
  calling ? SSL_set_connect_state(impl_->ssl.get()) : SSL_set_accept_state(impl_->ssl.get());
  // With a pre-shared key neither end requests a certificate. A peer that presents one is an impostor, so the caller
  // verifies it and fails. The callee has no certificate.
  SSL_set_verify(impl_->ssl.get(), calling ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
}

Tls::~Tls() {
  wipe(impl_->key);
}

bool Tls::handshake_done() const {
  return SSL_is_init_finished(impl_->ssl.get()) == 1;
}

ssize_t Tls::send(std::span<const iovec> parts) {
  size_t sent = 0, part = 0, at = 0;  // all parts before number `part` are sent, and `at` bytes of that part
  while (part < parts.size()) {
    if (at == parts[part].iov_len) {
      ++part;
      at = 0;
      continue;
    }
    // Builds one record: directly from the memory of a large part, or assembled from several small parts.
    const auto* data = static_cast<const std::byte*>(parts[part].iov_base) + at;
    size_t bytes = std::min(kRecordBytes, parts[part].iov_len - at);
    if (impl_->begun > 0 || bytes < kRecordBytes) {
      const size_t most = impl_->begun > 0 ? impl_->begun : kRecordBytes;
      bytes = 0;
      for (size_t i = part, from = at; i < parts.size() && bytes < most; ++i, from = 0) {
        const size_t some = std::min(most - bytes, parts[i].iov_len - from);
        std::memcpy(impl_->record.data() + bytes, static_cast<const std::byte*>(parts[i].iov_base) + from, some);
        bytes += some;
      }
      data = impl_->record.data();
    }
    size_t wrote = 0;
    ERR_clear_error();
    if (const int result = SSL_write_ex(impl_->ssl.get(), data, bytes, &wrote); result != 1) {
      const ssize_t none = impl_->stopped(result);
      // The record is encrypted and perhaps partly sent, so the next call must start with the same bytes.
      if (none < 0 && errno == EAGAIN && handshake_done()) impl_->begun = bytes;
      if (sent > 0) break;
      if (none == 0) errno = ECONNRESET;
      return -1;
    }
    impl_->begun = 0;
    sent += wrote;
    for (size_t left = wrote; left > 0;) {
      const size_t step = std::min(left, parts[part].iov_len - at);
      at += step;
      left -= step;
      if (at == parts[part].iov_len) {
        ++part;
        at = 0;
      }
    }
  }
  return static_cast<ssize_t>(sent);
}

ssize_t Tls::receive(std::span<const iovec> parts) {
  size_t got = 0;
  for (const iovec& part : parts)
    for (size_t at = 0; at < part.iov_len;) {
      size_t read = 0;
      ERR_clear_error();
      const int result =
          SSL_read_ex(impl_->ssl.get(), static_cast<std::byte*>(part.iov_base) + at, part.iov_len - at, &read);
      if (result != 1) {
        const ssize_t none = impl_->stopped(result);
        return got > 0 ? static_cast<ssize_t>(got) : none;
      }
      at += read;
      got += read;
    }
  return static_cast<ssize_t>(got);
}

}  // namespace esp::net
