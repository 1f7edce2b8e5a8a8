#include "server/http/tls_context.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "base/file.h"
#include "base/log.h"

namespace cachalot {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

constexpr int64_t kMaxPemBytes = 1 << 20;

}  // namespace

Result<std::unique_ptr<ssl::context>> LoadTlsContext(const std::string& cert_file, const std::string& key_file) {
  ASSIGN_OR_RETURN(const std::string cert, ReadTextFile(cert_file, kMaxPemBytes));
  ASSIGN_OR_RETURN(const std::string key, ReadTextFile(key_file, kMaxPemBytes));
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                           ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 | ssl::context::single_dh_use,
                       error);
  // Otherwise OpenSSL asks for the passphrase on the terminal, and waits.
  bool encrypted = false;
  context->set_password_callback(
      [&encrypted](size_t, ssl::context::password_purpose) {
        encrypted = true;
        return std::string();
      },
      error);
  context->use_certificate_chain(boost::asio::buffer(cert), error);
  if (error) return InvalidArgument("--ssl-cert-file {}: no PEM certificate that can be used: {}", cert_file, error.message());
  context->use_private_key(boost::asio::buffer(key), ssl::context::pem, error);
  if (encrypted) return InvalidArgument("--ssl-key-file {}: the key has a passphrase; one without is needed", key_file);
  SSL_CTX* native = context->native_handle();
  X509* x509 = SSL_CTX_get0_certificate(native);
  if (error) {
    // OpenSSL compares a key with the certificate at once.
    const bool other = ERR_GET_LIB(static_cast<unsigned long>(error.value())) == ERR_LIB_X509;
    if (other) return InvalidArgument("--ssl-key-file {} is not the key of --ssl-cert-file {}: {}", key_file, cert_file, error.message());
    return InvalidArgument("--ssl-key-file {}: no PEM key that can be used: {}", key_file, error.message());
  }
  if (SSL_CTX_check_private_key(native) != 1) {
    return InvalidArgument("--ssl-key-file {} is not the key of --ssl-cert-file {}", key_file, cert_file);
  }
  if (X509_cmp_current_time(X509_get0_notAfter(x509)) < 0) LOG_WARN("--ssl-cert-file {}: the certificate has expired", cert_file);
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // thousands of quiet streams
  return context;
}

Result<std::unique_ptr<ssl::context>> MakeTlsClientContext(const std::string& ca_file) {
  auto context = std::make_unique<ssl::context>(ssl::context::tls_client);
  error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                           ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
                       error);
  context->set_default_verify_paths(error);
  if (!ca_file.empty()) {
    context->load_verify_file(ca_file, error);
    if (error) return InvalidArgument("{}: no certificates: {}", ca_file, error.message());
  }
  context->set_verify_mode(ssl::verify_peer, error);
  return context;
}

}  // namespace cachalot
