list(APPEND KERNEL_SOURCES kv_remap/kv_remap.cc kv_remap/kv_remap_cuda.cc kv_remap/kv_remap_ref.cc)
list(APPEND KERNEL_AVX2 kv_remap/kv_remap_avx2.cc)
list(APPEND KERNEL_TESTS kv_remap/kv_remap_test.cc)
