/* The header in a C99 program: version, a tensor made, remapped, refused when spoilt, and pages. Exits 1 at what is wrong. */
#include "cachalot/flashinfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void expect(int ok, const char* what) {
  if (ok) return;
  printf("failed: %s (%s)\n", what, cachalot_kv_last_error());
  failures++;
}

int main(void) {
  cachalot_kv_header header;
  cachalot_kv_source source;
  cachalot_kv_pages pages;
  uint8_t* src;
  uint16_t dst[2 * 4];
  uint16_t page_memory[2 * 2 * 4];
  int32_t lengths[1] = {2}, indptr[2], last[1], indices[1] = {0};

  expect(cachalot_kv_abi_version() == CACHALOT_KV_ABI_VERSION, "the version");
  expect(cachalot_kv_check_version(CACHALOT_KV_ABI_VERSION) == CACHALOT_KV_OK, "the handshake");
  expect(cachalot_kv_check_version(CACHALOT_KV_ABI_VERSION + 1) == CACHALOT_KV_BAD_VERSION, "a version to come");
  expect(strcmp(cachalot_kv_error_text(CACHALOT_KV_OUT_OF_BOUNDS), "out of bounds") == 0, "a text");

  /* Two tokens of four INT4 values: 1, 2, 3, 4 and -8, 7, 0, -1. */
  expect(cachalot_kv_header_init(&header, CACHALOT_KV_INT4, CACHALOT_KV_PACK_LINEAR, CACHALOT_KV_SCALE_ONE, 0, 1, 1, 2, 4) == CACHALOT_KV_OK, "init");
  src = (uint8_t*)malloc((size_t)header.total_bytes);
  if (src == NULL) return 1;
  memset(src, 0, (size_t)header.total_bytes);
  memcpy(src, &header, sizeof(header));
  src[header.codes.offset + 0] = 0xa9;
  src[header.codes.offset + 1] = 0xcb;
  src[header.codes.offset + 2] = 0xf0;
  src[header.codes.offset + 3] = 0x78;
  expect(deepseek_kv_remap(src, dst, 1, 1, 2, 4, CACHALOT_KV_INT4) == CACHALOT_KV_OK, "remap");
  expect(dst[0] == 0x3c00 && dst[1] == 0x4000 && dst[2] == 0x4200 && dst[3] == 0x4400, "1, 2, 3, 4");
  expect(dst[4] == 0xc800 && dst[5] == 0x4700 && dst[6] == 0x0000 && dst[7] == 0xbc00, "-8, 7, 0, -1");

  memset(&source, 0, sizeof(source));
  source.struct_size = sizeof(source);
  source.abi_version = CACHALOT_KV_ABI_VERSION;
  source.kind = CACHALOT_KV_TENSORS;
  source.keys = source.values = src;
  source.keys_bytes = source.values_bytes = header.total_bytes;
  memset(&pages, 0, sizeof(pages));
  pages.struct_size = sizeof(pages);
  pages.abi_version = CACHALOT_KV_ABI_VERSION;
  expect(cachalot_kv_page_view(&source, &pages) == CACHALOT_KV_NOT_VIEWABLE, "INT4 cannot be viewed");
  expect(cachalot_kv_page_counts(lengths, 1, 2, indptr, last) == CACHALOT_KV_OK && indptr[1] == 1 && last[0] == 2, "counts");
  pages.layout = CACHALOT_KV_NHD;
  pages.dtype = CACHALOT_KV_DTYPE_BF16;
  pages.num_pages = 1;
  pages.page_size = 2;
  pages.kv_heads = 1;
  pages.head_dim = pages.value_dim = 4;
  pages.keys = page_memory;
  pages.values = page_memory + 8;
  pages.keys_bytes = pages.values_bytes = 16;
  pages.table.indptr = indptr;
  pages.table.indices = indices;
  pages.table.last_page_len = last;
  pages.table.batch = pages.table.num_indices = 1;
  expect(cachalot_kv_page_materialize(&source, &pages, NULL) == CACHALOT_KV_OK, "materialize");
  expect(page_memory[0] == 0x3f80 && page_memory[15] == 0xbf80, "1 and -1 as BF16");

  src[40] ^= 1;
  expect(deepseek_kv_remap(src, dst, 1, 1, 2, 4, CACHALOT_KV_INT4) == CACHALOT_KV_BAD_HEADER, "a spoilt header");
  expect(strlen(cachalot_kv_last_error()) > 0, "says why");
  free(src);
  return failures == 0 ? 0 : 1;
}
