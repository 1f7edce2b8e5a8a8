// Certificates and keys, as OpenSSL wants them. Known to the files in http/ only.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "base/status.h"

namespace cachalot {

// PEM files: a certificate with those that vouch for it behind it, and its private key (without a passphrase). Whatever is
// wrong with them shows here, not at the first connection.
Result<std::unique_ptr<boost::asio::ssl::context>> LoadTlsContext(const std::string& cert_file, const std::string& key_file);

// For a client: servers are believed that the system's certificates vouch for, or those in ca_file ("": none more).
Result<std::unique_ptr<boost::asio::ssl::context>> MakeTlsClientContext(const std::string& ca_file);

}  // namespace cachalot
