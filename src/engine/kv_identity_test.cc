// What names the contents of KV caches in files.
#include "engine/kv_identity.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace cachalot {
namespace {

namespace fs = std::filesystem;

template <typename T>
void Append(const T& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A shared library, as far as anybody looks at it here. id "": without a build id.
std::string Library(const std::string& id, const std::string& body) {
  std::string notes;
  const auto add = [&](uint32_t type, std::string_view name, const std::string& text) {
    Append(Elf64_Nhdr{static_cast<Elf64_Word>(name.size()), static_cast<Elf64_Word>(text.size()), type},
           &notes);
    notes += name;
    notes.resize((notes.size() + 3) / 4 * 4);
    notes += text;
    notes.resize((notes.size() + 3) / 4 * 4);
  };
  add(1, "stapsdt", "of somebody else");
  if (!id.empty()) add(NT_GNU_BUILD_ID, std::string_view("GNU", 4), id);
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  Elf64_Phdr load = {}, note = {};
  load.p_type = PT_LOAD;
  note.p_type = PT_NOTE;
  note.p_offset = sizeof(header) + 2 * sizeof(note);
  note.p_filesz = notes.size();
  std::string file;
  Append(header, &file);
  Append(load, &file);
  Append(note, &file);
  return file + notes + body;
}

class KvOriginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(::testing::TempDir()) / fmt::format("cachalot_kv_origin_{}", ::getpid());
  }
  void TearDown() override { fs::remove(path_); }
  std::string OriginWith(const std::string& library) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << library;
    const auto origin = KvOrigin("", path_.string());
    EXPECT_TRUE(origin.ok()) << origin.status().ToString();
    return *origin;
  }
  fs::path path_;
};

TEST_F(KvOriginTest, ALibraryIsItsBuildId) {
  const std::string one(20, 'a'), two(20, 'b');
  const std::string origin = OriginWith(Library(one, "kernels"));
  EXPECT_EQ(OriginWith(Library(one, "kernels")), origin);
  EXPECT_EQ(OriginWith(Library(one, "KERNELS")), origin) << "the rest is not read";
  EXPECT_NE(OriginWith(Library(two, "kernels")), origin);
  EXPECT_NE(OriginWith(Library(one, "more kernels")), origin) << "of another size";
  EXPECT_NE(*KvOrigin("", ""), origin);
  EXPECT_FALSE(KvOrigin("", path_.string() + "/nowhere").ok());
}

TEST_F(KvOriginTest, WithoutABuildIdItIsItsBytes) {
  for (const std::string& before : {Library("", ""), std::string("no library: "), std::string()}) {
    const std::string origin = OriginWith(before + "kernels");
    EXPECT_EQ(OriginWith(before + "kernels"), origin);
    EXPECT_NE(OriginWith(before + "KERNELS"), origin);
  }
  // Damaged headers are bytes like any others.
  std::string damaged = Library(std::string(20, 'a'), "kernels");
  for (const size_t at : {offsetof(Elf64_Ehdr, e_phoff) + 6,
                          sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_filesz) + 5,
                          sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_offset) + 4}) {
    std::string bad = damaged;
    bad[at] = static_cast<char>(0x7f);
    const std::string origin = OriginWith(bad);
    bad.back() = 'S';
    EXPECT_NE(OriginWith(bad), origin) << at;
  }
}

}  // namespace
}  // namespace cachalot
