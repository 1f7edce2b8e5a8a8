#include "hub/hub_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "hub/fake_hub.h"

namespace cachalot {
namespace {

namespace asio = boost::asio;
using ::testing::HasSubstr;
using tcp = asio::ip::tcp;

TEST(HubUrl, PartsAndRefusals) {
  const auto url = ParseHubUrl("https://Host.example:8443/a/b?c=d#e");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "host.example");
  EXPECT_EQ(url->port, "8443");
  EXPECT_EQ(url->target, "/a/b?c=d");
  EXPECT_EQ(ParseHubUrl("http://[::1]:80")->Authority(), "[::1]");
  EXPECT_EQ(ParseHubUrl("http://h?x=y")->target, "/?x=y");
  EXPECT_FALSE(ParseHubUrl("https://h")->SameOrigin(*ParseHubUrl("http://h:443")));
  for (const char* bad : {"", "h/x", "ftp://h", "http://", "http://h:0", "http://h:99999", "http://h:x", "http://u:p@h/",
                          "http://h/\r\nX: y", "http://h/a b", "http://[::1"}) {
    EXPECT_FALSE(ParseHubUrl(bad).ok()) << bad;
  }
  EXPECT_EQ(ResolveHubUrl(*url, "/x")->Text(), "https://host.example:8443/x");
  EXPECT_EQ(ResolveHubUrl(*url, "//other/x")->Text(), "https://other/x");
  EXPECT_EQ(EscapeUrlPath("a b/ä?#%.gguf"), "a%20b/%C3%A4%3F%23%25.gguf");
}

Status GetStatus(const std::string& url, HubHttpOptions options = {}, std::string* body = nullptr) {
  HubHttp http(std::move(options));
  int status = 0;
  RETURN_IF_ERROR(http.Get({.url = ParseHubUrl(url).value()},
                           [&](const HubResponseHead& head) {
                             status = head.status;
                             return Status::Ok();
                           },
                           [&](std::span<const std::byte> piece) {
                             if (body != nullptr) body->append(reinterpret_cast<const char*>(piece.data()), piece.size());
                             return Status::Ok();
                           }));
  return status == 200 ? Status::Ok() : NotFound("status {}", status);
}

TEST(HubHttp, WhatIsNoHttp) {
  FakeHub hub;
  std::string answer;
  hub.SetHook([&](const FakeAsk&, int) -> std::optional<FakeAnswer> { return FakeAnswer{answer}; });
  for (const std::string& bad :
       {std::string(), std::string("nonsense\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n",
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")}) {
    answer = bad;
    EXPECT_FALSE(GetStatus(hub.url()).ok()) << bad.substr(0, 60);
  }
  std::string body;
  answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  EXPECT_TRUE(GetStatus(hub.url(), {}, &body).ok());
  EXPECT_EQ(body, "abcde");
}

TEST(HubHttp, Silence) {
  FakeHub hub;
  hub.SetHook([](const FakeAsk&, int) -> std::optional<FakeAnswer> { return FakeAnswer{"HTTP/1.1 ", 20'000}; });
  EXPECT_EQ(GetStatus(hub.url(), {.stall_timeout_ms = 100}).code(), StatusCode::kDeadline);
  EXPECT_EQ(GetStatus(hub.url(), {.cancelled = [] { return true; }}).code(), StatusCode::kCancelled);
}

// A certificate for "localhost" that signs itself.
class TlsServer {
 public:
  explicit TlsServer(const std::string& folder) : certificate_(folder + "/certificate.pem") {
    EVP_PKEY* key = EVP_RSA_gen(2048);
    X509* x509 = X509_new();
    X509_set_version(x509, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
    X509_set_pubkey(x509, key);
    X509_NAME* name = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(x509, name);
    for (const auto& [id, value] : {std::pair{NID_subject_alt_name, "DNS:localhost"}, {NID_basic_constraints, "CA:TRUE"}}) {
      X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
      X509_add_ext(x509, extension, -1);
      X509_EXTENSION_free(extension);
    }
    X509_sign(x509, key, EVP_sha256());
    BIO* bio = BIO_new_file(certificate_.c_str(), "w");
    PEM_write_bio_X509(bio, x509);
    BIO_free(bio);
    SSL_CTX_use_certificate(tls_.native_handle(), x509);
    SSL_CTX_use_PrivateKey(tls_.native_handle(), key);
    X509_free(x509);
    EVP_PKEY_free(key);
    thread_ = std::thread([this] { Serve(); });
  }
  ~TlsServer() {
    stop_ = true;
    boost::system::error_code ignored;
    tcp::socket(context_).connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }
  std::string port() const { return std::to_string(acceptor_.local_endpoint().port()); }
  const std::string& certificate() const { return certificate_; }

 private:
  void Serve() {
    for (;;) {
      boost::system::error_code error;
      tcp::socket socket(context_);
      acceptor_.accept(socket, error);
      if (stop_) return;
      asio::ssl::stream<tcp::socket> stream(std::move(socket), tls_);
      stream.handshake(asio::ssl::stream_base::server, error);
      if (error) continue;
      asio::streambuf request;
      asio::read_until(stream, request, "\r\n\r\n", error);
      asio::write(stream, asio::buffer(std::string("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")), error);
      stream.shutdown(error);
    }
  }

  std::string certificate_;
  asio::io_context context_;
  asio::ssl::context tls_{asio::ssl::context::tls_server};
  tcp::acceptor acceptor_{context_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(HubHttp, CertificatesAreVerified) {
  const std::string folder = testing::TempDir() + "hub_http_tls";
  std::filesystem::create_directories(folder);
  const TlsServer server(folder);
  // Nobody we trust has signed it.
  EXPECT_THAT(GetStatus("https://localhost:" + server.port()).message(), HasSubstr("certificate"));
  // Trusted, but for another name.
  EXPECT_FALSE(GetStatus("https://127.0.0.1:" + server.port(), {.ca_file = server.certificate()}).ok());
  std::string body;
  const Status status = GetStatus("https://localhost:" + server.port(), {.ca_file = server.certificate()}, &body);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(body, "secret");
  // Redirects from there to what is not encrypted are refused in HubHttp::Get: see hub_download_test for the others.
  EXPECT_FALSE(GetStatus("http://localhost:" + server.port()).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cachalot
